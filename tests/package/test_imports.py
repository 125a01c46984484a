"""The house rules that can be read off the source: who imports whom, where OpenGL lives, no GLSL in Python.

Every rule is a function from (path inside glinfer/, source text) to a list of complaints. It runs over the
real package, and over planted bad source, which it has to complain about.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

from own_process import ran
from sources import ROOT, Nodes, nodes_of, package_sources

from glinfer.families import FAMILIES

PUBLIC = "__init__"  # glinfer/__init__.py: load(), generate(), stream()
# A room may import itself and every room to its left.
ORDER = (
    *("errors", "closing", "limits", "terminal", "notebook", "families", "config", "quant", "graph", "gl"),
    *("kernels", "program", "lower", "tensors", "engine", PUBLIC, "inspect", "export", "server", "jobs", "ray"),
    *("cli", "llm_plugin", "__main__"),
)
ALLOWED = {room: set(ORDER[: place + 1]) for place, room in enumerate(ORDER)}
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
        ALLOWED[later].add(beside)
    ALLOWED[beside] = {*SETTINGS, *known, beside}
# families know files by settings that are handed to them, and nothing else.
ALLOWED["families"] = {"families", "errors", "limits"}

# Where "gpt2" and "llama" are GGUF's names of two kinds of tokenizers.
TOKENIZER_KINDS = ("formats/gguf/vocabulary.py", "text/tokenizers/gguf.py", "text/tokenizers/slow.py")
GL_LIBRARIES = {"moderngl", "glcontext", "ctypes"}
GLSL = re.compile(r"#version 3|gl_FragCoord|texelFetch\(")
BESIDE = {"qa", "tests"}
MAX_LINES = 700


def room_of(path: PurePosixPath) -> str:
    """``gl/texture.py`` → ``gl``, ``errors.py`` → ``errors``."""
    return path.parts[0].removesuffix(".py")


def imported_names(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every absolute import; ``from a import b`` gives ``a.b``.

    ``importlib.import_module("a.b")`` and ``__import__("a.b")`` count too when the name is written out.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rpartition(".")[2]
            name = node.args[0]
            if called in {"import_module", "required", "__import__"} and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value)


def imported_room(name: str) -> str | None:
    """The room that a dotted name lies in: ``glinfer.gl.texture`` → ``gl``; None outside glinfer.

    What glinfer itself offers (``import glinfer``, ``from glinfer import load``) is the room PUBLIC.
    """
    top, *rest = name.split(".")
    if top != "glinfer":
        return None
    return rest[0] if rest and rest[0] in ALLOWED else PUBLIC


def wrong_direction(path: PurePosixPath, source: str) -> list[str]:
    """Imports of a room that this file's room may not know, and files in no known room."""
    room = room_of(path)
    if room not in ALLOWED:
        return [f"glinfer/{path}: {room!r} is not a room of this house; give it a place in ORDER first"]
    return [
        f"glinfer/{path}:{line}: {room} may not import {name}"
        for line, name in imported_names(nodes_of(source))
        if (target := imported_room(name)) is not None and target not in ALLOWED[room]
    ]


def builders_imported(path: PurePosixPath, source: str) -> list[str]:
    """Imports of what lies beside the package in the checkout, and is not in the wheel."""
    return [
        f"glinfer/{path}:{line}: imports {name}, which is not in the wheel"
        for line, name in imported_names(nodes_of(source))
        if name.split(".")[0] in BESIDE
    ]


def relative_imports(path: PurePosixPath, source: str) -> list[str]:
    """Imports that begin with a dot."""
    return [
        f"glinfer/{path}:{node.lineno}: relative import"
        for node in nodes_of(source)
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]


def gl_outside_its_room(path: PurePosixPath, source: str) -> list[str]:
    """Imports of the OpenGL libraries, or of ctypes, anywhere but in glinfer/gl."""
    if room_of(path) == "gl":
        return []
    return [
        f"glinfer/{path}:{line}: imports {name}; only glinfer/gl may"
        for line, name in imported_names(nodes_of(source))
        if name.split(".")[0] in GL_LIBRARIES
    ]


def glsl_in_python(path: PurePosixPath, source: str) -> list[str]:
    """Shader source inside a Python file; it belongs in shaders/."""
    return [
        f"glinfer/{path}:{number}: GLSL: {line.strip()}"
        for number, line in enumerate(source.splitlines(), 1)
        if GLSL.search(line)
    ]


def family_named(path: PurePosixPath, source: str) -> list[str]:
    """The name of a family, or its record, outside the room of families: what is known of one is in its record."""
    if room_of(path) == "families" or str(path) in TOKENIZER_KINDS:
        return []
    nodes = nodes_of(source)
    found = [
        (node.lineno, repr(node.value))
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in FAMILIES
    ]
    records = {f"glinfer.families.{name}" for name in FAMILIES}
    found += [(line, name) for line, name in imported_names(nodes) if any(name.startswith(each) for each in records)]
    return [f"glinfer/{path}:{line}: {name}; ask the record of the family" for line, name in found]


