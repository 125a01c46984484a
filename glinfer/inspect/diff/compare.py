"""Comparison of two runs over the same tokens: of models, plans, weight formats or renderers.

Tensors that both plans can capture (:mod:`glinfer.program.capture`) are compared in the order of computation, then
the predictions along the text. The models are opened one after the other, so memory holds the larger of the two.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.engine.ids import check_ids, integers
from glinfer.engine.loading import load_model, read_model
from glinfer.engine.logits import log_softmax
from glinfer.engine.model import Model
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.report import Report, plain
from glinfer.errors import GlinferError, InputError
from glinfer.formats import load_checkpoint, weight_shapes
from glinfer.gl.context import Device
from glinfer.inspect.diff.weights import WeightsDiff, diff_weights
from glinfer.inspect.settings import RunSetting
from glinfer.limits import MAX_DIFF_LOGITS
from glinfer.lower.plans import check_choice
from glinfer.program.oracle import relative_errors
from glinfer.program.points import CENTRED, CapturePoint
from glinfer.quant.formats import DEFAULT_CACHE, FROM_FILE
from glinfer.text.tokenizer import find_tokenizer

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[np.floating]


SAME_FORMAT, OTHER_FORMAT = 1e-4, 0.1
"""Default tolerances, as relative errors: float32 computations in another order differ by 1e-7 to 1e-5, and weights in
fewer bits by some percent."""
DEFAULT_TRACE = 256
"""Tokens over which captured tensors are compared by default."""
REFERENCE_POSITIONS = 32
"""Positions at which predictions are compared with the reference plan, which runs all tokens for each."""


@dataclass(frozen=True)
class RunConfig(RunSetting):
    """One run of a comparison, with the arguments of :func:`glinfer.engine.loading.load_model`."""

    model: str | PathLike[str]
    gelu: str | None = None
    context: int | None = None
    tokenizer: str | PathLike[str] | None = None


def diff(
    side_a: RunConfig,
    side_b: RunConfig,
    prompt: str | Sequence[int],
    *,
    tokens: int | None = None,
    shorten: bool = False,
    tolerance: float | None = None,
    positions: int | None = None,
    trace: int = DEFAULT_TRACE,
    on_progress: Progress = no_progress,
) -> DiffReport:
    """Run both sides over the same tokens and compare them; errors are relative to A's values.

    ``prompt`` is ids, or text for A's tokenizer (B's, if A has none), of which the first ``tokens`` run; ``shorten``
    cuts a prompt longer than the context instead of refusing it. ``tolerance`` is :data:`SAME_FORMAT` by default for
    equal formats of weights and caches, else :data:`OTHER_FORMAT`. Predictions are compared at ``positions``, see
    :func:`spread`, and captured tensors over the first ``trace`` tokens. ``on_progress`` receives (done, total) of the
    tensors of two files, then of the tokens of both sides.

    Raises:
        InputError: the prompt is empty or longer than a context, or vocabularies or tokenizations differ.
        GlinferError: a subclass, for a side that cannot be loaded.
    """
    if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
        raise InputError(f"the tolerance is {tolerance}; expected a number of at least 0, such as 1e-4")
    a, b = _Side("A", side_a), _Side("B", side_b)
    if a.config.vocab_size != b.config.vocab_size:
        raise InputError(
            f"A has a vocabulary of {a.config.vocab_size} tokens and B of {b.config.vocab_size}; "
            "expected two models of one vocabulary"
        )
    ids = _ids(prompt, a, b, tokens, shorten)
    chosen = spread(len(ids), positions, whole="reference" in (side_a.plan, side_b.plan), vocab=a.config.vocab_size)
    total = 2 * len(ids)
    with ExitStack() as stack:
        device_a, device_b = [stack.enter_context(each.opened()) for each in (a, b)]
        weights = None
        if os.path.realpath(a.path) != os.path.realpath(b.path):
            weights = diff_weights(load_checkpoint(a.path), load_checkpoint(b.path), on_progress)
        facts_a, kept_a, trace_a, logits_a = a.run(device_a, ids, chosen, trace, lambda done: on_progress(done, total))
        facts_b, kept_b, trace_b, logits_b = b.run(
            device_b, ids, chosen, trace, lambda done: on_progress(len(ids) + done, total)
        )
    along = compare_along(ids, chosen, logits_a, logits_b)
    if tolerance is None:
        alike = side_a.cache == side_b.cache and _kept_alike(kept_a, kept_b)
        tolerance = SAME_FORMAT if alike else OTHER_FORMAT
    words, tokenizer = dict[int, str](), a.tokenizer or b.tokenizer
    if tokenizer is not None:
        shown = {*ids, *(top for at in along.positions for top in (at.top_a, at.top_b))}
        words = {token: tokenizer.token_bytes(token).decode("utf-8", errors="replace") for token in sorted(shown)}
    names = (field.name for field in dataclasses.fields(a.config))
    pairs = ((name, getattr(a.config, name), getattr(b.config, name)) for name in names)
    return DiffReport(
        a=facts_a,
        b=facts_b,
        ids=tuple(ids),
        words=words,
        tolerance=tolerance,
        config={name: (x, y) for name, x, y in pairs if x != y},
        weights=weights,
        passes=tuple(compare_passes(trace_a, trace_b)),
        traced=min(trace, len(ids)),
        only_a=_only(trace_a, trace_b),
        only_b=_only(trace_b, trace_a),
        along=along,
    )


class _Side:
    """One side, whose files are read; its errors begin with its name."""

    def __init__(self, name: str, given: RunConfig) -> None:
        self.name, self.given = name, given
        with self.named():
            check_choice(given.plan, given.weights, given.cache)
            self.path, checkpoint = read_model(given.model, gelu=given.gelu, context=given.context)
            self.config, self.formats = checkpoint.config, checkpoint.formats()
            self.tokenizer, self.problem = find_tokenizer(self.path, given.tokenizer, self.config)

    @contextmanager
    def named(self) -> Iterator[None]:
        try:
            yield
        except GlinferError as error:
            raise type(error)(f"{self.name}: {error}") from None

    def opened(self) -> Device:
        with self.named():
            return self.given.opened()

    def run(
        self,
        device: Device,
        ids: Sequence[int],
        chosen: Sequence[int],
        trace: int,
        on_token: Callable[[int], None],
    ) -> tuple[RunFacts, Mapping[str, str], CapturedRun, Floats]:
        """Return facts, formats of weights, the captured first ``trace`` tokens, and the logits at ``chosen``."""
        given, first = self.given, ids[:trace]
        names = ("plan", "weights", "cache", "gelu", "context")
        options: dict[str, Any] = {name: getattr(given, name) for name in names}
        with self.named(), load_model(self.path, tokenizer=self.tokenizer, device=device, **options) as model:
            plan, shapes = model.plan, weight_shapes(model.config)
            kept = self.formats if model.weights == FROM_FILE else dict.fromkeys(shapes, model.weights.upper())
            facts = RunFacts(
                model=os.fspath(given.model),
                plan=plan.name,
                weights=model.weights,
                cache=model.cache,
                kept=tuple(sorted({kept[name] for name, shape in shapes.items() if len(shape) == 2})),
                renderer=device.description,
                max_texture_size=device.limits.max_texture_size,
                draws=len(plan.draws),
                config=model.config,
            )
            captured = CapturedRun(
                arrays=model.capture("*", first),
                points=plan.points,
                draws=tuple(draw.name for draw in plan.draws),
                tokens=len(first),
            )
            return facts, kept, captured, _logits(model, ids, chosen, on_token)


def _ids(prompt: str | Sequence[int], a: _Side, b: _Side, tokens: int | None, shorten: bool) -> list[int]:
    """Return the checked tokens that both sides run."""
    ids = _encoded(prompt, a, b) if isinstance(prompt, str) else integers("the prompt", prompt)
    shorter = min(a.config, b.config, key=lambda config: config.max_position_embeddings)
    if tokens is None and shorten:
        tokens = shorter.max_position_embeddings
    return check_ids(ids[:tokens], shorter)


def _encoded(text: str, a: _Side, b: _Side) -> list[int]:
    found = [each.tokenizer.encode(text) for each in (a, b) if each.tokenizer is not None]
    if not found:
        raise InputError(a.problem)
    if found[0] != found[-1]:
        pairs = zip(*found, strict=False)
        index = next((index for index, (one, other) in enumerate(pairs) if one != other), min(map(len, found)))
        raise InputError(
            f"the two tokenizers split this text differently, from token {index} on; expected equal tokens; "
            "give the tokens themselves as ids"
        )
    return found[0]


def spread(count: int, positions: int | None, *, whole: bool, vocab: int) -> list[int]:
    """Choose evenly spread positions out of ``count``, including the last one.

    ``whole`` says whether a side runs all tokens for each position; ``vocab`` logits are kept for each.
    """
    most = positions or (REFERENCE_POSITIONS if whole else count)
    most = min(most, count, max(1, MAX_DIFF_LOGITS // vocab))
    return sorted({round(position) for position in np.linspace(count - 1, 0, most).tolist()})


@dataclass(frozen=True)
class CapturedRun:
    """Tensors captured from one side over the first ``tokens`` tokens, by name, in the order of computation.

    ``points`` tells where the plan has each; ``draws`` names all draws of the plan.
    """

    arrays: Mapping[str, Floats]
    points: Mapping[str, CapturePoint]
    draws: tuple[str, ...]
    tokens: int


def _logits(model: Model, ids: Sequence[int], chosen: Sequence[int], on_token: Callable[[int], None]) -> Floats:
    """Return the logits [positions, vocab] after the tokens at those positions."""
    found, wanted = np.empty((len(chosen), model.config.vocab_size), dtype=np.float32), iter(chosen)
    row, reported = 0, next(wanted)
    with model.session() as session:
        for position, token in enumerate(ids[: chosen[-1] + 1]):
            session.step(token)
            if position == reported:
                found[row] = session.logits()
                row, reported = row + 1, next(wanted, -1)
            on_token(position + 1)
    return found


def _kept_alike(a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    common = a.keys() & b.keys()
    return all(a[name] == b[name] for name in common) if common else set(a.values()) == set(b.values())


def _only(one: CapturedRun, other: CapturedRun) -> tuple[str, ...]:
    """List the names that only ``one`` has."""
    others = {name.removesuffix(CENTRED) for name in other.arrays}
    return tuple(name for name in one.arrays if name.removesuffix(CENTRED) not in others)


def compare_passes(a: CapturedRun, b: CapturedRun) -> Iterator[TensorError]:
    """Compare the tensors captured on both sides, in A's order of computation.

    A stream centred on one side is compared without its mean. If one side has more rows, the last ones are compared.
    """
    for name, x in a.arrays.items():
        base = name.removesuffix(CENTRED)
        other = next((each for each in (name, base, base + CENTRED) if each in b.arrays), None)
        if other is None:
            continue
        axis, sites = a.points[name].axis, a.points[name].sites
        x_rows, y_rows = _last_rows(x, b.arrays[other], axis)
        identical = x_rows.shape == y_rows.shape and x_rows.tobytes() == y_rows.tobytes()
        called, pair = name, (x_rows, y_rows)
        if other != name:
            called, identical = base + CENTRED, False
            pair = x_rows if name == called else _centred(x_rows), y_rows if other == called else _centred(y_rows)
        shapes = x_rows.shape, y_rows.shape
        error, index = farthest(pair[1], pair[0]) if shapes[0] == shapes[1] else (None, None)
        place, draw = None, None
        if index is not None:
            *heads, token, column = index
            before = a.tokens - x_rows.shape[axis]
            place = ElementPosition(before + token, heads[0] if heads else None, column)
        if a.draws == b.draws:  # several draws share the first axis equally
            draw = sites[-1 if index is None or len(sites) == 1 else index[0] // (len(x) // len(sites))][0]
        yield TensorError(called, error, identical, place, draw, shapes)


def _last_rows(x: Floats, y: Floats, axis: int) -> tuple[Array, Array]:
    """Return the last rows along an axis that both arrays have."""
    if x.ndim != y.ndim:
        return x, y
    count = min(x.shape[axis], y.shape[axis])
    return x.take(range(-count, 0), axis), y.take(range(-count, 0), axis)


def _centred(stream: Array) -> Array:
    wide = stream.astype(np.float64)
    return np.asarray(wide - wide.mean(axis=-1, keepdims=True))


def farthest(found: Array, expected: Array) -> tuple[float, tuple[int, ...] | None]:
    """Return :func:`glinfer.program.oracle.relative_error` and its index; None if nothing differs."""
    error = relative_errors(found, expected)
    index = int(error.argmax())
    worst = float(error.flat[index])
    return worst, tuple(int(i) for i in np.unravel_index(index, error.shape)) if worst else None


def compare_along(ids: Sequence[int], chosen: Sequence[int], a: Floats, b: Floats) -> Predictions:
    """Compare both sides' logits [positions, vocab] at those positions, in float64."""
    found, worst = [], 0.0
    for position, x, y in zip(chosen, a, b, strict=True):
        with np.errstate(all="ignore"):  # NaN stays NaN, and is reported
            log_a, log_b = log_softmax(x), log_softmax(y)
            share = np.exp(log_a)
            terms = np.where(share > 0, share * (log_a - log_b), 0.0)
            kl = float(np.maximum(terms.sum(), 0.0))
        following = ids[position + 1] if position + 1 < len(ids) else None
        logprobs = (None, None) if following is None else (float(log_a[following]), float(log_b[following]))
        tops = int(x.argmax()), int(y.argmax())
        found.append(NextToken(position, ids[position], following, kl, *tops, *logprobs))
        worst = max(worst, farthest(y, x)[0])
    return Predictions(tuple(found), worst, a.tobytes() == b.tobytes())


