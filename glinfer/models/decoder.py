"""Decoders of every family that is no Gab: what their plans share, over weights as their files have them.

Tensors lie four elements a texel (:mod:`glinfer.gl.flat`), so that a matrix may be floats, half floats or blocks of any
of GGML's formats, which the shaders unpack as they multiply. :mod:`glinfer.models.decoder_fast` and
:mod:`glinfer.models.decoder_reference` build the plans; a family says what it computes with a :class:`Style`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.families import FAMILIES, head_weight, weight_shapes
from glinfer.formats.packed import F16
from glinfer.ggml import block_format, words_of
from glinfer.models.plan import PlanBuilder
from glinfer.ops.elementwise import scale
from glinfer.ops.kernels import Kernels
from glinfer.ops.lookup import lookup, position_add
from glinfer.ops.matmul import matmul
from glinfer.ops.matmul_choice import choose
from glinfer.ops.movement import strided_copy
from glinfer.ops.normalize import Norm, normalized
from glinfer.ops.product import Finish, Product, Strategy
from glinfer.ops.rotary import rope_table
from glinfer.ops.spec import Array, RunValue, TensorSpec
from glinfer.ops.strided import Axis

TOKENS, LOGITS, ROPE = "tokens", "logits", "rope"
F32, FROM_FILE = "F32", "file"
STORED = {"f32": F32, "f16": F16, "q16": "Q16_ROW", "q8": "Q8_ROW"}
"""What the names of weight formats mean for the matrices of these families."""
_STEP = 16  # inputs of a step, as Kernels.part_steps counts them
_GROUPED = re.compile(r"(.*)\{(.*)\}(.*)")


@dataclass(frozen=True)
class Style:
    """What the models of a family compute, and what their tensors are called.

    Attributes:
        norm: ``rms`` or ``layer``, which has a bias too.
        norm_offset: what is added to the weights of norms.
        interleaved: whether rotary positions turn neighbours, and not elements half a head apart.
        scaled_embeddings: whether embeddings are multiplied with the square root of the width.
        embeddings, positions: names of tables; no positions where they are rotary.
        layer: beginning of the names of a layer, which then go on with those that follow, without ``.weight``.
    """

    norm: str = "rms"
    norm_offset: float = 0.0
    interleaved: bool = False
    scaled_embeddings: bool = False
    embeddings: str = "model.embed_tokens.weight"
    positions: str = ""
    layer: str = "model.layers.{}."
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    final_norm: str = "model.norm"
    projection: str = "self_attn.{}_proj"
    output: str = "self_attn.o_proj"
    head_norm: str = "self_attn.{}_norm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"


@dataclass(frozen=True)
class Setting:
    """A decoder on one kind of renderer: what its plans are built from.

    Attributes:
        config: the model's shape; its positions are the slots of caches.
        style: what its family computes.
        stored: the format of each tensor, see :func:`stored_formats`.
        kernels: how passes are shaped.
        max_texture_size: of the renderer, in texels.
    """

    config: ModelConfig
    style: Style
    stored: Mapping[str, str]
    kernels: Kernels
    max_texture_size: int


class DecoderBuilder:
    """A plan under construction: the weights it declares, and the passes that both plans have."""

    def __init__(
        self, name: str, setting: Setting, *, rows: int, max_rows: int, run_values: Sequence[RunValue]
    ) -> None:
        """An empty plan for runs of ``rows`` tokens, and sequences of at most ``max_rows``."""
        self.config, self.style, self.stored = setting.config, setting.style, setting.stored
        self.kernels, self.max_texture_size = setting.kernels, setting.max_texture_size
        self.family, self.rows = FAMILIES[setting.config.model_type], rows
        self.plan = PlanBuilder(name, max_rows, run_values)
        self.shapes = weight_shapes(setting.config)
        self.tensors: dict[str, TensorSpec] = {}
        self.tokens = self.flat(TOKENS, "input", rows, 1, "rgba32i")

    def flat(self, name: str, kind: str, rows: int, cols: int, format_name: str = "rgba32f") -> TensorSpec:
        """A tensor, declared where it is first asked for.

        Raises:
            PlanError: it fits no texture.
        """
        if name not in self.tensors:
            try:
                made = self.plan.flat(name, kind, rows, cols, format_name, self.max_texture_size)
            except PlanError as error:
                raise PlanError(f"tensor {name}: {error}") from None
            self.tensors[name] = made
        found = self.tensors[name]
        if found.shape != (rows, cols):
            raise PlanError(f"tensor {name} is {list(found.shape)}; expected {[rows, cols]}")
        return found

    def scratch(self, name: str, rows: int, cols: int) -> TensorSpec:
        """An activation; layers use the same ones, so what comes before the name's part of a layer is left out."""
        return self.flat(re.sub(r"^h\.\d+\.", "", name), "activation", rows, cols)

    def vector(self, name: str) -> TensorSpec:
        """A norm's weight or a bias, [1, n]; of several biases, those names in braces, side by side."""
        cols = sum(self.shapes[part][0] for part in grouped_names(name))
        return self.flat(name, "weight", 1, cols)

    def matrix(self, name: str) -> tuple[TensorSpec, str | None]:
        """A matrix, or several below each other, and the format it is packed in, None for floats.

        Raises:
            PlanError: matrices of different formats were asked for together.
        """
        names = grouped_names(name)
        formats = {self.stored[part] for part in names}
        if len(formats) > 1:
            raise PlanError(
                f"{name} are kept in {', '.join(sorted(formats))}; only matrices of one format lie together"
            )
        (kept,) = formats
        rows, inputs = sum(self.shapes[part][0] for part in names), self.shapes[names[0]][1]
        if kept in (F32, F16):
            return self.flat(name, "weight", rows, inputs, "rgba32f" if kept == F32 else "rgba16f"), None
        words = 4 * sum(block_format(kept).section_texels(inputs))
        return self.flat(name, "weight", rows, words, "rgba32ui"), kept

    def alike(self, names: Sequence[str]) -> bool:
        """Whether matrices are kept in one format."""
        return len({self.stored[name] for name in names}) == 1

    def rope(self) -> TensorSpec:
        """The table of rotary positions."""
        return self.flat(ROPE, "weight", self.config.max_position_embeddings, self.config.head_dim)

    def embed(self, out: TensorSpec, position: int | str) -> None:
        """Embeddings of the tokens, scaled or with positions where the family has them so."""
        style, plan, width = self.style, self.plan, self.config.hidden_size
        table, kept = self.matrix(style.embeddings)
        further = style.scaled_embeddings or style.positions
        first = self.scratch("embed.tokens", *out.shape) if further else out
        plan.draw(
            lookup("embed", "embed", self.tokens, table, first, table_format=kept, inputs=width, kernels=self.kernels)
        )
        if style.scaled_embeddings:
            factor = float(np.float32(width) ** np.float32(0.5))
            plan.draw(scale("embed.scale", "embed", first, out, factor=factor, kernels=self.kernels))
        if style.positions:
            table, _ = self.matrix(style.positions)
            plan.draw(
                position_add(
                    "embed.positions",
                    "embed",
                    first,
                    table,
                    out,
                    length=self.rows,
                    offset=position,
                    padded=True,
                    kernels=self.kernels,
                )
            )

    def norm(self, name: str, kind: str, weights: str, x: TensorSpec) -> TensorSpec:
        """x normalised."""
        out = self.scratch("normed" if x.shape[0] == self.rows else f"{name}.normed", *x.shape)
        bias = self.vector(f"{weights}.bias") if self.style.norm == "layer" else None
        norm = Norm(
            self.style.norm,
            self.vector(f"{weights}.weight"),
            bias,
            eps=self.config.layer_norm_eps,
            offset=self.style.norm_offset,
        )
        self.plan.draw(*normalized(name, kind, x, out, norm, scratch=self.scratch, kernels=self.kernels))
        return out

    def linear(
        self,
        name: str,
        kind: str,
        weights: str,
        x: TensorSpec,
        out: TensorSpec,
        *,
        residual: TensorSpec | None = None,
        activation: str = "none",
    ) -> TensorSpec:
        """``out = activation(x · weightᵀ + bias) + residual``; ``weights`` without ``.weight``, or a whole name.

        Returns:
            Where that is: ``out``, or the residual itself where blending adds to it in place.
        """
        whole = weights if weights.endswith(".weight") else f"{weights}.weight"
        weight, kept = self.matrix(whole)
        bias_name = f"{weights}.bias"
        biased = all(part in self.shapes for part in grouped_names(bias_name))
        product = Product(x.shape[0], out.shape[1], x.shape[1], transposed=True, table_format=kept)
        finish = Finish(self.vector(bias_name) if biased else None, activation, residual)
        strategy = self.strategy(product)
        blended = strategy.name in ("matvec", "split_k") and strategy.parts_of(product.units) > 1
        if residual is not None and blended and finish == Finish(residual=residual):
            out = residual
        self.multiply(name, kind, x, weight, out, product, finish)
        return out

    def multiply(
        self, name: str, kind: str, x: TensorSpec, weight: TensorSpec, out: TensorSpec, product: Product, finish: Finish
    ) -> None:
        """A product by the strategy of the plan."""
        self.plan.draw(
            *matmul(
                name,
                kind,
                x,
                weight,
                out,
                product=product,
                strategy=self.strategy(product),
                finish=finish,
                kernels=self.kernels,
                scratch=self.scratch,
            )
        )

    def strategy(self, product: Product) -> Strategy:
        """How a product is computed: as its shape says, and on a GPU a single row in parts.

        There each product waits for the one before, and one row alone has too few fragments to hide the latency of
        memory; the measured maps are of products that overlap.
        """
        kernels = self.kernels
        if product.m == product.count == 1 and kernels.products == "gpu" and kernels.part_steps and kernels.blends:
            parts = -(-product.k // (_STEP * kernels.part_steps))
            return Strategy("matvec" if kernels.quad else "split_k", parts=parts)
        return choose(product, kernels, blends=kernels.blends)

    def join_heads(self, name: str, kind: str, x: TensorSpec, out: TensorSpec) -> None:
        """Heads side by side again: x [heads · rows, D] into out [rows, heads · D]."""
        rows, dim = out.shape[0], x.shape[1]
        axes = [Axis(rows, 1, 0), Axis(x.shape[0] // rows, rows, 0), Axis(dim, 0, 1)]
        self.plan.draw(strided_copy(name, kind, x, out, axes, kernels=self.kernels))

    def take_row(self, x: TensorSpec) -> TensorSpec:
        """The row that the run value ``last_row`` names, [1, D]."""
        out = self.scratch("last_row", 1, x.shape[1])
        axes = [Axis(1, 0, 0), Axis(x.shape[1], 0, 1)]
        self.plan.draw(
            strided_copy("last_row", "lm_head", x, out, axes, row_offset="last_row", kernels=self.kernels),
        )
        return out

    def head(self, x: TensorSpec, out_name: str = LOGITS) -> TensorSpec:
        """Logits of rows of the stream."""
        normed = self.norm("final_norm", "lm_head", self.style.final_norm, x)
        out = self.scratch(out_name, x.shape[0], self.config.vocab_size)
        return self.linear("lm_head", "lm_head", head_weight(self.config), normed, out)


def grouped_names(name: str) -> list[str]:
    """``a.{q,k}.weight`` means ``a.q.weight`` and ``a.k.weight``."""
    match = _GROUPED.fullmatch(name)
    return [f"{match[1]}{part}{match[3]}" for part in match[2].split(",")] if match else [name]


def stored_formats(config: ModelConfig, weights: str, formats: Mapping[str, str] | None = None) -> dict[str, str]:
    """How each tensor of a model is kept in textures: ``F32``, ``F16`` or packed, as in its file or as is asked for.

    Args:
        config: the model's shape.
        weights: ``file``, a key of :data:`STORED`, or ``q8l``: ``q8`` but for the vocabulary's matrices, in ``q16``.
        formats: what the file has, see :meth:`glinfer.formats.checkpoint.Checkpoint.formats`; left out, float32.

    Raises:
        PlanError: there is no such format.
    """
    if weights not in (*STORED, "q8l", FROM_FILE):
        raise PlanError(f"there is no weight format {weights!r}; expected one of {FROM_FILE}, {', '.join(STORED)}, q8l")
    found = {}
    for name, shape in weight_shapes(config).items():
        in_file = F32 if formats is None else formats.get(name, F32)
        if len(shape) == 1 or name == "transformer.wpe.weight":
            found[name] = F32  # positions are few, and read one by one
        elif weights == FROM_FILE:
            found[name] = in_file
        elif weights == "q8l":
            found[name] = STORED[
                "q16" if name.endswith(("lm_head.weight", "embed_tokens.weight", "wte.weight")) else "q8"
            ]
        else:
            found[name] = STORED[weights]
    return found


class DecoderWeights(Mapping[str, Array]):
    """The arrays that a decoder's plan uploads, by tensor name; each is made when it is asked for, and not kept."""

    def __init__(self, checkpoint: Checkpoint, stored: Mapping[str, str]) -> None:
        """Of a checkpoint, in these formats."""
        self._checkpoint, self._stored = checkpoint, stored

    def __getitem__(self, name: str) -> Array:
        """A vector [n], floats [rows, inputs], or the words [rows, words] of packed rows.

        Raises:
            KeyError: there is no such tensor.
        """
        if name == ROPE:
            return rope_of(self._checkpoint.config)
        parts = [self._array(part) for part in grouped_names(name)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _array(self, name: str) -> Array:
        kept, packed = self._stored[name], self._checkpoint.packed.get(name)
        if kept == F32:
            return self._checkpoint.floats(name)
        if kept == F16:
            if packed is not None and packed.format == F16:
                return packed.halves()
            with np.errstate(over="ignore"):
                return _finite_halves(name, self._checkpoint.floats(name).astype(np.float16))
        if packed is not None and packed.format == kept:
            return words_of(np.ascontiguousarray(packed.blocks), kept)
        return words_of(self._checkpoint.floats(name), kept)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a tensor, all of its parts."""
        return isinstance(name, str) and (name == ROPE or all(part in self._stored for part in grouped_names(name)))

    def __iter__(self) -> Iterator[str]:
        """The names of the checkpoint's tensors."""
        return iter(self._stored)

    def __len__(self) -> int:
        """How many those are."""
        return len(self._stored)


def _finite_halves(name: str, halves: Array) -> Array:
    if not np.isfinite(halves).all():
        raise PlanError(f"{name}: a weight is beyond the range of half floats; keep the weights in f32, q16 or q8")
    return halves


def rope_of(config: ModelConfig) -> Array:
    """Cosines and sines [positions, head_dim] of a model's rotary positions.

    Raises:
        InputError: the scaling is of no known type, or lacks a number.
    """
    scaling = {key: list(value) if isinstance(value, tuple) else value for key, value in config.rope_scaling}
    return rope_table(config.max_position_embeddings, config.head_dim, config.rope_theta, scaling or None)[0]
