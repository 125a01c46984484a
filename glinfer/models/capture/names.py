"""Names of the tensors inside plans, the same in every plan, and where each plan has them.

A plan's own names say how it computes (``hidden.a``, ``attn.cache``), and one texture holds many things in turn. A
:class:`CapturePoint` has the field's name of a tensor, such as ``blocks.3.attn.probs``. It knows after which draw and
in which texels the tensor lies, reads it into an array that has one shape in all plans, and writes such an array back.

========================== ======================== ==================================================================
name                       array                    contents
========================== ======================== ==================================================================
``embed``                  [S, D]                   embeddings of the tokens, with positions where they are learned
``blocks.N.attn.norm``     [S, D]                   the stream, normalised for the attention
``blocks.N.attn.q``        [heads, S, head_dim]     queries as the keys meet them, before they are scaled
``blocks.N.attn.k``, ``v`` [key heads, S, head_dim] keys and values as the queries meet them
``blocks.N.attn.scores``   [heads, S, S]            scaled scores of queries (rows) and keys; -1e30 where none is seen
``blocks.N.attn.probs``    [heads, S, S]            their softmax, which leaves a sink its part where heads have one
``blocks.N.attn.mixed``    [heads, S, head_dim]     values, weighted with the probabilities
``blocks.N.attn.joined``   [S, heads · head_dim]    ``mixed`` with the heads side by side, times gates if there are any
``blocks.N.attn.out``      [S, D]                   what the attention adds to the stream
``blocks.N.conv.norm``     [S, D]                   the stream, normalised for a convolution, where a layer has one
``blocks.N.conv.gated``    [S, D]                   B · x, which the convolution sees of this token and those before
``blocks.N.conv.mixed``    [S, D]                   C times what the convolution makes of it
``blocks.N.conv.out``      [S, D]                   what the convolution adds to the stream
``blocks.N.delta.norm``    [S, D]                   the stream, normalised for a delta rule, where a layer has one
``blocks.N.delta.mixed``   [S, values]              its results, normalised and gated, with the heads side by side
``blocks.N.delta.out``     [S, D]                   what the delta rule adds to the stream
``blocks.N.resid_mid``     [S, D]                   the stream after the branch that mixes tokens
``blocks.N.mlp.norm``      [S, D]                   the stream, normalised for the MLP
``blocks.N.mlp.gate``      [S, inner]               the gate before its activation; ``mlp.up`` is what it multiplies
``blocks.N.mlp.hidden``    [S, inner]               the input of the MLP's last product
``blocks.N.mlp.router``    [S, experts]             logits of the experts, in a block without ``gate`` and ``hidden``
``blocks.N.mlp.out``       [S, D]                   what the MLP adds to the stream
``blocks.N.resid_post``    [S, D]                   the stream after the block
``final_norm``             [S, D]                   the stream, normalised for the vocabulary
``logits``, ``probs``      [S, vocab]               of the next token
========================== ======================== ==================================================================

S is the number of tokens. No plan has every name, since the fast plans fuse passes; ``mlp.hidden`` is missing where
instances share the MLP's first product, as on GPUs. Where a plan computes only the last row of a tensor, the array is
[1, …]. The fast plan of a LayerNorm model whose weights are folded takes the mean away
from the stream (:mod:`glinfer.models.transforms.fold`); its streams are called ``embed.centred``,
``blocks.N.resid_mid.centred`` and ``blocks.N.resid_post.centred``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.families.layer import LayerConfig
from glinfer.models.capture.point import CapturePoint, Index, Span
from glinfer.models.plan import Plan
from glinfer.models.reference.decoder import LAST_ROW
from glinfer.models.transforms.recipe import Recipes, sinks_name, weight_name
from glinfer.ops.fused.cached import SLOT_TOKENS
from glinfer.ops.spec import Array
from glinfer.quant.formats import FROM_FILE

CENTRED = ".centred"
"""The suffix of streams whose mean over the features was taken away."""


def capture_points(plan: Plan, config: ModelConfig) -> dict[str, CapturePoint]:
    """Every named tensor of a plan, in the order of computation.

    Only plans of one sequence have names: ``reference``, and ``fast`` for one token a run.
    """
    if plan.name == "reference":
        named = _decoder_reference(plan, config) if LAST_ROW in _values(plan) else _gab_reference(config)
    elif plan.name == "fast":
        named = _fast(plan, config)
    else:
        return {}
    return _located(plan, named)


def _values(plan: Plan) -> set[str]:
    return {value.name for value in plan.run_values}


@dataclass(frozen=True)
class _Named:
    """A point before its draws are looked up.

    ``steps`` are beginnings of draws' names, of which the last matching draw counts, by its first output. The other
    fields are those of :class:`CapturePoint`.
    """

    name: str
    steps: tuple[str, ...]
    index: Callable[[Span], Index]
    axis: int = 0
    keys: bool = False
    last_only: bool = False


def _located(plan: Plan, named: Iterable[_Named]) -> dict[str, CapturePoint]:
    """The points whose draws are in the plan, in the order of their last draws."""
    steps: dict[str, int] = {}
    for place, draw in enumerate(plan.draws):
        parts = draw.name.split(".")
        for end in range(1, len(parts) + 1):
            steps[".".join(parts[:end])] = place  # the last draw of a step is the one that ends it
    found = []
    for each in named:
        if all(step in steps for step in each.steps):
            places = [steps[step] for step in each.steps]
            sites = tuple((plan.draws[place].name, plan.draws[place].outputs[0]) for place in places)
            point = CapturePoint(each.name, sites, each.index, each.axis, each.keys, each.last_only)
            found.append((places[-1], point))
    return {point.name: point for _, point in sorted(found, key=lambda pair: pair[0])}


def _rows(cols: int, start: int = 0) -> Callable[[Span], Index]:
    """[tokens, cols], from column ``start`` on."""
    return lambda span: (np.arange(span.count)[:, None], start + np.arange(cols)[None, :])


def _only_row(cols: int) -> Callable[[Span], Index]:
    """[1, cols]."""
    return lambda span: (np.zeros((1, 1), dtype=np.intp), np.arange(cols)[None, :])


def _heads_in_columns(
    heads: int, dim: int, pitch: int, start: int = 0, *, at_position: bool = False
) -> Callable[[Span], Index]:
    """[heads, tokens, dim] out of [tokens, heads · pitch], in the rows of their positions where that is a cache."""

    def index(span: Span) -> Index:
        rows = (span.first if at_position else 0) + np.arange(span.count)
        return rows[None, :, None], start + (np.arange(heads) * pitch)[:, None, None] + np.arange(dim)[None, None, :]

    return index


def _rows_at_position(cols: int) -> Callable[[Span], Index]:
    """[tokens, cols] of the rows of a cache at the tokens' positions."""
    return lambda span: (span.first + np.arange(span.count)[:, None], np.arange(cols)[None, :])


