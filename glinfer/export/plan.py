"""Compiled plans (:mod:`glinfer.program.compiled`) as JSON for the WebGL2 runtime in ``web/``.

Layouts have the fields that map a texel to its row and column, and back:

============= ======================================================================================
kind          further keys, after rows, cols, width, height (texels)
============= ======================================================================================
``matrix``    ``wrapped``
``flat``      ``row_texels``
``block``     ``blocks``, ``tiles``, ``pitch``, ``columns``, ``slot_step``, ``block_step``, ``aside``, ``every``
``table``     ``stack``, ``row_texels``
``words``     ``line``, ``lines_per_block``, ``texels``
``constants`` ``line``
``groups``    ``line``, ``lines_per_block``, ``paired``: the texels of a lane that hold two outputs a word
``packed``    none: weights for fragments that share the work in a quad
============= ======================================================================================

Weights of the kinds from ``table`` on are read by shaders only.

Float defines are strings, spelt as in GLSL, because JSON does not distinguish 1.0 from 1.

Run values are the numbers that change from run to run, in the order in which they are computed. Those whose ``value``
is null are the inputs of a run. The ``value`` of another is an expression: a number, the name of an earlier run value,
or an operation (``add``, ``multiply``, ``ceildiv``, ``min``) with two of these: ``{"add": ["position", 1]}``. The
operation ``steps`` has pairs of numbers and an expression, see :data:`glinfer.gl.values.Value`. The viewport of a draw,
its vertices, its instances and the rectangles that it clears are expressions too.

Companions are further plans over textures of the first plan, or of an earlier companion, as
:meth:`glinfer.program.session.Session.companion` binds them.
All plans share one table of programs and one of textures, which starts with those of the first plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.context import Limits
from glinfer.gl.integer_targets import INTEGER_TARGETS
from glinfer.gl.layouts.blocks import BLOCK_EDGE, BlockLayout, RowLayout
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.matrix import Layout, TexelLayout
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.gl.program import load_source
from glinfer.gl.self_test import RECORD
from glinfer.gl.values import Value
from glinfer.kernels.spec import Array, RunValue, TensorSpec
from glinfer.program.compiled import CompiledDraw, CompiledPlan, Shaders, compile_plan
from glinfer.program.plan import Plan

_PICTURES = ("attn.probs", "attn.scores")
_LAYOUT_KEYS: Mapping[type, tuple[str, ...]] = {
    Layout: ("matrix", "wrapped"),
    FlatLayout: ("flat", "row_texels"),
    BlockLayout: ("block", "blocks", "tiles", "pitch", "columns", "slot_step", "block_step", "aside", "every"),
    GemvLayout: ("words", "line", "lines_per_block", "texels"),
    ConstantLayout: ("constants", "line"),
    GroupedLayout: ("groups", "line", "lines_per_block", "paired"),
}
"""The kind of each layout, and the fields of its entry."""


@dataclass(frozen=True)
class Companion:
    """A plan exported over textures of another plan.

    Attributes:
        name: its key in ``companions`` of ``plan.json``.
        plan: the plan.
        facts: further numbers for the runtime, by key.
        inputs: tensors that the runtime writes or reads, by the key of their texture numbers.
        over: the earlier companion whose textures it shares; None for the first plan's.
        on_demand: whether the runtime makes its programs and textures at first use.
    """

    name: str
    plan: Plan
    facts: Mapping[str, int]
    inputs: Mapping[str, str | Sequence[str]]
    over: str | None = None
    on_demand: bool = False


class PlanExport:
    """Tables of one plan and its companions, laid out within limits.

    Attributes:
        plan: the exported plan.
        weights: its weights in upload order.
        shaders: names of the shader files, including included ones.
    """

    def __init__(self, plan: Plan, limits: Limits, companions: Sequence[Companion] = ()) -> None:
        """Lay the plans out."""
        self.plan, self._companions = plan, tuple(companions)
        self._plans = [compile_plan(each, limits) for each in (plan, *(each.plan for each in companions))]
        self._textures: list[dict[str, Any]] = []
        self._index = [self._indices(self._plans[0], {})]
        numbers = {each.name: number for number, each in enumerate(companions, start=1)}
        for each, made in zip(companions, self._plans[1:], strict=True):
            owner = 0 if each.over is None else numbers[each.over]
            shared = each.plan.shared_with(self._plans[owner].plan)
            self._index.append(self._indices(made, {name: self._shared(name, made, owner) for name in shared}))
        self._programs: dict[Shaders, int] = {}
        self.weights = plan.of_kind("weight")
        self._draws = [[self._draw(number, draw) for draw in made.draws] for number, made in enumerate(self._plans)]
        files = {file for each in self._programs for file in (f"{each.fragment}.frag", each.vertex)}
        self.shaders = sorted({INTEGER_TARGETS, RECORD}.union(*map(_files, {"self_test.frag", *files})))

    def _indices(self, made: CompiledPlan, shared: Mapping[str, int]) -> dict[str, int]:
        """The index of each tensor's texture; appends textures that are not shared to the table."""
        found = dict(shared)
        for tensor in made.plan.tensors:
            if not tensor.view_of and tensor.name not in found:
                found[tensor.name] = len(self._textures)
                self._textures.append(texture_entry(tensor, made.layouts[tensor.name]))
        return {name: found[made.plan.root(name)] for name in made.plan.table}

    def _shared(self, name: str, made: CompiledPlan, owner: int) -> int:
        """The index of a texture of another plan."""
        other = self._plans[owner]
        if made.layouts[name] != other.layouts[name]:
            raise PlanError(f"tensor {name} of plan {made.plan.name} has another layout in plan {other.plan.name}")
        return self._index[owner][name]

    def layout(self, name: str) -> TexelLayout:
        """Return the layout of a tensor."""
        return self._plans[0].layouts[name]

    def texture(self, name: str) -> int:
        """Return the index of a tensor's texture."""
        return self._index[0][name]

    def _textures_of(self, number: int, names: str | Sequence[str]) -> int | list[int]:
        index = self._index[number]
        return index[names] if isinstance(names, str) else [index[name] for name in names]

    def tables(self) -> dict[str, Any]:
        """Return ``requires``, ``run_values``, ``textures``, ``programs``, ``draws`` and ``companions``."""
        return {
            "requires": self._requires(),
            "run_values": list(map(run_value_entry, self._plans[0].plan.run_values)),
            "textures": self._textures,
            "programs": list(map(program_entry, self._programs)),
            "draws": self._draws[0],
            "companions": {
                each.name: {
                    **each.facts,
                    **{key: self._textures_of(number, names) for key, names in each.inputs.items()},
                    "on_demand": each.on_demand,
                    "run_values": list(map(run_value_entry, self._plans[number].plan.run_values)),
                    "draws": self._draws[number],
                }
                for number, each in enumerate(self._companions, start=1)
            },
        }

    def logits(self, name: str) -> tuple[dict[str, int], Array]:
        """Return the texels of the logits [1, vocab] to read, and each id's index among their RGBA numbers."""
        layout, (rows, cols) = self.layout(name), self.plan.table[name].shape
        width, height = layout.region(rows, cols)
        numbers = np.arange(4 * width * height, dtype=np.int32).reshape(height, width, 4)
        texels = numbers if layout.format.channels == 4 else np.ascontiguousarray(numbers[:, :, 0])
        order = np.ascontiguousarray(layout.unpack(texels, rows, cols)[0], dtype=np.int32)
        return {"texture": self.texture(name), "width": width, "height": height}, order

    def pictures(self) -> list[dict[str, Any]]:
        """List textures with attention: probabilities if the plan has them, else scores.

        ``size`` has the rows and columns that the draw writes of the matrix of ``layout``, as expressions. ``heads`` is
        the number of heads stacked in the texture, with one row for each query; 0 if the rows of the draw are the
        picture's. ``sinks`` is the texture of sink logits, one for each head, if scores have them.
        """
        kinds = {draw.kind for draw in self.plan.draws}
        wanted = next((kind for kind in _PICTURES if kind in kinds), None)
        return [
            {
                "name": draw.name,
                "texture": self.texture(draw.outputs[0]),
                "draw": index,
                "size": list(draw.size),
                "layout": layout_entry(self.layout(draw.outputs[0])),
                "heads": self._stacked_heads(draw.outputs[0]),
                **self._sinks_of(index),
            }
            for index, draw in enumerate(self.plan.draws)
            if draw.kind == wanted and not draw.op.endswith("_stats")  # statistics of softmax are not attention
        ]

    def _stacked_heads(self, name: str) -> int:
        rows, cols = self.plan.table[name].shape
        return rows // cols if isinstance(self.layout(name), FlatLayout) else 0

    def _sinks_of(self, index: int) -> dict[str, int]:
        """The sinks of the draw that reads the scores, if any; probabilities have none."""
        scores, *later = self.plan.draws[index:]
        read = (dict(draw.inputs) for draw in later if scores.outputs[0] in dict(draw.inputs).values())
        found = next(read, {}).get("sinks")
        return {} if found is None else {"sinks": self.texture(found)}

    def _requires(self) -> dict[str, Any]:
        draws = [draw for made in self._plans for draw in made.plan.draws]
        points = [BLOCK_EDGE * max(1, draw.largest_cell) for draw in draws if draw.cover == "points"]
        blending = ["EXT_float_blend"] if any(draw.adds for draw in draws) else []
        return {
            "max_texture_size": max(max(entry["width"], entry["height"]) for entry in self._textures),
            "draw_buffers": max(len(draw.outputs) for draw in draws),
            "texture_units": max(len(draw.inputs) for draw in draws),
            "point_size": max([1, *points]),
            "extensions": ["EXT_color_buffer_float", *blending],
        }

    def _draw(self, number: int, draw: CompiledDraw) -> dict[str, Any]:
        """Describe a draw as :class:`glinfer.program.session.Session` binds it."""
        index, call = self._index[number], draw.call
        return {
            "name": draw.name,
            "kind": draw.kind,
            "program": self._programs.setdefault(draw.shaders, len(self._programs)),
            "inputs": [index[name] for name in draw.inputs],
            "outputs": [index[name] for name in draw.outputs],
            "uniforms": dict(call.constants),
            "per_run": dict(call.per_run),
            "viewport": list(map(expression, call.viewport)),
            "vertices": expression(call.vertices),
            "points": call.points,
            "instances": call.instances,
            "adds": call.adds,
            "clears": [list(map(expression, rectangle)) for rectangle in call.clears],
        }


