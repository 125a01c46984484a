"""The rules of the source: who imports whom, where OpenGL and GLSL are, and what no file may do.

Each rule is run over the package, and over planted bad source. test_quiet.py watches what a run reaches for.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter

from own_process import ROOT, ran

from glinfer.families import FAMILIES

PUBLIC = "__init__"  # glinfer/__init__.py: load(), generate(), stream()
# A room may import itself and every room to its left.
ORDER = (
    *("errors", "closing", "limits", "terminal", "notebook", "families", "config", "quant", "graph", "gl"),
    *("kernels", "program", "lower", "tensors", "engine", PUBLIC, "inspect", "export", "server", "jobs", "ray"),
    *("cli", "llm_plugin", "__main__"),
)
ROOMS = {room: set(ORDER[: place + 1]) for place, room in enumerate(ORDER)}
# Beside the others, and never with OpenGL: files and shapes; names, files and the network; tokenizers and templates;
# which tokens a structure allows. Each knows settings and the rooms named, and those from one room on may use it.
SETTINGS = {"errors", "limits", "terminal", "families", "config", "quant", "graph"}
for beside, known, first in (
    ("formats", set(), "program"),
    ("hub", {"formats"}, "engine"),
    ("text", {"formats"}, "engine"),
    ("structured", {"formats", "text"}, "engine"),
):
    for later in ORDER[ORDER.index(first) :]:
        ROOMS[later].add(beside)
    ROOMS[beside] = {*SETTINGS, *known, beside}
# families know files by settings that are handed to them, and nothing else.
ROOMS["families"] = {"families", "errors", "limits"}

# Where "gpt2" and "llama" are GGUF's names of two kinds of tokenizers.
TOKENIZER_KINDS = ("formats/gguf/vocabulary.py", "text/tokenizers/gguf.py", "text/tokenizers/slow.py")
GL_LIBRARIES = {"moderngl", "glcontext", "ctypes"}
GLSL = re.compile(r"#version 3|gl_FragCoord|texelFetch\(")
BESIDE = {"qa", "tests"}
MAX_LINES = 700

# What may be imported, by the distributions that the wheel asks for; test_wheel.py compares with its metadata.
CORE = {"moderngl", "glcontext", "numpy", "safetensors", "tokenizers", "jinja2", "click", "rich"}
OF_CORE = CORE | {"markupsafe"}  # Jinja's own, of which Jinja gives out no other name
EXTRAS = {
    *("gguf", "llguidance", "matplotlib", "pyarrow", "starlette", "uvicorn", "httptools", "pydantic"),
    *("prometheus_client", "huggingface_hub", "PIL", "llm"),
}
CODE = {"eval", "exec", "compile", "__import__"}
PICKLES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
RUNNERS = {"code", "codeop", "runpy", "imp", "pty", "multiprocessing", "concurrent", "asyncio", "subprocess"}
NETWORK = {
    *("socket", "ssl", "socketserver", "select", "selectors", "http", "urllib", "ftplib", "smtplib", "poplib"),
    *("imaplib", "telnetlib", "xmlrpc", "webbrowser", "wsgiref", "requests", "httpx", "urllib3", "aiohttp"),
    *("websockets", "huggingface_hub"),
}
OF_OS = ("system", "popen", "exec", "spawn", "posix_spawn", "fork", "startfile")
PRINTING = {"print", "Console", "rich.print", "rich.console.Console"}
PRINTING |= {f"click.{name}" for name in ("echo", "secho", "echo_via_pager", "prompt", "confirm", "progressbar")}
ATTRIBUTES = {name.rpartition(".")[2] for name in PRINTING} | {"write", "print_exc"}
SWITCHES = {"shell": False, "allow_pickle": False, "weights_only": True, "trust_remote_code": False}

ALLOWED = {
    # The process in which a chat template is rendered, by an argument list and never by a shell.
    ("text/own_process.py", "subprocess"),
    ("text/limited.py", "runpy"),  # a script of the package, in such a process
    ("cli/tour.py", "webbrowser"),  # opens the page that it wrote
    # `glinfer serve-web` answers browsers on the loopback address.
    ("export/serve.py", "http"),
    # `glinfer serve` listens where it is told to, and has an event loop; it parses Host and Origin.
    ("server/run.py", "socket"),
    *((f"server/{name}.py", "asyncio") for name in ("connections", "off_loop", "run", "streaming", "worker")),
    ("server/off_loop.py", "concurrent"),  # threads, and no processes
    ("engine/threaded.py", "asyncio"),
    ("engine/threaded.py", "concurrent"),
    ("llm_plugin.py", "asyncio"),
    # Batches ask the same routes, without a network.
    ("jobs/local.py", "asyncio"),
    # A process for each device, by an argument list and never by a shell.
    ("jobs/process.py", "subprocess"),
    ("jobs/claims.py", "subprocess"),
    ("ray/member.py", "socket"),  # to find out whether a cluster answers
    ("server/connections.py", "http"),  # names of status codes
    ("server/auth.py", "urllib"),
    # Models by name: the one client of a network, and the parts of addresses.
    *((f"hub/{name}.py", "huggingface_hub") for name in ("cache", "client")),
    ("hub/client.py", "urllib"),
    ("hub/names.py", "urllib"),
    # Names from a table beside the call.
    ("__init__.py", "import_module"),
    ("cli/app.py", "import_module"),
    ("families/__init__.py", "import_module"),
    ("errors.py", "import_module"),  # required(), whose callers write the name out
    ("engine/tour.py", "import_module"),  # the exporter, a later room, when a notebook asks for the page
    # The one place that prints; the bars of rich; JSON on a pipe to the process that asked for it.
    ("terminal.py", "click.echo"),
    ("cli/common.py", "Console"),
    ("gl/cuda.py", "print"),
}

Nodes = tuple[ast.AST, ...]
Found = Iterator[tuple[int, str]]
"""Lines, and what is wrong there."""


@cache
def package_sources() -> dict[str, str]:
    """The text of every module, by its path inside glinfer/."""
    package = ROOT / "glinfer"
    found = {file.relative_to(package).as_posix(): file.read_text("utf-8") for file in sorted(package.rglob("*.py"))}
    assert "errors.py" in found, "the package was not found: nothing would be checked"
    return found


@cache
def nodes_of(source: str) -> Nodes:
    """All nodes of its syntax tree."""
    return tuple(ast.walk(ast.parse(source)))


def imports(nodes: Nodes) -> Found:
    """Line and full name of every absolute import; ``from a import b`` gives ``a.b``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def late_imports(nodes: Nodes) -> Found:
    """The names in calls such as ``importlib.import_module("a.b")``; computed ones give the name of the function."""
    for node in nodes:
        if isinstance(node, ast.Call) and _called(node) in ("import_module", "required", "__import__") and node.args:
            name = node.args[0]
            yield node.lineno, str(name.value) if isinstance(name, ast.Constant) else _called(node)


