"""Recipes for the products of fast plans: the tensors of a checkpoint that make a matrix, its rows and its packing.

All families use the same steps. A matrix of floats is **folded**: it absorbs the gain and the bias of the norm before
it, and for LayerNorm the mean. A matrix that its file has in half floats or blocks is **kept**: its bits stay, and the
gain goes to the inputs instead. So does the gain of Gemma's rounded matrices. Rows are in the order in which passes
write them: elements that rotary positions rotate together lie side by side, heads are padded to whole quads, and blocks
of gate and up alternate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.families.layer import DeltaRule, LayerConfig, Rope
from glinfer.formats.tensors import weight_shapes
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, blocks_for
from glinfer.graph.model import graph_of
from glinfer.graph.nodes import (
    Attention,
    Branch,
    Convolution,
    DeltaMixing,
    ExpertMlps,
    ExpertNorms,
    LatentAttention,
    Linear,
    Mlp,
    Norm,
    PerLayer,
)
from glinfer.kernels.fused.cached import Heads
from glinfer.kernels.fused.convolve import PARTS
from glinfer.kernels.fused.rows import padded
from glinfer.lower.ropes import rope_names
from glinfer.quant.formats import F16, F32, FROM_FILE, GROUP_FORMS, KEPT, WEIGHT_FORMATS, WIDE, is_scaled

QUAD_FLOATS = 16
PADDING = -1
"""Row number that stands for a row of zeros."""
Formats = Mapping[str, str]
"""The format of each tensor of a file, see :meth:`glinfer.formats.checkpoint.Checkpoint.formats`."""
MAX_ROWS = 2**28
"""The most rows that all matrices of the layers may have together; 61 layers of 384 experts have a third of them."""
Rows = npt.NDArray[np.intp]
_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True)
class Recipe:
    """One product of a fast plan.

    Attributes:
        kind: which product of a layer it is, such as ``attn.qkv``; tables group by it.
        layer: None for a product outside of all layers.
        sources: names of the matrices, stacked one below the other, without ``.weight``.
        rows: row of the stacked sources for each row of the product; :data:`PADDING` for zeros.
        inputs: column of the sources for each input, or :data:`PADDING`; None for all in order.
        width: number of inputs, with the padding of heads.
        packing: of :data:`glinfer.quant.formats.WORD_FORMATS` or of blocks in groups.
        kept: whether the file's bits are kept, so that nothing is folded in.
        apart: whether the gain of the norm before is not folded in, since rounding would lose the small ones.
        norm: name of the norm before the product, without ``.weight``; empty for none.
        rounded: the same of a norm in a separate pass, which rounds its results.
        writes_stream: whether the outputs are added to the residual stream.
        post_norm: name of the norm after the product, before that sum; empty for none.
        scale: factor of the outputs, which goes into the matrix, or into the gain of one whose bits are kept.
        experts: how many experts have their sources one below the other, equally many each.
        gated: whether blocks of gate and up alternate.
    """

    kind: str
    layer: int | None
    sources: tuple[str, ...]
    rows: Rows
    inputs: Rows | None
    width: int
    packing: str
    kept: bool
    norm: str = ""
    rounded: str = ""
    writes_stream: bool = False
    post_norm: str = ""
    scale: float = 1.0
    experts: int = 1
    gated: bool = False
    apart: bool = False

    @property
    def name(self) -> str:
        """Name of the product, such as ``h.0.attn.qkv``."""
        return self.named(self.kind)

    def named(self, kind: str) -> str:
        """The name of something of this kind in the same layer."""
        return kind if self.layer is None else f"h.{self.layer}.{kind}"

    @property
    def has_gain(self) -> bool:
        """Whether the inputs are multiplied by their own numbers, which the matrix does not absorb."""
        return self.apart or (self.kept and (bool(self.norm) or self.scale != 1.0))

    @property
    def floats(self) -> int:
        """Number of inputs without padding."""
        return self.width if self.inputs is None else int(np.count_nonzero(self.inputs != PADDING))

    def ordered(self, array: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        """An array whose last axis is the columns of the sources, with the inputs there, zeros for padding."""
        return array if self.inputs is None else taken(array, self.inputs, axis=-1)

    @property
    def branch(self) -> str:
        """The branch of the layer, such as ``attn``."""
        return self.kind.partition(".")[0]

    @property
    def post_kind(self) -> str:
        """The kind of the norm after the product."""
        return f"{self.branch}.post_norm"


class Recipes:
    """The products of all fast plans of one model.

    Attributes:
        config, family, names, graph: the model's shape, the record of its family, with its names, and its graph.
    """

    def __init__(self, config: ModelConfig, weights: str, formats: Formats | None = None) -> None:
        """Make the recipes of a model in a weight format, as :class:`glinfer.lower.options.PlanOptions` has it.

        Raises:
            PlanError: there is no such weight format, heads cannot be rotated, or there are absurdly many rows.
        """
        if weights not in (known := (*WEIGHT_FORMATS, FROM_FILE)):
            raise PlanError(f"there is no weight format {weights!r}; expected one of {', '.join(known)}")
        self.config, self.family, self.names = config, config.family, config.family.names
        self.graph = graph_of(config, absorbed=True)
        self._weights, self._formats = weights, formats or {}
        for name in ("qkv", "mixing_in", "mixing_out", "up", "down", "head"):  # a plan asks for each several times
            setattr(self, name, cache(getattr(self, name)))
        for dim in (config.head_dim, config.global_head_dim) if self.family.rotary else ():
            if dim % 2:
                raise PlanError(f"heads of {dim} elements; expected an even number, as elements turn in pairs")
        if self.family.rotary and (config.rotary_dim % 2 or not config.rotary_dim):
            raise PlanError(
                f"{config.rotary_dim} of {config.head_dim} elements of a head turn; expected an even number, as they "
                "turn in pairs"
            )
        numbers = range(config.num_hidden_layers)
        rows = sum(each.shape[0] for number in numbers for each in self.graph.layer(number).tensors())
        rows += sum(map(self.qkv_floats, numbers))  # with the padding of heads
        if rows > MAX_ROWS:
            raise PlanError(
                f"the matrices of {config.num_hidden_layers} layers have {rows} rows; expected at most {MAX_ROWS}"
            )

    def heads(self, layer: int) -> Heads:
        """The heads of a layer in a row of its cache."""
        config, of = self.config, self.config.layer(layer)
        return Heads(
            config.num_attention_heads,
            of.kv_heads,
            head_floats(of.head_dim),
            of.score_scale,
            of.window,
            of.score_cap,
            of.ahead if config.embeds else None,
        )

    @property
    def normalizes(self) -> bool:
        """Whether the stream itself is normalised somewhere, and not only inputs of products."""
        return self.family.layer.norms == "sum" or self.family.embedding_norm

    @cached_property
    def ropes(self) -> dict[Rope, str]:
        """The name of the table for each kind of angles, in the order of the layers that have them."""
        return rope_names(self.config)

    def rope_floats(self, rope: Rope) -> int:
        """Floats of a head that these angles rotate."""
        layers = map(self.config.layer, range(self.config.num_hidden_layers))
        return next(head_floats(of.head_dim) for of in layers if of.rope == rope)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of the checkpoint, and of every matrix that has absorbed others."""
        found = dict(weight_shapes(self.config))
        for number in self.latent_nodes:
            body = self.graph.layer(number).mixing.body
            assert isinstance(body, Attention)
            found |= {weight_name(each.name): each.weight.shape for each in (body.q, body.out)}
        return found

    @cached_property
    def latent_nodes(self) -> dict[int, LatentAttention]:
        """The attention over a latent of each layer that has one, as files have it."""
        layers = graph_of(self.config).layers if self.config.kv_lora_rank else ()
        return {each.number: each.mixing.body for each in layers if isinstance(each.mixing.body, LatentAttention)}

    @cached_property
    def centred(self) -> bool:
        """Whether folding takes the mean of the residual stream away where it is written."""
        names = (name for name, shape in self.shapes.items() if len(shape) == 2)
        return self._leads_all and (
            self._weights != FROM_FILE or all(self._formats.get(name, F32) == F32 for name in names)
        )

    @property
    def _leads_all(self) -> bool:
        """Whether every reader of the stream is a LayerNorm, and no part of it comes from outside."""
        first = self.family.embedding_norm or self.family.by_grid
        return self.family.norm == "layer" and self.family.layer.norms == "before" and not first

    @property
    def sums(self) -> bool:
        """Whether passes after a norm take the mean away themselves, using the weights' sums."""
        return self.family.norm == "layer" and not self.centred

    def _recipe(
        self,
        kind: str,
        layer: int | None,
        sources: Sequence[Linear],
        rows: Rows | None = None,
        *,
        before: Norm | None = None,
        inputs: Rows | None = None,
        head: bool = False,
        exact: bool = False,
        **further: Any,
    ) -> Recipe:
        """The recipe of a product, of all rows in order where none are given; an ``exact`` one is never rounded."""
        rows = np.arange(sum(each.outputs for each in sources)) if rows is None else rows
        width, names = sources[0].inputs if inputs is None else len(inputs), tuple(each.name for each in sources)
        found = {self._formats.get(weight_name(name), F32) for name in names}
        (form,), whole = found if len(found) == 1 else (F32,), inputs is None
        packing, kept = "f32", self._weights == FROM_FILE
        if not kept and not exact:
            choice = WEIGHT_FORMATS[self._weights]
            packing = choice.vocabulary if head else choice.matrices
        elif kept and len(found) > 1 and found <= GROUP_FORMS.keys() and whole:
            packing = WIDE
        elif kept and form != F32 and (whole or form not in GROUP_FORMS):
            packing = KEPT[form]
        else:
            kept = False
        norm = "" if before is None else before.name
        norms = ("", norm) if before is not None and before.rounded else (norm, "")
        apart = bool(norms[0]) and not kept and is_scaled(packing) and self.family.uneven_gains
        return Recipe(kind, layer, names, rows, inputs, width, packing, kept, *norms, apart=apart, **further)

    @staticmethod
    def _end(branch: Branch) -> dict[str, Any]:
        """What follows the last product of a branch: a norm, and a factor."""
        # A norm would take a factor before it away, so the factor is in the gain of the norm.
        return {"scale": branch.scale} if branch.post_norm is None else {"post_norm": branch.post_norm.name}

    def qkv(self, layer: int) -> Recipe:
        """Keys, values and queries, in the order of a row of the cache."""
        branch, heads = self.graph.layer(layer).mixing, self.heads(layer)
        node = branch.body
        assert isinstance(node, Attention)
        dim, order = node.of.head_dim, self._rotary_order(node.of.head_dim)
        pitch = 2 * dim if node.of.gated else dim  # gates follow the queries of each head
        queries = _padded_heads(heads.count, dim, heads.floats, order, pitch)
        parts, above, behind = [], 0, node.gate or node.low
        sources = [each for each in (node.k, node.v, node.q, behind) if each is not None]
        if node.k is not None:
            keys, values = (_padded_heads(heads.kv, dim, heads.floats, each) for each in (order, None))
            values = values if node.of.latent is None else self._padded_latents(heads.floats, node.of, 1)
            apart, above = 0 if node.v is None else node.k.outputs, node.k.outputs
            parts, above = [keys, _moved(values, apart)], above + apart
        between = np.full(heads.queries_at - sum(map(len, parts)), PADDING)
        parts += [between, _moved(queries, above)]
        if node.of.gated:
            gates = _padded_heads(heads.count, dim, heads.floats, None, pitch)
            parts += [np.full(self.gates_at - heads.cols, PADDING), _moved(gates, above + dim)]
        elif behind is not None:
            own = above + node.q.outputs + np.arange(behind.outputs)
            parts += [np.full(self.gates_at - heads.cols, PADDING), own]
        return self._recipe("attn.qkv", layer, sources, np.concatenate(parts), before=branch.norm)

    @property
    def gates_at(self) -> int:
        """The first float after a row of keys, values and queries, where a block begins: of gates, or of ``low``."""
        return BLOCK_FLOATS * blocks_for(self.heads(0).cols)

    def qkv_floats(self, layer: int) -> int:
        """Floats of a row of keys, values, queries and, where attention has them, gates or ``low``."""
        heads = self.heads(layer)
        of = self.family.layer
        gates = heads.width if of.gated else heads.count if of.head_gates else self.config.q_lora_rank
        return self.gates_at + gates if gates else heads.cols

    def _rotary_order(self, dim: int) -> Rows | None:
        """The elements of a head in the order that puts rotary pairs side by side; None if they already are."""
        rank, halves = self.config.kv_lora_rank, self.family.positions == "halves"
        if not halves and not rank:
            return None
        rotary = dim - rank if rank else int(dim * self.config.partial_rotary_factor)
        pairs = np.arange(rotary).reshape(2, rotary // 2).T.reshape(-1) if halves else np.arange(rotary)
        return np.concatenate([rank + pairs, np.arange(rank)] if rank else [pairs, np.arange(rotary, dim)])

    @staticmethod
    def _padded_latents(floats: int, of: LayerConfig, heads: int) -> Rows:
        """The source of each of [heads · floats] elements: of a head the latent, after the rotated elements."""
        assert of.latent is not None
        rows = np.full((heads, floats), PADDING)
        rows[:, of.head_dim - of.latent.rank : of.head_dim] = np.arange(heads * of.latent.rank).reshape(heads, -1)
        return rows.reshape(-1)

    def rotary_index(self, dim: int) -> Rows:
        """The index of each element of a head of keys or queries within its head of ``dim`` elements."""
        order = self._rotary_order(dim)
        return np.arange(dim) if order is None else np.argsort(order)

    def rotated_head(self, dim: int) -> Rows:
        """The element at each index of a head of keys or queries, then padding."""
        return _padded_heads(1, dim, head_floats(dim), self._rotary_order(dim))

    def gain_floats(self, layer: int) -> int:
        """Floats of the gains of normalised queries and keys: of one head, or of all heads of queries."""
        heads = self.heads(layer)
        return heads.width if self.family.layer.head_norms == "width" else heads.floats

    def mixing_in(self, layer: int, branch: Branch | None = None) -> Recipe:
        """The product that begins a branch of a layer that mixes tokens, by default the first.

        Its parts begin with whole blocks. Of a convolution they are B, C and x; of a delta rule channels, decays,
        shares and gates. The channels of a scan are put in the order of a delta rule, and it has no shares.
        """
        branch = branch or self.graph.layer(layer).mixing
        node = branch.body
        if isinstance(node, Convolution):
            width = self.config.hidden_size
            part = np.full(padded(width), PADDING)
            part[:width] = np.arange(width)
            rows, sources = [_moved(part, number * width) for number in range(PARTS)], [*node.into]
        elif isinstance(node, DeltaMixing):
            rows, start, sources = [], 0, [each for each in (node.qkv, node.a, node.b, node.z) if each is not None]
            for each in sources[:-1]:
                own = channels_in_order(node.rule) if each is node.qkv else np.arange(each.outputs)
                rows.append(_moved(_whole_blocks(own), start))
                start += each.outputs
            rows.append(start + np.arange(node.z.outputs))
        else:
            return self.qkv(layer)
        return self._recipe(f"{branch.name}.in_proj", layer, sources, np.concatenate(rows), before=branch.norm)

    def mixing_out(self, layer: int, branch: Branch | None = None) -> Recipe:
        """The product that ends a branch of a layer that mixes tokens, by default the first."""
        config, branch, inputs = self.config, branch or self.graph.layer(layer).mixing, None
        node = branch.body
        assert isinstance(node, Attention | Convolution | DeltaMixing)
        if isinstance(node, Attention) and node.of.head_dim != (floats := head_floats(node.of.head_dim)):
            inputs = _padded_heads(config.num_attention_heads, node.of.head_dim, floats)
        if isinstance(node, Attention) and node.of.latent is not None:
            inputs = self._padded_latents(head_floats(node.of.head_dim), node.of, config.num_attention_heads)
        end = self._end(branch) | ({"before": node.out_norm} if isinstance(node, Attention) else {})
        return self._recipe(f"{branch.name}.out_proj", layer, (node.out,), inputs=inputs, writes_stream=True, **end)

    def router(self, layer: int) -> Recipe:
        """The product that chooses experts; it is not rounded, since another expert is another result."""
        branch = self.graph.layer(layer).mlp
        node = branch.body
        assert isinstance(node, ExpertMlps)
        sources = (node.router,) if node.shared_router is None else (node.router, node.shared_router)
        norms = node.norms
        before, scale = (branch.norm, 1.0) if norms is None else (norms.router, self.config.hidden_size**-0.5)
        return self._recipe("mlp.router", layer, sources, before=before, exact=True, scale=scale)

    def _mlps(self, layer: int, apart: Mlp | None) -> tuple[Branch, ExpertNorms | None, tuple[Mlp, ...]]:
        """The MLPs of a layer, whose matrices are one below the other, or the one ``apart``; norms of experts."""
        branch = self.graph.layer(layer).mlp
        node = branch.body
        assert isinstance(node, Mlp | ExpertMlps)
        if isinstance(node, Mlp):
            return branch, None, (node,)
        return branch, node.norms, node.stacked if apart is None else (apart,)

    def apart(self, layer: int) -> tuple[Recipe, Recipe]:
        """Both products of an MLP next to the experts."""
        node = self.graph.layer(layer).mlp.body
        assert isinstance(node, ExpertMlps)
        return self.up(layer, node.apart), self.down(layer, node.apart)

    def up(self, layer: int, apart: Mlp | None = None) -> Recipe:
        """The first product of the MLP, with alternating blocks of gate and up where the family has a gate."""
        branch, norms, mlps = self._mlps(layer, apart)
        inner, gated, sources = mlps[0].up.outputs, mlps[0].gate is not None, [each.first for each in mlps]
        rows = _stacked(_blocks_of_both(inner) if gated else np.arange(inner), len(sources[0]) * inner, len(mlps))
        before = branch.norm if norms is None or apart is not None else norms.experts
        further: dict[str, Any] = {"before": before, "gated": gated, "experts": len(mlps)}
        kind = "mlp.fc_in" if apart is None else "mlp.shared_in"
        return self._recipe(kind, layer, [*chain(*sources)], rows, **further)

    def down(self, layer: int, apart: Mlp | None = None) -> Recipe:
        """The second product of the MLP."""
        branch, norms, mlps = self._mlps(layer, apart)
        width = mlps[0].down.outputs
        rows = _stacked(np.arange(width), width, len(mlps))
        end = self._end(branch) if norms is None else {}  # which are their own passes
        further: dict[str, Any] = {"before": mlps[0].down_norm, "writes_stream": True, "experts": len(mlps), **end}
        kind = "mlp.fc_out" if apart is None else "mlp.shared_out"
        return self._recipe(kind, layer, [each.down for each in mlps], rows, **further)

    def per_layer_in(self) -> Recipe | None:
        """The product from embeddings to all layers' own, whose parts begin with whole blocks; None without these."""
        node, width, inner = self.graph.per_layer_in, self.config.hidden_size, self.config.hidden_size_per_layer_input
        if node is None:
            return None
        rows = _stacked(_whole_blocks(np.arange(inner)), inner, node.outputs // inner)
        return self._recipe("per_layer.in", None, (node,), rows, scale=width**-0.5)

    def patches(self) -> Recipe | None:
        """The product of the pixels of patches; None in a model of text."""
        node = self.graph.patches
        return None if node is None else self._recipe("patches", None, (node,), writes_stream=True)

    def per_layer(self, layer: int) -> tuple[Recipe, Recipe] | None:
        """Both products of a layer's third branch; None without that."""
        branch = self.graph.layer(layer).per_layer
        if branch is None:
            return None
        node = branch.body
        assert isinstance(node, PerLayer)
        gate = self._recipe("per_layer.gate", layer, (node.gate,))
        return gate, self._recipe("per_layer.out", layer, (node.out,), writes_stream=True, **self._end(branch))

    def dense(self, number: int) -> Recipe:
        """A dense matrix after the pooling."""
        node, before = self.graph.dense[number], self.graph.dense_norms.get(number)
        return self._recipe(f"dense.{number}", None, (node,), before=before)

    def products(self) -> list[Recipe]:
        """All products of the model's plans."""
        found = [] if self.config.embeds else [self.head()]
        for layer in range(self.config.num_hidden_layers):
            of = self.config.layer(layer)
            for branch in self.graph.layer(layer).mixings:
                found += [self.mixing_in(layer, branch), self.mixing_out(layer, branch)]
            found += [self.up(layer), self.down(layer)] if of.mlp else []
            found += [self.router(layer)] if of.experts is not None else []
            node = self.graph.layer(layer).mlp.body
            found += self.apart(layer) if isinstance(node, ExpertMlps) and node.apart is not None else ()
            found += self.per_layer(layer) or ()
        found += [each for each in (self.per_layer_in(), self.patches()) if each is not None]
        return found + [self.dense(number) for number in range(len(self.config.dense))]

    def head(self) -> Recipe:
        """The vocabulary's matrix."""
        further: dict[str, Any] = {"scale": 1.0 / self.config.logits_scaling, "head": True}
        return self._recipe("lm_head", None, (self.graph.head,), before=self.graph.final_norm, **further)

    def norm_eps(self, recipe: Recipe) -> float | None:
        """The epsilon of the norm before a product; None without a norm."""
        return self.config.layer_norm_eps if recipe.norm else None

    def biased(self, recipe: Recipe) -> bool:
        """Whether the outputs of a product can have another bias than zero."""
        norms = self.family.norm == "layer" and bool(recipe.norm)
        return norms or any(f"{source}.bias" in self.shapes for source in recipe.sources)

    def norm_is_biased(self, recipe: Recipe) -> bool:
        """Whether the norm before a product has a bias."""
        return f"{recipe.norm}.bias" in self.shapes

    @property
    def table_format(self) -> str:
        """The format of embeddings, see :meth:`format_of_table`."""
        return self.format_of_table(weight_name(self.names.embeddings))

    def format_of_table(self, name: str) -> str:
        """The format of a table of embeddings: a texture format of floats, or the packing of a file's blocks."""
        form = self._formats.get(name, F32)
        if form in GROUP_FORMS and not self.centred:
            return form
        if self._weights != FROM_FILE:
            return WEIGHT_FORMATS[self._weights].embeddings
        return "rgba16f" if form == F16 else "rgba32f"

    @property
    def position_rows(self) -> int:
        """Rows of the table that is added to embeddings, of positions and token types; 0 for none."""
        config = self.config
        if self.family.rotary:
            return config.type_vocab_size
        return max(1, config.type_vocab_size) * config.max_position_embeddings

    @property
    def positions_format(self) -> str:
        """The texture format of learned positions."""
        if self._weights != FROM_FILE:
            return WEIGHT_FORMATS[self._weights].embeddings
        half = self._formats.get(weight_name(self.names.positions)) == F16 and not self.config.type_vocab_size
        return "rgba16f" if half else "rgba32f"

    @property
    def table_is_head(self) -> bool:
        """Whether embeddings are read out of the vocabulary's matrix."""
        if self.config.embeds:
            return False
        head = self.head()
        return self.config.tie_word_embeddings and head.kept and head.packing == self.table_format


def weight_name(source: str) -> str:
    """The name of a matrix in the checkpoint."""
    return f"{source}.weight"


def head_floats(dim: int) -> int:
    """Floats of a head of ``dim`` elements with its padding: whole quads."""
    return -(-dim // QUAD_FLOATS) * QUAD_FLOATS


def _padded_heads(heads: int, dim: int, floats: int, order: Rows | None = None, pitch: int = 0) -> Rows:
    """The source row of each of [heads · floats] rows: heads of ``dim`` rows in ``order``, then padding.

    The heads of the source lie ``pitch`` rows apart, ``dim`` where it is left out.
    """
    rows = np.full((heads, floats), PADDING)
    rows[:, :dim] = (pitch or dim) * np.arange(heads)[:, None] + (np.arange(dim) if order is None else order)
    return rows.reshape(-1)


def channels_in_order(rule: DeltaRule) -> Rows:
    """The channels of a file in the order queries, keys, values."""
    sizes = rule.keys, rule.keys, rule.values
    return np.concatenate([start + np.arange(size) for start, size in zip(rule.starts, sizes, strict=True)])


def _whole_blocks(rows: Rows) -> Rows:
    """Rows with padding up to a whole number of blocks."""
    blocks = np.full(blocks_for(len(rows)) * BLOCK_FLOATS, PADDING)
    blocks[: len(rows)] = rows
    return blocks


def _stacked(rows: Rows, by: int, count: int) -> Rows:
    """Rows of each of ``count`` equal parts of the sources, of ``by`` rows each; several have whole blocks."""
    rows = rows if count == 1 else _whole_blocks(rows)
    return np.concatenate([_moved(rows, by * number) for number in range(count)])


def _blocks_of_both(inner: int) -> Rows:
    """The rows of a gate [inner] above those that it multiplies, in blocks of both in turn."""
    by_block = _whole_blocks(np.arange(inner)).reshape(-1, BLOCK_FLOATS)
    return np.stack([by_block, _moved(by_block, inner)], axis=1).reshape(-1)


def _moved(rows: Rows, by: int) -> Rows:
    return np.where(rows == PADDING, PADDING, rows + by)


def taken(array: npt.NDArray[_Number], rows: Rows, axis: int = 0) -> npt.NDArray[_Number]:
    """The rows, or columns, ``rows`` of an array, with zeros for :data:`PADDING`."""
    if len(rows) == array.shape[axis] and np.array_equal(rows, np.arange(len(rows))):
        return array
    found = np.take(array, np.where(rows == PADDING, 0, rows), axis=axis)
    index: list[slice | npt.NDArray[np.bool_]] = [slice(None)] * array.ndim
    index[axis] = rows == PADDING
    found[tuple(index)] = 0
    return found
