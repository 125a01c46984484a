"""Files that an earlier version wrote for itself: they are gone on with, count as absent, or are refused in one line.

`recorded` has what record.py wrote with 0.1.0, and tuned kernels and a site in forms before that. Of files of a later
version only the numbers are known: they are made here from those.
"""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import glinfer
from glinfer.cli.app import run
from glinfer.export.site import FORMAT, VERSION
from glinfer.kernels.options import KernelOptions
from glinfer.program import tuning
from glinfer.program.tuning import TuningKey, load_tuned

pytestmark = pytest.mark.gl

HERE = Path(__file__).parent
RECORDED = HERE / "recorded" / "0.1.0"
SAID: dict[str, Any] = json.loads((RECORDED / "said.json").read_text("utf-8"))
KEY = TuningKey(**SAID["key"])
VERSION_BEFORE: str = SAID["version"]
COMMANDS = {
    "prompts": ["generate", "model.gab", "--batch", "prompts.jsonl", "--out", "prompts.out.jsonl"],
    "requests": ["run-batch", "-i", "requests.jsonl", "-o", "requests.out.jsonl", "model.gab"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what was recorded, as the current directory, whose cache is glinfer's."""
    copy = Path(shutil.copytree(RECORDED, tmp_path / "before"))
    monkeypatch.chdir(copy)
    monkeypatch.setenv("GLINFER_CACHE", str(copy / "cache"))
    return copy


def kernels_file(folder: Path) -> Path:
    (found,) = (folder / "cache" / "kernels").iterdir()
    return found


def test_tuned_kernels_are_taken_while_the_number_of_their_file_is_the_same(folder: Path) -> None:
    written = json.loads(kernels_file(folder).read_text("utf-8"))
    tuned = load_tuned(KEY)
    same = written["version"] == tuning.VERSION
    assert same == ({*written["kernels"]} == {each.name for each in dataclasses.fields(KernelOptions)}), (
        "other fields of KernelOptions than the files of this version have; raise VERSION of glinfer/program/tuning.py"
    )
    assert (tuned is not None) == same
    if tuned is not None:
        assert dataclasses.asdict(tuned.kernels) == SAID["kernels"]
        assert (tuned.milliseconds, tuned.default_milliseconds) == (1.0, 2.0)


def test_tuned_kernels_of_another_number_count_as_absent(folder: Path) -> None:
    path = kernels_file(folder)
    today = json.loads(path.read_text("utf-8"))
    before = json.loads((HERE / "recorded" / "kernels-version-2.json").read_text("utf-8"))
    assert before["version"] == 2
    path.unlink()
    for written in (before, {**today, "version": tuning.VERSION + 1}):
        (path.parent / KEY.file_name).write_text(json.dumps({**written, **SAID["key"]}), "utf-8")
        assert load_tuned(KEY) is None


def results(lines: list[str]) -> list[Any]:
    """The results of a batch in the order of its lines, without names and times that each run gives anew."""
    found = map(steady, map(json.loads, lines))
    return sorted(found, key=lambda each: str(each.get("custom_id", each.get("id"))))


def steady(result: dict[str, Any]) -> dict[str, Any]:
    if "response" not in result:
        return result
    body = result["response"]["body"]
    return {"custom_id": result["custom_id"], "choices": body["choices"], "tokens": body["usage"]["total_tokens"]}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_batch_is_gone_on_with_by_the_same_version(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / f"{kind}.out.jsonl"
    before = path.read_bytes()
    status = run(COMMANDS[kind])
    if glinfer.__version__ == VERSION_BEFORE:
        assert status == 0, capsys.readouterr().err
        assert path.read_bytes().startswith(before)
        assert results(path.read_text("utf-8").splitlines()) == results(SAID[kind])
    else:
        assert_refused(status, capsys.readouterr().err, f"glinfer {VERSION_BEFORE} (now {glinfer.__version__})")
        assert path.read_bytes() == before


def assert_refused(status: int, said: str, why: str) -> None:
    assert status == 2
    (line,) = said.splitlines()
    assert why in line
    assert line.endswith("give another --out, or --restart to discard them and start over")


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_batch_of_a_later_version_is_refused_in_one_line(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, manifest = folder / f"{kind}.out.jsonl", folder / f"{kind}.out.jsonl.manifest.json"
    before, written = path.read_bytes(), json.loads(manifest.read_text("utf-8"))
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"glinfer": "99.0.0"}, f"glinfer 99.0.0 (now {glinfer.__version__})"),
        ({"cache": None}, "--cache default (now f32)"),
        ({"of_later": 1}, "--of_later 1 (now default)"),
    )
    for change, why in changes:
        manifest.write_text(json.dumps({**written, "glinfer": glinfer.__version__, **change}), "utf-8")
        assert_refused(run(COMMANDS[kind]), capsys.readouterr().err, why)
        assert path.read_bytes() == before


def test_a_conversation_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"/load talk.json\nab\n/save talk.json\n")))
    before = json.loads((folder / "talk.json").read_text("utf-8"))["messages"]
    assert run(["chat", "model.gab", "--temperature", "0", "--max-tokens", "4"]) == 0, capsys.readouterr().err
    after = json.loads((folder / "talk.json").read_text("utf-8"))["messages"]
    assert after[: len(before)] == before
    assert [each["role"] for each in after] == ["user", "assistant"] * 2


def test_a_profile_is_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--compare", "profile.json", "profile.json"]) == 0, capsys.readouterr().err
    assert "(+0.0%)" in capsys.readouterr().out


@pytest.mark.parametrize(("site", "before"), [("0.1.0/site.tar.xz", 0), ("site-version-4.tar.xz", 1)])
def test_a_site_has_a_number_by_which_the_runtime_refuses_it(site: str, before: int) -> None:
    """A site has its own runtime, which goes on; web/tests/browser/test_upgraded_site.py gives it today's."""
    with tarfile.open(HERE / "recorded" / site) as archive:
        read = archive.extractfile("plan.json")
        assert read is not None
        plan = json.loads(read.read())
        names = set(archive.getnames())
    assert plan["format"] == FORMAT
    assert plan["version"] == VERSION - before, "record the files of the version before: tests/upgrade/record.py"
    assert {f"shaders/{program['fragment']}" for program in plan["programs"]} <= names