def name_of_a_room(path: PurePosixPath, source: str) -> list[str]:
    """Names in glinfer/__init__.py that a room replaces when it is imported, as ``inspect`` would be."""
    if str(path) != "__init__.py":
        return []
    bound = [
        (node.lineno, alias.asname or alias.name)
        for node in nodes_of(source)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]
    return [
        f"glinfer/{path}:{line}: {name} is also the name of a room; import what is in it"
        for line, name in bound
        if name in ALLOWED
    ]


def too_long(path: PurePosixPath, source: str) -> list[str]:
    """Files of more than MAX_LINES lines."""
    lines = len(source.splitlines())
    return [f"glinfer/{path}: {lines} lines; split it (at most {MAX_LINES})"] if lines > MAX_LINES else []


def module_of(path: PurePosixPath) -> str:
    """``gl/texture.py`` → ``glinfer.gl.texture``, ``gl/__init__.py`` → ``glinfer.gl``."""
    parts = ("glinfer", *path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules among ``sources`` that each of them imports: at the top, late, or for type checkers alone."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        graph[module] = set()
        for _, name in imported_names(nodes_of(source)):
            while name and name not in sources:
                name = name.rpartition(".")[0]  # ``from a import b``: b may be a module, or lie in a
            if name and name != module:
                graph[module].add(name)
    return graph


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules each of which imports the next one, the last being the first again; none where there is no cycle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    sources = {module_of(PurePosixPath(path)): source for path, source in package_sources().items()}
    assert cycle(import_graph(sources)) == []


def test_no_instrument_imports_itself_through_others() -> None:
    texts = {
        path: path.read_text("utf-8")
        for path in (ROOT / "qa").rglob("*.py")
        if "tests" not in path.relative_to(ROOT).parts
    }
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): text
        for path, text in texts.items()
        if re.search(r"(import|from) qa\b|\"qa\.", text)  # the others cannot be part of a circle
    }
    assert "qa.supply" in sources, "found no instruments: nothing would be checked"
    assert cycle(import_graph(sources)) == []


def test_a_planted_cycle_is_found() -> None:
    sources = {
        "glinfer.gl": "from glinfer.gl.texture import Texture",
        "glinfer.gl.texture": "if TYPE_CHECKING:\n    from glinfer.gl.context import Device",
        "glinfer.gl.context": "def late():\n    from glinfer.gl import memory",
        "glinfer.gl.memory": "import glinfer.gl.texture\nfrom glinfer.errors import GLError",
        "glinfer.errors": "import json",
    }
    assert {*cycle(import_graph(sources))} == {"glinfer.gl.context", "glinfer.gl.memory", "glinfer.gl.texture"}
    sources["glinfer.gl.memory"] = "from glinfer.errors import GLError"
    assert cycle(import_graph(sources)) == []


Rule = Callable[[PurePosixPath, str], list[str]]
RULES: tuple[Rule, ...] = (
    wrong_direction,
    builders_imported,
    relative_imports,
    gl_outside_its_room,
    glsl_in_python,
    family_named,
    name_of_a_room,
    too_long,
)


def test_the_package_keeps_the_rules() -> None:
    complaints = [
        complaint
        for path, source in package_sources().items()
        for rule in RULES
        for complaint in rule(PurePosixPath(path), source)
    ]
    assert not complaints, "\n".join(complaints)


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
)


def test_the_rules_catch_bad_source() -> None:
    """That good source passes, the package shows."""
    for rule, path, source in BAD:
        assert len(rule(PurePosixPath(path), source)) == 1, (path, source)


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


def test_generate_imports_only_what_a_text_needs() -> None:
    """No tables or bars, templates, optional packages or databases, nor the parts of other commands."""
    said = ran(
        "import sys, glinfer.cli.generate\n"
        "names = {*sys.modules}\n"
        "print(*sorted({name.partition('.')[0] for name in names} - sys.stdlib_module_names - {'__main__'}))\n"
        "print(*sorted({'sqlite3', 'asyncio', 'statistics', 'http', 'multiprocessing'} & names))\n"
        "parts = ('export', 'jobs', 'server', 'ray', 'tensors', 'inspect.info', 'inspect.bench', 'llm_plugin')\n"
        "print(*[part for part in parts if f'glinfer.{part}' in names])\n"
        "print(*sorted(name for name in names if name.startswith('glinfer.cli.')))\n"
    )
    own = "_distutils_hack _moderngl click glcontext glinfer moderngl numpy safetensors tokenizers"
    assert {*said[0].split()} <= {*own.split()}
    assert said[1:3] == ["", ""]
    assert said[3].split() == ["glinfer.cli.common", "glinfer.cli.drafts", "glinfer.cli.generate"]