def texture_entry(tensor: TensorSpec, layout: TexelLayout) -> dict[str, Any]:
    """Describe the texture of a tensor."""
    return {
        "name": tensor.name,
        "kind": tensor.kind,
        "format": tensor.format,
        "width": layout.width,
        "height": layout.height,
        "layout": layout_entry(layout),
        "tensor": tensor.name if tensor.kind == "weight" else None,
    }


def program_entry(shaders: Shaders) -> dict[str, Any]:
    """Describe a program."""
    return {
        "fragment": f"{shaders.fragment}.frag",
        "vertex": shaders.vertex,
        "defines": dict(shaders.defines),
        "samplers": list(shaders.samplers),
    }


def layout_entry(layout: TexelLayout) -> dict[str, Any]:
    """Describe a layout, see the module's docstring."""
    entry: dict[str, Any] = {
        "rows": layout.rows,
        "cols": layout.cols,
        "width": layout.width,
        "height": layout.height,
    }
    if isinstance(layout, RowLayout):
        return {"kind": "table", **entry, "stack": layout.stack, "row_texels": layout.texels}
    known = () if getattr(layout, "quad", False) else _LAYOUT_KEYS.get(type(layout), ())
    kind, *keys = known or ("packed",)
    return {"kind": kind, **entry, **{key: getattr(layout, key) for key in keys}}


def run_value_entry(value: RunValue) -> dict[str, Any]:
    """Describe a run value, see the module's docstring."""
    return {
        "name": value.name,
        "smallest": value.smallest,
        "largest": value.largest,
        "whole": isinstance(value.smallest, int),
        "value": expression(value.value),
    }


def expression(value: Value | None) -> Any:
    """Convert an expression, see the module's docstring."""
    if not isinstance(value, tuple):
        return value
    operation, left, right = value
    return {operation: [left if operation == "steps" else expression(left), expression(right)]}


def _files(shader: str) -> set[str]:
    """List a shader file and its includes."""
    return {file for file, line in load_source(shader, {}, api="es").origin if line}
