"""The fast plan of decoders: one token a run over caches of keys and values, and the same for many tokens of a prompt.

Queries, keys and values come of one product, gate and up of another; keys go into the cache as they are turned by their
positions; attention is one pass over the cache. Both plans have the same weights and caches, so that a session of one
can go on where the other stopped.
"""

from __future__ import annotations

import math

from glinfer.config import ModelConfig
from glinfer.models.decoder import DecoderBuilder, Setting
from glinfer.models.plan import Plan
from glinfer.ops.activate import gate
from glinfer.ops.attend import attend
from glinfer.ops.heads import Turned, append_heads, split_heads
from glinfer.ops.movement import concat
from glinfer.ops.normalize import cross_entropy
from glinfer.ops.spec import RunValue, TensorSpec
from glinfer.ops.stats import largest_column, summarize

POSITION, ROWS, APPENDED, LAST_ROW = "position", "rows", "appended", "last_row"
TARGETS, LOSSES, LIKELIEST = "targets", "losses", "likeliest"


def decoder_plan(setting: Setting, *, rows: int = 1, likelihoods: bool = False) -> Plan:
    """``rows`` tokens of one sequence a run, from ``position`` on.

    Run values: ``position`` of the first token; ``rows``, how many of them there are (the others are padding, which
    leaves nothing behind); ``appended`` = key heads × that; ``last_row``, the row whose logits [1, vocab] are wanted.
    The input is ``tokens`` [rows, 1]. With ``likelihoods`` a second input ``targets`` [rows, 1] names the token that
    followed each, and instead of logits there are ``losses`` [rows, 1], minus the logarithms of their probabilities,
    and ``likeliest`` [rows, 1], the token that was found likeliest.

    Raises:
        PlanError: something does not fit a texture.
    """
    return _FastBuilder(setting, rows, likelihoods).build()


