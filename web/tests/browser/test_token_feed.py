"""Prompts in pieces, several tokens without a readback, and what is not computed again: the tokens are Python's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glinfer
from glinfer.config import ModelConfig
from glinfer.export.companions import PIECE
from glinfer.export.site import export_web
from glinfer.formats import random_checkpoint, save_checkpoint

pytestmark = [pytest.mark.gl, pytest.mark.web]

SIZES = "blocks=2,heads=4,kv_heads=2,dim=64,inner=96,vocab=300,context=160"
LLAMA = ModelConfig.from_options(f"family=llama,{SIZES}")
COUNT = 6
DRAWN: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": 3,
}
NAMES = {"temperature": "temperature", "top_k": "topK", "top_p": "topP", "min_p": "minP", "seed": "seed"}
NAMES |= {"repetition_penalty": "repetitionPenalty"}

Drive = Callable[..., dict[str, Any]]


def written(config: ModelConfig, folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_checkpoint(random_checkpoint(config, seed=3), path)
    return path


def prompt_of(length: int, step: int = 7) -> list[int]:
    return [step * place % 300 for place in range(length)]


def test_prompts_of_every_length_in_pieces_and_token_by_token(run_site: Drive, tmp_path: Path) -> None:
    """Around a piece, of several pieces, and up to the context; and one that is drawn until its end."""
    path = written(LLAMA, tmp_path)
    made = export_web(path, tmp_path / "site", weights="q8", limits="webgl2")
    rows, head = made.plan["companions"]["rows"], made.plan["head_draws"]
    assert (rows["most"], rows["least"]) == (PIECE, 4)
    prompts = [prompt_of(length) for length in (1, 3, 4, PIECE, PIECE + 1, 158)]
    with glinfer.load(path, weights="q8") as model:
        expected = []
        for prompt in prompts:
            with model.session() as session:
                session.prefill(prompt)
                expected.append(session.generate_ids(COUNT))
        drawn = model.generate(prompts[2], max_tokens=40, stop_ids=(), **DRAWN)
    jobs: list[dict[str, Any]] = [
        {"kind": "stream", "ids": prompt, "count": COUNT, "options": {"temperature": 0}} for prompt in prompts
    ]
    jobs += [{"kind": "greedy", "ids": prompt, "count": COUNT, "single": True} for prompt in prompts]
    how = {NAMES[name]: value for name, value in DRAWN.items()} | {"stopIds": [drawn[20]]}
    jobs.append({"kind": "stream", "ids": prompts[2], "count": 40, "options": how})
    *results, stopped = run_site(made.folder, jobs, query="?minimum=1")["results"]
    assert [each["ids"] for each in results] == expected * 2
    assert stopped["ids"] == drawn[: drawn.index(drawn[20]) + 1]
    assert stopped["held"] == [*prompts[2], *stopped["ids"]]  # what was chosen after the end is taken back
    for prompt, found in zip(prompts[3:5], results[len(prompts) + 3 :], strict=False):
        assert found["promptDraws"] == (len(prompt) - 1) * (made.draws - head)  # so each token ran by itself


STATES = {
    "a window": ModelConfig.from_options(f"family=mistral,window=5,{SIZES}"),
    "convolutions": ModelConfig.from_options("family=lfm2,blocks=3," + SIZES.removeprefix("blocks=2,")),
    "a delta rule": dataclasses.replace(
        ModelConfig.from_options("family=qwen3_5_text,head_dim=16,blocks=4," + SIZES.removeprefix("blocks=2,")),
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=12,
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_what_the_caches_hold_is_not_computed_again(run_site: Drive, tmp_path: Path, state: str) -> None:
    """A text that was edited near its end, one that is written anew, one that goes on, and another text."""
    path = written(STATES[state], tmp_path)
    made = export_web(path, tmp_path / "site")
    first = prompt_of(100)
    edited = [*first[:90], *prompt_of(7, 11)]
    prompts = [first, edited, edited, [*first[:90], 5, 6], prompt_of(80, 13)]
    with glinfer.load(path) as model:
        expected = [model.generate(each, max_tokens=COUNT, temperature=0, stop_ids=()) for each in prompts]
    options = {"temperature": 0, "topK": 0, "topP": 1, "minP": 0, "repetitionPenalty": 1}
    jobs = [{"kind": "stream", "ids": each, "count": COUNT, "options": options} for each in prompts]
    results = run_site(made.folder, jobs)["results"]
    assert [each["ids"] for each in results] == expected
    rows, draws = made.plan["companions"]["rows"], made.draws
    piece, tail = len(rows["draws"]), rows["tail"]
    runs = [-(-100 // rows["most"]), 1, 0, 0, -(-80 // rows["most"])]
    extra = [runs[place] * piece - (tail if runs[place] else 0) for place in range(5)]
    extra[3] = draws - made.plan["head_draws"]  # the first of two tokens, by itself
    assert [each["draws"] for each in results] == [draws * COUNT + more for more in extra]
