"""A flipped bit of a live texture is found, each kind in turn; a comparison that looks away fails the run."""

from __future__ import annotations

import json

import pytest
from qa_commands import run
from tiers import tiered

from glinfer.engine.textures import TextureComparison
from glinfer.gl.context import Device
from qa.flips import FLIPPED_FAMILIES, FLIPPED_FORMATS, INTACT, flip_everywhere

pytestmark = pytest.mark.gl

KINDS = {
    ("gpt2", "reference"): {"embedding", "positions", "norm", "matrix", "bias"},
    ("llama", "Q4_0"): {"embedding", "positions", "packed words", "bias", "norm"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "weights"), KINDS)
def test_a_few_bits_of_each_kind(device: Device, family: str, weights: str) -> None:
    intact, *flips = flip_everywhere(device, count=3, clean=4, families=(family,), weights=(weights,))
    assert {count.kind for count in flips} == KINDS[family, weights]
    assert all((count.whole, count.sampled, count.tries, count.passed) == (3, 3, 3, True) for count in flips)
    assert (intact.kind, intact.whole, intact.tries, intact.passed) == (INTACT, 4, 4, True)


@pytest.mark.slow
def test_bits_of_every_family_and_format(device: Device) -> None:
    counts = list(flip_everywhere(device, count=1, clean=1))  # 200 in `python -m qa flips`, which takes minutes
    assert all(count.passed for count in counts)
    assert {count.family for count in counts} == set(FLIPPED_FAMILIES)
    assert {count.weights for count in counts} == set(FLIPPED_FORMATS)


@tiered("blind", ["whole", "_sample"])
def test_a_comparison_that_looks_away_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], blind: str
) -> None:
    if blind == "whole":
        monkeypatch.setattr(TextureComparison, "whole", lambda comparison: iter(()))
    else:
        sample = TextureComparison._sample
        monkeypatch.setattr(TextureComparison, "_sample", lambda *arguments: (sample(*arguments)[0], []))
    arguments = ["flips", "--count", "2", "--clean", "0", "--families", "gab", "--weights", "f32", "--json"]
    assert run(arguments) == 1
    told = json.loads(capsys.readouterr().out)
    missed, kept = ("whole", "sampled") if blind == "whole" else ("sampled", "whole")
    assert all((count[missed], count[kept], count["passed"]) == (0, 2, False) for count in told["counts"][1:])


def test_what_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flips", "--families", "bert"]) == 2
    assert "found family bert in f32; expected one of " in capsys.readouterr().err
    assert run(["flips", "--weights", "q3"]) == 2
    assert "found family gab in q3" in capsys.readouterr().err
