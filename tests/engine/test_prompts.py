"""What ``Model`` takes as a prompt and as options, and what it refuses before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import tiered

import glinfer
from glinfer.engine.model import Model
from glinfer.errors import InputError

pytestmark = pytest.mark.gl

PROMPT = [13, 132, 251, 70]


class TestPrompts:
    @pytest.fixture
    def model(self, small: Path):
        with glinfer.load(small) as model:
            yield model

    @pytest.mark.parametrize("prompt", ["", [], (), np.array([], dtype=np.int64)])
    def test_an_empty_one_is_refused(self, model: Model, prompt: Any) -> None:
        with pytest.raises(InputError, match="the prompt is empty"):
            model.generate(prompt)

    @pytest.mark.parametrize(
        "prompt",
        [
            np.array(PROMPT),
            np.array(PROMPT, dtype=np.uint8),
            tuple(PROMPT),
            [np.int64(t) for t in PROMPT],
            [np.uint16(t) for t in PROMPT],
        ],
    )
    def test_whole_numbers_of_any_kind_are_ids(self, model: Model, prompt: Any) -> None:
        assert model.generate(prompt, max_tokens=3, temperature=0) == model.generate(
            PROMPT, max_tokens=3, temperature=0
        )

    @pytest.mark.parametrize(
        "prompt",
        [
            [1.0, 2.0],
            [1, 2.5],
            [True, False],
            [1, "2"],
            [1, [2]],
            [b"Once"],
            [np.True_],
            np.array([1.0, 2.0]),
            np.array([[1, 2], [3, 4]]),
            [None],
            5,
            None,
            object(),
        ],
    )
    @tiered("use", ["generate", "stream", "logits", "probs", "forward"], keep=(0,))
    def test_what_is_no_id_is_refused(self, model: Model, prompt: Any, use: str) -> None:
        with pytest.raises(InputError, match="the prompt is no sequence of whole numbers"):
            getattr(model, use)(prompt)

    @tiered("prompts", [["1", "2"], [[1, 2]], ["Once"], ([1], (2, 3))])
    @pytest.mark.parametrize("use", ["stream", "logits", "probs", "forward"])
    def test_a_list_of_prompts_is_for_generate_alone(self, model: Model, prompts: Any, use: str) -> None:
        assert len(model.generate(prompts, max_tokens=1)) == len(prompts)
        with pytest.raises(InputError, match="the prompt is no sequence of whole numbers"):
            getattr(model, use)(prompts)

    @pytest.mark.parametrize("prompt", [b"Once", bytearray(b"Once")])
    def test_bytes_are_not_taken_for_ids(self, model: Model, prompt: Any) -> None:
        with pytest.raises(InputError, match="expected text"):
            model.generate(prompt)

    @pytest.mark.parametrize(("prompt", "place"), [([300], 0), ([-1], 0), ([5, 299, 10**30], 2), ([1, -(2**31)], 1)])
    def test_an_id_outside_the_vocabulary_is_named_with_its_place(
        self, model: Model, prompt: list[int], place: int
    ) -> None:
        for use in (model.generate, model.logits):
            with pytest.raises(InputError, match=f"token {place} of the prompt is {prompt[place]}; .* 0 to 299"):
                use(prompt)

    def test_the_first_and_the_last_id_are_ids(self, model: Model) -> None:
        assert len(model.generate([0, 299], max_tokens=1)) == 1

    @pytest.mark.parametrize("length", [65, 1000])
    def test_one_token_too_many_is_refused(self, model: Model, length: int) -> None:
        with pytest.raises(InputError, match=f"the prompt has {length} tokens; this model's context holds 64"):
            model.generate([1] * length)

    def test_a_text_that_is_too_long_is_refused(self, model: Model) -> None:
        with pytest.raises(InputError, match="this model's context holds 64"):
            model.generate("x " * 500)

    def test_half_a_surrogate_pair_is_refused(self, model: Model) -> None:
        with pytest.raises(InputError, match="surrogate"):
            model.generate("a\ud800b")

    @pytest.mark.parametrize(("max_tokens", "dropped"), [(1, 0), (2, 32), (33, 32), (34, 64)])
    def test_an_exactly_full_context_gives_one_token_before_it_is_halved(
        self, model: Model, max_tokens: int, dropped: int
    ) -> None:
        stream = model.stream([7] * 64, max_tokens=max_tokens)
        assert len(list(stream)) == max_tokens
        assert (stream.stats.finish_reason, stream.stats.dropped) == ("length", dropped)
        assert (stream.stats.prompt_tokens, stream.stats.tokens) == (64, max_tokens)

    @pytest.mark.parametrize(
        ("option", "error"),
        [
            ({"temperature": float("nan")}, "temperature"),
            ({"temperature": -1}, "temperature"),
            ({"temperature": "hot"}, "temperature"),
            ({"top_p": 2}, "top_p"),
            ({"top_p": -0.1}, "top_p"),
            ({"top_k": -1}, "top_k"),
            ({"top_k": 1.5}, "top_k"),
            ({"min_p": 1.1}, "min_p"),
            ({"repetition_penalty": 0}, "repetition_penalty"),
            ({"seed": -1}, "seed"),
            ({"seed": 1.0}, "seed"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": True}, "max_tokens"),
            ({"max_tokens": 1.0}, "max_tokens"),
            ({"stop_ids": [300]}, "stop id 300 can never come"),
            ({"stop_ids": [-1]}, "stop id -1 can never come"),
            ({"stop_ids": ["a"]}, "stop_ids is no sequence of whole numbers"),
            ({"stop_ids": 5}, "stop_ids is no sequence of whole numbers"),
            ({"stop": ""}, "stop string 0 is empty"),
            ({"stop": b"end"}, "stop is a bytes"),
            ({"stop": [""]}, "stop"),
        ],
    )
    def test_options_that_cannot_be_are_refused_before_anything_runs(
        self, model: Model, option: dict[str, Any], error: str
    ) -> None:
        with pytest.raises(InputError, match=error):
            model.stream("Once", **option)
        assert model.bound.runs == 0

    def test_stop_strings_need_text(self, model: Model) -> None:
        with pytest.raises(InputError, match="use stop_ids"):
            model.stream(PROMPT, stop=["x"])