def run_values(config: ModelConfig, rows: int, *, likelihoods: bool = False) -> list[RunValue]:
    """What changes from run to run."""
    context, heads = config.max_position_embeddings, config.num_key_value_heads
    values = [
        RunValue(POSITION, 0, context - 1, lambda tokens: (tokens - 1) // rows * rows),
        RunValue(ROWS, 1, rows, lambda tokens: (tokens - 1) % rows + 1),
        RunValue(APPENDED, heads, heads * rows, lambda tokens: heads * ((tokens - 1) % rows + 1)),
    ]
    if rows > 1 and not likelihoods:
        values.append(RunValue(LAST_ROW, 0, rows - 1, lambda tokens: (tokens - 1) % rows))
    return values


class _FastBuilder(DecoderBuilder):
    def __init__(self, setting: Setting, rows: int, likelihoods: bool) -> None:
        config = setting.config
        values = run_values(config, rows, likelihoods=likelihoods)
        super().__init__("fast", setting, rows=rows, max_rows=config.max_position_embeddings, run_values=values)
        self.likelihoods = likelihoods
        # The stream is in the first of them; the other is where the next one goes, unless it is added to in place.
        self.hidden = (
            self.scratch("hidden.a", rows, config.hidden_size),
            self.scratch("hidden.b", rows, config.hidden_size),
        )

    def build(self) -> Plan:
        """All passes: embedding, layers, and the logits of the last row."""
        self.embed(self.hidden[0], POSITION)
        for index in range(self.config.num_hidden_layers):
            self.attention(index)
            self.mlp(index)
        if self.likelihoods:
            self.judge(self.head(self.hidden[0]))
        else:
            self.head(self.hidden[0] if self.rows == 1 else self.take_row(self.hidden[0]))
        return self.plan.build()

    def judge(self, logits: TensorSpec) -> None:
        """How likely each row's target is, and which token is likeliest."""
        plan, kernels, rows, vocab = self.plan, self.kernels, self.rows, self.config.vocab_size
        targets = self.flat(TARGETS, "input", rows, 1, "rgba32i")
        losses = self.scratch(LOSSES, rows, 1)
        likeliest = self.flat(LIKELIEST, "activation", rows, 1, "rgba32i")
        stats, draws = {}, []
        for stat in ("exponents", "largest"):
            stats[stat], more = summarize(
                f"judge.{stat}", "judge", logits, stat=stat, readers=rows, scratch=self.scratch, kernels=kernels
            )
            draws += more
        plan.draw(*draws)
        plan.draw(
            cross_entropy(LOSSES, "judge", logits, stats["exponents"], targets, losses, kernels=kernels),
            largest_column(LIKELIEST, "judge", stats["largest"], likeliest, cols=vocab, kernels=kernels),
        )

    def attention(self, index: int) -> None:
        """The attention of a layer, added to the stream."""
        config, style, name = self.config, self.style, f"h.{index}.attn"
        layer, rows, dim = style.layer.format(index), self.rows, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        normed = self.norm(f"{name}.norm", "attn.norm", f"{layer}{style.attention_norm}", self.hidden[0])
        qkv = self.projections(name, layer, normed)
        keys, values = (self.flat(f"cache.{index}.{part}", "cache", kv_heads * self.slots, dim) for part in "kv")
        queries = self.scratch(f"{name}.q", heads * rows, dim)
        self.plan.draw(
            split_heads(
                f"{name}.q",
                "attn.heads",
                qkv,
                queries,
                rows=rows,
                first=0,
                turned=self.turning(layer, "q"),
                position=POSITION,
                kernels=self.kernels,
            ),
            append_heads(
                f"{name}.cache",
                "attn.cache",
                qkv,
                keys,
                values,
                rows=rows,
                heads=kv_heads,
                first=heads,
                turned=self.turning(layer, "k"),
                position=POSITION,
                used=ROWS,
                appended=APPENDED,
                kernels=self.kernels,
            ),
        )
        mixed = self.scratch(f"{name}.mixed", heads * rows, dim)
        self.plan.draw(
            *attend(
                f"{name}.mixed",
                "attn.mixed",
                queries,
                keys,
                values,
                mixed,
                heads=heads,
                kv_heads=kv_heads,
                queries=rows,
                keys=self.slots,
                scale=1.0 / math.sqrt(dim),
                causal=POSITION,
                window=config.window_of(index),
                kernels=self.kernels,
                scratch=self.scratch,
            )
        )
        if rows == 1 and dim % 4 == 0:
            joined = self.plan.view(mixed, 1, heads * dim)
        else:
            joined = self.scratch(f"{name}.joined", rows, heads * dim)
            self.join_heads(f"{name}.joined", "attn.joined", mixed, joined)
        self.add(f"{name}.out", "attn.out", f"{layer}{style.output}", joined)

    def add(self, name: str, kind: str, weights: str, x: TensorSpec) -> None:
        """Add a product to the stream, in place or from one texture into the other."""
        if self.linear(name, kind, weights, x, self.hidden[1], residual=self.hidden[0]) is self.hidden[1]:
            self.hidden = self.hidden[1], self.hidden[0]

    @property
    def slots(self) -> int:
        """Positions that a cache has room for."""
        return self.config.max_position_embeddings

    def projections(self, name: str, layer: str, normed: TensorSpec) -> TensorSpec:
        """Queries, keys and values of each row side by side."""
        config, rows = self.config, self.rows
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        out = self.scratch(f"{name}.qkv", rows, (heads + 2 * kv_heads) * dim)
        names = {letter: layer + self.style.projection.format(letter) for letter in "qkv"}
        if self.alike([f"{each}.weight" for each in names.values()]):
            together = layer + self.style.projection.format("{q,k,v}")
            return self.linear(f"{name}.qkv", "attn.qkv", together, normed, out)
        parts = []
        for letter, each in names.items():
            part = self.scratch(f"{name}.{letter}_proj", rows, (heads if letter == "q" else kv_heads) * dim)
            parts.append(self.linear(f"{name}.{letter}_proj", "attn.qkv", each, normed, part))
        self.plan.draw(concat(f"{name}.qkv", "attn.qkv", parts, out, kernels=self.kernels))
        return out

    def turning(self, layer: str, letter: str) -> Turned:
        """What is done to heads of queries or keys."""
        norm = None
        if self.family.head_norms:
            norm = self.vector(layer + self.style.head_norm.format(letter) + ".weight")
        table = self.rope() if self.family.rotary else None
        return Turned(table, self.style.interleaved, norm, self.config.layer_norm_eps)

    def mlp(self, index: int) -> None:
        """The MLP of a layer, added to the stream."""
        config, style, name = self.config, self.style, f"h.{index}.mlp"
        layer, rows, inner = style.layer.format(index), self.rows, config.intermediate_size
        normed = self.norm(f"{name}.norm", "mlp.norm", f"{layer}{style.mlp_norm}", self.hidden[0])
        hidden = self.scratch(f"{name}.inner", rows, inner)
        up, act = f"{layer}{style.up}", config.hidden_act
        if not self.family.gated:
            self.linear(f"{name}.up", "mlp.up", up, normed, hidden, activation=act)
        elif self.alike([f"{layer}{style.gate}.weight", f"{up}.weight"]):
            together = f"{layer}{style.gate.replace('gate', '{gate,up}')}"
            both = self.scratch(f"{name}.gate_up", rows, 2 * inner)
            self.linear(f"{name}.gate_up", "mlp.gate_up", together, normed, both)
            self.plan.draw(gate(f"{name}.gate", "mlp.gate", both, hidden, activation=act, kernels=self.kernels))
        else:
            one, other = (self.scratch(f"{name}.{part}_proj", rows, inner) for part in ("gate", "up"))
            self.linear(f"{name}.gate_proj", "mlp.gate_up", f"{layer}{style.gate}", normed, one)
            self.linear(f"{name}.up_proj", "mlp.gate_up", up, normed, other)
            self.plan.draw(
                gate(f"{name}.gate", "mlp.gate", one, hidden, up=other, activation=act, kernels=self.kernels)
            )
        self.add(f"{name}.down", "mlp.down", f"{layer}{style.down}", hidden)
