"""Texts with one of two sets of angles, as longrope has them, against what generate of transformers gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import agree
from goldens import check_digest, recorded
from goldens.figures import spots
from goldens.models import LONGROPE, LONGROPE_PROMPTS, prompt, write_model
from token_streams import finished

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest

pytestmark = pytest.mark.gl

OF_RANGE = 1e-4
LIMIT, CONTEXT = 32, 96
FIGURES = recorded("longrope")
TEXT = prompt(80)
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_model(LONGROPE, tmp_path_factory.mktemp("longrope"))
    check_digest(path / "model.safetensors", {FIGURES["sha256"]})
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with glinfer.load(folder) as made:
        yield made


def follow(model: Model, figures: dict[str, Any], tokens: int) -> None:
    """Go on with the recorded tokens, and compare the logits of each step."""
    ids = figures["ids"]
    with model.session() as session:
        session.prefill(ids[:tokens])
        for step, expected in enumerate(figures["spots"]):
            found = session.logits()
            chosen = found[spots(ids, tokens - 1 + step, len(found))]
            assert np.abs(chosen - expected).max() <= OF_RANGE * figures["range"], step
            assert int(found.argmax()) == ids[tokens + step]
            session.step(ids[tokens + step])


@pytest.mark.slow
def test_the_tokens_and_logits_are_those_of_transformers(model: Model) -> None:
    for tokens in LONGROPE_PROMPTS:
        figures = FIGURES["prompts"][str(tokens)]
        follow(model, figures, tokens)
        assert model.generate(figures["ids"][:tokens], max_tokens=14, **GREEDY) == figures["ids"][tokens:]


@pytest.mark.slow
def test_prompts_together_are_as_alone(model: Model) -> None:
    """In batches whose rows turn by both sets, over the limit, and from beginnings that others have run."""
    requests = [
        BatchRequest(TEXT[:count], {"max_tokens": most, **options})
        for count, most, options in (
            (30, 9, GREEDY),
            (24, 14, {"seed": 3}),
            (45, 6, GREEDY),
            (33, 8, {"seed": 1, "top_k": 5}),
            (28, 12, GREEDY),
            (40, 70, GREEDY),  # over a full context, of which less than the limit stays
            (5, 12, GREEDY),
        )
    ]
    results = list(model.batch(requests, slots=2))
    assert len(results) == len(requests)
    for result in results:
        alone = model.generate(result.request.prompt, **result.request.options)  # type: ignore[call-overload]
        assert result.ids == alone, len(result.request.prompt)


@pytest.mark.slow
def test_what_has_turned_otherwise_is_not_shared(model: Model) -> None:
    """A slot keeps keys for texts with the same angles."""
    with model.scheduler(slots=1) as scheduler:
        found = []
        for count in (30, 31, 40, 36, 28):
            each = scheduler.insert(BatchRequest(TEXT[:count], {"max_tokens": 1, **GREEDY}))
            finished(scheduler)
            found.append(
                (each.stats.reused_tokens > 0, each.ids == model.generate(TEXT[:count], max_tokens=1, **GREEDY))
            )
    assert found == [(False, True), (True, True), (False, True), (True, True), (False, True)]


@pytest.mark.slow
def test_how_a_prompt_was_split_does_not_matter(model: Model) -> None:
    for pieces in ((40,), (31, 1, 1, 7), (32, 8), (33, 7), (1,) * 40, (20, 13, 7)):
        expected = model.logits(TEXT[:40])
        with model.session() as session:
            for count in pieces:
                session.prefill(TEXT[len(session) : len(session) + count])
                session.logits()
            assert agree(session.logits(), expected, 1e-5), pieces
            session.rewind(10)
            assert agree(session.logits(), model.logits(TEXT[:30]), 1e-5)
            with session.fork() as fork:
                fork.prefill(TEXT[30:34])
                assert agree(fork.logits(), model.logits(TEXT[:34]), 1e-5)
            session.prefill(TEXT[30:32])
            assert agree(session.logits(), model.logits(TEXT[:32]), 1e-5)
