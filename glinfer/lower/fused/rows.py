"""Plans for many rows at once over the fast plan's weights and caches: a chunk of one sequence, or a token of many.

* ``chunk`` puts the keys and values of tokens that follow each other in a sequence into its cache. It ends with the
  keys and values of the last block, since only the last token of a prompt needs more.
* ``score`` goes on to the log-probability of each row's wanted token; its rows may belong to several sequences.
* ``drafted`` goes on to the choice of the token after each row, as the table says: the rows are a sequence's newest
  token and drafted ones after it.
* ``batch`` runs one token of each of many sequences, which is given or was chosen by the run before, and chooses the
  next ones.

Every pass computes a row as the fast plan does, with the same weights and the same order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glinfer.errors import PlanError
from glinfer.families.layer import Experts, Rope
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, RowLayout
from glinfer.gl.layouts.matrix import Extent
from glinfer.graph.nodes import Attention, Branch, Layer
from glinfer.kernels.fused.cached import SLOT_TOKENS, score_slots
from glinfer.kernels.fused.delta import SPAN
from glinfer.kernels.fused.dense import RawRows
from glinfer.kernels.fused.embed import add_images
from glinfer.kernels.fused.expert_groups import few_rows, group_draws, most_groups, tally_rows
from glinfer.kernels.fused.experts import join_rows
from glinfer.kernels.fused.gemm import gemm
from glinfer.kernels.fused.low_rank import CHOICE_FLOATS
from glinfer.kernels.fused.norms import norm_floats, row_norms
from glinfer.kernels.fused.rows import ROW_WORDS, RowInterleaved, Vectors
from glinfer.kernels.fused.score import score_rows
from glinfer.kernels.fused.tiles import take_row, tile_scores, tile_values
from glinfer.kernels.spec import Pass, RunValue, TensorSpec
from glinfer.lower.fused.caches import delta_layers, rings_of
from glinfer.lower.fused.lowering import PROJECTED, Lowering
from glinfer.lower.fused.token import stream_before
from glinfer.lower.options import PlanOptions
from glinfer.lower.weights.recipe import Recipe
from glinfer.program.plan import Plan
from glinfer.quant.formats import is_grouped

ROWS, LOGITS, SCORES, PICKS, IMAGES = "rows", "row.logits", "row.likelihoods", "row.picks", "images"
ROW_ANGLES = "row.angles"
"""The input with the angles of each row of a prompt with images."""


def chunk_plan(
    options: PlanOptions,
    *,
    rows: int,
    cache_slots: int,
    every: int | None = None,
    likelihoods: bool = False,
    export_residual: bool = False,
) -> Plan:
    """The plan ``chunk``, or with ``likelihoods`` the plan ``score``.

    Each run reads the table ``rows``, which is written before it. Inputs: ``rows``, the rows of the table that are
    run; ``longest``, the most tokens that a row sees, padding rows of the last slot included; ``strip_first``, the
    cache slot of the first row.

    Args:
        options: the options of all fast plans.
        rows: the most rows of one run; rounded up to whole slots.
        cache_slots: slots of the caches, a multiple of 64.
        every: slots of one sequence; all of them where it is left out.
        likelihoods: compute the logits, and score each row's wanted token.
        export_residual: copy row ``last_row``, a run value, before the last block to the decode plan, which continues
            from there.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    builder = _ScoreLowering if likelihoods else ChunkLowering
    return builder(options, rows, cache_slots, every or cache_slots).build(export_residual)


def fitting_chunk_plan(options: PlanOptions, *, rows: int, **further: Any) -> Plan:
    """The chunk plan of at most ``rows`` rows, halved until their scores fit a texture.

    The arguments are those of :func:`chunk_plan`.

    Raises:
        PlanError: not even the rows of a single slot fit.
    """
    return halved(lambda count: chunk_plan(options, rows=count, **further), rows, options.kernels.rows_per_draw)


