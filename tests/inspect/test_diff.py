"""Two sides run for real: what is the same, what differs first, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from commands import refused

import glinfer
from glinfer.config import ModelConfig
from glinfer.errors import GlinferError, InputError
from glinfer.formats import load_checkpoint, random_checkpoint, save_checkpoint
from glinfer.inspect.diff.compare import SAME_FORMAT, RunConfig, diff

pytestmark = pytest.mark.gl
Capture = pytest.CaptureFixture[str]

Array = np.ndarray[Any, Any]
IDS = [13, 132, 251, 7, 7, 299]
OUT_PROJ, FC_IN = "transformer.h.1.attn.out_proj.weight", "transformer.h.0.mlp.fc_in.weight"


def with_tensor(model: Path, target: Path, name: str, change: Callable[[Array], Array]) -> Path:
    """The same model with one tensor changed."""
    checkpoint = load_checkpoint(model)
    tensors = {**checkpoint.tensors, name: np.ascontiguousarray(change(checkpoint.tensors[name]))}
    save_checkpoint(dataclasses.replace(checkpoint, tensors=tensors), target)
    return target


class TestSameModel:
    def test_both_sides_alike_are_identical_bit_for_bit(self, bare: Path) -> None:
        seen: list[tuple[int, int]] = []
        report = diff(RunConfig(bare), RunConfig(bare), IDS, on_progress=lambda done, total: seen.append((done, total)))
        assert report.identical
        assert report.passed
        assert report.first_different is None
        assert report.weights is None
        assert report.tolerance == SAME_FORMAT
        assert [at.kl for at in report.along.positions] == [0.0] * len(IDS)
        assert report.along.agreement == 1.0
        with glinfer.load(bare) as model:
            assert [each.name for each in report.passes] == model.names()
            assert {each.draw for each in report.passes} < {draw.name for draw in model.plan.draws}
        assert seen == [(done, 12) for done in range(1, 13)]

    def test_the_fast_plan_against_the_reference(self, bare: Path) -> None:
        fast, reference = RunConfig(bare), RunConfig(bare, plan="reference")
        report = diff(fast, reference, IDS)
        assert report.passed
        assert not report.identical
        with glinfer.load(bare) as model:
            assert [each.name for each in report.passes] == model.names()
        assert max(each.error or 0 for each in report.passes) < 1e-5
        assert {each.draw for each in report.passes} == {None}
        assert report.only_a == ()
        assert {"blocks.0.attn.probs", "blocks.1.mlp.norm", "final_norm", "probs"} <= set(report.only_b)
        assert report.along.kl[2] < 1e-9

    @pytest.mark.slow
    def test_what_is_said_of_the_next_tokens(self, bare: Path) -> None:
        report = diff(RunConfig(bare), RunConfig(bare, plan="reference"), IDS, positions=3)
        assert [at.position for at in report.along.positions] == [0, 2, 5]
        assert [(at.token, at.following) for at in report.along.positions] == [(13, 132), (251, 7), (299, None)]
        with glinfer.load(bare) as model:
            for at in report.along.positions:
                probs = model.probs(IDS[: at.position + 1])
                assert at.top_a == at.top_b == int(probs.argmax())
                if at.following is not None:
                    assert at.logprob_a == pytest.approx(float(np.log(probs[at.following])), abs=1e-5)

    @pytest.mark.slow
    def test_passes_of_a_part_and_tokens_of_a_part(self, bare: Path) -> None:
        report = diff(RunConfig(bare), RunConfig(bare), [*IDS] * 20, tokens=7, trace=2)
        assert (len(report.ids), report.traced, len(report.along.positions)) == (7, 2, 7)
        assert diff(RunConfig(bare), RunConfig(bare, context=9), [*IDS] * 20, shorten=True).ids == tuple([*IDS] * 2)[:9]


class TestWeights:
    @pytest.mark.slow
    def test_models_of_other_widths_and_depths(self, bare: Path, tmp_path: Path) -> None:
        config = dataclasses.replace(load_checkpoint(bare).config, hidden_size=48, intermediate_size=64, head_dim=12)
        save_checkpoint(
            random_checkpoint(dataclasses.replace(config, num_hidden_layers=1)), tmp_path / "other.safetensors"
        )
        report = diff(RunConfig(bare), RunConfig(tmp_path / "other.safetensors"), IDS[:2])
        assert report.first_beyond is not None
        assert (report.first_beyond.name, report.first_beyond.error) == ("embed.centred", None)
        assert "blocks.1.attn.q" in report.only_a
        assert report.config["num_hidden_layers"] == (2, 1)


class TestRefused:
    def test_other_vocabularies(self, bare: Path, tmp_path: Path) -> None:
        save_checkpoint(
            random_checkpoint(ModelConfig.from_options("vocab=301,dim=8,heads=2,blocks=1")), tmp_path / "b.gab"
        )
        with pytest.raises(InputError, match="A has a vocabulary of 300 tokens and B of 301"):
            diff(RunConfig(bare), RunConfig(tmp_path / "b.gab"), IDS)

    def test_tokenizers_that_split_a_text_differently(self, small: Path, tmp_path: Path) -> None:
        from glinfer.formats import write_bpe
        from glinfer.text.tokenizer import learn_bpe

        other = tmp_path / "other.bpe"
        write_bpe(learn_bpe(["xyzzy xyzzyx plugh plover " * 20] * 3, 300, [chr(0x4E00 + n) for n in range(40)]), other)
        text = "the model and the light"
        with pytest.raises(InputError, match=r"split this text differently, from token \d+ on; .* as ids"):
            diff(RunConfig(small), RunConfig(small, tokenizer=other), text)
        assert diff(RunConfig(small), RunConfig(small, tokenizer=other), IDS).identical

    @pytest.mark.slow
    def test_a_text_needs_one_tokenizer(self, small: Path, bare: Path) -> None:
        report = diff(RunConfig(bare), RunConfig(small), "light")
        assert "".join(report.words[token] for token in report.ids) == "light"

    def test_sides_and_tokens(self, bare: Path) -> None:
        reference = {"plan": "reference", "weights": "q8"}
        for side, ids, kind, expected in (
            ({}, [1] * 65, InputError, "the prompt has 65 tokens"),
            ({"context": 5}, IDS, InputError, "the prompt has 6 tokens; this model's context holds 5"),
            ({}, [300], InputError, "token 0 of the prompt is 300"),
            (reference, IDS, InputError, "B: the reference plan keeps its weights in f32"),
            ({"context": 65}, IDS, GlinferError, "B: the context is 65; expected 1 to"),
        ):
            with pytest.raises(kind, match=expected):
                diff(RunConfig(bare), RunConfig(bare, **side), ids)


# The command


def ran(capsys: Capture, *arguments: object, status: int = 0) -> str:
    out, err = commands.ran(capsys, "diff", *arguments, status=status)
    assert err == "".join(f"wrote {path}\n" for path in arguments if str(path).endswith(".png"))
    return out


class TestRuns:
    def test_the_same_twice(self, small: Path, capsys: Capture) -> None:
        said = ran(capsys, small, "--prompt", "light")
        assert said.endswith("\nidentical bit for bit\n")
        assert "all identical bit for bit" in said
        assert "weights: " not in said

    def test_fewer_bits(self, small: Path, capsys: Capture) -> None:
        said = ran(capsys, small, "--b", "weights=q8", "--prompt", "light", "--all")
        assert "\nblocks.1.attn.scores " in said
        assert "KL(A‖B) mean" in said
        assert said.endswith("\nwithin the tolerance of 0.1\n")

    def test_a_transposed_matrix(self, bare: Path, tmp_path: Path, capsys: Capture) -> None:
        pytest.importorskip("matplotlib")
        other, picture = with_tensor(bare, tmp_path / "b.gab", OUT_PROJ, np.transpose), tmp_path / "out.png"
        said = ran(capsys, bare, other, "--ids", "13,132,251,7", "--plot", picture, status=1)
        row = next(line for line in said.splitlines() if line.startswith("B is A transposed"))
        assert row.rstrip().endswith(OUT_PROJ)
        rows = [line.split()[:2] for line in said.splitlines()]
        assert ["block", "0"] in rows
        assert ["block", "1"] in rows
        last = said.splitlines()[-1]
        assert last.startswith(
            "DIFFERS: the first tensor beyond the tolerance of 0.0001 is blocks.1.resid_mid.centred ("
        )
        assert last.endswith("completed by draw h.1.attn.out_proj")
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_json(self, small: Path, capsys: Capture) -> None:
        arguments = ("--a", "plan=reference", "--b", "gelu=erf,context=32", "--prompt", "light", "--positions", 2)
        report = json.loads(ran(capsys, small, *arguments, "--json", status=1))
        assert (report["a"]["plan"], report["b"]["plan"], report["passed"], report["identical"]) == (
            "reference",
            "fast",
            False,
            False,
        )
        assert report["first_beyond"] == "blocks.0.mlp.hidden"
        assert report["config"] == {"hidden_act": ["gelu_new", "gelu"], "max_position_embeddings": [64, 32]}
        assert report["along"]["count"] == len(report["along"]["positions"]) == 2
        assert "".join(report["words"][str(token)] for token in report["ids"]) == "light"
        assert report["weights"] is None
        found = {each["name"]: each for each in report["passes"]}
        assert found["blocks.0.attn.q"]["place"].keys() == {"token", "head", "column"}

    def test_a_file_of_text_is_cut_where_the_context_ends(self, small: Path, tmp_path: Path, capsys: Capture) -> None:
        text = tmp_path / "text.txt"
        text.write_text("light and dark, é. " * 50, encoding="utf-8")
        arguments = (small, "--b", "context=6", "--text", text, "--json")
        assert len(json.loads(ran(capsys, *arguments, "--tolerance", 10))["ids"]) == 6
        assert "7 tokens; this model's context holds 6" in refused(capsys, "diff", *arguments, "--tokens", 7)

    @pytest.mark.slow
    def test_a_reference_side_says_that_it_skips(self, bare: Path, capsys: Capture) -> None:
        ids = ",".join(map(str, range(40)))
        said = ran(capsys, bare, "--b", "plan=reference,context=40", "--ids", ids, "--trace", 1)
        assert "at 32 evenly spread positions of 40 tokens (the reference plan runs all tokens for each" in said
        assert "over 1 token;" in said


def test_bad_input_is_told_in_one_line(bare: Path, small: Path, tmp_path: Path, capsys: Capture) -> None:
    for arguments, expected in (
        ((), "found neither --prompt, --ids nor --text; give one of them"),
        (("--ids", "1", "--prompt", "x"), "found both --prompt and --ids; give one of them"),
        (("--text", "x", "--ids", "1"), "found both --ids and --text; give one of them"),
        (("--ids", "1,x"), "found 'x' in the token ids"),
        (("--ids", ""), "the prompt is empty"),
        (("--prompt", "text"), "no tokenizer was given"),
        (("--ids", "1", "--a", "api=vulkan"), "expected api to be one of es, desktop"),
        (("--ids", "1", "--b", "device=99"), "B: there is no EGL device 99"),
        (("--ids", "1", "--b", "tokenizer=nowhere.bpe"), "B: nowhere.bpe: cannot read it"),
        (("--ids", "1", "--tolerance", "-1"), "the tolerance is -1.0"),
        (("--ids", "1", "--tolerance", "nan"), "the tolerance is nan"),
        (("--ids", "1", "--positions", "0"), "--positions"),
        (("--text", "nowhere.txt"), "nowhere.txt: cannot read it"),
        (("nowhere.gab", "--ids", "1"), "B: nowhere.gab: cannot read it"),
    ):
        assert expected in refused(capsys, "diff", bare, *arguments)
    path = tmp_path / "latin.txt"
    path.write_bytes("caf\xe9".encode("latin-1"))
    assert "is not UTF-8 (byte 3); expected a text file" in refused(capsys, "diff", small, "--text", path)
