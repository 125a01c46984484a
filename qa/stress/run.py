"""Repeat textures, kernels and tokens under load, and check that they give the same bits each time.

:func:`verify_stress` repeats rounds on one renderer, :func:`stress_everywhere` on several and with several formats of
the weights.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.engine.loading import bind
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.textures import as_bits
from glinfer.errors import ContextError, GLError, GlinferError, PlanError, ShaderError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.layouts.matrix import FORMATS
from glinfer.inspect.draws import example_ids
from glinfer.inspect.verify.report import UnusableRun
from glinfer.inspect.verify.suite import RendererChoice
from glinfer.models.choice import weights_named
from glinfer.models.feed import runs
from glinfer.models.oracle import relative_error
from glinfer.ops.spec import Array
from glinfer.quant.formats import BLOCK_FORMATS, DEFAULT_CACHE
from glinfer.tensors.device import Device as TensorDevice
from qa.kernels.measure import all_cases
from qa.objects import driver_objects
from qa.stress.textures import SIZES, check_texture

_TOKENS, _STEPS = 40, 3
_KERNELS = 2
_KERNEL_ROWS, _KERNEL_COLS, _KERNEL_ELEMENTS = 200, 3000, 40_000
_IN_FLIGHT, _FLUSH_EVERY = 4, 8


@dataclass(frozen=True)
class StressFault:
    """A wrong result, an error, or objects left behind.

    Attributes:
        kind: ``texture``, ``kernel``, ``logits``, ``objects`` that were left behind, or an ``error``.
        name: the kind of size, the kernel or the sequence.
        size: size of the texture or of the kernel's input, such as ``16384×3``; may be empty.
        format: format of the texture, of the kernel's input, or of the weights.
        round: number of the round, from 0.
        seed: the ``--seed`` with which this round is the first.
        detail: the found and the expected value.
    """

    kind: str
    name: str
    size: str
    format: str
    round: int
    seed: int
    detail: str

    @property
    def text(self) -> str:
        """The fault in one line."""
        what = " ".join(filter(None, (self.kind, self.name, self.size, self.format)))
        return f"{what} in round {self.round}: {self.detail}; repeat it with --seed {self.seed}"


@dataclass(frozen=True)
class StressCheck:
    """Counts and faults of all rounds.

    Attributes:
        seconds: duration.
        seed: seed of round 0; each next round has the next seed.
        rounds: rounds begun.
        textures: textures made, filled, read back and compared.
        texture_bytes: bytes of those textures.
        kernels: kernel calls compared with float64 and with a second call.
        tokens: tokens whose logits were compared with those of the first time.
        draws: draws issued.
        objects_before, objects_after: OpenGL's objects before anything was made, and after all was released.
        memory_before, memory_after: resident bytes of the process; None if unknown.
        faults: number of faults.
        first_fault: the first fault.
    """

    seconds: float
    seed: int
    rounds: int
    textures: int
    texture_bytes: int
    kernels: int
    tokens: int
    draws: int
    objects_before: dict[str, int]
    objects_after: dict[str, int]
    memory_before: int | None
    memory_after: int | None
    faults: int = 0
    first_fault: StressFault | None = None

    @property
    def passed(self) -> bool:
        """Whether there are no faults."""
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """The check as plain JSON values."""
        return {**dataclasses.asdict(self), "passed": self.passed}


@dataclass(frozen=True)
class StressRun:
    """All rounds of one weight format on one renderer.

    Attributes:
        renderer: version and name.
        device: the number of the requested device; None for the default.
        api: ``es`` or ``desktop``.
        max_texture_size: the limit of textures, in texels a side.
        plan: ``fast`` or ``reference``.
        weights: the weight format.
        cache: the format of keys and values.
        check: the rounds; None where an error came before the first of them.
        problem: that error; empty where there was none.
    """

    renderer: str
    device: int | None
    api: str
    max_texture_size: int
    plan: str
    weights: str
    cache: str
    check: StressCheck | None = None
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether rounds were run, and nothing in them differed."""
        return self.check is not None and self.check.passed

    def to_json(self) -> dict[str, Any]:
        """The run as plain JSON values."""
        check = None if self.check is None else self.check.to_json()
        found = {**dataclasses.asdict(self), "check": check, "problem": self.problem or None}
        return {"passed": self.passed, **found}


