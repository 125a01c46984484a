"""``glinfer profile`` at the command line: what it prints, writes and refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from glinfer.cli import profile as command
from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.engine.loading import bind
from glinfer.errors import install_command
from glinfer.formats import random_checkpoint
from glinfer.gl.context import open_device
from glinfer.inspect.profile.measure import profile

pytestmark = pytest.mark.gl

SHAPE = ["--config", "blocks=1,dim=32,heads=4,vocab=300,context=64"]
QUICK = ["--runs", "2", "--no-ceiling"]


def output(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0) -> tuple[str, str]:
    assert run(["profile", *map(str, arguments)]) == status
    return capsys.readouterr()


def test_it_shows_a_table_by_kind(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = output(capsys, bare, *QUICK, "--tokens", "5")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["attn.qkv"][1:3] == ["gemv", "2"]
    assert rows["total"][1] == "15"
    assert list(rows).index("embed") < list(rows).index("attn.scores") < list(rows).index("pick")
    assert "token 5 of a sequence · plan fast · weights f32" in text
    assert "timed by GPU timestamps: all draws" in text
    assert "textures: " in text
    assert "h.0.attn.qkv" not in text


def test_each_shows_every_draw(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = output(capsys, *SHAPE, *QUICK, "--each")
    assert [line.split()[1] for line in text.splitlines() if line.strip()[:1].isdigit()] == [
        "embed",
        *(f"h.0.{name}" for name in ("attn.qkv", "attn.scores", "attn.values", "attn.out_proj")),
        *(f"h.0.{name}" for name in ("mlp.fc_in", "mlp.fc_out")),
        "lm_head",
        "pick",
    ]


def test_fences_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = output(capsys, *SHAPE, *QUICK, "--timing", "fence")
    assert "timed by CPU fences, a fence of " in text


def test_growth(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = output(capsys, *SHAPE, *QUICK, "--growth")
    table = text[text.index("tokens") :].splitlines()[1:4]
    assert [row.split()[0] for row in table] == ["1", "16", "64"]


def test_json_is_one_document(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = output(capsys, bare, *QUICK, "--json", "--plan", "reference", "--tokens", "9")
    found = json.loads(text)
    assert (found["report"], found["model"], found["what"], found["tokens"]) == (
        "glinfer profile",
        "bare.gab",
        "sequence",
        9,
    )
    assert found["totals"]["draws"] == 52


def test_it_writes_a_trace_and_a_page(bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    page.write_text("what was here before")
    output(capsys, bare, *QUICK, "--trace", trace, "--html", page, "--prompt-tokens", "20")
    found = json.loads(trace.read_text(encoding="utf-8"))
    names = [event["name"] for event in found["traceEvents"] if event["ph"] == "X"]
    assert "prompt 20" in names
    assert names.count("h.0.attn.qkv") == 2
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "20 tokens of a prompt" in page.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "trace.json"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Reports of one model in two weight formats."""
    folder, made = tmp_path_factory.mktemp("reports"), []
    checkpoint = random_checkpoint(ModelConfig.from_options(SHAPE[1]))
    with open_device(api="es") as device:
        for weights in ("f32", "q8"):
            found = profile(bind(checkpoint, device, "fast", weights), runs=2, label="m")
            made.append(folder / f"{weights}.json")
            made[-1].write_text(json.dumps(found.to_json()))
    return made[0], made[1]


class TestCompare:
    def test_before_and_after(self, reports: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
        text, _ = output(capsys, "--compare", *reports)
        assert "before: m · fast · f32 · token 64" in text
        rows = {line.split()[0]: line for line in text.splitlines() if line}
        assert " → " in rows["attn.qkv"]
        assert rows["total"].split()[1] == "9"
        assert "note: the two differ in weights: f32 before, q8 after" in text

    def test_as_json_and_as_a_page(
        self, reports: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text, _ = output(capsys, "--compare", *reports, "--json", "--html", tmp_path / "c.html")
        assert json.loads(text)["total"]["after"]["draws"] == 9
        assert "before and after" in (tmp_path / "c.html").read_text(encoding="utf-8")

    @pytest.mark.parametrize("more", [["shakespeare"], SHAPE, ["--trace", "t.json"]])
    def test_nothing_is_measured_beside_it(
        self,
        reports: tuple[Path, Path],
        more: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        _, error = output(capsys, *more, "--compare", *reports, status=2)
        assert error == "glinfer: --compare takes two reports; leave MODEL, --config and --trace out\n"

    def test_other_files_are_refused(self, reports: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
        _, error = output(capsys, "--compare", reports[0], __file__, status=2)
        assert error.count("\n") == 1
        assert "found no JSON; expected what 'glinfer profile --json' has printed" in error


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ([], "found neither a MODEL nor --config; give one of them"),
            (["shakespeare", *SHAPE], "found both a MODEL and --config; give one of them"),
            (["no_such_model"], "there is no such file, and no bundled model of that name"),
            ([*SHAPE, "--tokens", "65"], "tokens is 65; expected 1 to 64"),
            ([*SHAPE, "--tokens", "2", "--prompt-tokens", "2"], "do not go together"),
            ([*SHAPE, "--weights", "auto"], "give a MODEL, or name a format"),
            ([*SHAPE, "--plan", "reference", "--weights", "q8"], "the reference plan keeps its weights in f32"),
            (["--config", "dim=1000000"], "the largest texture here is"),
            (["--compare", "one.json"], "requires 2 arguments"),
        ],
    )
    def test_one_line_says_why(self, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
        text, error = output(capsys, *arguments, status=2)
        assert text == ""
        assert error.startswith("glinfer: ")
        assert error.count("\n") == 1
        assert complaint in error

    @pytest.mark.parametrize("option", ["--trace", "--html"])
    def test_files_that_cannot_be_written_are_found_first(
        self, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def never(*_: Any, **__: Any) -> None:
            raise AssertionError("it was measured all the same")

        monkeypatch.setattr(command, "_profiled", never)
        for path in (tmp_path / "missing" / "x", tmp_path):
            _, error = output(capsys, "shakespeare", option, path, status=2)
            assert str(path) in error
        assert list(tmp_path.iterdir()) == []

    def test_one_file_is_not_both(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        _, error = output(capsys, "shakespeare", "--html", tmp_path / "x", "--trace", tmp_path / "x", status=2)
        assert "--html and --trace both name" in error

    def test_only_a_page_needs_matplotlib(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        monkeypatch.delitem(sys.modules, "glinfer.inspect.profile.charts", raising=False)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        output(capsys, *SHAPE, *QUICK)
        _, error = output(capsys, *SHAPE, *QUICK, "--html", tmp_path / "x.html", status=2)
        assert "needs matplotlib, which is not installed; " + install_command("plots") in error
