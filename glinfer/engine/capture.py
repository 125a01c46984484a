"""Capture, watch and patch the tensors of a running model, by the names of :mod:`glinfer.program.capture`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from glinfer.closing import Closing
from glinfer.config import ModelConfig
from glinfer.engine.engine import Engine
from glinfer.engine.ids import Ids, check_callback, integer
from glinfer.engine.logits import softmax
from glinfer.engine.run.decode import DecodeSession
from glinfer.errors import InputError
from glinfer.formats.files import words_of
from glinfer.kernels import DrawSpec
from glinfer.kernels.published.attention import MASKED
from glinfer.notebook import table
from glinfer.program.capture import Textures, chosen, sinks_tensor, span_of
from glinfer.program.oracle import MASK_LIMIT
from glinfer.program.plan import Plan
from glinfer.program.points import CapturePoint, Span
from glinfer.program.session import Observer, Session

Floats = npt.NDArray[np.float32]
MAX_CAPTURE_BYTES = 1 << 32
"""Limit for the arrays of one :meth:`Inspected.capture` (4 GiB)."""
ATTENTION_PIECE = 64
"""Prompt tokens in one step of :meth:`Inspected.attention_steps`."""


@dataclass(frozen=True)
class Seen:
    """A named tensor that a model computed in one run.

    Attributes:
        name: see :mod:`glinfer.program.capture`.
        array: float32, with the run's tokens along the token axis of that name.
        first: position of the first of these tokens in the sequence.
        head: the first head in the array; not 0 only in patches of plans that compute heads one by one.
    """

    name: str
    array: Floats
    first: int
    head: int = 0


class Captured(dict[str, Floats]):
    """Captured arrays by name, in order of computation; its repr shows shapes only."""

    def __repr__(self) -> str:
        """Name and shape of each array."""
        return f"Captured({', '.join(f'{name} {list(array.shape)}' for name, array in self.items())})"

    def _repr_html_(self) -> str:
        cells = []
        for name, array in self.items():
            seen = array[~(array <= -MASK_LIMIT)]  # NaN counts
            numbers = map(float, (seen.min(), seen.mean(dtype=np.float64), seen.max())) if seen.size else ("", "", "")
            cells.append((name, "×".join(map(str, array.shape)), *numbers, array.size - seen.size or ""))
        return table(("name", "shape", "least", "mean", "greatest", "masked"), cells, f"{len(self)} float32 arrays")


Result = TypeVar("Result")
Hook = Callable[[Seen], None]
Change = Callable[[Seen], npt.ArrayLike]


class _Caller(Observer):
    """Calls a function with named tensors within a run, and refuses the run that the function itself starts."""

    def __init__(self, names: Collection[str]) -> None:
        self._names, self._calling = names, False

    def drawn(self, session: Session, spec: DrawSpec, values: Mapping[str, int | float]) -> None:
        if self._calling:
            raise InputError(
                "a function given to watch or patch calls the model during a run; call it after the block, "
                "or load another model"
            )
        for point, number in session.plan.sites.get(spec.name, ()):
            if point.name in self._names:
                self._found(point, number, span_of(session.plan, values), Textures(session))

    @abstractmethod
    def _found(self, point: CapturePoint, number: int, span: Span, textures: Textures) -> None:
        """Handle site ``number`` of a point, which a draw has just written."""

    def _call(self, function: Callable[[Seen], Result], seen: Seen) -> Result:
        self._calling = True
        try:
            return function(seen)
        finally:
            self._calling = False


class _Watcher(_Caller):
    """Reads named tensors, and calls a hook with each one."""

    def __init__(self, names: Collection[str], hook: Hook) -> None:
        super().__init__(names)
        self._hook, self._parts = hook, dict[str, list[Floats]]()

    def _found(self, point: CapturePoint, number: int, span: Span, textures: Textures) -> None:
        parts = self._parts.setdefault(point.name, [])
        if number == 0:
            parts.clear()
        parts.append(point.read(textures, number, span))
        if len(parts) == len(point.sites):
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            parts.clear()
            self._call(self._hook, Seen(point.name, whole, point.span(span).first))


class _Patcher(_Caller):
    """Changes one named tensor each time it is computed."""

    def __init__(self, name: str, change: Change) -> None:
        super().__init__((name,))
        self._change = change

    def _found(self, point: CapturePoint, number: int, span: Span, textures: Textures) -> None:
        found = point.read(textures, number, span)
        given = self._call(self._change, Seen(point.name, found.copy(), point.span(span).first, number))
        changed = None if given is None else _floats(given)
        if changed is None or changed.shape != found.shape:
            gave = (
                f"{words_of(repr(given), 60)} instead of an array"
                if changed is None
                else f"an array {list(changed.shape)}"
            )
            raise InputError(f"the change of {point.name} gave {gave}; expected {list(found.shape)}")
        if not np.array_equal(changed, found, equal_nan=True):  # keep unchanged tensors bit for bit
            point.write(textures, number, span, changed)


class Inspected(Closing):
    """The inspection methods of :class:`glinfer.engine.model.Model`."""

    config: ModelConfig
    engine: Engine
    bound: Session
    _own: DecodeSession

    @property
    def plan(self) -> Plan:
        """The bound plan."""
        return self.bound.plan

    @abstractmethod
    def session(self) -> DecodeSession:
        """A new sequence of tokens."""

    @abstractmethod
    def _ids_of(self, prompt: str | Ids) -> list[int]:
        """The checked ids of a prompt."""

    def names(self) -> list[str]:
        """The names of tensors to capture, watch or patch, in order of computation.

        They depend on the plan. :mod:`glinfer.program.capture` describes them and their shapes.
        """
        return list(self.plan.points)

    def capture(self, patterns: str | Sequence[str], prompt: str | Ids) -> Captured:
        """Run a prompt, text or ids, from its start; returns named tensors as float32 arrays in order of computation.

        ``patterns`` are names such as ``blocks.3.mlp.hidden``, or with ``*`` such as ``blocks.*.attn.probs``. The
        sequence of :meth:`stream` and :meth:`logits` does not change. Active patches apply. The fast plans run one
        token at a time here.

        Raises:
            InputError: the plan lacks the name (the message suggests others), the prompt is invalid, or the arrays
                exceed 4 GiB together.
        """
        self._require_open()
        points = chosen(self.plan.points, patterns, self.plan.name)
        ids = self._ids_of(prompt)
        size = sum(4 * int(np.prod(_whole_shape(point, len(ids)), dtype=np.float64)) for point in points.values())
        if size > MAX_CAPTURE_BYTES:
            raise InputError(
                f"{len(points)} arrays over {len(ids)} tokens take {size / 2**30:,.1f} GiB; expected at most "
                f"{MAX_CAPTURE_BYTES >> 30}, so name fewer or run a shorter prompt"
            )
        runs: dict[str, list[Floats]] = {name: [] for name in points}
        watcher = _Watcher(points, lambda seen: runs[seen.name].append(seen.array))
        # The fast plans run one token at a time, and compute logits only on request.
        parts = [ids] if self.plan.name == "reference" else [[token] for token in ids]
        with self._observing(watcher), self.session() as session:
            for part in parts:
                session.prefill(part)
                session.logits()
        return Captured((name, _together(points[name], arrays, len(ids))) for name, arrays in runs.items())

    def attention_steps(
        self, block: int, prompt: str | Ids, *, piece: int = ATTENTION_PIECE
    ) -> Generator[int, None, Floats]:
        """Run a prompt in steps, and return its last token's attention probabilities [heads, tokens], float32.

        Yields the number of tokens run so far, after each ``piece`` tokens. Between steps other code may use the model,
        except its own sequence, which runs the prompt from its start. Blocks are numbered from 0.

        Raises:
            InputError: the block does not exist, or the prompt is invalid or longer than the context.
        """
        self._require_open()
        count, context = self.config.num_hidden_layers, self.config.max_position_embeddings
        if integer("the block", block) >= count:
            raise InputError(f"there is no block {block}; expected 0 to {count - 1}")
        ids = self._ids_of(prompt)
        if len(ids) > context:
            raise InputError(f"the prompt has {len(ids)} tokens; this model's context holds {context}; shorten it")
        self._own.rewind(len(self._own))
        for start in range(0, len(ids) - 1, piece):
            self._own.prefill(ids[start : min(start + piece, len(ids) - 1)])
            yield len(self._own)
        name, found = f"blocks.{block}.attn.scores", list[Floats]()
        watcher = _Watcher((name,), lambda seen: found.append(seen.array[:, -1]))
        with self._observing(watcher):
            self._own.prefill(ids[-1:])
            self._own.logits()
        scores, sinks = found[-1], sinks_tensor(self.plan, self.config, block)
        if sinks is None:
            return softmax(scores).astype(np.float32)
        beside = self.bound.read(sinks)[0, :, None]
        return softmax(np.concatenate([scores, beside], axis=1))[:, :-1].astype(np.float32)

    @contextmanager
    def watch(self, patterns: str | Sequence[str], hook: Hook) -> Iterator[None]:
        """Within the block, call ``hook(seen)`` each time a tensor with a matching name was computed.

        The hook gets a :class:`Seen`: name, array and position of its first token. During generation a fast plan
        computes one token at a time, the reference plan the whole sequence. Exceptions of the hook end the run.

        Raises:
            InputError: the plan lacks the name, or the block runs several sequences at once.
        """
        self._require_open()
        check_callback("hook", hook)
        names = chosen(self.plan.points, patterns, self.plan.name)
        self._own.rewind(len(self._own))  # earlier results are not reused
        try:
            with self._observing(_Watcher(names, hook)):
                yield
        finally:
            if not self._own.closed:
                self._own.rewind(len(self._own))

    @contextmanager
    def patch(self, name: str, change: npt.ArrayLike | Change) -> Iterator[None]:
        """Within the block, replace a tensor that the model computes, and continue with the replacement.

        Args:
            name: one of :meth:`names`.
            change: an array as :meth:`capture` returns it, for a whole sequence or its first tokens (others keep their
                computed values); or a function of a :class:`Seen` that returns an array of the same shape, for each
                run. Gab's reference plan calls it for each head of scores, probs and mixed.

        In the block the model recomputes everything with the change, and after the block without it, bit for bit as
        before. Sessions that continue in the block or after it first run all their tokens again.

        Raises:
            InputError: the plan lacks the name, the shape differs, or the block runs several sequences at once.
        """
        self._require_open()
        points = self.plan.points
        if not isinstance(name, str) or name not in points:
            found = list(chosen(points, name, self.plan.name))
            raise InputError(f"found {name!r}, a pattern of {len(found)}; expected one name, such as {found[0]}")
        function = change if callable(change) else _replacement(points[name], change)
        self.engine.patches += 1
        try:
            with self._observing(_Patcher(name, function)):
                yield
        finally:
            self.engine.patches += 1

    @contextmanager
    def _observing(self, observer: Observer) -> Iterator[None]:
        observers = self.bound.observers
        # Patches come first, so that other observers see what the next draw reads.
        observers.insert(0 if isinstance(observer, _Patcher) else len(observers), observer)
        try:
            yield
        finally:
            observers.remove(observer)

    def _require_unobserved(self, what: str) -> None:
        """Refuse to run several sequences at once while tensors are watched or patched."""
        if self.bound.observers:
            raise InputError(
                f"{what} runs several sequences at once, which watch and patch do not support; "
                "leave the block of watch or patch first"
            )


def _whole_shape(point: CapturePoint, tokens: int) -> tuple[int, ...]:
    """The shape of the array over a whole sequence."""
    shape = list(point.shape(Span(0, 1)))
    if not point.last_only:
        shape[point.axis] = tokens
    if point.keys:
        shape[-1] = tokens
    return tuple(shape)


def _together(point: CapturePoint, arrays: Sequence[Floats], tokens: int) -> Floats:
    """Join the arrays of all runs, and pad each to all keys."""
    if len(arrays) == 1:
        return arrays[0]
    if point.keys:
        unseen = MASKED if point.name.endswith("scores") else 0.0
        widths = [[(0, 0)] * (array.ndim - 1) + [(0, tokens - array.shape[-1])] for array in arrays]
        pairs = zip(arrays, widths, strict=True)
        arrays = [np.pad(array, width, constant_values=unseen) for array, width in pairs]
    return np.concatenate(arrays, axis=point.axis)


def _floats(array: npt.ArrayLike) -> Floats | None:
    """A user's array in float32, or None for other values."""
    try:
        return np.asarray(array, dtype=np.float32)
    except (TypeError, ValueError):
        return None


