"""Chat templates that mean harm."""

from __future__ import annotations

from pathlib import Path

from template_models import CHATML

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS_FOR_SOME = f"{{% if 'forever' in messages[0].content %}}{ENDLESS}{{% endif %}}{CHATML}"
"""A template that is tried out without harm, as every template is when its model is loaded."""
GROWING = "{% set n = namespace(x='aaaa') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"


def runs(marker: Path) -> str:
    """One that makes a file by a command, in the way of the first exploits of llama-cpp-python and SGLang."""
    return (
        "{% for x in ().__class__.__base__.__subclasses__() %}{% if 'warning' in x.__name__ %}"
        "{{ x()._module.__builtins__['__import__']('os').popen('touch " + str(marker) + "').read() }}"
        "{% endif %}{% endfor %}"
    )


def ways_to_run(marker: Path) -> list[str]:
    """Templates that would run a command where nothing stops them."""
    touch = f"touch {marker}"
    return [
        runs(marker),
        f"{{{{ cycler.__init__.__globals__.os.system('{touch}') }}}}",
        f"{{{{ lipsum.__globals__['os'].popen('{touch}').read() }}}}",
        f"{{{{ self.__init__.__globals__.__builtins__.__import__('os').system('{touch}') }}}}",
        f"{{{{ (namespace | attr('__init__')).__globals__['sys'].modules['os'].system('{touch}') }}}}",
        f"{{{{ raise_exception.__globals__['__builtins__']['exec'](\"import os; os.system('{touch}')\") }}}}",
        "{{ messages.__class__.__mro__[1].__subclasses__() | map(attribute='__init__.__globals__') | list }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    ]