@cache
def all_imports(source: str) -> list[tuple[int, str]]:
    return [*imports(nodes_of(source)), *late_imports(nodes_of(source))]


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def room_of(path: str) -> str:
    """``gl/texture.py`` → ``gl``, ``errors.py`` → ``errors``."""
    return path.partition("/")[0].removesuffix(".py")


def imported_room(name: str) -> str | None:
    """The room of a dotted name: ``glinfer.gl.texture`` → ``gl``, ``glinfer.load`` → PUBLIC; None outside glinfer."""
    top, *rest = name.split(".")
    if top != "glinfer":
        return None
    return rest[0] if rest and rest[0] in ROOMS else PUBLIC


def wrong_direction(path: str, source: str) -> Found:
    """Imports of a room that this file's room may not know, and files in no known room."""
    room = room_of(path)
    if room not in ROOMS:
        yield 1, f"{room!r} is not a room of this house; give it a place in ORDER first"
        return
    for line, name in all_imports(source):
        if (target := imported_room(name)) is not None and target not in ROOMS[room]:
            yield line, f"{room} may not import {name}"


def builders_imported(path: str, source: str) -> Found:
    """Imports of what is beside the package in the checkout, and not in the wheel."""
    yield from ((line, name) for line, name in all_imports(source) if name.split(".")[0] in BESIDE)


def relative_imports(path: str, source: str) -> Found:
    for node in nodes_of(source):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            yield node.lineno, "relative import"