def _replacement(point: CapturePoint, array: npt.ArrayLike) -> Change:
    """A function that replaces the computed tensor by the array; InputError for another shape."""
    wanted = _floats(array)
    if wanted is None:
        raise InputError(f"found {type(array).__name__} for {point.name}; expected an array or a function")
    shape, free = point.shape(Span(0, 1)), {point.axis}
    if point.last_only:
        free = set()
    if point.keys:
        free.add(len(shape) - 1)
    agrees = wanted.ndim == len(shape) and all(
        axis in free or edge == wanted.shape[axis] for axis, edge in enumerate(shape)
    )
    if agrees and point.keys:
        agrees = wanted.shape[point.axis] == wanted.shape[-1]
    if not agrees:
        expected = ", ".join("tokens" if axis in free else str(edge) for axis, edge in enumerate(shape))
        raise InputError(f"the array for {point.name} is {list(wanted.shape)}; expected [{expected}]")

    def change(seen: Seen) -> Floats:
        first = 0 if point.last_only else seen.first
        part = wanted[seen.head : seen.head + len(seen.array)] if len(point.sites) > 1 else wanted
        index = [slice(None)] * part.ndim
        index[point.axis] = slice(first, first + seen.array.shape[point.axis])
        part = part[tuple(index)]
        if point.keys:
            part = part[..., : seen.array.shape[-1]]
        changed = seen.array
        changed[tuple(map(slice, part.shape))] = part
        return changed

    return change
