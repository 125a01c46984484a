"""The parts of the reference plan of models without a published one, over weights in the formats of their files.

Tensors lie four elements a texel (:mod:`glinfer.gl.layouts.flat`), so a matrix may be floats, half floats or blocks of
any of GGML's formats, which the shaders unpack as they multiply. :mod:`glinfer.models.reference.decoder` builds the
plan, and the record of the family says what it computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.families.layer import Rope
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.packed import PackedTensor
from glinfer.formats.tensors import weight_shapes
from glinfer.models.plan import PlanBuilder
from glinfer.models.ropes import QUERIES, rope_names, rope_of
from glinfer.ops.flat.elementwise import scale
from glinfer.ops.flat.lookup import lookup, position_add
from glinfer.ops.flat.matmul import matmul
from glinfer.ops.flat.movement import strided_copy
from glinfer.ops.flat.normalize import Norm, normalized
from glinfer.ops.flat.product import Finish, Product, Strategy
from glinfer.ops.flat.strided import Axis
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, RunValue, TensorSpec
from glinfer.quant.formats import F16, F32, FROM_FILE, block_format
from glinfer.quant.ggml import words_of

TOKENS, LOGITS = "tokens", "logits"


@dataclass(frozen=True)
class ReferenceOptions:
    """The options of the reference plans of a model without a published one.

    Attributes:
        config: the model's shape.
        stored: the format of each tensor, see :func:`stored_formats`.
        kernels: how passes are shaped.
        max_texture_size: limit of the renderer, in texels a side.
    """

    config: ModelConfig
    stored: Mapping[str, str]
    kernels: KernelOptions
    max_texture_size: int


class DecoderBuilder:
    """A plan under construction: the weights that it declares, and the passes that its parts share."""

    def __init__(
        self, name: str, options: ReferenceOptions, *, rows: int, max_rows: int, run_values: Sequence[RunValue]
    ) -> None:
        """An empty plan for runs of ``rows`` tokens, and sequences of at most ``max_rows``."""
        self.config, self.stored, self.rows = options.config, options.stored, rows
        self.family, self.names = options.config.family, options.config.family.names
        self.kernels, self.max_texture_size = options.kernels, options.max_texture_size
        self.plan = PlanBuilder(name, max_rows, run_values, long_after=options.config.long_after)
        self.shapes = weight_shapes(options.config)
        self.tensors: dict[str, TensorSpec] = {}
        self.ropes = rope_names(options.config)
        self.tokens = self.flat(TOKENS, "input", rows, 1, "rgba32i")

    def flat(self, name: str, kind: str, rows: int, cols: int, format_name: str = "rgba32f") -> TensorSpec:
        """A tensor, declared at the first call.

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
        """An activation, which all layers share, so its name has no prefix of a layer."""
        return self.flat(re.sub(r"^h\.\d+\.", "", name), "activation", rows, cols)

    def vector(self, name: str) -> TensorSpec:
        """A norm's weight or a bias, [1, n]."""
        return self.flat(name, "weight", 1, self.shapes[name][0])

    def taps(self, name: str) -> TensorSpec:
        """The weights of a convolution, [positions, D]."""
        width, _, length = self.shapes[f"{name}.weight"]
        return self.flat(f"{name}.weight", "weight", length, width)

    def matrix(self, name: str) -> tuple[TensorSpec, str | None]:
        """A matrix and its packed format, None for floats."""
        kept, (rows, inputs) = self.stored[name], self.shapes[name]
        if kept in (F32, F16):
            return self.flat(name, "weight", rows, inputs, "rgba32f" if kept == F32 else "rgba16f"), None
        words = 4 * sum(block_format(kept).section_texels(inputs))
        return self.flat(name, "weight", rows, words, "rgba32ui"), kept

    def rope(self, rope: Rope, *, queries: bool) -> TensorSpec:
        """The table of a kind of angles, of queries or of keys."""
        name = self.ropes[rope] + (QUERIES if queries and rope.scales_queries else "")
        return self.flat(name, "weight", self.config.angle_rows, rope.dim)

    def embed(self, out: TensorSpec, position: int | str) -> None:
        """Draw the embeddings of the tokens, scaled or with positions as the family has them."""
        family, plan, width = self.family, self.plan, self.config.hidden_size
        table, kept = self.matrix(f"{self.names.embeddings}.weight")
        factor = self.config.embedding_scale
        further = factor != 1.0 or not family.rotary
        first = self.scratch("embed.tokens", *out.shape) if further else out
        plan.draw(
            lookup("embed", "embed", self.tokens, table, first, table_format=kept, inputs=width, kernels=self.kernels)
        )
        if factor != 1.0:
            plan.draw(scale("embed.scale", "embed", first, out, factor=factor, kernels=self.kernels))
        if not family.rotary:
            table, _ = self.matrix(f"{self.names.positions}.weight")
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
        """Draw the norm of x."""
        out = self.scratch("normed" if x.shape[0] == self.rows else f"{name}.normed", *x.shape)
        bias = self.vector(f"{weights}.bias") if self.family.norm == "layer" else None
        norm = Norm(
            self.family.norm,
            self.vector(f"{weights}.weight"),
            bias,
            eps=self.config.layer_norm_eps,
            offset=self.family.norm_offset,
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
        activation: str = "none",
        scale: float = 1.0,
        cap: float = 0.0,
    ) -> None:
        """Draw ``out = activation(scale · x · weightᵀ + bias)``, bounded by a cap.

        ``weights`` is the matrix's name without ``.weight``. With a scale there is no bias, as :class:`Finish` adds it
        unscaled.
        """
        weight, kept = self.matrix(f"{weights}.weight")
        bias = f"{weights}.bias"
        product = Product(x.shape[0], out.shape[1], x.shape[1], transposed=True, table_format=kept)
        finish = Finish(self.vector(bias) if bias in self.shapes else None, activation, scale=scale, cap=cap)
        self.multiply(name, kind, x, weight, out, product, finish)

    def multiply(
        self, name: str, kind: str, x: TensorSpec, weight: TensorSpec, out: TensorSpec, product: Product, finish: Finish
    ) -> None:
        """Draw a product by the plainest strategy."""
        self.plan.draw(
            *matmul(
                name,
                kind,
                x,
                weight,
                out,
                product=product,
                strategy=Strategy("small"),
                finish=finish,
                kernels=self.kernels,
                scratch=self.scratch,
            )
        )

    def join_heads(self, name: str, kind: str, x: TensorSpec, out: TensorSpec) -> None:
        """Draw the heads side by side: x [heads · rows, D] into out [rows, heads · D]."""
        rows, dim = out.shape[0], x.shape[1]
        axes = [Axis(rows, 1, 0), Axis(x.shape[0] // rows, rows, 0), Axis(dim, 0, 1)]
        self.plan.draw(strided_copy(name, kind, x, out, axes, kernels=self.kernels))

    def take_row(self, x: TensorSpec) -> TensorSpec:
        """Draw the row that the run value ``last_row`` names, [1, D]."""
        out = self.scratch("last_row", 1, x.shape[1])
        axes = [Axis(1, 0, 0), Axis(x.shape[1], 0, 1)]
        self.plan.draw(strided_copy("last_row", "lm_head", x, out, axes, row_offset="last_row", kernels=self.kernels))
        return out

    def head(self, x: TensorSpec, out_name: str = LOGITS) -> TensorSpec:
        """Draw the logits of rows of the stream."""
        normed = self.norm("final_norm", "lm_head", self.names.final_norm, x)
        out = self.scratch(out_name, x.shape[0], self.config.vocab_size)
        head = self.names.vocabulary(tied=self.config.tie_word_embeddings)
        scale, cap = 1.0 / self.config.logits_scaling, self.config.final_logit_softcapping
        self.linear("lm_head", "lm_head", head, normed, out, scale=scale, cap=cap)
        return out


def stored_formats(config: ModelConfig, weights: str, formats: Mapping[str, str] | None = None) -> dict[str, str]:
    """The format of each tensor of a model in textures: ``F32``, ``F16`` or a packed one.

    Args:
        config: the model's shape.
        weights: ``file`` for the formats of the file, or ``f32``.
        formats: the file's, see :meth:`glinfer.formats.checkpoint.Checkpoint.formats`; float32 where it is left out.

    Raises:
        PlanError: there is no such format.
    """
    if weights not in ("f32", FROM_FILE):
        raise PlanError(f"there is no weight format {weights!r} for a reference plan; expected f32 or {FROM_FILE}")
    found, positions = {}, f"{config.family.names.positions}.weight"
    for name, shape in weight_shapes(config).items():
        # Positions are few, so they are floats.
        floats = weights == "f32" or len(shape) != 2 or name == positions or formats is None
        found[name] = F32 if floats or formats is None else formats.get(name, F32)
    return found


class DecoderWeights(Mapping[str, Array]):
    """The arrays that a reference plan uploads, by tensor name; each is made on demand, and not kept."""

    def __init__(self, checkpoint: Checkpoint, stored: Mapping[str, str]) -> None:
        """Make the arrays from a checkpoint, in the formats ``stored``."""
        self._checkpoint, self._stored = checkpoint, stored
        self._ropes = {
            name + end: (rope, bool(end))
            for rope, name in rope_names(checkpoint.config).items()
            for end in ("", QUERIES)[: 1 + rope.scales_queries]
        }

    def __getitem__(self, name: str) -> Array:
        """A vector [n], floats [rows, inputs], or the words [rows, words] of packed rows.

        The weights of a convolution are [positions, D], a position a row.

        Raises:
            KeyError: there is no such tensor.
        """
        if name in self._ropes:
            rope, queries = self._ropes[name]
            return rope_of(self._checkpoint.config, rope, queries=queries)
        kept = self._stored[name]
        if kept == F32:
            floats = self._checkpoint.floats(name)
            return np.ascontiguousarray(floats[:, 0].T) if floats.ndim == 3 else floats
        packed = self._checkpoint.packed[name]
        return packed.halves() if kept == F16 else words_of(np.ascontiguousarray(packed.blocks), kept)

    def packed_tensor(self, name: str) -> PackedTensor | None:
        """The tensor whose bits an array keeps; None for floats and the table of rotary positions."""
        return None if self._stored.get(name, F32) == F32 else self._checkpoint.packed[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is such a tensor."""
        return name in self._ropes or name in self._stored

    def __iter__(self) -> Iterator[str]:
        """The names of the checkpoint's tensors."""
        return iter(self._stored)

    def __len__(self) -> int:
        """Number of the checkpoint's tensors."""
        return len(self._stored)