def halved(build: Callable[[int], Plan], rows: int, least: int) -> Plan:
    """The plan of at most ``rows`` rows, halved until it fits its textures; PlanError if not even ``least`` rows do."""
    while True:
        try:
            return build(rows)
        except PlanError:
            if rows <= least:
                raise
            rows = max(least, rows // 2)


def batch_plan(options: PlanOptions, *, sequences: int, capacity: int) -> Plan:
    """The plan ``batch``: one token of each of ``sequences`` sequences, a draw a layer more than the fast plan.

    Sequence s has the cache slots from ``s · capacity`` on, and row s of the table ``rows``, which is written before
    each run; its token may be the one that the run before chose. Inputs: ``rows``, always ``sequences``; ``longest``,
    the tokens of the longest sequence.

    ``capacity``, the most tokens of a sequence, is a multiple of 64.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    return _BatchLowering(options, sequences, capacity).build()


def drafted_plan(options: PlanOptions, *, rows: int, cache_slots: int) -> Plan:
    """The plan ``drafted``: tokens that follow each other in a sequence, with the choice of the token after each.

    Table, inputs and errors are those of :func:`chunk_plan`. The choice of row r is in row r of ``row.picks``,
    drawn with the noise that the table gives the row (:func:`glinfer.kernels.fused.sample.pick`); keys and values
    go to the cache, so that a sequence keeps the rows that it accepts and overwrites the others.
    """
    return _DraftedLowering(options, rows, cache_slots, cache_slots).build()


class _RowsLowering(Lowering):
    """Rows in slots, one in each render target."""

    table: TensorSpec
    counted, prefix = "rows", "row."

    def __init__(
        self, name: str, run_values: list[RunValue], options: PlanOptions, rows: int, cache_slots: int, every: int
    ) -> None:
        if rows < 1:
            raise PlanError(f"a plan for {rows} rows; expected at least 1")
        super().__init__(name, rows, run_values, options, cache_slots=cache_slots, every=every)
        if cache_slots < 1 or cache_slots % SLOT_TOKENS:
            raise PlanError(f"a cache of {cache_slots} slots; expected a multiple of {SLOT_TOKENS}")
        self.targets = self.kernels.rows_per_draw
        self.used = self.slots = slots_for(rows, self.targets)
        self.most_rows = self.slots * self.targets
        self.table = self.read_table(ROWS, self.most_rows, ROW_WORDS, "rgba32ui")
        self.declare(in_place=self.kernels.blends, stores=True)

    def rows(self, name: str, floats: int, format_name: str = "rgba32f") -> RowInterleaved:
        return self.dealt(self.called(name), self.slots, floats, format_name=format_name)

    def dealt(
        self, name: str, slots: int, floats: int, kind: str = "activation", *, tiles: int = 0, **further: Any
    ) -> RowInterleaved:
        """A tensor [slots, floats] for each render target."""
        layout = BlockLayout.of(
            (slots, floats), self.max_texture_size, tiles=tiles or self.kernels.row_tiles, **further
        )
        names = (f"{name}.{number}" for number in range(self.targets))
        return RowInterleaved(tuple(self.plan.laid_out(each, kind, layout) for each in names))

    def read_table(self, name: str, rows: int, cols: int, format_name: str = "rgba32f") -> TensorSpec:
        """An input that is read a row at a time."""
        return self.plan.laid_out(name, "input", RowLayout.of((rows, cols), format_name, self.max_texture_size))

    def whole_vector(self, name: str, slots: int, floats: int) -> TensorSpec:
        layout = BlockLayout.of((slots, floats), self.max_texture_size, tiles=self.kernels.row_tiles)
        return self.plan.laid_out(name, "activation", layout)

    def by_row(self, layer: int, kind: str, x: RowInterleaved, name: str, rows: Extent = "rows") -> TensorSpec:
        joined = self.row_vector(name, x.cols)
        self.plan.draw(join_rows(Pass(f"h.{layer}.{kind}", self.kernels, kind, rows), x, joined))
        return joined

    def expert_products(
        self, layer: int, experts: Experts, x: TensorSpec, choice: TensorSpec
    ) -> tuple[Vectors, TensorSpec]:
        """Draw the products of rows with their experts, rows of one expert together unless they are few.

        Where adapters change experts, each row is computed by itself, as its expert's adapter is its own.
        """
        up, down = self.recipes.up(layer), self.recipes.down(layer)
        adapted = any(self.adapters.ranges(each)[1] for each in (up, down))
        most = self.plan.max_rows
        if self.few or adapted or most <= self.few_expert_rows or most * experts.used < experts.count:
            return super().expert_products(layer, experts, x, choice)
        name, config, targets = f"h.{layer}.mlp", self.config, self.targets
        groups = most_groups(self.most_rows, targets, experts)
        tally = self.whole_vector("row.mlp.tally", tally_rows(self.most_rows), experts.count)
        chosen = self.whole_vector("row.mlp.groups", groups, CHOICE_FLOATS * targets)
        rows = self.row_vector("mlp.places", CHOICE_FLOATS * experts.used)
        inner = self.dealt("row.mlp.inner", groups, config.intermediate_size)
        parts = self.dealt("row.mlp.parts", groups, config.hidden_size)
        norm: dict[str, Any] = {"norm_eps": self.recipes.norm_eps(up), "activation": config.hidden_act}
        first, second = (Pass(each.name, self.kernels, rows=groups) for each in (up, down))
        self.plan.draw(
            *group_draws(self.in_rows(name), choice, tally, rows, chosen, experts, targets=targets),
            gemm(first, x, self.matrix(up), inner, experts=experts, chosen=chosen, **norm),
            gemm(second, inner, self.matrix(down), parts, experts=experts, chosen=chosen),
        )
        return parts, rows

    @property
    def few_expert_rows(self) -> int:
        """The most rows that go one by one through their experts."""
        return _few_rows(self.options, self.plan.max_rows)


def few_chunk_rows(options: PlanOptions) -> int:
    """The most tokens of a prompt that take less time in a separate plan, where experts take rows one by one."""
    most = [SPAN] if delta_layers(options.config) else []
    return _few_rows(options, min(options.kernels.chunk, options.config.max_position_embeddings, *most))


def _few_rows(options: PlanOptions, rows: int) -> int:
    config, experts = options.config, options.config.experts
    if experts is None:
        return 0
    return few_rows(rows, experts.stacked, config.hidden_size, config.intermediate_size, options.kernels)


class ChunkLowering(_RowsLowering):
    """Rows that follow each other in a sequence, several of which may share a run."""

    name = "chunk"
    has_head = False
    """Whether the last layer goes on to the end, and :meth:`finish` to a head."""
    together = True

    def __init__(self, options: PlanOptions, rows: int, cache_slots: int, every: int) -> None:
        """Declare what all layers share."""
        config, kernels = options.config, options.kernels
        slots = max(1, slots_for(rows, kernels.rows_per_draw))
        # A row sees its own sequence alone; the padding rows of the last slot may lie beyond its end.
        longest = min(config.max_position_embeddings, cache_slots) + kernels.rows_per_draw
        groups, seen = score_slots(longest), ("ceildiv", "longest", SLOT_TOKENS)
        values = [
            RunValue("longest", 1, longest, usual=longest),
            RunValue("rows", 1, rows, usual="tokens"),
            RunValue("row_slots", 1, slots, ("ceildiv", "rows", kernels.rows_per_draw)),
            RunValue("score_slots", 1, groups * slots, ("multiply", seen, "row_slots")),
            RunValue("strip_first", 0, cache_slots - 1),
            RunValue("last_row", 0, rows - 1, ("add", "rows", -1)),
            *options.adapters.run_values,
        ]
        if self.few and kernels.split_values:
            values.append(RunValue("score_groups", 1, groups, seen))
        for ring in rings_of(config):
            if ring < rows:
                last = f"last.{ring}"
                values.append(RunValue(last, 1, ring, ("min", "rows", ring)))
                values.append(RunValue(f"first_row.{ring}", 0, rows - ring, ("add", "rows", ("multiply", last, -1))))
        self.config = config
        self.rows_per_draw, self._few_chunk_rows = kernels.rows_per_draw, few_chunk_rows(options)
        values += self.further_values(rows)
        super().__init__(self.name, values, options, rows, cache_slots, every)
        self.used = "row_slots"
        found = self.table.shape[0]
        if found > SPAN and delta_layers(config):
            raise PlanError(
                f"a plan for {found} rows that follow each other; expected at most {SPAN}, as the state of a layer "
                "processes them together"
            )
        # In one tile a cell covers few slots, and is skipped if none of them sees it.
        self.tiles = self.dealt("row.scores", groups * slots, config.num_attention_heads * BLOCK_FLOATS, tiles=1)
        if self.deep:
            self.streams = self.streams[0], self.rows("hidden.b", config.hidden_size)

    @property
    def few_expert_rows(self) -> int:
        """As of the largest plan, so that a smaller one next to it is for rows that go one by one."""
        return self._few_chunk_rows

    def further_values(self, rows: int) -> list[RunValue]:
        """The run values of this plan alone."""
        return []

    def build(self, export_residual: bool = False) -> Plan:
        """The whole plan."""
        self.embed()
        # Later layers keep nothing for later tokens.
        last = self.config.num_hidden_layers if self.has_head else self.config.producing_layers
        for number in range(last):
            self.draw_layer(self.graph.layer(number), ends=number == last - 1 and not self.has_head)
        self.finish()
        results = self.plan.last_written if self.has_head else tuple(self.kept)
        if export_residual:
            shared = {stream_before(self.config, self.kernels, last - 1): self.hidden[0]}
            if self.projected is not None:
                shared[PROJECTED] = RowInterleaved((self.projected,))
            for name, rows in shared.items():
                out = self.blocks(name, 1, rows.cols)
                draw = Pass(f"take.{name}" if self.plan.shared else "take", self.kernels, "take")
                self.plan.draw(take_row(draw, rows, out))
                self.plan.shared = (*self.plan.shared, name)
            results = (*results, *shared)
        return self.plan.build(*results)

    def finish(self) -> None:
        """Draw what follows the last layer: nothing, since only the last token of a prompt needs a head."""

    def attend(self, layer: int, node: Attention, cache: TensorSpec) -> Vectors:
        """Draw the attention of a layer over its cache."""
        heads, table = self.recipes.heads(layer), self.table
        mixed = self.rows(self.name_of("attn.mixed", layer), heads.width)
        sinks, split = self.weight_if_any(f"h.{layer}.attn.sinks"), self.few and self.kernels.split_values
        scores, values = (self.in_slots(f"h.{layer}.attn.{part}") for part in ("scores", "values"))
        self.plan.draw(
            tile_scores(scores, self.qkv(layer), cache, table, self.tiles, heads),
            tile_values(values, self.tiles, cache, table, mixed, heads, sinks=sinks, split=split),
        )
        return mixed

    def norms_of(self, recipe: Recipe, x: Vectors | RawRows) -> dict[str, Any]:
        """Draw the norms of a product's rows in a separate pass, unless rows are few."""
        if self.few:
            return super().norms_of(recipe, x)
        assert isinstance(x, RowInterleaved)
        centred, grouped = self.recipes.sums, is_grouped(recipe.packing)
        out = "row.norms" if x.slots == self.slots else "image.norms"
        return {"norms": self.row_norms(f"{recipe.name}.norms", x, out, centred=centred, grouped=grouped)}

    def row_norms(self, name: str, x: RowInterleaved, out: str, *, centred: bool, grouped: bool = False) -> TensorSpec:
        """Draw the factors of the norms of rows."""
        shape = x.slots, norm_floats(self.targets, centred=centred)
        norms = self.plan.laid_out(out, "activation", BlockLayout.by_block(shape, self.max_texture_size))
        draw, eps = self.in_slots(name, "norms"), self.config.layer_norm_eps
        self.plan.draw(row_norms(draw, x, norms, eps=eps, centred=centred, grouped=grouped))
        return norms

    @property
    def images(self) -> TensorSpec | None:
        """The rows of images among the tokens of a prompt, of models that take images."""
        return self._by_token(IMAGES, self.config.hidden_size) if self._pictured else None

    @property
    def _pictured(self) -> bool:
        return self.options.images is not None and not self.few

    def _by_token(self, name: str, floats: int) -> TensorSpec:
        """An input with a row for each row of the run."""
        return self.read_table(name, self.table.shape[0], floats)

    @property
    def deep(self) -> int:
        """The first layers after which further vectors of images are added; the last one's reaches only logits."""
        return min(self.options.deep, self.config.producing_layers - (not self.has_head)) if self._pictured else 0

    def after_mixing(self, layer: Layer, mixed: list[tuple[Branch, Vectors]]) -> None:
        """Draw the rest of a layer, and add the further vectors of images that belong to it."""
        super().after_mixing(layer, mixed)
        if layer.number >= self.deep:
            return
        before, width, draw = self.hidden[0], self.config.hidden_size, self.in_slots(f"h.{layer.number}.images")
        out, images = self.streams[before is self.streams[0]], self._by_token(deep_name(layer.number), width)
        self.plan.draw(add_images(draw, self.table, before, images, out, tokens=self.config.vocab_size))
        self.hidden = out, out if self.in_place else before

    def angles(self, rope: Rope) -> dict[str, Any]:
        """The angles of each row, by row and column for tokens of images; otherwise by position."""
        if not self._pictured or not self.options.sections:
            return super().angles(rope)
        return {"table": self._by_token(ROW_ANGLES, self.recipes.rope_floats(rope)), "by_row": True}

    def parts_of(self, recipe: Recipe) -> int:
        """One, unless rows are few: several rows are fragments enough."""
        return super().parts_of(recipe) if self.few else 1


class _ScoreLowering(ChunkLowering):
    name, has_head = "score", True

    def finish(self) -> None:
        """Score each row's wanted token."""
        logits, scores = self.head(), self.rows(SCORES.removeprefix("row."), BLOCK_FLOATS)
        self.plan.draw(score_rows(self.in_slots("score"), logits, self.table, scores))


class _DraftedLowering(ChunkLowering):
    """Few rows: norms are computed in the products, and sums are shared out, as the plan ``fast`` does both."""

    name, has_head, few = "drafted", True, True

    def finish(self) -> None:
        """Choose the token after each row."""
        layout = BlockLayout.by_block((self.table.shape[0], BLOCK_FLOATS), self.max_texture_size)
        self.pick(self.plan.laid_out(PICKS, "activation", layout))


class _BatchLowering(_RowsLowering):
    """A token of each of many sequences."""

    def __init__(self, options: PlanOptions, sequences: int, capacity: int) -> None:
        config, kernels = options.config, options.kernels
        if capacity < 1 or capacity % SLOT_TOKENS:
            raise PlanError(f"room for {capacity} tokens; expected a multiple of {SLOT_TOKENS}")
        rows = slots_for(sequences, kernels.rows_per_draw) * kernels.rows_per_draw
        longest = min(capacity, config.max_position_embeddings)
        groups = score_slots(longest)
        values = [
            RunValue("longest", 1, longest, usual=longest),
            RunValue("rows", sequences, sequences),
            RunValue("score_slots", rows, groups * rows, ("multiply", ("ceildiv", "longest", SLOT_TOKENS), rows)),
        ]
        super().__init__("batch", values, options, sequences, sequences * capacity, capacity)
        self.adapter_table = self.table
        self.scores = self.blocks("row.scores", groups * rows, config.num_attention_heads * BLOCK_FLOATS)

    def build(self) -> Plan:
        picks = self.picks = self.cache(PICKS, self.most_rows, BLOCK_FLOATS)
        self.embed()
        for layer in self.graph.layers:
            self.draw_layer(layer)
        self.pick(picks)
        return self.plan.build()


def slots_for(rows: int, targets: int) -> int:
    """Slots of ``rows`` rows, one in each render target."""
    return -(-rows // targets)


def deep_name(layer: int) -> str:
    """The input with the further vectors of images that are added after a layer."""
    return f"{IMAGES}.{layer}"
