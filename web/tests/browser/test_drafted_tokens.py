"""Texts that are drawn with filters and guessed ahead in a site: the tokens are Python's, and those without a guess."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glinfer
from glinfer.config import ModelConfig
from glinfer.export.site import export_web
from glinfer.formats import random_checkpoint, save_checkpoint

pytestmark = [pytest.mark.gl, pytest.mark.web]

SIZES = "heads=4,kv_heads=2,dim=64,inner=96,context=96"
LLAMA = ModelConfig.from_options(f"family=llama,blocks=2,vocab=300,{SIZES}")
DELTA = dataclasses.replace(
    ModelConfig.from_options(f"family=qwen3_5_text,head_dim=16,blocks=4,vocab=300,{SIZES}"),
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=12,
)
MANY = ModelConfig.from_options("family=llama,blocks=1,heads=2,dim=32,inner=64,vocab=5000,context=96")
SHARED = dataclasses.replace(
    ModelConfig.from_options(f"family=gemma4_text,tied=0,head_dim=16,window=9,blocks=6,vocab=300,{SIZES}"),
    layer_types=("sliding_attention", "sliding_attention", "full_attention"),
    global_head_dim=24,
    num_kv_shared_layers=3,
    use_double_wide_mlp=True,
    hidden_size_per_layer_input=12,
)
CASES = {
    "attention": (LLAMA, "q8"),
    "many tokens": (MANY, "f32"),
    "a delta rule": (DELTA, "f32"),
    "shared keys and values": (SHARED, "f32"),
}
NAMES = {
    "temperature": "temperature",
    "top_k": "topK",
    "top_p": "topP",
    "min_p": "minP",
    "repetition_penalty": "repetitionPenalty",
}
HOWS = [
    (0.0, 0, 1.0, 0.0, 1.0),
    (0.1, 0, 1.0, 0.0, 1.0),
    (0.7, 40, 0.95, 0.0, 1.0),
    (0.7, 40, 0.95, 0.1, 1.05),
]
FILTERS = [(0.7, 40, 0.95, 0.0, 1.0), (0.7, 0, 0.9, 0.0, 1.0), (0.7, 5, 1.0, 0.0, 1.0), (0.7, 0, 1.0, 0.1, 1.0)]
FLAT, PENALTY = (3.0, 0, 0.9, 0.0, 1.0), (0.7, 40, 0.95, 0.1, 1.3)
# A text that repeats itself, one of which only the end is another, and one whose rest does not fit the context.
PROMPTS = [[5, 17, 40, 2, 9] * 5, [*[5, 17, 40, 2, 9] * 4, 8, 8, 40, 2, 9], [3, 1, 4] * 28]
COUNT = 40

Drive = Callable[..., dict[str, Any]]


def written(config: ModelConfig, folder: Path) -> Path:
    checkpoint = random_checkpoint(config, seed=3)
    if "lm_head.weight" in checkpoint.tensors:
        checkpoint.tensors["lm_head.weight"] *= 8  # likely tokens are few, as in models that were trained
    for name in checkpoint.tensors if config.family.layer.norms == "both" else ():
        if "post_" in name:  # branches weigh so little that texts repeat themselves
            checkpoint.tensors[name] *= 0.03
    path = folder / "model.safetensors"
    save_checkpoint(checkpoint, path)
    return path


def options_of(how: tuple[float, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of ``generate`` and of a job, with one seed."""
    options = dict(zip(NAMES, how, strict=True))
    return {**options, "seed": 4}, {**{NAMES[name]: value for name, value in options.items()}, "seed": 4}


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_without_a_guess(run_site: Drive, tmp_path: Path, case: str) -> None:
    """Greedy and drawn, with filters and a penalty, edited, and in a full context."""
    config, weights = CASES[case]
    path = written(config, tmp_path)
    made = export_web(path, tmp_path / "site", weights=weights, limits="webgl2")
    asked = [(prompt, *options_of(how)) for how in HOWS for prompt in PROMPTS]
    with glinfer.load(path, weights=weights) as model:
        expected = [model.generate(ids, max_tokens=COUNT, stop_ids=(), **how) for ids, how, _ in asked]
    jobs = [
        {"kind": "stream", "ids": ids, "count": COUNT, "options": {**each, "speculate": "ngram"}, "flat": True}
        for ids, _, each in asked
    ]
    alone = len(PROMPTS)  # of the last way to choose
    jobs += [{**job, "options": {**job["options"], "speculate": None}} for job in jobs[-alone:]]
    results = run_site(made.folder, jobs, query="?minimum=1")["results"]
    guessed, plain = results[:-alone], results[-alone:]
    assert [each["ids"] for each in guessed] == expected
    assert [each["ids"] for each in plain] == expected[-alone:]
    assert [each["held"] for each in guessed[-alone:]] == [each["held"] for each in plain]
    assert guessed[-1]["dropped"] > 0
    assert [each["drafted"] for each in plain] == [0] * alone
    drafted, accepted = (sum(each[name] for each in guessed) for name in ("drafted", "accepted"))
    assert 0 < accepted < drafted  # right ones and wrong ones


def test_filtered_tokens_are_chosen_by_passes(run_site: Drive, tmp_path: Path) -> None:
    """A row of logits is read back only for a penalty, and where the passes leave the choice to it."""
    path, prompt = written(MANY, tmp_path), PROMPTS[0]
    folder = export_web(path, tmp_path / "site", limits="webgl2").folder
    options = [options_of(how) for how in (*FILTERS, FLAT, PENALTY)]
    with glinfer.load(path) as model:
        expected = [model.generate(prompt, max_tokens=COUNT, stop_ids=(), **how) for how, _ in options]
    jobs = [{"kind": "stream", "ids": prompt, "count": COUNT, "options": each} for _, each in options]
    results = run_site(folder, jobs, query="?minimum=1")["results"]
    assert [each["ids"] for each in results] == expected
    *filtered, flat, penalised = (each["logitReads"] for each in results)
    assert sum(filtered) <= len(filtered) * COUNT // 10
    assert 0 < flat < COUNT
    assert penalised == COUNT