def _columns_at_position(columns: Array) -> Callable[[Span], Index]:
    """Columns [heads, 1, dim] of the rows of a cache at the tokens' positions."""

    def index(span: Span) -> Index:
        rows = span.first + np.arange(span.count)
        return rows[None, :, None], columns

    return index


def _columns(columns: Array) -> Callable[[Span], Index]:
    """Columns [heads, 1, dim] of the only row."""
    return lambda span: (np.zeros((1, 1, 1), dtype=np.intp), columns)


def _heads_in_rows(heads: int, dim: int, pitch: int, *, at_position: bool = False) -> Callable[[Span], Index]:
    """[heads, tokens, dim] out of [heads · pitch, dim]."""

    def index(span: Span) -> Index:
        rows = (span.first if at_position else 0) + np.arange(span.count)
        return (np.arange(heads) * pitch)[:, None, None] + rows[None, :, None], np.arange(dim)[None, None, :]

    return index


def _squares(heads: int, pitch: int) -> Callable[[Span], Index]:
    """[heads, tokens, tokens] out of [heads · pitch, pitch]."""

    def index(span: Span) -> Index:
        tokens = np.arange(span.count)
        return (np.arange(heads) * pitch)[:, None, None] + tokens[None, :, None], tokens[None, None, :]

    return index


def _slots(heads: int) -> Callable[[Span], Index]:
    """[heads, 1, keys] out of [slots, heads · 64]."""

    def index(span: Span) -> Index:
        slot, place = np.divmod(np.arange(span.tokens), SLOT_TOKENS)
        return slot[None, None, :], (np.arange(heads) * SLOT_TOKENS)[:, None, None] + place[None, None, :]

    return index