def gl_outside_its_room(path: str, source: str) -> Found:
    """Imports of the OpenGL libraries, or of ctypes, anywhere but in glinfer/gl."""
    if room_of(path) != "gl":
        yield from ((line, name) for line, name in all_imports(source) if name.split(".")[0] in GL_LIBRARIES)


def glsl_in_python(path: str, source: str) -> Found:
    """Shader source inside a Python file; it belongs in shaders/."""
    yield from ((number, line) for number, line in enumerate(source.splitlines(), 1) if GLSL.search(line))


def family_named(path: str, source: str) -> Found:
    """The name of a family, or its record, outside the room of families: what is known of one is in its record."""
    if room_of(path) == "families" or path in TOKENIZER_KINDS:
        return
    for node in nodes_of(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in FAMILIES:
            yield node.lineno, repr(node.value)
    records = tuple(f"glinfer.families.{name}" for name in FAMILIES)
    yield from ((line, name) for line, name in all_imports(source) if name.startswith(records))


def name_of_a_room(path: str, source: str) -> Found:
    """Names in glinfer/__init__.py that a room replaces when it is imported, as ``inspect`` would be."""
    for node in nodes_of(source) if path == "__init__.py" else ():
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.asname or alias.name for alias in node.names}
            yield from ((node.lineno, name) for name in names & ROOMS.keys())


def too_long(path: str, source: str) -> Found:
    if (lines := len(source.splitlines())) > MAX_LINES:
        yield lines, f"split it (at most {MAX_LINES} lines)"


def text_as_code(path: str, source: str) -> Found:
    """Names that run text as code, called or passed on; and modules that are imported by a computed name."""
    for node in nodes_of(source):
        if isinstance(node, ast.Name) and node.id in CODE:
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "builtins":
            yield node.lineno, ast.unparse(node)
    yield from (each for each in late_imports(nodes_of(source)) if each[1] in ("import_module", "required"))


def modules_that_do_too_much(path: str, source: str) -> Found:
    """Imports of what unpickles, starts processes or speaks to others."""
    for line, name in imports(nodes_of(source)):
        if (root := name.split(".")[0]) in PICKLES | RUNNERS | NETWORK:
            yield line, root


def processes(path: str, source: str) -> Found:
    """What of ``os`` starts a process, imported by name or used."""
    nodes = nodes_of(source)
    used = ((n.lineno, ast.unparse(n)) for n in nodes if isinstance(n, ast.Attribute) and n.attr.startswith(OF_OS))
    for line, name in (*imports(nodes), *used):
        module, _, what = name.rpartition(".")
        if module == "os" and what.startswith(OF_OS):
            yield line, name


def unsafe_switches(path: str, source: str) -> Found:
    """Options set to what runs a shell, or code that came with data; a computed value may be either."""
    for node in nodes_of(source):
        if isinstance(node, ast.keyword) and node.arg in SWITCHES:
            if not (isinstance(node.value, ast.Constant) and node.value.value is SWITCHES[node.arg]):
                yield node.value.lineno, f"{node.arg}={ast.unparse(node.value)}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"yaml.load", "tempfile.mktemp"}:
            yield node.lineno, ast.unparse(node.func)


