"""Rendering of one chat template in a process of its own, since a template is an untrusted program.

Run as a script by :mod:`glinfer.text.templates`, with one JSON object on standard input and one on standard
output. Nothing of glinfer is imported here, so that the process starts quickly. :func:`render` is what it does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


def limit(seconds: int, memory: int) -> None:
    """Limit the processor seconds and the memory of this process, if the system can."""
    try:
        import resource
    except ImportError:  # not on Windows, where the time limit of the parent is all there is
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can be written to


def compiled(source: str) -> Template:
    """Compile a template with the settings, tests and functions of transformers.

    Raises:
        Exception: of any kind, as jinja2 raises them.
    """
    import jinja2.ext
    from jinja2.nodes import Node, Scope
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """``{% generation %}…{% endgeneration %}``: marks for training, nothing here."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 has it so)

        def parse(self, parser: Parser) -> Node:
            line = next(parser.stream).lineno
            return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)

    def raise_exception(message: object) -> None:
        raise jinja2.TemplateError(str(message))

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Sequence[str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        pair = None if separators is None else (separators[0], separators[1])
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def text_of(template: Template, variables: Mapping[str, Any], most: int) -> str:
    """Run a compiled template; as :func:`render`, which compiles it first."""
    pieces, length = [], 0
    for piece in template.generate(**variables):
        pieces.append(piece)
        length += len(piece)
        if length > most:
            raise OverflowError(f"its text has more than {most} characters")
    return "".join(pieces)


def render(source: str, variables: Mapping[str, Any], most: int) -> str:
    """Render a template with the settings, tests and functions of transformers.

    Args:
        source: the template.
        variables: what it can name: ``messages``, ``add_generation_prompt``, ``bos_token``, …
        most: characters that the text may have.

    Raises:
        Exception: of any kind, as jinja2 and what a template calls raise them.
    """
    return text_of(compiled(source), variables, most)


def answer(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of a request's template, or its error in one line."""
    try:
        return {"text": render(request["source"], request["variables"], request["most"])}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except RecursionError:
        return {"error": "it calls itself without end, or is nested too deep"}
    except Exception as error:
        line = getattr(error, "lineno", None)
        return {"error": (str(error) or type(error).__name__) + (f" (line {line})" if line else "")}


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    limit(request["seconds"], request["memory"])
    json.dump(answer(request), sys.stdout)


if __name__ == "__main__":
    main()