def _joined(heads: int, dim: int, pitch: int) -> Callable[[Span], Index]:
    """[1, heads · dim] out of [1, heads · pitch]."""
    cols = ((np.arange(heads) * pitch)[:, None] + np.arange(dim)).reshape(1, -1)
    return lambda span: (np.zeros((1, 1), dtype=np.intp), cols)


def _gab_reference(config: ModelConfig) -> list[_Named]:
    width, heads, dim = config.hidden_size, config.num_attention_heads, config.head_dim
    named = [_Named("embed", ("embed",), _rows(width))]
    for block in range(config.num_hidden_layers):
        to, at = f"blocks.{block}", f"h.{block}"
        each = [f"{at}.attn.head.{head}" for head in range(heads)]
        named += [
            _Named(f"{to}.attn.norm", (f"{at}.ln_1",), _rows(width)),
            *(
                _Named(f"{to}.attn.{letter}", (f"{at}.attn.{letter}_proj",), _heads_in_columns(heads, dim, dim), axis=1)
                for letter in "qkv"
            ),
            *(
                _Named(f"{to}.attn.{part}", tuple(f"{head}.{part}" for head in each), _squares(1, 1), axis=1, keys=True)
                for part in ("scores", "probs")
            ),
            _Named(f"{to}.attn.mixed", tuple(f"{head}.mixed" for head in each), _heads_in_rows(1, dim, 1), axis=1),
            _Named(f"{to}.attn.joined", (each[-1],), _rows(width)),
            _Named(f"{to}.resid_mid", (f"{at}.attn.out_proj",), _rows(width)),
            _Named(f"{to}.mlp.norm", (f"{at}.ln_2",), _rows(width)),
            _Named(f"{to}.mlp.hidden", (f"{at}.mlp.fc_in",), _rows(config.intermediate_size)),
            _Named(f"{to}.resid_post", (f"{at}.mlp.fc_out",), _rows(width)),
        ]
    return [
        *named,
        _Named("final_norm", ("ln_f",), _rows(width)),
        _Named("logits", ("lm_head",), _only_row(config.vocab_size), last_only=True),
        _Named("probs", ("probs",), _only_row(config.vocab_size), last_only=True),
    ]


def _fast(plan: Plan, config: ModelConfig) -> list[_Named]:
    recipes, width, heads = Recipes(config, FROM_FILE), config.hidden_size, config.num_attention_heads
    inner = config.intermediate_size
    place = recipes.heads(0)
    mean_taken = recipes.family.norm == "layer" and not any(dict(draw.defines).get("CENTRED") for draw in plan.draws)
    centred = CENTRED if mean_taken else ""
    raw = any(draw.op == "raw_gemv" for draw in plan.draws)  # the MLP's inner row is made where it is read
    in_bytes = any("OUT_SCALES_AT" in dict(draw.defines) for draw in plan.draws)  # rounded behind what computes a row
    starts = {"q": (heads, place.queries_at), "k": (place.kv, 0), "v": (place.kv, place.kv_floats)}
    named = [_Named(f"embed{centred}", ("embed",), _rows(width))]
    for block in range(config.num_hidden_layers):
        to, at, of = f"blocks.{block}", f"h.{block}", config.layer(block)
        ends = ("post_norm", "post_norm") if of.norm_after else ("out_proj", "fc_out")
        ends = (ends[0], "mix") if of.experts else ends
        if of.convolves:
            named += [
                _Named(f"{to}.conv.gated", (f"{at}.conv.store",), _rows_at_position(width)),
                _Named(f"{to}.conv.mixed", (f"{at}.conv.mixed",), _rows(width)),
            ]
        if of.delta is not None:
            named.append(_Named(f"{to}.delta.mixed", (f"{at}.delta.mixed",), _rows(of.delta.values)))
        for letter, (count, start) in starts.items() if of.attends else ():
            order = recipes.turned_places if letter != "v" else np.arange(config.head_dim)
            columns = start + (np.arange(count) * place.floats)[:, None, None] + order[None, None, :]
            step = "store" if in_bytes and letter != "q" else "turn" if of.head_norms else "qkv"
            index = _columns(columns) if in_bytes and letter == "q" else _columns_at_position(columns)
            named.append(_Named(f"{to}.attn.{letter}", (f"{at}.attn.{step}",), index, axis=1))
        named += [
            _Named(f"{to}.attn.scores", (f"{at}.attn.scores",), _slots(heads), axis=1, keys=True),
            _Named(
                f"{to}.attn.mixed",
                (f"{at}.attn.values",),
                _heads_in_columns(heads, config.head_dim, place.floats),
                axis=1,
            ),
            _Named(
                f"{to}.attn.joined",
                (f"{at}.attn.{'gated' if of.gated else 'values'}",),
                _joined(heads, config.head_dim, place.floats),
            ),
            _Named(f"{to}.resid_mid{centred}", (f"{at}.{of.branch}.{ends[0]}",), _rows(width)),
            *([_Named(f"{to}.mlp.router", (f"{at}.mlp.router",), _rows(config.num_experts))] if of.experts else []),
            *([] if raw or of.experts else [_Named(f"{to}.mlp.hidden", (f"{at}.mlp.fc_in",), _rows(inner))]),
            _Named(f"{to}.resid_post{centred}", (f"{at}.mlp.{ends[1]}",), _rows(width)),
        ]
    return [*named, _Named("logits", ("lm_head",), _only_row(config.vocab_size))]