def undeclared(path: str, source: str) -> Found:
    """Imports of what neither Python nor the wheel brings along; what is for a type checker alone is not run."""
    nodes = nodes_of(source)
    checked = [node for node in nodes if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"]
    unseen = {
        line for node in checked for line, _ in imports(tuple(each for part in node.body for each in ast.walk(part)))
    }
    for line, name in imports(nodes):
        root = name.split(".")[0]
        if line not in unseen and root not in sys.stdlib_module_names | OF_CORE | EXTRAS | {"glinfer", "__future__"}:
            yield line, root


def prints(path: str, source: str) -> Found:
    """Output that does not go through ``emit`` of glinfer/terminal.py, which shows what a terminal would obey."""
    for node in nodes_of(source):
        if isinstance(node, ast.Name) and node.id in PRINTING:
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            name = ast.unparse(node)
            if name in PRINTING or name.endswith((".stdout.write", ".stderr.write", ".print_exc")):
                yield node.lineno, name
        elif isinstance(node, ast.ImportFrom) and node.module == "click":
            yield from ((node.lineno, each.name) for each in node.names if f"click.{each.name}" in PRINTING)


RULES: tuple[Callable[[str, str], Found], ...] = (
    *(wrong_direction, builders_imported, relative_imports, gl_outside_its_room, glsl_in_python, family_named),
    *(name_of_a_room, too_long, text_as_code, modules_that_do_too_much, processes, unsafe_switches, undeclared, prints),
)


def test_the_package_keeps_the_rules() -> None:
    complaints, used = [], set()
    for path, source in package_sources().items():
        for rule in RULES:
            for line, what in rule(path, source):
                used.add((path, what))
                if (path, what) not in ALLOWED:
                    complaints.append(f"glinfer/{path}:{line}: {what} ({rule.__name__})")
    assert not complaints, "\n".join(complaints)
    assert used >= ALLOWED, "an exception is not needed any more"


BAD = (
    (wrong_direction, "errors.py", "import glinfer.config"),
    (wrong_direction, "config.py", "from glinfer.gl.context import Limits"),
    (wrong_direction, "gl/texture.py", "from glinfer.kernels import linear"),
    (wrong_direction, "__init__.py", "def load():\n    from glinfer.inspect import verify"),
    (wrong_direction, "inspect/bench/reference.py", "import importlib\nimportlib.import_module('glinfer.cli')"),
    (wrong_direction, "attic/old.py", "import math"),
    (builders_imported, "inspect/bench/engines.py", "from qa.peers.peer import open_peers"),
    (builders_imported, "cli/app.py", "import_module('tests.counting')"),
    (relative_imports, "program/session.py", "from . import plan"),
    (gl_outside_its_room, "program/session.py", "import moderngl"),
    (gl_outside_its_room, "inspect/bench/reference.py", "__import__('moderngl')"),
    (glsl_in_python, "gl/program.py", 'HEADER = "#version 300 es"'),
    (family_named, "lower/plans.py", "published = config.model_type == 'gpt2'"),
    (family_named, "formats/gguf/model.py", "from glinfer.families.llama import GGUF"),
    (name_of_a_room, "__init__.py", "import inspect"),
    (too_long, "kernels/published/linear.py", "x = 1\n" * (MAX_LINES + 1)),
    (text_as_code, "m.py", "import builtins\nbuiltins.exec(text)"),
    (processes, "m.py", "import os\nos.system('ls')"),
    (processes, "m.py", "from os import popen"),
    (processes, "m.py", "import os\nos.execvp(name, arguments)"),
    (unsafe_switches, "m.py", "subprocess.run(line, shell=True)"),
    (unsafe_switches, "m.py", "subprocess.run(line, shell=choice)"),
    (unsafe_switches, "m.py", "np.load(path, allow_pickle=True)"),
    (unsafe_switches, "m.py", "torch.load(path, weights_only=False)"),
    (unsafe_switches, "m.py", "yaml.load(text)"),
    (undeclared, "m.py", "import scipy.sparse"),
    (undeclared, "m.py", "def late():\n    from cv2 import imread"),
)


def test_the_rules_catch_bad_source() -> None:
    """Of what needs no exception above; that good source passes, the package shows."""
    for rule, path, source in BAD:
        assert len(list(rule(path, source))) == 1, (path, source)


# Cycles


def import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules among ``sources`` that each of them imports: at the top, late, or for type checkers alone."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        graph[module] = set()
        for _, name in all_imports(source):
            while name and name not in sources:
                name = name.rpartition(".")[0]  # ``from a import b``: b may be a module, or in a
            if name and name != module:
                graph[module].add(name)
    return graph


def cycle(sources: Mapping[str, str]) -> list[str]:
    """A cycle of modules that import the next one, the first also at the end; empty without a cycle."""
    try:
        TopologicalSorter(import_graph(sources)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def module_of(path: str) -> str:
    """``glinfer/gl/texture.py`` → ``glinfer.gl.texture``, ``glinfer/gl/__init__.py`` → ``glinfer.gl``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_no_module_imports_itself_through_others() -> None:
    assert cycle({module_of(f"glinfer/{path}"): source for path, source in package_sources().items()}) == []


def test_no_instrument_imports_itself_through_others() -> None:
    paths = {path.relative_to(ROOT): path for path in (ROOT / "qa").rglob("*.py")}
    texts = {name.as_posix(): path.read_text("utf-8") for name, path in paths.items() if "tests" not in name.parts}
    # The others cannot be part of a cycle.
    sources = {module_of(name): text for name, text in texts.items() if re.search(r"(import|from) qa\b|\"qa\.", text)}
    assert "qa.supply" in sources, "found no instruments: nothing would be checked"
    assert cycle(sources) == []


def test_a_planted_cycle_is_found() -> None:
    sources = {
        "glinfer.gl": "from glinfer.gl.texture import Texture",
        "glinfer.gl.texture": "if TYPE_CHECKING:\n    from glinfer.gl.context import Device",
        "glinfer.gl.context": "def late():\n    from glinfer.gl import memory",
        "glinfer.gl.memory": "import glinfer.gl.texture\nfrom glinfer.errors import GLError",
        "glinfer.errors": "import json",
    }
    assert {*cycle(sources)} == {"glinfer.gl.context", "glinfer.gl.memory", "glinfer.gl.texture"}
    sources["glinfer.gl.memory"] = "from glinfer.errors import GLError"
    assert cycle(sources) == []


# What a process has loaded


def test_gl_comes_with_what_needs_it_first() -> None:
    """Of the package neither by itself nor by its settings, files and samplers; tensors bring it when asked for."""
    said = ran(
        "import sys\n"
        "names = ('libEGL', 'libGL', 'libgallium', 'swrast')\n"
        "def opened():\n"
        "    loaded, mapped = {'moderngl', 'glcontext'} & set(sys.modules), open('/proc/self/maps').read()\n"
        "    print(*sorted(loaded), *[name for name in names if name in mapped])\n"
        "import glinfer, glinfer.cli, glinfer.config, glinfer.formats\n"
        "assert {'Device', 'Sampler', 'SamplingOptions', 'Tensor'} <= set(dir(glinfer)) & set(glinfer.__all__)\n"
        "assert glinfer.Sampler(glinfer.SamplingOptions(temperature=0)).sample([0.0, 1.0]) == 1\n"
        "opened()\n"
        "from glinfer import Tensor\n"
        "assert glinfer.Device is glinfer.Device and glinfer.Tensor is Tensor\n"
        "opened()\n"
    )
    assert said[0] == ""
    assert "moderngl" in said[1]


def test_a_command_begins_without_slow_imports() -> None:
    """Ctrl-C prints a traceback until :func:`glinfer.cli.main` runs, so little may be imported before it."""
    said = ran(
        "import sys\n"
        "before = {*sys.modules}\n"
        "import glinfer.cli\n"
        "print(*sorted({'inspect', 'json', 'numpy', 'click'} & {*sys.modules} - before))\n"
    )
    assert said == [""]


def test_generate_imports_only_what_a_text_needs() -> None:
    """No tables or bars, templates, optional packages or databases, nor the parts of other commands."""
    said = ran(
        "import sys\n"
        "before = {*sys.modules}\n"  # of the interpreter, such as sitecustomize of Debian's
        "import glinfer.cli.generate\n"
        "names = {*sys.modules} - before\n"
        "print(*sorted({name.partition('.')[0] for name in names} - sys.stdlib_module_names))\n"
        "print(*sorted({'sqlite3', 'asyncio', 'statistics', 'http', 'multiprocessing'} & names))\n"
        "parts = ('export', 'jobs', 'server', 'ray', 'tensors', 'inspect.info', 'inspect.bench', 'llm_plugin')\n"
        "print(*[part for part in parts if f'glinfer.{part}' in names])\n"
        "print(*sorted(name for name in names if name.startswith('glinfer.cli.')))\n"
    )
    own = "_moderngl click glcontext glinfer moderngl numpy safetensors tokenizers"
    assert {*said[0].split()} <= {*own.split()}
    assert said[1:3] == ["", ""]
    assert said[3].split() == ["glinfer.cli.common", "glinfer.cli.generate", "glinfer.cli.options"]
