"""A plan bound to GL objects once; afterwards only uniform values and input textures change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from glinfer.errors import GLError, PlanError
from glinfer.gl.context import Device, GLObject
from glinfer.gl.faults import bytes_text, no_room
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.matrix import FORMATS, TexelLayout
from glinfer.gl.memory import MIN_CHECKED_BYTES, check_room
from glinfer.gl.program import Program, ProgramCache
from glinfer.gl.raw import GL_FRAMEBUFFER
from glinfer.gl.readback import Readback
from glinfer.gl.region import Barriers, Region, check_feedback
from glinfer.gl.replay import Draw, Tape, replay
from glinfer.gl.texture import Framebuffer, Texture
from glinfer.kernels import DrawSpec, TensorSpec
from glinfer.kernels.fused.rows import interleaved
from glinfer.kernels.spec import Array
from glinfer.program.bands import Bands
from glinfer.program.compiled import CompiledDraw, compile_plan
from glinfer.program.plan import Plan
from glinfer.program.regions import FORMAT, RegionLayout, region_layouts
from glinfer.program.stages import stage
from glinfer.program.texels import KeptTexels, ReadTexels, line_checksums

WATCHED = ("gemm", "linear", "matmul", "cached_scores", "cached_values")
"""Ops whose draws are watched, see :mod:`glinfer.gl.sentinel`."""
WATCH_EVERY = 4
"""Runs for each watched draw: it costs an NVIDIA H100 up to 0.2 ms. The first run of each draw is watched too."""
_NAN = {"f": math.nan, "u": 0x7FC00000}
"""NaN in a texture of floats, and in one of their bits."""
MEMORY_ADVICE = (
    "take a shorter context (--context), fewer bits (--weights q8, or file for GGUF blocks), a smaller model or cache "
    "(--cache q8; --memory of serve and run-batch), or a machine with more"
)
"""Advice in messages about too little memory."""
Hook = Callable[[DrawSpec], None]
_Made = TypeVar("_Made", bound=GLObject)


class Observer(Protocol):
    """Reads the tensors of a session between its draws, and may change them."""

    def drawn(self, session: Session, spec: DrawSpec, values: Mapping[str, int | float]) -> None:
        """Called after each draw of each run."""


@dataclass(frozen=True)
class WrongTexture:
    """An input of a bound draw that samples the texture ``found``, not that of the tensor ``expected``."""

    plan: str
    draw: str
    sampler: str
    found: str
    expected: str


class Session:
    """Textures, programs, framebuffers and frozen draws of one plan on one device.

    Attributes:
        plan, compiled: the plan that was bound.
        draws: the bound draws, in the plan's order.
        runs: forward passes run so far.
        draws_issued: draw calls issued by those runs.
        observers: called after each draw; one list for an owner and all its sharers and companions.
        checksums: of each line of texels of each weight that this session has uploaded, by tensor name.
    """

    _kept: KeptTexels | None = None

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, Array],
        device: Device,
        *,
        shader_root: Path | None = None,
        on_upload: Callable[[int], None] | None = None,
        owner: Session | None = None,
        lent: Mapping[str, Texture] | None = None,
        programs: ProgramCache | None = None,
        one_state: bool = False,
        kept: KeptTexels | None = None,
    ) -> None:
        """Validate the plan against the device's limits, upload every weight, compile and bind.

        Args:
            plan, device: the plan to bind, and the device, which stays open when the session is released.
            weights: float32 arrays by the plan's weight names.
            shader_root: another folder of shader files, for trying out changed shaders.
            on_upload: called with the bytes of each weight after its upload.
            owner: a session whose programs this one uses, and which releases this one with itself.
            lent: textures by tensor name to use instead of new ones; they stay when the session is released.
            programs: a cache of programs that other sessions share; it outlives the session.
            one_state: make activations regions of one texture where their draws allow it; the results are the same.
            kept: a file that may have the texels of the weights, which are then not packed.

        After a PlanError, ShaderError or GLError everything made so far is released again.
        """
        lent = lent or {}
        regions = {
            name: RegionLayout(*each.at, each.whole.layout.width, each.whole.layout.height)
            for name, each in lent.items()
            if isinstance(each, Region)
        }
        own = region_layouts(plan, device.limits.max_texture_size, lent) if one_state else {}
        compiled = compile_plan(plan, device.limits, {**regions, **own})
        check_textures_fit(plan, device, lent)
        if one_state and device.texture_barrier is None:
            raise PlanError(
                f"one_state needs a texture barrier, which {device.description} does not have; leave one_state out"
            )
        self.plan, self.compiled, self.device, self._one_state = plan, compiled, device, one_state
        self.runs = self.draws_issued = 0
        self._once_watched: set[int] = set()
        self._watched_run = self._turn = 0
        self._released = False
        self._owner, self._sharers = owner, list[Session]()
        self.observers: list[Observer] = [] if owner is None else owner.observers
        self._lent = dict(lent)
        self._made: list[GLObject] = []
        self._textures: dict[str, Texture] = {}
        self.checksums: dict[str, Array] = {}
        self._kept = kept
        self._framebuffers: dict[tuple[str, ...], Framebuffer] = {}
        if owner is not None:
            programs = owner._programs
        self._own_programs = programs is None
        self._between: dict[BlockLayout, Texture] = {}
        self._held: set[Program] = set()
        self._tapes: dict[tuple[int, int | None, int], Tape] = {}
        self._programs: ProgramCache = ProgramCache(device, shader_root) if programs is None else programs
        if owner is not None:
            owner._sharers.append(self)
        try:
            self._make_regions(own)
            with stage("upload"), nullcontext(_nothing_kept) if kept is None else kept.reading() as read:
                self._make_textures(weights, read, on_upload)
            barriers = Barriers()
            with stage("programs"):
                self.draws: tuple[Draw, ...] = tuple(self._bind(draw, barriers) for draw in compiled.draws)
            self._held.update(draw.program for draw in self.draws)
            self._programs.hold(self._held)
        except BaseException:
            self.release()
            raise
        self._specs = dict(zip((draw.name for draw in self.draws), plan.draws, strict=True))

    def sharer(self) -> Session:
        """Another session over the same weights and programs, with inputs, activations and caches of its own.

        Releasing a sharer frees only its own objects, and releasing the owner releases every sharer too. A sharer's
        sharer belongs to the same owner. Raises PlanError if this session was released.
        """
        return self.companion(self.plan, ("weight",))

    def companion(
        self,
        plan: Plan,
        kinds: Sequence[str] = ("weight", "cache"),
        *,
        scratch: Session | None = None,
    ) -> Session:
        """A session of another plan over the same programs, the same owner, and the same tensors of ``kinds``.

        The two share every tensor of one of the kinds that has one name in both plans, and what the plan says it
        shares. With ``scratch``, another session of ``plan``, all other tensors are shared with that one. Raises
        PlanError after a release, or if a shared tensor has two layouts.
        """
        self.require_alive()
        lent = {} if scratch is None else dict(scratch._textures)
        lent.update({name: self._textures[name] for name in plan.shared_with(self.plan, kinds)})
        return Session(
            plan,
            {},
            self.device,
            owner=self if self._owner is None else self._owner,
            lent=lent,
            one_state=self._one_state and plan is self.plan,
        )

    @property
    def family(self) -> tuple[Session, ...]:
        """The owner of this session's weights, its sharers and its companions: all that draw with them."""
        owner = self if self._owner is None else self._owner
        return (owner, *owner._sharers)

    def wrong_textures(self) -> Iterator[WrongTexture]:
        """Find inputs of the bound draws that sample another texture than the plan names."""
        for spec, draw, expected in zip(self.plan.draws, self.draws, self._sampled, strict=True):
            if draw.textures == expected:  # compares identities, which takes no time
                continue
            for (sampler, name), found, wanted in zip(spec.inputs, draw.textures, expected, strict=True):
                if found is not wanted:
                    yield WrongTexture(self.plan.name, spec.name, sampler, found.name, name)

    @cached_property
    def _sampled(self) -> tuple[tuple[Texture, ...], ...]:
        """The textures that each draw has to sample; of weights those of the owner."""
        owner, root, table = self.family[0], self.plan.root, self.plan.table
        weights = {name: each for name, each in owner._textures.items() if owner.plan.table[name].kind == "weight"}
        textures = {
            name: weights.get(name, each) if table[name].kind == "weight" else each
            for name, each in self._textures.items()
        }
        return tuple(tuple(textures[root(name)] for name in spec.reads) for spec in self.plan.draws)

    def copy_caches(self, other: Session) -> None:
        """Copy every cache of another session of this plan, on the GPU; PlanError if one of the two was released."""
        for tensor in self.plan.of_kind("cache"):
            self.texture(tensor.name).copy_from(other.texture(tensor.name))

    def copy_rows(self, source: int, target: int, rows: int) -> None:
        """Copy what the first ``rows`` tokens of sequence ``source`` have in every cache to sequence ``target``.

        Of caches that keep only the newest tokens everything is copied. The GPU copies by way of a texture with room
        for one sequence, which is made once and kept. Raises PlanError if this session was released, or has no such
        slots.
        """
        for tensor in self.plan.of_kind("cache"):
            texture = self.texture(tensor.name)
            layout = texture.layout
            if not isinstance(layout, BlockLayout) or layout.every == 1:  # of a run's choices
                continue
            shape = layout.every, min(layout.cols, layout.kept_cols)
            one = BlockLayout.by_block(shape, self.device.limits.max_texture_size)
            changes = {name: getattr(one, name) for name in ("rows", "cols", "columns", "block_step", "aside", "every")}
            between = replace(layout, **changes)
            if between not in self._between:
                self._between[between] = self._keep(Texture(self.device, between, "rows being copied"))
            count, each = layout.every if layout.rolls else rows, layout.every
            self._between[between].copy_rows(texture, source * each, 0, count)
            texture.copy_rows(self._between[between], 0, target * each, count)

    def require_alive(self) -> None:
        """Refuse a released session: a ContextError if its device was closed too, else a PlanError."""
        if self._released:
            self.device.require_usable()
            raise PlanError(f"this session of plan {self.plan.name} was released; bind the plan again")

    @property
    def program_count(self) -> int:
        """Number of distinct compiled programs."""
        return len(self._programs)

    def _borrow(self, tensor: TensorSpec) -> Texture:
        texture = self._lent[tensor.name]
        layout = self.compiled.layouts[tensor.name]
        if isinstance(layout, FlatLayout) and isinstance(texture.layout, FlatLayout):
            layout = replace(layout, rows=texture.layout.rows, cols=texture.layout.cols)  # any view of its texels
        if texture.layout != layout:
            raise PlanError(f"tensor {tensor.name} of plan {self.plan.name} is laid out otherwise where it is lent")
        return texture

    def _make_textures(
        self, weights: Mapping[str, Array], read: ReadTexels, on_upload: Callable[[int], None] | None
    ) -> None:
        for tensor in self.plan.tensors:
            if tensor.view_of or tensor.name in self._textures:
                continue  # bound to the texture of what it views, or a region
            if tensor.name in self._lent:
                self._textures[tensor.name] = self._borrow(tensor)
                continue
            self._textures[tensor.name] = self._allocate(tensor, weights, read)
            if on_upload is not None and tensor.kind == "weight":
                on_upload(self._textures[tensor.name].layout.nbytes)

    def _make_regions(self, regions: Mapping[str, RegionLayout]) -> None:
        """The activations that are regions of one texture, which is made here."""
        state: Texture | None = None
        for name, region in regions.items():
            if state is None:
                layout = RowLayout.of((region.height, 4 * region.width), FORMAT, self.device.limits.max_texture_size)
                state = self._keep(Texture(self.device, layout, f"the activations of plan {self.plan.name}"))
            self._textures[name] = self._keep(Region(state, self.compiled.layouts[name], name, region[:2]))

    def keep_texels(self) -> None:
        """Write the texels of the weights to the file that they were looked for in, unless it has them."""
        if self._kept is not None and not self._released:
            self._kept.write(lambda name, *lines: self._textures[name].read_lines(*lines), self.checksums)

    def _allocate(self, tensor: TensorSpec, weights: Mapping[str, Array], read: ReadTexels) -> Texture:
        layout = self.compiled.layouts[tensor.name]
        if tensor.kind == "weight":
            try:
                texels, checksums = read(tensor.name) or _packed(layout, weight_matrix(tensor, weights))
            except MemoryError:
                raise GLError(f"packing weight {tensor.name}: {no_room(layout.nbytes)}") from None
            self.checksums[tensor.name] = checksums
            return self._keep(Texture(self.device, layout, tensor.name, texels))
        texture = self._keep(Texture(self.device, layout, tensor.name))
        if tensor.kind == "cache":
            texture.fill(0.0)
        return texture

    def _keep(self, made: _Made) -> _Made:
        """Keep a new GL object for :meth:`release`."""
        self._made.append(made)
        return made

    def _bind(self, draw: CompiledDraw, barriers: Barriers) -> Draw:
        targets = [self._textures[name] for name in draw.outputs]
        textures = tuple(self._textures[name] for name in draw.inputs)
        check_feedback(draw.name, targets, textures)
        if draw.call.adds and not self.device.limits.float_targets:
            raise PlanError(f"draw {draw.name} adds by blending, which needs float targets; choose others")
        formats = [tuple(each.layout.format.name for each in group) for group in (textures, targets)]
        program = self._programs.get(*draw.shaders, formats=(formats[0], formats[1]))
        for sampler, texture in zip(draw.shaders.samplers, textures, strict=True):
            program.expect_samples(sampler, texture.layout.format.name)
        given = {name for name, _ in (*draw.call.constants, *draw.call.per_run)}
        if given != program.uniform_names:
            odd = sorted(given ^ program.uniform_names)[0]
            fault = "the shader does not use it" if odd in given else "the draw does not set it"
            raise PlanError(f"draw {draw.name}, shader {draw.shaders.fragment}: uniform {odd!r}: {fault}")
        for name, value in draw.call.constants:
            program.set(name, value)  # a value of the wrong type is found here, not in the first run
        barrier = barriers.before(targets, textures)
        return Draw(draw.name, program, self._framebuffer(draw.outputs), textures, draw.call, barrier)

    def _framebuffer(self, outputs: tuple[str, ...]) -> Framebuffer:
        if len(outputs) == 1:
            return self._textures[outputs[0]].framebuffer
        if outputs not in self._framebuffers:
            targets = [self._textures[name] for name in outputs]
            self._framebuffers[outputs] = self._keep(Framebuffer(self.device, targets))
        return self._framebuffers[outputs]

    def texture(self, name: str) -> Texture:
        """The texture of a tensor, or of that which it is a view of; PlanError if there is none, or after a release."""
        self.require_alive()
        if name not in self.plan.table:
            raise PlanError(f"plan {self.plan.name} has no tensor {name!r}")
        return self._textures[self.plan.root(name)]

    def make_readable(self, name: str) -> None:
        """Make the framebuffer that a tensor is read through, which the first read would make otherwise."""
        _ = self.texture(name).framebuffer

    def write(self, name: str, matrix: Array) -> None:
        """Write the first rows of an input tensor."""
        self.texture(name).upload(matrix)

    def read(self, name: str, rows: int | None = None, cols: int | None = None) -> Array:
        """Read [0:rows, 0:cols] of a tensor back (default: all of it)."""
        texture, tensor = self.texture(name), self.plan.table[name]
        if not tensor.view_of:
            return texture.read(rows, cols)
        return texture.read().reshape(tensor.shape)[:rows, :cols]

    def read_rows(self, name: str, first: int, rows: int = 1) -> Array:
        """Read rows [first, first + rows) of a tensor back."""
        if self.plan.table[name].view_of:
            return self.read(name)[first : first + rows]
        return self.texture(name).read_rows(first, rows)

    def read_interleaved(self, names: Sequence[str], rows: int) -> Array:
        """Read the first rows of a matrix back, whose rows are in the tensors ``names`` in turn."""
        return interleaved([self.read(name, -(-rows // len(names))) for name in names])[:rows]

    def readback(self, name: str, rows: int) -> Readback:
        """A buffer for reading the first rows of a tensor back; the session releases it."""
        return self._keep(Readback(self.texture(name), rows))

    def run(
        self,
        inputs: Mapping[str, int | float],
        *,
        first: int = 0,
        draws: int | None = None,
        flush_every: int = 0,
        before: Hook | None = None,
        after: Hook | None = None,
        read: bool = True,
    ) -> int:
        """Replay every draw once with these inputs, or draws [first, draws); returns the draw calls issued.

        ``before`` and ``after`` are called with each draw's spec around it; ``flush_every`` is as in
        :class:`glinfer.gl.replay.Tape`. Without ``read`` another run follows before results are read back. Raises
        PlanError for a missing run value, one out of range, or after a release.
        """
        self.require_alive()
        values = self.compiled.plan.values(inputs)
        if self.observers:
            after = self._observed(values, after)
        if read and first == 0:
            self._spoil()
        watched = self._watched(first, draws, read=read)
        if before is None and after is None:
            issued = self._tape(first, draws, flush_every).run(values, watched)
        else:
            issued = replay(
                self.device,
                self.draws[first:draws],
                values,
                None if before is None else lambda draw: before(self._specs[draw.name]),
                None if after is None else lambda draw: after(self._specs[draw.name]),
                watched=watched,
            )
        self.runs += 1
        self.draws_issued += issued
        return issued

    def steps(self, inputs: Mapping[str, int | float], bands: Bands) -> Iterator[None]:
        """Replay every draw once with these inputs, in bands of lines; yields after each, when other plans may run.

        Raises:
            PlanError: as :meth:`run`.
        """
        self.require_alive()
        values = self.compiled.plan.values(inputs)
        for index, (draw, spec) in enumerate(zip(self.draws, self.plan.draws, strict=True)):
            (x, y, width, height), done = draw.rectangle(values), 0
            while done < height:
                self.require_alive()
                lines, since = bands.lines((spec.op, spec.kind, width), height - done), time.perf_counter()
                self.draws_issued += self._tape(index, index + 1, 0).run(values, within=(x, y + done, width, lines))
                bands.measure((spec.op, spec.kind, width), lines, time.perf_counter() - since)
                done += lines
                yield
        self.runs += 1

    def _tape(self, first: int, end: int | None, flush_every: int) -> Tape:
        key = first, end, flush_every
        if key not in self._tapes:
            self._tapes[key] = Tape(self.device, self.draws[first:end], flush_every)
        return self._tapes[key]

    def _spoil(self) -> None:
        """Fill the activations with NaN: a draw that the driver drops leaves it, and the logits tell."""
        self.device.activate()
        raw = self.device.raw
        for framebuffer, attachment, kind in self._spoiled:
            raw.bind_framebuffer(GL_FRAMEBUFFER, framebuffer)
            raw.clear_color(attachment, _NAN[kind], kind)

    @cached_property
    def _spoiled(self) -> tuple[tuple[int, int, str], ...]:
        """Framebuffer, attachment and kind of each of the session's own textures for activations of floats."""
        own = {
            self._textures[self.plan.root(tensor.name)]
            for tensor in self.plan.of_kind("activation")
            if tensor.format == FORMAT and self.plan.root(tensor.name) not in self._lent
        }
        found: dict[int, tuple[int, int, str]] = {}
        for framebuffer in (draw.framebuffer for draw in self.draws):
            for attachment, texture in enumerate(framebuffer.textures):
                if texture in own:
                    found.setdefault(texture.gl.glo, (framebuffer.gl.glo, attachment, texture.form.kind))
        return tuple(found.values())

    def _watched(self, first: int, end: int | None, *, read: bool) -> dict[int, bool]:
        """The draws in draws[first:end] to watch, and whether for the first time.

        New ones, else in turn, one for each :data:`WATCH_EVERY` runs since others were, if results are read back before
        the next run overwrites the texels.
        """
        run = range(len(self.draws))[first:end]
        watchable = [index for index in self._watchable if index in run]
        new = [index for index in watchable if index not in self._once_watched]
        self._once_watched.update(new)
        if new or not read:
            return {run.index(index): True for index in new}
        count = min((self.runs + 1 - self._watched_run) // WATCH_EVERY, len(watchable))
        if count:
            self._watched_run = self.runs + 1
        self._turn += count
        return {run.index(watchable[(self._turn - number) % len(watchable)]): False for number in range(count)}

    @cached_property
    def _watchable(self) -> tuple[int, ...]:
        """The indices of the longest draws that are the last to write activations of floats."""
        writers: dict[Texture, int] = {}
        for index, draw in enumerate(self.draws):
            writers.update((texture, index) for texture in draw.framebuffer.textures)
        found = []
        for texture, index in writers.items():
            draw, spec = self.draws[index], self.plan.draws[index]
            plain = texture is draw.framebuffer.textures[0] and texture.layout.format.name == "rgba32f"
            kinds = {self.plan.table[self.plan.root(name)].kind for name in spec.outputs}
            if plain and kinds == {"activation"} and spec.op in WATCHED and spec.first == 0 and not draw.call.adds:
                found.append(index)
        return tuple(found)

    def _observed(self, values: Mapping[str, int | float], after: Hook | None) -> Hook:
        """The hook after each draw that calls the observers too."""

        def drawn(spec: DrawSpec) -> None:
            if after is not None:
                after(spec)
            for observer in tuple(self.observers):
                observer.drawn(self, spec, values)

        return drawn

    def release(self) -> None:
        """Release every GL object of the session and of its sharers; harmless when repeated."""
        if self.device.closed:
            return
        self.device.activate()
        self._released = True
        for sharer in tuple(self._sharers):
            sharer.release()
        for made in reversed(self._made):
            made.release()
        if self._own_programs:
            self._programs.release()
        else:
            self._programs.give_back(self._held)
            if self._owner is not None and self in self._owner._sharers:
                self._owner._sharers.remove(self)
        self._held.clear()
        self._made.clear()
        self._framebuffers.clear()
        self._textures.clear()
        self._between.clear()
        self.__dict__.pop("_sampled", None)
        self.draws = ()


def _nothing_kept(_: str) -> None:
    """The texels of a weight without a file of them."""


def _packed(layout: TexelLayout, matrix: Array) -> tuple[Array, Array]:
    """The texels of a matrix, and the checksums of their lines."""
    texels = layout.pack(matrix)
    return texels, line_checksums(texels)


def check_textures_fit(plan: Plan, device: Device, lent: Collection[str] = (), *, beside: int = 0) -> None:
    """Refuse a plan whose textures, together with ``beside`` other bytes, exceed the free memory (PlanError).

    A software renderer's textures are ordinary memory, and a system without memory kills the process. A GPU refuses a
    texture that does not fit. Tensors that are ``lent`` have their textures already.
    """
    if not device.in_main_memory:
        return
    sizes: dict[str, int] = {}
    for tensor in plan.tensors:
        if not tensor.view_of and tensor.name not in lent:
            nbytes = tensor.layout_within(device.limits.max_texture_size).nbytes
            sizes[tensor.kind] = sizes.get(tensor.kind, 0) + nbytes
    total = sum(sizes.values()) + beside
    if total < MIN_CHECKED_BYTES:
        return
    parts = [f"{kind} {bytes_text(nbytes)}" for kind, nbytes in sizes.items()]
    parts += [f"arrays {bytes_text(beside)}"] if beside else []
    check_room(total, f"plan {plan.name} takes {bytes_text(total)} ({', '.join(parts)})", MEMORY_ADVICE)


def weight_matrix(tensor: TensorSpec, weights: Mapping[str, Array]) -> Array:
    """The array of a weight as a matrix of its tensor's shape; PlanError if missing, or of another shape or type."""
    if tensor.name not in weights:
        raise PlanError(f"the checkpoint has no tensor {tensor.name}; the plan needs {list(tensor.shape)}")
    array = np.asarray(weights[tensor.name])
    shape = (1, array.shape[0]) if array.ndim == 1 else array.shape
    if shape != tensor.shape:
        raise PlanError(f"tensor {tensor.name} is {list(shape)}; the plan needs {list(tensor.shape)}")
    if array.dtype != np.dtype(FORMATS[tensor.format].dtype):
        raise PlanError(f"tensor {tensor.name} is {array.dtype}; the plan needs {FORMATS[tensor.format].dtype_name}")
    return array.reshape(shape)