@dataclass(frozen=True)
class RunFacts(Report):
    """Facts on one side's run; ``kept`` lists the texture formats of its matrices."""

    model: str
    plan: str
    weights: str
    kept: tuple[str, ...]
    renderer: str
    max_texture_size: int
    draws: int
    config: ModelConfig
    cache: str = DEFAULT_CACHE


@dataclass(frozen=True)
class ElementPosition:
    """Position of an element in a captured tensor: its token, its head (None without heads), and its column.

    A column is a feature; of attention scores and probabilities the position of a key; of logits a token.
    """

    token: int
    head: int | None
    column: int


@dataclass(frozen=True)
class TensorError:
    """Difference of one captured tensor; its name ends in ``.centred`` if either side subtracts the mean.

    ``error`` is the largest difference relative to the largest unmasked value of A, at ``place``; None if the shapes
    differ. ``draw`` completes the tensor, if both plans have the same draws.
    """

    name: str
    error: float | None
    identical: bool
    place: ElementPosition | None
    draw: str | None
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    def beyond(self, tolerance: float) -> bool:
        """Whether it differs by more than ``tolerance``."""
        return self.error is None or not self.error <= tolerance


@dataclass(frozen=True)
class NextToken:
    """Predictions of both sides at one position.

    ``token`` is the one at the position, ``following`` the next one of the text (None at its end), ``kl`` the
    Kullback–Leibler divergence KL(A‖B) in nats, ``top_a`` and ``top_b`` the likeliest tokens, ``logprob_a`` and
    ``logprob_b`` the log-probabilities of ``following``.
    """

    position: int
    token: int
    following: int | None
    kl: float
    top_a: int
    top_b: int
    logprob_a: float | None
    logprob_b: float | None


