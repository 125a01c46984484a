"""``glinfer diff``: what it prints, its exit status, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_diff import OUT_PROJ, with_tensor

from glinfer.cli.app import run

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
IDS = "13,132,251,7"


def ran(capsys: Capture, *arguments: object, status: int = 0) -> str:
    found = run(["diff", *map(str, arguments)])
    said = capsys.readouterr()
    assert found == status, said
    assert said.err == ""
    return said.out


def refused(capsys: Capture, *arguments: object) -> str:
    assert run(["diff", *map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("glinfer: ")
    assert said.err.count("\n") == 1
    return said.err


class TestRuns:
    def test_the_same_twice(self, small: Path, capsys: Capture) -> None:
        said = ran(capsys, small, "--prompt", "light")
        assert said.endswith("\nidentical bit for bit\n")
        assert "all identical bit for bit" in said
        assert "weights: " not in said

    def test_fewer_bits(self, small: Path, capsys: Capture) -> None:
        said = ran(capsys, small, "--b", "weights=q8", "--prompt", "light")
        rows = [line.split()[:2] for line in said.splitlines()]
        assert ["block", "0"] in rows
        assert ["block", "1"] in rows
        assert "KL(A‖B) mean" in said
        assert said.endswith("\nwithin the tolerance of 0.1\n")
        everything = ran(capsys, small, "--b", "weights=q8", "--prompt", "light", "--all")
        assert "\nblocks.1.attn.scores " in everything

    def test_a_transposed_matrix(self, bare: Path, tmp_path: Path, capsys: Capture) -> None:
        pytest.importorskip("matplotlib")
        other, picture = with_tensor(bare, tmp_path / "b.gab", OUT_PROJ, np.transpose), tmp_path / "out.png"
        said = ran(capsys, bare, other, "--ids", IDS, "--plot", picture, status=1)
        row = next(line for line in said.splitlines() if line.startswith("B is A transposed"))
        assert row.rstrip().endswith(OUT_PROJ)
        last = said.splitlines()[-1]
        assert last.startswith("DIFFERS: the first name beyond the tolerance of 0.0001 is blocks.1.resid_mid.centred (")
        assert last.endswith("which draw h.1.attn.out_proj completes")
        assert picture.read_bytes().startswith(b"\x89PNG")
        ran(capsys, bare, other, "--ids", IDS, "--tolerance", 10)

    def test_json(self, small: Path, capsys: Capture) -> None:
        arguments = ("--a", "plan=reference", "--b", "gelu=erf,context=32", "--prompt", "light", "--positions", 2)
        told = json.loads(ran(capsys, small, *arguments, "--json", status=1))
        assert (told["a"]["plan"], told["b"]["plan"], told["passed"], told["identical"]) == (
            "reference",
            "fast",
            False,
            False,
        )
        assert told["first_beyond"] == "blocks.0.mlp.hidden"
        assert told["config"] == {"hidden_act": ["gelu_new", "gelu"], "max_position_embeddings": [64, 32]}
        assert told["along"]["count"] == len(told["along"]["positions"]) == 2
        assert "".join(told["words"][str(token)] for token in told["ids"]) == "light"
        assert told["weights"] is None
        found = {each["name"]: each for each in told["passes"]}
        assert found["blocks.0.attn.q"]["place"].keys() == {"token", "head", "column"}

    def test_a_file_of_text_is_cut_where_the_context_ends(self, small: Path, tmp_path: Path, capsys: Capture) -> None:
        text = tmp_path / "text.txt"
        text.write_text("light and dark, é. " * 50, encoding="utf-8")
        arguments = (small, "--b", "context=6", "--text", text, "--json")
        assert len(json.loads(ran(capsys, *arguments))["ids"]) == 6
        assert len(json.loads(ran(capsys, *arguments, "--tokens", 4))["ids"]) == 4
        assert "7 tokens; this model's context holds 6" in refused(capsys, *arguments, "--tokens", 7)

    @pytest.mark.slow
    def test_a_reference_side_says_that_it_skips(self, bare: Path, capsys: Capture) -> None:
        ids = ",".join(map(str, range(40)))
        said = ran(capsys, bare, "--b", "plan=reference,context=40", "--ids", ids, "--trace", 1)
        assert "at 32 positions of 40 tokens, evenly spread (the reference plan runs all tokens for each" in said
        assert "over 1 token;" in said


class TestBadInput:
    def test_one_prompt(self, bare: Path, capsys: Capture) -> None:
        for arguments in ((), ("--ids", "1", "--prompt", "x"), ("--text", "x", "--ids", "1")):
            assert "give one of --prompt, --ids and --text" in refused(capsys, bare, *arguments)

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("--ids", "1,x"), "found 'x' in the token ids"),
            (("--ids", ""), "the prompt is empty"),
            (("--prompt", "text"), "no tokenizer was given"),
            (("--ids", "1", "--b", "wieghts=q8"), "unknown setting 'wieghts' in --b"),
            (("--ids", "1", "--a", "api=vulkan"), "expected api to be one of es, desktop"),
            (("--ids", "1", "--b", "device=99"), "B: there is no EGL device 99"),
            (("--ids", "1", "--b", "tokenizer=nowhere.bpe"), "B: nowhere.bpe: cannot read it"),
            (("--ids", "1", "--tolerance", "-1"), "the tolerance is -1.0"),
            (("--ids", "1", "--positions", "0"), "--positions"),
            (("--ids", "1", "--plot", "out.svg"), "ends in .png"),
            (("--text", "nowhere.txt"), "nowhere.txt: cannot read it"),
            (("nowhere.gab", "--ids", "1"), "B: nowhere.gab: cannot read it"),
        ],
    )
    def test_is_told_in_one_line(self, bare: Path, capsys: Capture, arguments: tuple[str, ...], expected: str) -> None:
        assert expected in refused(capsys, bare, *arguments)

    def test_a_text_that_is_none(self, small: Path, tmp_path: Path, capsys: Capture) -> None:
        path = tmp_path / "latin.txt"
        path.write_bytes("caf\xe9".encode("latin-1"))
        assert "is not UTF-8 (byte 3); expected a text file" in refused(capsys, small, "--text", path)
