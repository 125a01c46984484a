"""A full context drops its oldest half, but for what the tokenizer puts before every text, and what ``keep`` says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from template_models import byte_library
from tokenizers import processors

import glinfer
from glinfer.engine.ids import room_made
from glinfer.engine.model import Model
from glinfer.errors import InputError

pytestmark = pytest.mark.gl
BEFORE = [256, 257]
CONTEXT = 16
TEXT = "hello"


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer that puts two tokens before every text, and one after it."""
    made = byte_library("</s>")
    tokens = [("<|im_start|>", 256), ("<|im_end|>", 257), ("</s>", 258)]
    single = "<|im_start|> <|im_end|> $A </s>"
    made.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
    path = tmp_path_factory.mktemp("before") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.fixture(scope="module", params=["fast", "reference"])
def short(request: pytest.FixtureRequest, bare: Path, tokenizer_file: Path) -> Iterator[Model]:
    with glinfer.load(bare, tokenizer=tokenizer_file, context=CONTEXT, plan=request.param) as model:
        yield model


@pytest.fixture(scope="module")
def fast(bare: Path, tokenizer_file: Path) -> Iterator[Model]:
    with glinfer.load(bare, tokenizer=tokenizer_file, context=CONTEXT) as model:
        yield model


def test_a_session_keeps_what_stands_before_a_text(short: Model) -> None:
    with short.session() as session:
        session.prefill(TEXT)
        begin = session.ids
        assert begin[:2] == BEFORE
        session.prefill(more := [*range(20, 20 + CONTEXT - len(begin))])
        assert (len(session), session.room, session.dropped) == (CONTEXT, 1, 0)
        session.step(70)
        dropped = (CONTEXT - 2 + 1) // 2
        assert session.ids == [*BEFORE, *[*begin, *more][2 + dropped :], 70]
        assert session.dropped == dropped
        np.testing.assert_allclose(session.logits(), short.logits(session.ids), atol=1e-5)
        with session.fork() as other:
            other.prefill(range(3 * CONTEXT))
            assert other.ids[:2] == BEFORE


def test_a_session_keeps_as_many_as_it_was_told(short: Model) -> None:
    with short.session(keep=5) as session:
        session.prefill(range(CONTEXT))
        session.generate_ids(1)
        assert session.room == (CONTEXT - 5 + 1) // 2
        session.generate_ids(4 * CONTEXT)
        assert session.ids[:5] == [0, 1, 2, 3, 4]
    with short.session() as session:  # one that does not begin with those tokens keeps none
        session.prefill([BEFORE[0], *range(CONTEXT)])
        assert session.ids == list(range(CONTEXT // 2 - 1, CONTEXT))


@pytest.mark.parametrize("context", [1, 2, 3])
def test_contexts_of_few_tokens_go_on(bare: Path, tokenizer_file: Path, context: int) -> None:
    with glinfer.load(bare, tokenizer=tokenizer_file, context=context) as model, model.session() as session:
        session.prefill([*BEFORE, 1, 2, 3])
        assert len(session.generate_ids(9)) == 9
        assert session.ids[: context - 1] == BEFORE[: context - 1]


def test_the_newest_token_always_has_a_place() -> None:
    for context in range(1, 9):
        for keep in range(context):
            held = list(range(context + 1))
            oldest = room_made(held, [0, 1], keep, context)
            assert oldest.start == max(min(2, context - 1), keep)
            assert oldest.stop - oldest.start >= 1
            assert oldest.stop <= context
    assert room_made([5] * 9, [], 0, 8) == slice(0, 4)


@pytest.mark.parametrize("keep", [0, 4, -1])
def test_texts_are_the_same_alone_and_together(fast: Model, keep: int) -> None:
    prompts: list[str | list[int]] = [TEXT, "a", [7, 8, 9], [*BEFORE, 9]]
    for sampling in ({"seed": 3}, {"seed": 4, "top_k": 5, "repetition_penalty": 1.2}):
        options = {"keep": keep, "max_tokens": 2 * CONTEXT, "stop_ids": [], **sampling}
        alone = []
        for prompt in prompts:
            stream = fast.stream(prompt, **options)
            list(stream)
            alone.append((stream.ids, stream.stats.dropped))
        requests = [glinfer.BatchRequest(prompt, options, place) for place, prompt in enumerate(prompts)]
        found = {result.request.key: result for result in fast.batch(requests)}
        assert [(found[place].ids, found[place].stats.dropped) for place in range(4)] == alone
        assert all(dropped for _, dropped in alone)


def test_the_prompt_stays(fast: Model) -> None:
    list(fast.stream([7, 8, 9], keep=-1, max_tokens=3 * CONTEXT))
    assert fast._own.ids[:3] == [7, 8, 9]
    list(fast.stream([7, 8, 9], max_tokens=3 * CONTEXT))  # which an earlier text's keep is nothing to
    assert fast._own.ids[:3] != [7, 8, 9]


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        (CONTEXT, f"keep is {CONTEXT} tokens; the context holds {CONTEXT}; expected fewer"),
        (-2, "the number of tokens to keep is -2; expected an integer of at least 0"),
        (1.5, "the number of tokens to keep is 1.5; expected an integer of at least 0"),
    ],
)
def test_what_cannot_be_kept_is_refused(fast: Model, keep: int, says: str) -> None:
    for refused in (
        lambda: fast.stream([1], keep=keep),
        lambda: fast.generate([[1], [2]], keep=keep),
        lambda: fast.session(keep=keep),
    ):
        with pytest.raises(InputError, match=says.replace("(", r"\(")):
            refused()
    with pytest.raises(InputError, match="keep is"):
        fast.generate(list(range(CONTEXT)), keep=-1)
    with pytest.raises(InputError, match=r"at least 0, or -1 for the whole prompt$"):
        fast.stream([1], keep=-2)