def _last_of_mlp(at: str, of: LayerConfig) -> str:
    """The draw of a reference plan that ends an MLP, or the sum over experts."""
    if of.experts is None:
        return f"{at}.mlp.down"
    return f"{at}.mlp.shared.sum" if of.experts.shared else f"{at}.mlp.experts.{of.experts.count - 1}.sum"


def _decoder_reference(plan: Plan, config: ModelConfig) -> list[_Named]:
    rows, width, inner, dim = plan.max_rows, config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    named = [_Named("embed", ("embed",), _rows(width))]
    gated = any(draw.name.endswith(".mlp.gate_proj") for draw in plan.draws)
    for block in range(config.num_hidden_layers):
        to, at, of = f"blocks.{block}", f"h.{block}", config.layer(block)
        # What a branch adds to the stream is the last of its product, its norm and its factor.
        ends = [
            f"{at}.{branch}.scaled" if of.branch_scale != 1.0 else f"{at}.{branch}.post_norm" if of.norm_after else out
            for branch, out in ((of.branch, f"{at}.{of.branch}.out"), ("mlp", _last_of_mlp(at, of)))
        ]
        named += [
            _Named(f"{to}.{of.branch}.norm", (f"{at}.{of.branch}.norm",), _rows(width)),
            *(_Named(f"{to}.conv.{part}", (f"{at}.conv.{part}",), _rows(width)) for part in ("gated", "mixed")),
            *(
                []
                if of.delta is None
                else [_Named(f"{to}.delta.mixed", (f"{at}.delta.mixed",), _rows(of.delta.values))]
            ),
            *(
                _Named(
                    f"{to}.attn.{letter}",
                    (f"{at}.attn.{letter}",),
                    _heads_in_rows(heads if letter == "q" else kv_heads, dim, rows),
                    axis=1,
                )
                for letter in "qkv"
            ),
            *(
                _Named(f"{to}.attn.{part}", (f"{at}.attn.{part}",), _squares(heads, rows), axis=1, keys=True)
                for part in ("scores", "probs")
            ),
            _Named(f"{to}.attn.mixed", (f"{at}.attn.mixed",), _heads_in_rows(heads, dim, rows), axis=1),
            _Named(f"{to}.attn.joined", (f"{at}.attn.{'gated' if of.gated else 'joined'}",), _rows(heads * dim)),
            _Named(f"{to}.{of.branch}.out", (ends[0],), _rows(width)),
            _Named(f"{to}.resid_mid", (f"{at}.{of.branch}.add",), _rows(width)),
            _Named(f"{to}.mlp.norm", (f"{at}.mlp.norm",), _rows(width)),
            *(
                [_Named(f"{to}.mlp.router", (f"{at}.mlp.router",), _rows(config.num_experts))]
                if of.experts
                else [
                    _Named(f"{to}.mlp.gate", (f"{at}.mlp.gate_proj",), _rows(inner)),
                    _Named(f"{to}.mlp.{'up' if gated else 'hidden'}", (f"{at}.mlp.up_proj",), _rows(inner)),
                    *([_Named(f"{to}.mlp.hidden", (f"{at}.mlp.gate",), _rows(inner))] if gated else []),
                ]
            ),
            _Named(f"{to}.mlp.out", (ends[1],), _rows(width)),
            _Named(f"{to}.resid_post", (f"{at}.mlp.add",), _rows(width)),
        ]
    return [
        *named,
        _Named("final_norm", ("final_norm",), _only_row(width), last_only=True),
        _Named("logits", ("lm_head",), _only_row(config.vocab_size), last_only=True),
        _Named("probs", ("probs",), _only_row(config.vocab_size), last_only=True),
    ]


