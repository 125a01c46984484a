"""``scripts/kill_batch.py`` on a small scale: what stops a batch roughly loses nothing, and the script would tell."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kill_batch.py"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kills and limits as Linux has them")


@pytest.fixture(scope="module")
def kill_batch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kill_batch", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kill_batch"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_four_signals_and_a_full_file(kill_batch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_batch, "STARTING", 0.5)
    report = kill_batch.torment(tmp_path, prompts=60, kills=4, full=1, seed=2, slots=4)
    assert report.signals == 4
    assert report.stops["file limit"] == 1
    assert report.stops["torn line"] >= 1
    assert report.runs >= 7
    assert report.leftovers == 0


@pytest.fixture
def files(kill_batch: ModuleType, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Prompts, the results of a run without a stop, and the same results in another order."""
    source, expected, results = (tmp_path / name for name in ("prompts.jsonl", "expected.jsonl", "results.jsonl"))
    kill_batch.write_prompts(source, 20, 0)
    keys = [json.loads(line).get("id", number) for number, line in enumerate(source.read_text().splitlines(), 1)]
    lines = [json.dumps({"id": key, "text": f"text {key}"}) + "\n" for key in keys]
    expected.write_text("".join(lines))
    results.write_text("".join(reversed(lines)))
    kill_batch.check_same(results, expected, source)
    return source, expected, results


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'{"id": 7, "text": "text 7"}\n', b"", "1 prompts have no result, such as 7"),
        (b'{"id": 7, "text"', b'{"id": 9, "text"', "1 prompts have several results, such as 9"),
        (b'"text 7"}\n', b'"text 7"}', "is no result"),
        (b'"text 7"}\n', b'"text 7"\n', "is no result"),
        (b'"text 7"', b'"text 8"', 'a result differs .*"text 8"'),
        (b'"text 7"}\n', b'"text 7"}\n{"id": 99}\n', "1 results are of no prompt"),
    ],
)
def test_what_is_wrong_is_found(
    kill_batch: ModuleType, files: tuple[Path, Path, Path], old: bytes, new: bytes, words: str
) -> None:
    source, expected, results = files
    data = results.read_bytes()
    assert data.count(old) == 1
    results.write_bytes(data.replace(old, new))
    with pytest.raises(kill_batch.BrokenPromiseError, match=words):
        kill_batch.check_same(results, expected, source)


def test_a_last_line_without_an_end_is_found(kill_batch: ModuleType, files: tuple[Path, Path, Path]) -> None:
    source, expected, results = files
    results.write_bytes(results.read_bytes()[:-1])
    with pytest.raises(kill_batch.BrokenPromiseError, match="the last line has no end"):
        kill_batch.check_same(results, expected, source)


def test_lines_that_vanish_are_found(kill_batch: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    command = kill_batch.Command(tmp_path / "m", tmp_path / "p", out, kill_batch.Report(3), 4)
    out.write_bytes(b"one\ntwo\nthr")
    command.look()
    assert (command.kept, command.report.torn) == (b"one\ntwo\n", 1)
    out.write_bytes(b"one\ntwo\nthree\n")
    command.look()
    out.write_bytes(b"one\nthree\n")
    with pytest.raises(kill_batch.BrokenPromiseError, match="14 bytes of whole lines were there"):
        command.look()