@dataclass(frozen=True)
class Predictions(Report):
    """Predictions along the text at ``positions``; ``error`` and ``identical`` refer to all their logits."""

    hidden = ("positions",)

    positions: tuple[NextToken, ...]
    error: float
    identical: bool

    @property
    def worst_first(self) -> list[NextToken]:
        """Positions by divergence, the largest first, NaN before all."""
        return sorted(self.positions, key=lambda at: (not math.isnan(at.kl), -at.kl))

    @property
    def kl(self) -> tuple[float, float, float]:
        """Mean, median and largest divergence, in nats."""
        found = np.array([at.kl for at in self.positions])
        return float(found.mean()), float(np.median(found)), self.worst_first[0].kl

    @property
    def agreement(self) -> float:
        """Share of positions with the same likeliest token."""
        return sum(at.top_a == at.top_b for at in self.positions) / len(self.positions)

    def perplexities(self) -> tuple[float, float] | None:
        """Return both perplexities on the tokens that follow the positions; None without such tokens."""
        pairs = [(at.logprob_a, at.logprob_b) for at in self.positions if at.logprob_a is not None]
        if not pairs:
            return None
        with np.errstate(over="ignore"):
            a, b = np.exp(-np.asarray(pairs, dtype=np.float64).mean(axis=0))
        return float(a), float(b)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        mean, median, largest = self.kl
        perplexities = self.perplexities() or (None, None)
        found = {
            "count": len(self.positions),
            **super().to_json(),
            "kl": {"mean": mean, "median": median, "max": largest, "max_at": self.worst_first[0].position},
            "agreement": self.agreement,
            "perplexity": dict(zip("ab", perplexities, strict=True)),
            "positions": self.positions,
        }
        return {name: plain(value) for name, value in found.items()}


