"""What a user gets: the wheel, installed into an empty environment, used elsewhere."""

from __future__ import annotations

import json
import re
import zipfile
from email.parser import Parser
from pathlib import Path

from installs import OF_THE_WHEEL, ROOT, Installed, run, succeed
from packaging.requirements import Requirement
from test_source import CORE

pytestmark = OF_THE_WHEEL

PROMPT = "Before we proceed"
# The likeliest token each time; the second likeliest is 0.11 or more behind, far beyond what rounding moves.
TOKENS = [297, 288, 266, 32, 84, 300, 273, 46, 271, 444, 414, 460, 72, 485, 292, 73]
TEXT = "ing to the Tower.\n\nKING RICHARD II"


def test_the_wheel_holds_the_package_and_every_shader(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    shaders = [file for file in (ROOT / "shaders").rglob("*") if file.is_file() and file.name[0] != "."]
    assert any(file.suffix == ".frag" for file in shaders), "no shaders found: nothing would be compared"
    for file in shaders:
        name = f"glinfer/shaders/{file.relative_to(ROOT / 'shaders').as_posix()}"
        assert packed.get(name) == file.read_bytes(), f"{name} is missing from the wheel, or differs"
    modules = {f"glinfer/{file.relative_to(ROOT / 'glinfer').as_posix()}" for file in ROOT.glob("glinfer/**/*.py")}
    assert {"glinfer/__init__.py", *modules} <= set(packed)
    assert "glinfer/py.typed" in packed
    licences = [data for name, data in packed.items() if name.endswith(".dist-info/licenses/LICENSE")]
    assert licences == [(ROOT / "LICENSE").read_bytes()]


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names}
    assert {part for part in top if not part.endswith(".dist-info")} == {"glinfer"}
    inside = [name for name in names if name.startswith("glinfer/")]
    shaders = [file for file in inside if file.startswith("glinfer/shaders/")]
    others = [name for name in shaders if Path(name).suffix not in (".frag", ".vert", ".glsl")]
    assert others == ["glinfer/shaders/self_test.json"]
    expected = sorted([*package_files(), *web_files()])
    assert sorted(name for name in inside if name not in shaders) == expected
    assert [name for name in inside if "tests" in name.split("/") or "/test_" in name] == []


def package_files() -> list[str]:
    """What lies under glinfer/ in the repository: modules, and the data that they read."""
    files = [file.relative_to(ROOT) for file in (ROOT / "glinfer").rglob("*") if file.is_file()]
    return [file.as_posix() for file in files if file.suffix != ".pyc" and not file.name.startswith(".")]


PAGE = (
    *("index.html", "app.js", "offline.js", "style.css", "embedded.js", "texts.js", "library_texts.js"),
    *("answers.js", "markdown_answers.js", "drop_app.js"),
)


def web_files() -> list[str]:
    """What pages and the runtime are made of, in the wheel."""
    page = [ROOT / "web" / name for name in PAGE]
    modules = [
        file
        for folder in ("drop", "embedding", "glinfer", "libraries", "page", "search", "server", "text", "tour", "tours")
        for file in (ROOT / "web" / folder).iterdir()
    ]
    return [f"glinfer/{file.relative_to(ROOT).as_posix()}" for file in (*page, *modules)]


def test_a_site_is_exported_from_the_wheel(installed: Installed) -> None:
    installed.glinfer("export-web", "shakespeare", "site", "--weights", "q8")
    for name in web_files():
        if not name.endswith("embedded.js") and not re.search(
            "/web/(drop|drop_app|embedding|libraries|search|server|text|tours?|library_texts|answers|markdown_answers)\\b",
            name,
        ):
            part = name.removeprefix("glinfer/web/")
            assert (installed.work / "site" / part).read_bytes() == (ROOT / "web" / part).read_bytes()
    installed.glinfer("export-web", "shakespeare", "site", "--weights", "q8", "--single-file")
    assert [file.name for file in (installed.work / "site").iterdir()] == ["index.html"]


def test_glinfer_comes_from_the_wheel(installed: Installed) -> None:
    file = Path(installed.python("import glinfer; print(glinfer.__file__)").strip())
    assert file.is_relative_to(installed.venv)
    assert not file.is_relative_to(ROOT)
    version = installed.python("from importlib.metadata import version; print(version('glinfer'))").strip()
    assert version in installed.glinfer("--version").split()


def test_the_bundled_model_writes_verse_at_once(installed: Installed) -> None:
    options = ("--max-tokens", str(len(TOKENS)), "--temperature", "0")
    done = run(installed.tool("glinfer"), "generate", "shakespeare", PROMPT, *options, cwd=installed.work)
    assert TEXT.startswith(succeed(done).rstrip("\n"))
    assert done.stderr.startswith("39 draws/token · 16 tokens")
    assert json.loads(installed.glinfer("generate", "shakespeare", PROMPT, *options, "--json"))["ids"] == TOKENS
    models = json.loads(installed.glinfer("models", "--json"))
    assert {model["name"] for model in models} == {"shakespeare", "tiny"}
    assert all(Path(model["path"]).is_relative_to(installed.venv) for model in models)
    assert list(installed.work.glob("*shakespeare*")) == [], "nothing is unpacked into the user's folder"


def test_weights_and_draws_are_checked_there(installed: Installed) -> None:
    assert json.loads(installed.glinfer("verify", "shakespeare", "--json"))["passed"] is True
    found = json.loads(installed.glinfer("draws", "shakespeare", "--plan", "reference", "--measure", "--json"))
    assert (found["draws"], found["issued"], found["agrees"]) == (244, 244, True)
    found = json.loads(installed.glinfer("info", "--json"))
    assert found["extensions"]["GL_EXT_color_buffer_float"] is True
    assert found["renderer"]


def test_the_wheel_asks_for_what_it_imports_and_no_more(wheel: Path) -> None:
    """One range each, with an end; a further line names a floor for newer Pythons alone."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        asked = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    core = [Requirement(line) for line in asked if "extra ==" not in line]
    assert {requirement.name for requirement in core} == CORE
    everywhere = [requirement for requirement in core if requirement.marker is None]
    assert sorted(requirement.name for requirement in everywhere) == sorted(CORE)
    for requirement in everywhere:
        assert {one.operator for one in requirement.specifier} == {">=", "<"}, str(requirement)


def test_every_command_explains_itself_with_the_core_alone(installed: Installed) -> None:
    listed = installed.glinfer("--help").partition("Run a model:\n")[2].partition("Environment")[0]
    commands = [line.split()[0] for line in listed.splitlines() if re.match(r"  \w", line)]
    assert {"generate", "chat", "verify"} <= set(commands)
    code = "import sys; from glinfer.cli.app import run; sys.exit(max(run([name, '--help']) for name in sys.argv[1:]))"
    printed = succeed(run(installed.tool("python"), "-c", code, *commands, cwd=installed.work))
    assert printed.count("Usage: ") == len(commands)