@dataclass(frozen=True)
class StressReport:
    """All runs that were asked for, and what could not be run."""

    model: str
    runs: tuple[StressRun, ...]
    unusable: tuple[UnusableRun, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether something was run, and nothing differed in it."""
        return bool(self.runs) and all(run.passed for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "passed": self.passed,
            "model": self.model,
            "runs": [run.to_json() for run in self.runs],
            "unusable": [dataclasses.asdict(each) for each in self.unusable],
        }


def stress_everywhere(
    checkpoint: Checkpoint,
    renderers: Sequence[RendererChoice],
    formats: Sequence[str],
    *,
    plan: str,
    cache: str = DEFAULT_CACHE,
    seconds: float,
    seed: int = 0,
    limits: Limits | None = None,
    on_step: Callable[[float], None] = lambda seconds: None,
) -> StressReport:
    """Repeat rounds with each weight format on each renderer.

    A renderer that does not open, and a format that does not fit one, are reported as unusable and are no failure.

    Args:
        checkpoint: the model, checked to be finite.
        renderers: the renderers; see :func:`glinfer.inspect.verify.suite.every_renderer`.
        formats: the weight formats; see :func:`glinfer.inspect.verify.suite.every_format`.
        plan: one of :data:`glinfer.models.choice.PLANS`.
        cache: one of :data:`glinfer.models.choice.CACHES`.
        seconds: duration of each run.
        seed: the same seed gives the same rounds.
        limits: pretend that each renderer allows no more than this.
        on_step: called with the elapsed seconds of a run.
    """
    made: list[StressRun] = []
    unusable: list[UnusableRun] = []
    for renderer in renderers:
        number, api = renderer.device, renderer.api
        try:
            device = open_device(number, api=api, limits=limits)
        except (ContextError, GLError) as error:
            unusable.append(UnusableRun(renderer.number, api, None, str(error)))
            continue
        with device:
            for weights in (weights_named(each, checkpoint.formats()) for each in formats):
                edge = device.limits.max_texture_size
                run = StressRun(device.description, renderer.number, device.api, edge, plan, weights, cache)
                try:
                    check = verify_stress(
                        checkpoint,
                        device,
                        plan=plan,
                        weights=weights,
                        cache=cache,
                        seconds=seconds,
                        seed=seed,
                        open_kernels=partial(TensorDevice, number, api=api, limits=limits),
                        on_step=on_step,
                    )
                    made.append(dataclasses.replace(run, check=check))
                except (GLError, ShaderError) as error:
                    made.append(dataclasses.replace(run, problem=str(error)))
                except PlanError as error:
                    unusable.append(UnusableRun(renderer.number, device.api, weights, str(error)))
    return StressReport(checkpoint.source, tuple(made), tuple(unusable))


def verify_stress(
    checkpoint: Checkpoint,
    device: Device,
    *,
    plan: str,
    weights: str,
    cache: str = DEFAULT_CACHE,
    seconds: float,
    seed: int = 0,
    max_rounds: int | None = None,
    open_kernels: Callable[[], TensorDevice] | None = None,
    on_step: Callable[[float], None] = lambda seconds: None,
) -> StressCheck:
    """Repeat rounds until the time is up; the first round is always finished.

    Each round fills a texture of each format with random bits, in six kinds of sizes; runs kernels on random shapes;
    and runs two sequences of tokens alone, then by two sessions in turns, twice. Draws of the model are in flight all
    the while. One sequence is the same in every round.

    Args:
        checkpoint: the model.
        device: the renderer to check.
        plan: one of :data:`glinfer.models.choice.PLANS`.
        weights: one of :data:`glinfer.models.choice.WEIGHTS`.
        cache: one of :data:`glinfer.models.choice.CACHES`.
        seconds: duration.
        seed: the same seed gives the same rounds.
        max_rounds: limit for the number of rounds; by default there is none.
        open_kernels: opens another device on the same renderer for kernels; by default none are run.
        on_step: called with the elapsed seconds.

    Raises:
        PlanError: the plan does not fit the device, or a weight the format.
    """
    return _Stress(checkpoint, device, plan, weights, cache, seed, open_kernels, on_step).run(seconds, max_rounds)


class _Stress:
    def __init__(
        self,
        checkpoint: Checkpoint,
        device: Device,
        plan: str,
        weights: str,
        cache: str,
        seed: int,
        open_kernels: Callable[[], TensorDevice] | None,
        on_step: Callable[[float], None],
    ) -> None:
        self.device, self.seed, self.weights = device, seed, weights
        self.open_kernels, self.on_step = open_kernels, on_step
        self.config = checkpoint.config
        self.objects, self.draws_before = objects_of(device), device.draws_issued
        self.memory, self.started = resident_bytes(), time.monotonic()
        self.done: Counter[str] = Counter()
        self.faults: list[StressFault] = []
        self.round = -1
        self.engine = bind(checkpoint, device, plan, weights, cache=cache)
        self.in_flight = cycle(runs(self.engine.plan, self.constant_ids(_IN_FLIGHT)))
        self.cases = [(case, form) for case in all_cases() for form in case.forms if _packs(form)]

    def constant_ids(self, most: int) -> list[int]:
        """The ids of the sequence that is the same in every round."""
        ids = example_ids(self.config, min(most, self.config.max_position_embeddings))
        return [int(token) for token in ids]

    def run(self, seconds: float, max_rounds: int | None) -> StressCheck:
        try:
            self.rounds(seconds, max_rounds)
        except GlinferError as error:
            self.fault("error", "", "", "", str(error))
        finally:
            self.engine.bound.release()
        after = objects_of(self.device)
        if after != self.objects:
            self.fault("objects", "", "", "", f"found {_counts(after)} at the end; expected {_counts(self.objects)}")
        return StressCheck(
            seconds=time.monotonic() - self.started,
            seed=self.seed,
            rounds=self.round + 1,
            textures=self.done["textures"],
            texture_bytes=self.done["bytes"],
            kernels=self.done["kernels"],
            tokens=self.done["tokens"],
            draws=self.device.draws_issued - self.draws_before + self.done["draws"],
            objects_before=self.objects,
            objects_after=after,
            memory_before=self.memory,
            memory_after=resident_bytes(),
            faults=len(self.faults),
            first_fault=self.faults[0] if self.faults else None,
        )

    def rounds(self, seconds: float, max_rounds: int | None) -> None:
        self.session = self.engine.session()
        self.constant = list(self.stream(self.session, self.constant_ids(_TOKENS)))
        while True:
            self.round += 1
            for _ in self.steps(np.random.default_rng(self.seed + self.round)):
                gone = time.monotonic() - self.started
                self.on_step(gone)
                if self.round and gone >= seconds:
                    return
            if time.monotonic() - self.started >= seconds or self.round + 1 == max_rounds:
                return

    def steps(self, rng: np.random.Generator) -> Iterator[None]:
        """Run one round, piece by piece."""
        for form, which in zip(FORMATS.values(), itertools.cycle(rng.permutation(list(SIZES))), strict=False):
            self.load()
            said = check_texture(self.device, rng, form, str(which), self.load)
            self.done.update(textures=1, bytes=said.bytes)
            if said.difference:
                self.fault("texture", said.name, said.size, form.name, said.difference)
            yield
        yield from self.sequences(rng)
        if self.open_kernels is not None:
            yield from self.kernels(rng, self.open_kernels)
        self.compare(
            "the sequence of every round", self.stream(self.session, self.constant_ids(_TOKENS)), self.constant
        )
        yield

    def load(self) -> None:
        """Issue draws of the model and do not wait for them."""
        inputs, values = next(self.in_flight)
        for name, array in inputs.items():
            self.engine.bound.write(name, array)
        self.engine.bound.run(values, flush_every=_FLUSH_EVERY)

    def stream(self, session: DecodeSession, ids: Sequence[int]) -> Iterator[Array]:
        """Run ids from an empty cache: the logits before the last few tokens, and after each of these."""
        steps = min(_STEPS, len(ids) - 1)
        session.rewind(len(session))
        session.prefill(ids[: len(ids) - steps])
        yield session.logits()
        for token in ids[len(ids) - steps :]:
            session.step(token)
            yield session.logits()

    def sequences(self, rng: np.random.Generator) -> Iterator[None]:
        """Run two sequences alone, and then twice by two sessions in turns."""
        longest = min(_TOKENS, self.config.max_position_embeddings)
        one, two = (rng.integers(self.config.vocab_size, size=rng.integers(1, longest + 1)).tolist() for _ in range(2))
        alone = [list(self.stream(self.session, ids)) for ids in (one, two)]
        yield
        alive: dict[str, int] = {}
        for _ in range(2):
            with self.engine.session() as other:
                mine, theirs = self.stream(self.session, one), self.stream(other, two)
                for place in range(max(map(len, alone))):
                    self.compare("a sequence in turns with another", mine, alone[0][place : place + 1])
                    self.compare("a sequence of a second session", theirs, alone[1][place : place + 1])
                    self.load()
            now = objects_of(self.device)
            if alive and now != alive:
                self.fault("objects", "", "", "", f"found {_counts(now)} after a repetition; expected {_counts(alive)}")
            alive = now
            yield

    def compare(self, name: str, found: Iterator[Array], expected: Sequence[Array]) -> None:
        """Compare logits bit for bit with the expected ones."""
        for place, wanted in enumerate(expected):
            logits = next(found)
            self.done["tokens"] += 1
            different = np.flatnonzero(as_bits(logits) != as_bits(wanted))
            if different.size:
                at = different[0]
                detail = (
                    f"{different.size} of {wanted.size} logits differ, the first at {at}: {logits[at]} and {wanted[at]}"
                )
                self.fault("logits", name, f"token {place}", self.weights, detail)

    def kernels(self, rng: np.random.Generator, opened: Callable[[], TensorDevice]) -> Iterator[None]:
        """Run random kernels on random shapes, twice each, in a context of their own."""
        with opened() as device:
            for _ in range(_KERNELS):
                case, form = self.cases[rng.integers(len(self.cases))]
                cols = _log_uniform(rng, _KERNEL_COLS)
                rows = _log_uniform(rng, min(_KERNEL_ROWS, max(1, _KERNEL_ELEMENTS // cols)))
                seed, size = int(rng.integers(2**32)), f"{rows}×{cols}"
                first = case.check(device, np.random.default_rng(seed), rows, cols, form)
                kept = device.memory().tensors  # tables that the next call finds again
                self.load()
                again = case.check(device, np.random.default_rng(seed), rows, cols, form)
                self.done["kernels"] += 1
                for (found, expected), (repeated, _) in zip(first, again, strict=True):
                    error = relative_error(found, expected)
                    if error > case.tolerance:
                        said = f"off by {error:.2g} of float64; expected at most {case.tolerance:g}"
                        self.fault("kernel", case.kernel, size, form, said)
                    if not np.array_equal(as_bits(found), as_bits(repeated)):
                        self.fault("kernel", case.kernel, size, form, "two calls gave different bits")
                left = device.memory().tensors
                if left != kept:
                    said = f"{left} tensors after the second call; expected {kept}, as after the first"
                    self.fault("objects", case.kernel, size, form, said)
                yield
            self.done["draws"] += device.draws_issued

    def fault(self, kind: str, name: str, size: str, form: str, detail: str) -> None:
        number = max(self.round, 0)
        self.faults.append(StressFault(kind, name, size, form, number, self.seed + number, detail))


def objects_of(device: Device) -> dict[str, int]:
    """OpenGL's objects by kind as the driver counts them, and the sum of glinfer's own objects."""
    return {**driver_objects(device), "owned by glinfer": sum(device.live_objects().values())}


def resident_bytes() -> int | None:
    """Resident bytes of this process; None on systems without Linux's /proc."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    except OSError:
        return None
    return int(pages) * (os.sysconf("SC_PAGE_SIZE") if sys.platform != "win32" else 4096)


def _packs(form: str) -> bool:
    """Whether a kernel's form can be checked: an optional package unpacks GGML's blocks."""
    return form not in BLOCK_FORMATS or importlib.util.find_spec("gguf") is not None


def _counts(objects: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in objects.items())


def _log_uniform(rng: np.random.Generator, most: int) -> int:
    """A whole number from 1 to ``most``, small ones as likely as large ones."""
    return int(np.exp(rng.uniform(0.0, np.log(most + 1))))