@dataclass(frozen=True)
class DiffReport(Report):
    """Comparison of two runs over the same tokens ``ids``, whose texts are ``words``, if there is a tokenizer.

    ``config`` has the fields that differ, with both values; ``weights`` is None if both sides have the same file.
    ``passes`` are the tensors captured in both plans over the first ``traced`` tokens, in the order of computation;
    ``only_a`` and ``only_b`` name the others. ``along`` compares predictions along the whole text.
    """

    derived = ("passed", "identical")

    a: RunFacts
    b: RunFacts
    ids: tuple[int, ...]
    words: Mapping[int, str]
    tolerance: float
    config: Mapping[str, tuple[Any, Any]]
    weights: WeightsDiff | None
    passes: tuple[TensorError, ...]
    traced: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    along: Predictions

    @property
    def identical(self) -> bool:
        """Whether all tensors and logits are equal bit for bit."""
        return self.along.identical and all(each.identical for each in self.passes)

    @property
    def first_different(self) -> TensorError | None:
        """First tensor that is not equal bit for bit."""
        return next((each for each in self.passes if not each.identical), None)

    @property
    def first_beyond(self) -> TensorError | None:
        """First tensor beyond the tolerance."""
        return next((each for each in self.passes if each.beyond(self.tolerance)), None)

    @property
    def passed(self) -> bool:
        """Whether all tensors, and the logits along the text, are within the tolerance."""
        return self.first_beyond is None and self.along.error <= self.tolerance

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        firsts = {"first_different": self.first_different, "first_beyond": self.first_beyond}
        return {**super().to_json(), **{name: first and first.name for name, first in firsts.items()}}