def sinks_tensor(plan: Plan, config: ModelConfig, block: int) -> str | None:
    """The weight of a plan with names that has the sinks of a block's heads, [1, heads]; None where it has none."""
    if not config.layer(block).sinks:
        return None
    return sinks_name(block) if plan.name == "fast" else weight_name(config.family.names.of("sinks", block))


_NEAREST = {
    "embed": (f"embed{CENTRED}",),
    "attn.norm": ("attn.q", "attn.k"),
    "attn.probs": ("attn.scores", "attn.q", "attn.k"),
    "attn.scores": ("attn.q", "attn.k"),
    "attn.joined": ("attn.mixed",),
    "attn.out": (f"resid_mid{CENTRED}", "resid_mid"),
    "conv.norm": ("conv.gated",),
    "conv.out": ("resid_mid",),
    "delta.norm": ("delta.mixed",),
    "delta.out": ("resid_mid",),
    "resid_mid": (f"resid_mid{CENTRED}",),
    "mlp.norm": ("mlp.hidden", "mlp.router"),
    "mlp.gate": ("mlp.hidden",),
    "mlp.up": ("mlp.hidden",),
    "mlp.out": (f"resid_post{CENTRED}", "resid_post"),
    "resid_post": (f"resid_post{CENTRED}",),
    f"resid_mid{CENTRED}": ("resid_mid",),
    f"resid_post{CENTRED}": ("resid_post",),
    f"embed{CENTRED}": ("embed",),
    "final_norm": (f"resid_post{CENTRED}", "logits"),
    "probs": ("logits",),
}
"""The nearest names, best first, for a name that a plan lacks; names of blocks without ``blocks.N.``."""
_BLOCK = re.compile(r"blocks\.([^.]+)\.(.+)")


def chosen(points: Mapping[str, CapturePoint], patterns: str | Sequence[str], plan: str) -> dict[str, CapturePoint]:
    """The points that patterns such as ``blocks.*.attn.q`` match, in the order of computation.

    ``*`` stands for any letters, ``?`` for one, ``[135]`` for one of these.

    Raises:
        InputError: a pattern matches no name of the plan; the message offers the nearest names.
    """
    wanted = list(patterns) if isinstance(patterns, Iterable) and not isinstance(patterns, str) else [patterns]
    if not wanted or not all(isinstance(pattern, str) and pattern for pattern in wanted):
        raise InputError(f"found {patterns!r}; expected names such as blocks.*.attn.q, one or a list of them")
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in points):
            raise InputError(f"plan {plan} has no {pattern}; {_advice(points, pattern, plan)}")
    return {name: point for name, point in points.items() if any(fnmatchcase(name, each) for each in wanted)}


def _advice(points: Mapping[str, CapturePoint], pattern: str, plan: str) -> str:
    if not points:
        return "it is not a plan of one sequence, whose tensors have names"
    match = _BLOCK.fullmatch(pattern)
    block, part = (f"blocks.{match[1]}.", match[2]) if match else ("", pattern)
    near = [f"{block}{each}" for each in _NEAREST.get(part, ())]
    near = [each for each in near if any(fnmatchcase(name, each) for name in points)]
    if near:
        other = "" if plan == "reference" else "; plan='reference' keeps the most"
        return f"its passes are fused, and the nearest they keep is {' or '.join(near[:2])}{other}"
    names = list(points)
    close = difflib.get_close_matches(pattern, names, n=2, cutoff=0.5) or [names[0], names[-1]]
    return f"the nearest names are {' and '.join(close)}; model.names() lists all"
