"""Write a seed's texts by one setting, and compare tokens and logits with those of another renderer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glinfer.engine.engine import Engine
from glinfer.engine.loading import prepare
from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.engine.stream import TokenStream
from glinfer.errors import ContextError, GLError, InputError
from glinfer.formats import Checkpoint
from glinfer.inspect.settings import RunSetting
from glinfer.lower.plain.gab import LOGITS, TOKENS, reference_plan
from glinfer.lower.plans import is_published, weights_for
from glinfer.program.oracle import final_tensors

Wide = npt.NDArray[np.float64]
REFERENCE_TOKENS = 24
"""Tokens of each text of the reference plan, which runs the whole sequence for every token."""
REFERENCE_POSITIONS = 8
"""Positions at which logits of the reference plan are compared; each costs a whole run."""


@dataclass(frozen=True)
class Question:
    """The texts that every setting writes.

    Attributes:
        prompt: token ids before every text.
        tokens: tokens of each text.
        samplings: options of the sampler, one set for each text.
    """

    prompt: tuple[int, ...]
    tokens: int
    samplings: tuple[SamplingOptions, ...]


@dataclass(frozen=True)
class Divergence:
    """First position where two texts choose different tokens, and the gap between their scores.

    A score is a logit over the temperature plus the noise of the draw. A gap as small as the drift is a tie that
    rounding breaks.
    """

    text: int
    place: int
    token: int
    other: int
    gap: float


@dataclass(frozen=True)
class TextsRow:
    """Texts and logits of one setting, compared with recorded ones.

    Attributes:
        texts: tokens of each text.
        equal: number of texts that agree with the expected ones, as far as both go.
        partings: first difference of each other text.
        drift: the largest difference of a logit along the first text, relative to the range of the logits: from
            float64 where there is an oracle for the whole sequence, else 0.
        problem: why the setting could not be run; the rest is empty then.
    """

    texts: tuple[tuple[int, ...], ...] = ()
    equal: int = 0
    partings: tuple[Divergence, ...] = ()
    drift: float = 0.0
    problem: str = ""


def compare_texts(
    checkpoint: Checkpoint, setting: RunSetting, question: Question, recorded: Sequence[Sequence[int]] | None = None
) -> TextsRow:
    """Write the texts of a question by a setting, and compare them with ``recorded`` ones, written elsewhere.

    Raises:
        InputError: the prompt and the texts are more than the context.
    """
    if len(question.prompt) + question.tokens > checkpoint.config.max_position_embeddings:
        raise InputError(
            f"{len(question.prompt)} tokens of prompt and {question.tokens} more are beyond the context of "
            f"{checkpoint.config.max_position_embeddings}"
        )
    try:
        device = setting.opened()
    except (ContextError, GLError) as error:
        return TextsRow(problem=str(error))
    with device:
        engine = prepare(checkpoint, device, setting.plan, setting.weights).bind(device)
        try:
            found = _texts(engine, question)
            texts = found if recorded is None else [tuple(text) for text in recorded]
            sequence = [*question.prompt, *texts[0]]
            logits = _logits(engine, sequence)
            return _row(engine, question, found, texts, logits, _oracle(checkpoint, sequence, logits))
        finally:
            engine.bound.release()


def _texts(engine: Engine, question: Question) -> list[tuple[int, ...]]:
    count = question.tokens if engine.plan.name == "fast" else min(question.tokens, REFERENCE_TOKENS)
    texts: list[tuple[int, ...]] = []
    for sampling in question.samplings:
        with engine.session() as session:
            request = BatchRequest(question.prompt)
            row = Running(request, list(question.prompt), sampling, count, frozenset())
            texts.append(tuple(TokenStream(session, row)))
    return texts


def _logits(engine: Engine, sequence: Sequence[int]) -> dict[int, Wide]:
    """Logits after the tokens of a sequence, by position; of the reference plan at a few positions."""
    found = {}
    with engine.session() as session:
        if engine.plan.name == "fast":
            for place, token in enumerate(sequence):
                session.step(token)
                found[place] = session.logits().astype(np.float64)
            return found
        for place in np.linspace(0, len(sequence) - 1, min(len(sequence), REFERENCE_POSITIONS)).astype(int).tolist():
            session.hold(sequence[: place + 1])
            found[place] = session.logits().astype(np.float64)
    return found


def _oracle(checkpoint: Checkpoint, sequence: Sequence[int], logits: dict[int, Wide]) -> Wide:
    """Logits [tokens, vocab] in float64; those found if the family has no oracle."""
    config, rows = checkpoint.config, len(sequence)
    if not is_published(config, checkpoint.formats()):
        return np.stack([logits.get(place, np.full(config.vocab_size, np.nan)) for place in range(rows)])
    plan, arrays = reference_plan(config, all_rows=True), weights_for(checkpoint, "reference")
    found = final_tensors(plan, arrays, {TOKENS: np.asarray(sequence)[:, None]}, {"rows": rows})
    return np.asarray(found[LOGITS][:rows], dtype=np.float64)


def _row(
    engine: Engine,
    question: Question,
    found: Sequence[tuple[int, ...]],
    texts: Sequence[tuple[int, ...]],
    logits: dict[int, Wide],
    expected: Wide,
) -> TextsRow:
    drifts = [np.abs(row - expected[place]).max() / np.ptp(expected[place]) for place, row in logits.items()]
    partings = []
    for number, (one, other) in enumerate(zip(found, texts, strict=True)):
        place = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        if place is not None:
            partings.append(_divergence(engine, question, number, place, one, other))
    equal = len(found) - len(partings)
    drift = float(np.nanmax(drifts)) if np.isfinite(drifts).any() else 0.0
    return TextsRow(tuple(found), equal, tuple(partings), drift)


def _divergence(
    engine: Engine, question: Question, number: int, place: int, one: Sequence[int], other: Sequence[int]
) -> Divergence:
    """The gap where two texts differ first, by this setting's logits."""
    with engine.session() as session:
        session.hold([*question.prompt, *one[:place]])
        logits = session.logits()
    sampler = Sampler(question.samplings[number])
    for _ in range(place):
        sampler.advance()
    scores = sampler.scores(logits)
    return Divergence(number, place, one[place], other[place], float(scores[one[place]] - scores[other[place]]))
