"""A plan bound to GL objects once; afterwards only uniform values and input textures change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.context import Device
from glinfer.gl.layout import FORMATS, Layout
from glinfer.gl.program import ProgramCache
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Framebuffer, Texture
from glinfer.models.plan import Plan, PlanLimits
from glinfer.ops import DrawSpec, TensorSpec
from glinfer.ops.spec import PER_RUN_VALUES, Array

Hook = Callable[[DrawSpec], None]


class Session:
    """Textures, programs, framebuffers and frozen draws of one plan on one device.

    Attributes:
        plan: the plan that was bound.
        draws: the bound draws, in the plan's order.
        runs: forward passes run so far.
        draws_issued: draw calls issued by those runs.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, Array],
        device: Device,
        *,
        shader_root: Path | None = None,
        on_upload: Callable[[int], None] | None = None,
    ) -> None:
        """Validate the plan against the device's limits, upload every weight, compile and bind.

        Args:
            plan: what to run.
            weights: float32 arrays by the plan's weight names.
            device: where to run; it stays open when the session is released.
            shader_root: another folder of shader files, for trying out changed shaders.
            on_upload: told the bytes of each weight after its upload.

        Raises:
            PlanError: the plan or the weights do not fit.
            ShaderError: a shader does not compile.
        """
        check_fits(plan, device)
        self.plan, self.device = plan, device
        self.runs = self.draws_issued = 0
        self._released = False
        self._textures: dict[str, Texture] = {}
        self._framebuffers: dict[tuple[str, ...], Framebuffer] = {}
        self._programs = ProgramCache(device, shader_root)
        try:
            for tensor in plan.tensors:
                self._textures[tensor.name] = self._allocate(tensor, weights)
                if on_upload is not None and tensor.kind == "weight":
                    on_upload(self._textures[tensor.name].layout.nbytes)
            self.draws: tuple[Draw, ...] = tuple(self._bind(spec) for spec in plan.draws)
        except BaseException:
            self.release()
            raise
        self._specs = dict(zip((draw.name for draw in self.draws), plan.draws, strict=True))

    @property
    def program_count(self) -> int:
        """Distinct compiled programs."""
        return len(self._programs)

    def _allocate(self, tensor: TensorSpec, weights: Mapping[str, Array]) -> Texture:
        layout = Layout.of(tensor.shape, tensor.format, self.device.limits.max_texture_size)
        if tensor.kind != "weight":
            return Texture(self.device, layout, tensor.name)
        return Texture(self.device, layout, tensor.name, layout.pack(weight_matrix(tensor, weights)))

    def _bind(self, spec: DrawSpec) -> Draw:
        targets = [self._textures[name] for name in spec.outputs]
        textures = tuple(self._textures[name] for name in spec.reads)
        defines = dict(spec.defines)
        if any(texture.layout.wrapped for texture in (*targets, *textures)):
            layout = targets[0].layout
            defines.update(WRAPPED=1, OUT_WIDTH=layout.width, OUT_ROWS=layout.rows)
        program = self._programs.get(spec.op, defines, [sampler for sampler, _ in spec.inputs])
        given = {name for name, _ in spec.uniforms} | {name for name, _ in spec.per_run}
        if given != program.uniform_names:
            odd = sorted(given ^ program.uniform_names)[0]
            fault = "the shader does not use it" if odd in given else "the draw does not set it"
            raise PlanError(f"draw {spec.name}, shader {spec.op}: uniform {odd!r}: {fault}")
        for name, value in spec.uniforms:
            program.set(name, value)  # a value of the wrong type is found here, not in the first run
        return Draw(
            name=spec.name,
            program=program,
            framebuffer=self._framebuffer(spec.outputs),
            textures=textures,
            constants=spec.uniforms,
            per_run=spec.per_run,
            size=spec.size,
        )

    def _framebuffer(self, outputs: tuple[str, ...]) -> Framebuffer:
        if len(outputs) == 1:
            return self._textures[outputs[0]].framebuffer
        if outputs not in self._framebuffers:
            self._framebuffers[outputs] = Framebuffer(self.device, [self._textures[name] for name in outputs])
        return self._framebuffers[outputs]

    def texture(self, name: str) -> Texture:
        """The texture of one tensor.

        Raises:
            PlanError: the plan has no such tensor, or the session was released.
        """
        if self._released:
            raise PlanError(f"this session of plan {self.plan.name} was released; bind the plan again")
        if name not in self._textures:
            raise PlanError(f"plan {self.plan.name} has no tensor {name!r}")
        return self._textures[name]

    def write(self, name: str, matrix: Array) -> None:
        """Write the first rows of an input tensor."""
        self.texture(name).upload(matrix)

    def read(self, name: str, rows: int | None = None, cols: int | None = None) -> Array:
        """Read [0:rows, 0:cols] of a tensor back (default: all of it)."""
        return self.texture(name).read(rows, cols)

    def run(self, values: Mapping[str, int], *, before: Hook | None = None, after: Hook | None = None) -> int:
        """Replay every draw once with these per-run values; returns the draw calls issued.

        ``before`` and ``after`` are told each draw's spec around it.

        Raises:
            PlanError: a per-run value is missing or outside 1 to the plan's rows, or the session was released.
        """
        if self._released:
            raise PlanError(f"this session of plan {self.plan.name} was released; bind the plan again")
        for key in PER_RUN_VALUES:
            rows = values.get(key)
            if not isinstance(rows, int) or not 1 <= rows <= self.plan.max_rows:
                raise PlanError(f"{key} is {rows!r}; expected a whole number from 1 to {self.plan.max_rows}")
        issued = replay(
            self.device,
            self.draws,
            values,
            None if before is None else lambda draw: before(self._specs[draw.name]),
            None if after is None else lambda draw: after(self._specs[draw.name]),
        )
        self.runs += 1
        self.draws_issued += issued
        return issued

    def release(self) -> None:
        """Release every GL object of the session; harmless when repeated."""
        if self.device.closed:
            return
        self.device.activate()
        self._released = True
        for framebuffer in self._framebuffers.values():
            framebuffer.release()
        for texture in self._textures.values():
            texture.release()
        self._programs.release()
        self._framebuffers.clear()
        self._textures.clear()
        self.draws = ()


def check_fits(plan: Plan, device: Device) -> None:
    """Validate a plan against the limits of a device.

    Raises:
        PlanError: see :meth:`Plan.validate`.
    """
    limits = device.limits
    plan.validate(PlanLimits(limits.max_texture_size, limits.max_draw_buffers, limits.max_texture_units))


def weight_matrix(tensor: TensorSpec, weights: Mapping[str, Array]) -> Array:
    """The array of one weight tensor as a matrix of the tensor's shape.

    Raises:
        PlanError: the array is missing or has another shape or type.
    """
    if tensor.name not in weights:
        raise PlanError(f"the checkpoint has no tensor {tensor.name}; the plan needs {list(tensor.shape)}")
    array = np.asarray(weights[tensor.name])
    shape = (1, array.shape[0]) if array.ndim == 1 else array.shape
    if shape != tensor.shape:
        raise PlanError(f"tensor {tensor.name} is {list(shape)}; the plan needs {list(tensor.shape)}")
    if array.dtype != np.dtype(FORMATS[tensor.format].dtype):
        raise PlanError(f"tensor {tensor.name} is {array.dtype}; the plan needs {FORMATS[tensor.format].dtype_name}")
    return array.reshape(shape)
