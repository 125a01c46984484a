"""The matrix of renderers: its rows, what it compares, and how a row becomes "not tried"."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qa_commands import run

from glinfer.errors import InputError
from glinfer.gl.context import open_device
from qa import supply
from qa.renderers import command, environments
from qa.renderers.command import first_row, run_all, run_one
from qa.renderers.environments import (
    BOOKWORM,
    RESOLUTE,
    MissingError,
    System,
    interpreter,
    launcher,
    make,
    variables,
)
from qa.renderers.operations import COUNT, OPERATIONS, browser_jobs, digest, draw_all
from qa.renderers.table import COLUMNS, RENDERERS, Renderer, Row, chosen, compare_bits, row_of, with_bits
from qa.supply import Environment, python_for

FIRST = RENDERERS[0]
GL = {name: name for name in ("exp", "kernel silu", "kernel gelu", "model llama")}


def cell(check: str, passed: bool = True, **more: Any) -> dict[str, Any]:
    return {"check": check, "passed": passed, "words": "found", "bits": {}, "texts": {}, **more}


def finished(renderer: Renderer = FIRST, bits: dict[str, str] = GL) -> Row:
    texts = {"shakespeare": [[1, 2], [3, 4]]}
    cells = {"goldens": cell("goldens", bits=bits), "texts": cell("texts", texts=texts)}
    return Row(renderer.name, renderer.title, renderer.api, "Mesa · llvmpipe", cells)


def silent(*_: object) -> None:
    """Progress that nobody sees."""


# Rows


def test_names_are_unique_and_the_first_is_what_others_are_compared_with() -> None:
    names = [each.name for each in RENDERERS]
    assert len(set(names)) == len(names)
    assert names[0] == "debian-12/llvmpipe/es"
    assert FIRST.same_bits
    assert all(each.expects for each in RENDERERS), "a row that takes any renderer proves nothing of its own"


def test_rows_are_chosen_by_pattern_with_the_first_always_among_them() -> None:
    assert chosen([]) == list(RENDERERS)
    found = [each.name for each in chosen(["*zink/desktop", "firefox/*"])]
    assert found == [FIRST.name, "debian-12/zink/desktop", "debian-13/zink/desktop", "firefox/llvmpipe"]
    with pytest.raises(InputError, match=r"there is no renderer 'mesa'; known: debian-12/llvmpipe/es, "):
        chosen(["mesa"])


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["renderers", "--list", "--row", "nvidia/*"]) == 0
    assert capsys.readouterr().out.split() == [FIRST.name, "nvidia/es", "nvidia/desktop"]


# Bits


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ([], "the same 4"),
        (["exp"], "other: exp; 0 of 2 kernels; 0 of 1 models"),
        (["kernel gelu"], "other: no operation; 1 of 2 kernels; 0 of 1 models"),
        (list(GL), "other: exp; 2 of 2 kernels; 1 of 1 models"),
    ],
)
def test_what_has_other_bits_is_named(changed: list[str], words: str) -> None:
    found = {name: "other" if name in changed else bits for name, bits in GL.items()}
    assert compare_bits(found, GL) == (not changed, words)


def test_only_what_both_have_is_compared() -> None:
    assert compare_bits({"exp": "exp"}, GL) == (True, "the same 1")
    assert compare_bits({"cosh": "1"}, GL) == (False, "nothing to compare")


@pytest.mark.parametrize(("same_bits", "fails"), [(True, True), (False, False)])
def test_other_bits_fail_only_where_the_same_are_expected(same_bits: bool, fails: bool) -> None:
    renderer = Renderer("a/b", "A", "es", same_bits=same_bits)
    row = with_bits(renderer, finished(renderer, {**GL, "exp": "other"}), GL)
    assert (row.failed == ["bits"]) is fails
    assert with_bits(renderer, finished(renderer), GL).failed == []
    problem = Row("a/b", "A", "es", problem="not tried: no reason")
    assert with_bits(renderer, problem, GL) == problem


def test_operations_are_drawn_and_have_an_exact_twin() -> None:
    for operation in OPERATIONS.values():
        given = operation.inputs()
        exact = operation.exact(*(each.astype(np.float64) for each in given.values()))
        assert exact.shape == (COUNT,)
        assert operation.error(exact.astype(np.float32)) <= 0.5
    jobs = browser_jobs()
    assert [set(job["inputs"]) for job in jobs] == [set(each.reads) for each in OPERATIONS.values()]
    assert digest(np.float32([0.0])) != digest(np.float32([-0.0]))


@pytest.mark.gl
def test_operations_on_a_device_are_what_float64_says() -> None:
    with open_device(api="es") as device:
        found = draw_all(device)
    for name in ("x + y", "x · y"):
        assert OPERATIONS[name].error(found[name]) <= 0.5, name
    others = [name for name in OPERATIONS if not name.startswith("subnormal")]
    assert max(OPERATIONS[name].error(found[name]) for name in others) < 1e4
    assert len({digest(numbers) for numbers in found.values()}) == len(found)


# Reports


def test_a_report_gives_its_first_row_that_ran() -> None:
    def plain(row: Row) -> dict[str, Any]:
        return {name: getattr(row, name) for name in row.__dataclass_fields__}

    rows = [plain(Row("a", "A", "es", problem="not tried: no reason")), plain(finished())]
    assert first_row(json.dumps({"rows": rows}).encode()) == finished()
    assert row_of(plain(finished())) == finished()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": []}', '{"rows": [{"problem": ""}]}', '{"rows": 1}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="this is no report to compare with"):
        first_row(text.encode())


# Rows that are not tried, and rows that fail


def test_another_renderer_than_the_rows_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_process", lambda *_: iter([{"renderer": "softpipe"}, cell("goldens")]))
    row = run_one(Renderer("a/b", "A", "es", expects=("llvmpipe",)), {}, silent)
    assert (row.problem, row.cells) == ("not tried: softpipe opens instead", {})


def test_a_process_that_dies_fails_the_check_that_it_was_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> Any:
        yield {"renderer": "llvmpipe"}
        yield cell("goldens")
        raise RuntimeError("the process ended with status -11: it said nothing")

    monkeypatch.setattr(command, "_process", dies)
    row = run_one(Renderer("a/b", "A", "es"), {}, silent)
    assert row.failed == ["texts"]
    assert row.cells["texts"]["words"].startswith("the process ended with status -11")


def test_the_others_get_the_texts_of_the_first_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    renderers, given = [Renderer(name, name, "es") for name in "abc"], {}

    def told(renderer: Renderer, texts: Any, _: object) -> Row:
        given[renderer.name] = texts
        return Row("a", "A", "es", problem="not tried: no reason") if renderer.name == "a" else finished(renderer)

    monkeypatch.setattr(command, "run_one", told)
    rows = list(run_all(renderers, None, silent))
    assert given == {"a": {}, "b": {}, "c": {"shakespeare": [[1, 2], [3, 4]]}}
    assert [set(row.cells) for row in rows] == [set(), {"goldens", "texts", "bits"}, {"goldens", "texts", "bits"}]


@pytest.mark.parametrize(("wrong", "status"), [(False, 0), (True, 1)])
def test_the_table_and_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: bool, status: int
) -> None:
    def told(renderer: Renderer, *_: object) -> Row:
        row = finished(renderer)
        cells = {**row.cells, **({"draws": cell("draws", passed=False)} if wrong and renderer != FIRST else {})}
        return Row(row.name, row.title, row.api, row.renderer, cells)

    monkeypatch.setattr(command, "run_one", told)
    assert run(["renderers", "--row", "debian-13/llvmpipe/es"]) == status
    said = capsys.readouterr().out
    assert said.endswith(f"2 of 2 renderers tried, {'1 WRONG' if wrong else 'all as expected'}\n")
    assert ("WRONG: found" in said) is wrong
    assert run(["renderers", "--row", "debian-13/llvmpipe/es", "--json"]) == status
    assert json.loads(capsys.readouterr().out)["passed"] is not wrong


def test_what_cannot_be_had_is_told_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command, "run_one", lambda each, *_: Row(each.name, each.title, each.api, problem="not tried: x")
    )
    assert run(["renderers"]) == 0
    assert capsys.readouterr().out.endswith(f"0 of {len(RENDERERS)} renderers tried, all as expected\n")


# Environments


def test_what_is_missing_for_an_environment_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "CACHE", tmp_path)
    unsigned = System("new", "Newer", "sid", "main", "no-such-keyring.gpg")
    monkeypatch.setattr(environments.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    with pytest.raises(
        MissingError, match="the keys of Newer are missing; install them with: sudo apt-get install no-"
    ):
        make(unsigned)
    monkeypatch.setattr(environments.shutil, "which", lambda _: None)
    with pytest.raises(MissingError, match="apt-get is missing, which unpacks Debian 12; use Debian or Ubuntu"):
        make(BOOKWORM)
    row = run_one(Renderer("a/b", "A", "es", BOOKWORM), {}, silent)
    assert row.problem == "not tried: apt-get is missing, which unpacks Debian 12; use Debian or Ubuntu"
    assert [*tmp_path.iterdir()] == []


def test_debootstrap_says_where_packages_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "INSTALLED", tmp_path)
    scripts = tmp_path / "share" / "debootstrap" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "gutsy").write_text(
        "case $SUITE in\n  old) default_mirror http://old ;;\n  *) default_mirror http://u ;;\nesac\n"
    )
    (scripts / "sid").write_text("mirror_style release 2>/dev/null\n")
    (tmp_path / "sbin").mkdir()
    (tmp_path / "sbin" / "debootstrap").write_text('#!/bin/sh\nDEF_MIRROR="http://d"\n')
    assert environments._address(RESOLUTE) == "http://u"
    assert environments._address(BOOKWORM) == "http://d"
    (tmp_path / "sbin" / "debootstrap").write_text("#!/bin/sh\n")
    with pytest.raises(MissingError, match="debootstrap does not say where Debian 12 is"):
        environments._address(BOOKWORM)


def test_this_python_starts_with_the_libraries_of_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "CACHE", tmp_path)
    root = tmp_path / "new" / "root"
    folder = root / "usr" / "lib" / environments.triple()
    folder.mkdir(parents=True)
    with pytest.raises(MissingError, match="has no loader"):
        launcher(root)
    (folder / "ld-linux-x86-64.so.2").touch()
    (folder / "libvulkan_lvp.so").touch()
    command = launcher(root)
    assert command[0] == str(folder / "ld-linux-x86-64.so.2")
    assert command[-3:] == ["--argv0", sys.executable, sys.executable]
    assert command[command.index("--library-path") + 1].split(":")[0] == str(folder)
    found = variables(root)
    assert found["LIBGL_DRIVERS_PATH"] == str(folder / "dri")
    assert json.loads(Path(found["VK_DRIVER_FILES"]).read_text())["ICD"]["library_path"] == str(
        folder / "libvulkan_lvp.so"
    )


def test_the_python_of_a_system_is_a_script_that_starts_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name by which it is called, behind a link too, with the system's libraries and its wheel of pip."""
    monkeypatch.setattr(environments, "CACHE", tmp_path)
    system = System("new", "Newer", "sid", "main", "no-such-keyring.gpg")
    root = tmp_path / "new" / "root"
    folder, programs, modules = (
        root / "usr" / name for name in (f"lib/{environments.triple()}", "bin", "lib/python9.8")
    )
    for each in (folder, programs, modules):
        each.mkdir(parents=True)
    with pytest.raises(MissingError, match=r"has no Python 9\.8; remove .*new, and it is made anew"):
        interpreter(system, "9.8")
    (programs / "python9.8").touch()
    settings = modules / "_sysconfigdata__some.py"
    settings.write_text("{'A': '/usr/share', 'WHEEL_PKG_DIR': '/usr/share/python-wheels/'}")
    loader = folder / "ld-linux-x86-64.so.2"
    loader.write_text('#!/bin/sh\nprintf "%s\\n" "$LIBGL_DRIVERS_PATH" "$@"\n')
    loader.chmod(0o755)
    link = tmp_path / "python"
    for _ in range(2):
        link.unlink(missing_ok=True)
        link.symlink_to(interpreter(system, "9.8"))
        told = subprocess.run([link, "-c", "a 'b'"], capture_output=True, text=True, check=True).stdout.splitlines()
        assert told[0] == str(folder / "dri")
        assert told[-5:] == ["--argv0", str(link), str(programs / "python9.8"), "-c", "a 'b'"]
        changed = {"A": "/usr/share", "WHEEL_PKG_DIR": f"{root}/usr/share/python-wheels/"}
        assert ast.literal_eval(settings.read_text()) == changed


@pytest.mark.parametrize("version", ["3.12", "3.14", "3.99"])
def test_which_python_a_row_is_run_with(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is here, else that of a system that has it, else none."""
    monkeypatch.setattr(supply, "interpreter", lambda system, version: Path(f"/{system.name}/{version}"))
    row = Environment(version, "lowest")
    found = python_for(row, {"3.12": Path("/here")})
    expected = {"3.12": Path("/here"), "3.14": Path("/resolute/3.14"), "3.99": None}
    assert found == expected[version]
    assert row.results == (["of Ubuntu 26.04"] if version == "3.14" else [])


def test_a_python_that_cannot_be_had_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object) -> Path:
        raise MissingError("apt-get is missing")

    monkeypatch.setattr(supply, "interpreter", missing)
    row = Environment("3.14", "newest")
    assert python_for(row, {}) is None
    assert row.results == []
    assert capsys.readouterr().err == "supply: Python 3.14 of Ubuntu 26.04: apt-get is missing\n"


def test_every_column_is_a_check() -> None:
    from qa.renderers.cells import CHECKS

    names = [check.__name__.removeprefix("check_") for check in CHECKS]
    assert set(names) == {*COLUMNS, "operations"} - {"bits"}
