"""The reference plan of models without a published one: the whole sequence in each run, one pass an operation.

No passes are fused, and a run keeps nothing for the next.
"""

from __future__ import annotations

from collections.abc import Mapping

from glinfer.families.layer import DeltaRule, Experts
from glinfer.models.plan import Plan
from glinfer.models.reference.parts import DecoderBuilder, ReferenceOptions
from glinfer.models.ropes import angle_values
from glinfer.ops.flat.activate import activation, gate
from glinfer.ops.flat.convolve import causal_conv
from glinfer.ops.flat.delta import DELTA_EPS, delta_rule, log_decay, sigmoid
from glinfer.ops.flat.elementwise import arithmetic, scale
from glinfer.ops.flat.experts import expert_weight
from glinfer.ops.flat.movement import concat, repack, strided_copy
from glinfer.ops.flat.normalize import Norm, normalized
from glinfer.ops.flat.product import Finish, Product
from glinfer.ops.flat.rotate import rotate
from glinfer.ops.flat.strided import Axis
from glinfer.ops.fused.dense import ANGLES
from glinfer.ops.spec import RunValue, TensorSpec

PROBS, LAST_ROW = "probs", "last_row"


def reference_decoder_plan(options: ReferenceOptions, *, rows: int) -> Plan:
    """The plan of a whole sequence of at most ``rows`` tokens; rows after the end of a shorter one are padding.

    It computes the logits and probabilities, [1, vocab], of the row that the run value ``last_row`` names. The input
    is ``tokens`` [rows, 1].

    Raises:
        PlanError: something does not fit a texture.
    """
    return _ReferenceBuilder(options, rows).build()


class _ReferenceBuilder(DecoderBuilder):
    def __init__(self, options: ReferenceOptions, rows: int) -> None:
        values = [
            RunValue("rows", 1, rows, usual="tokens"),
            RunValue(LAST_ROW, 0, rows - 1, ("add", "rows", -1)),
            *angle_values(options.config, whole=True),
        ]
        super().__init__("reference", options, rows=rows, max_rows=rows, run_values=values)
        self.hidden, self.other = (
            self.scratch(f"hidden.{letter}", rows, options.config.hidden_size) for letter in "ab"
        )

    def build(self) -> Plan:
        """Draw all passes: embedding, layers, logits and probabilities of the last row."""
        self.embed(self.hidden, 0)
        for index in range(self.config.num_hidden_layers):
            of = self.config.layer(index)
            if of.convolves:
                self.convolution(index)
            elif of.delta is not None:
                self.delta(index, of.delta)
            else:
                self.attention(index)
            self.mlp(index)
        logits = self.head(self.take_row(self.hidden))
        self.softmax(PROBS, PROBS, logits, self.scratch(PROBS, *logits.shape))
        return self.plan.build()

    def attention(self, index: int) -> None:
        """Draw the attention of a layer, and add it to the stream."""
        config, names, name = self.config, self.names, f"h.{index}.attn"
        rows, dim = self.rows, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        normed = self.hidden
        if self.config.layer(index).norm_before:
            normed = self.norm(f"{name}.norm", "attn.norm", names.of("attention_norm", index), self.hidden)
        apart, gates = {}, None
        for letter in "qkv":
            count = heads if letter == "q" else kv_heads
            weights = names.of("projection", index, letter)
            doubled = letter == "q" and config.layer(index).gated
            x = self.scratch(f"{name}.{letter}_proj", rows, (2 if doubled else 1) * count * dim)
            self.linear(f"{name}.{letter}_proj", f"attn.{letter}_proj", weights, normed, x)
            if doubled:
                x, gates = self.apart_from_gates(name, x)
            if letter != "v":
                x = self.turn(name, index, letter, x, count)
            apart[letter] = self.scratch(f"{name}.{letter}", count * rows, dim)
            axes = [Axis(count, 0, dim), Axis(rows, 1, 0), Axis(dim, 0, 1)]
            self.plan.draw(strided_copy(f"{name}.{letter}", "attn.heads", x, apart[letter], axes, kernels=self.kernels))
        mixed = self.mix(name, index, apart)
        joined = self.scratch(f"{name}.joined", rows, heads * dim)
        self.join_heads(f"{name}.joined", "attn.joined", mixed, joined)
        if gates is not None:
            joined = self.gated(name, joined, gates)
        out = self.scratch(f"{name}.out", rows, config.hidden_size)
        self.linear(f"{name}.out", "attn.out_proj", names.of("output", index), joined, out)
        self.end_branch(name, "attn", index, out)

    def convolution(self, index: int) -> None:
        """Draw the convolution of a layer, C · conv(B · x), and add it to the stream."""
        names, name, rows, width = self.names, f"h.{index}.conv", self.rows, self.config.hidden_size
        normed = self.hidden
        if self.config.layer(index).norm_before:
            normed = self.norm(f"{name}.norm", "conv.norm", names.of("attention_norm", index), self.hidden)
        joined = self.scratch(f"{name}.in_proj", rows, 3 * width)
        self.linear(f"{name}.in_proj", "conv.in_proj", names.of("conv_in", index), normed, joined)
        apart, axes = {}, [Axis(rows, 1, 0), Axis(width, 0, 1)]
        for number, letter in enumerate("bcx"):
            step = f"{name}.{letter}"
            apart[letter] = self.scratch(step, rows, width)
            copy = strided_copy(
                step, "conv.parts", joined, apart[letter], axes, col_offset=number * width, kernels=self.kernels
            )
            self.plan.draw(copy)
        gated, convolved, mixed, out = (
            self.scratch(f"{name}.{part}", rows, width) for part in ("gated", "convolved", "mixed", "out")
        )
        source, kernels = names.of("conv", index), self.kernels
        bias = self.vector(f"{source}.bias") if f"{source}.bias" in self.shapes else None
        self.plan.draw(
            arithmetic(
                f"{name}.gated", "conv.gate", apart["b"], apart["x"], gated, operation="multiply", kernels=kernels
            ),
            causal_conv(f"{name}.convolved", "conv", gated, self.taps(source), convolved, bias=bias, kernels=kernels),
            arithmetic(
                f"{name}.mixed", "conv.gate", apart["c"], convolved, mixed, operation="multiply", kernels=kernels
            ),
        )
        self.linear(f"{name}.out", "conv.out_proj", names.of("conv_out", index), mixed, out)
        self.end_branch(name, "conv", index, out)

    def apart_from_gates(self, name: str, x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
        """Draw queries and their gates, which lie head after head in x [rows, heads · 2 · D], as two tensors."""
        heads, dim, found = self.config.num_attention_heads, self.config.head_dim, []
        axes = [Axis(self.rows, 1, 0), Axis(heads, 0, 2 * dim), Axis(dim, 0, 1)]
        for number, part in enumerate(("q_alone", "gate")):
            out = self.scratch(f"{name}.{part}", self.rows, heads * dim)
            step = f"{name}.{part}"
            self.plan.draw(
                strided_copy(step, "attn.parts", x, out, axes, col_offset=number * dim, kernels=self.kernels)
            )
            found.append(out)
        return found[0], found[1]

    def gated(self, name: str, x: TensorSpec, gates: TensorSpec) -> TensorSpec:
        """Draw x times the sigmoid of gates, both [rows, C]."""
        opened, out = (self.scratch(f"{name}.{part}", *x.shape) for part in ("opened", "gated"))
        self.plan.draw(
            sigmoid(f"{name}.opened", "attn.gate", gates, opened, kernels=self.kernels),
            arithmetic(f"{name}.gated", "attn.gate", x, opened, out, operation="multiply", kernels=self.kernels),
        )
        return out

    def delta(self, index: int, of: DeltaRule) -> None:
        """Draw the gated delta rule of a layer, behind its convolution, and add its gated results to the stream."""
        names, name, rows, kernels, plan = self.names, f"h.{index}.delta", self.rows, self.kernels, self.plan
        normed = self.hidden
        if self.config.layer(index).norm_before:
            normed = self.norm(f"{name}.norm", "delta.norm", names.of("attention_norm", index), self.hidden)
        given = {}
        for letter, count in (("qkv", of.channels), ("z", of.values), ("a", of.heads), ("b", of.heads)):
            given[letter] = self.scratch(f"{name}.{letter}_proj", rows, count)
            source = names.of("delta_in", index, letter)
            self.linear(f"{name}.{letter}_proj", "delta.in_proj", source, normed, given[letter])
        convolved, mixed = (self.scratch(f"{name}.{part}", rows, of.channels) for part in ("convolved", "channels"))
        taps = self.taps(names.of("delta_conv", index))
        plan.draw(
            causal_conv(f"{name}.convolved", "delta.conv", given["qkv"], taps, convolved, kernels=kernels),
            activation(f"{name}.channels", "delta.conv", convolved, mixed, activation="silu", kernels=kernels),
        )
        apart, start = {}, 0
        for letter, heads, each in (
            ("q", of.key_heads, of.key),
            ("k", of.key_heads, of.key),
            ("v", of.heads, of.value),
        ):
            step, axes = f"{name}.{letter}", [Axis(rows, 1, 0), Axis(heads, 0, each), Axis(each, 0, 1)]
            apart[letter] = self.scratch(step, rows * heads, each)
            plan.draw(strided_copy(step, "delta.heads", mixed, apart[letter], axes, col_offset=start, kernels=kernels))
            start += heads * each
        g, beta = (self.scratch(f"{name}.{part}", rows, of.heads) for part in ("g", "beta"))
        rate, shift = (self.vector(names.of(role, index)) for role in ("decay_rate", "decay_shift"))
        results = self.scratch(f"{name}.heads", rows * of.heads, of.value)
        plan.draw(
            log_decay(f"{name}.g", "delta.decay", given["a"], rate, shift, g, kernels=kernels),
            sigmoid(f"{name}.beta", "delta.decay", given["b"], beta, kernels=kernels),
            delta_rule(
                f"{name}.heads",
                "delta.rule",
                apart["q"],
                apart["k"],
                apart["v"],
                g,
                beta,
                results,
                sequence=rows,
                scale=of.key**-0.5,
                norm_eps=DELTA_EPS,
                in_turn=of.in_turn,
                kernels=kernels,
            ),
        )
        scaled = self.scratch(f"{name}.heads_normed", *results.shape)
        norm = Norm("rms", self.vector(f"{names.of('delta_norm', index)}.weight"), eps=self.config.layer_norm_eps)
        step = f"{name}.heads_norm"
        plan.draw(*normalized(step, "delta.head_norm", results, scaled, norm, scratch=self.scratch, kernels=kernels))
        joined, gated = (self.scratch(f"{name}.{part}", rows, of.values) for part in ("joined", "mixed"))
        plan.draw(
            repack(f"{name}.joined", "delta.joined", scaled, joined, kernels=kernels),
            gate(f"{name}.mixed", "delta.gate", given["z"], gated, up=joined, activation="silu", kernels=kernels),
        )
        out = self.scratch(f"{name}.out", rows, self.config.hidden_size)
        self.linear(f"{name}.out", "delta.out_proj", names.of("delta_out", index), gated, out)
        self.end_branch(name, "delta", index, out)

    def turn(self, name: str, layer: int, letter: str, x: TensorSpec, heads: int) -> TensorSpec:
        """Draw the norm and the rotation of heads of queries or keys, as far as the layer has them."""
        plan, of = self.plan, self.config.layer(layer)
        if of.head_norms:
            parts, dim = (heads, self.config.head_dim) if of.head_norms == "head" else (1, x.shape[1])
            by_head = self.scratch(f"{name}.{letter}_heads", self.rows * parts, dim)
            normed = self.scratch(f"{name}.{letter}_normed", self.rows * parts, dim)
            again = self.scratch(f"{name}.{letter}_rows", *x.shape)
            norm = Norm(
                "rms",
                self.vector(f"{self.names.of('head_norm', layer, letter)}.weight"),
                eps=self.config.layer_norm_eps,
                offset=self.family.norm_offset,
            )
            kind = "attn.head_norm"
            plan.draw(repack(f"{name}.{letter}_heads", kind, x, by_head, kernels=self.kernels))
            step = f"{name}.{letter}_norm"
            plan.draw(*normalized(step, kind, by_head, normed, norm, scratch=self.scratch, kernels=self.kernels))
            plan.draw(repack(f"{name}.{letter}_rows", kind, normed, again, kernels=self.kernels))
            x = again
        if of.rope is None:
            return x
        turned = self.scratch(f"{name}.{letter}_turned", *x.shape)
        interleaved = self.family.positions == "neighbours"
        plan.draw(
            rotate(
                f"{name}.{letter}_turned",
                "attn.rope",
                x,
                self.rope(of.rope, queries=letter == "q"),
                turned,
                kernels=self.kernels,
                heads=heads,
                interleaved=interleaved,
                position=ANGLES if self.config.long_after else 0,
            )
        )
        return turned

    def mix(self, name: str, index: int, apart: Mapping[str, TensorSpec]) -> TensorSpec:
        """Draw scores, probabilities and weighted sums of all heads; returns the sums [heads · rows, D]."""
        config, rows, dim = self.config, self.rows, self.config.head_dim
        heads, kv_heads, of = config.num_attention_heads, config.num_key_value_heads, config.layer(index)
        shared = heads // kv_heads
        scores, probs = (self.scratch(f"{name}.{part}", heads * rows, rows) for part in ("scores", "probs"))
        mixed = self.scratch(f"{name}.mixed", heads * rows, dim)
        finish = Finish(scale=of.score_scale, cap=of.score_cap, causal=0, window=of.window)
        batch, x_steps, weight_steps = (1, kv_heads, shared), (heads, shared, 1), (kv_heads, 1, 0)
        product = Product(rows, rows, dim, transposed=True, batch=batch, x_steps=x_steps, weight_steps=weight_steps)
        self.multiply(f"{name}.scores", "attn.scores", apart["q"], apart["k"], scores, product, finish)
        if of.sinks:
            self.probs_beside_sinks(name, index, scores, probs)
        else:
            self.softmax(f"{name}.probs", "attn.probs", scores, probs)
        product = Product(rows, dim, rows, batch=batch, x_steps=x_steps, weight_steps=weight_steps)
        self.multiply(f"{name}.mixed", "attn.mixed", probs, apart["v"], mixed, product, Finish())
        return mixed

    def softmax(self, name: str, kind: str, x: TensorSpec, out: TensorSpec) -> None:
        """Draw the softmax of rows."""
        norm = Norm("softmax")
        self.plan.draw(*normalized(name, kind, x, out, norm, scratch=self.scratch, kernels=self.kernels))

    def probs_beside_sinks(self, name: str, index: int, scores: TensorSpec, probs: TensorSpec) -> None:
        """Draw the softmax of rows of scores with the sink of their head as one more, which is then left out."""
        places, rows = scores.shape
        kind, kernels = "attn.sinks", self.kernels
        sinks = self.vector(f"{self.names.of('sinks', index)}.weight")
        column, joined, shared = (
            self.scratch(f"{name}.{part}", places, cols)
            for part, cols in (("sinks", 1), ("with_sinks", rows + 1), ("shares", rows + 1))
        )
        of_each_row = [Axis(sinks.shape[1], 0, 1), Axis(rows, 0, 0)]
        self.plan.draw(
            strided_copy(f"{name}.sinks", kind, sinks, column, of_each_row, kernels=kernels),
            concat(f"{name}.with_sinks", kind, [scores, column], joined, kernels=kernels),
        )
        self.softmax(f"{name}.shares", kind, joined, shared)
        axes = [Axis(places, 1, 0), Axis(rows, 0, 1)]
        self.plan.draw(strided_copy(f"{name}.probs", "attn.probs", shared, probs, axes, kernels=kernels))

    def mlp(self, index: int) -> None:
        """Draw the MLP of a layer, and add it to the stream."""
        config, names, name = self.config, self.names, f"h.{index}.mlp"
        rows, inner = self.rows, config.intermediate_size
        act = config.hidden_act
        normed = self.hidden
        if config.layer(index).norm_before:
            normed = self.norm(f"{name}.norm", "mlp.norm", names.of("mlp_norm", index), self.hidden)
        experts = config.layer(index).experts
        if experts is not None:
            self.use_experts(index, experts, normed)
            return
        hidden, up = (self.scratch(f"{name}.{part}", rows, inner) for part in ("inner", "up_proj"))
        if self.family.gated:
            gates = self.scratch(f"{name}.gate_proj", rows, inner)
            self.linear(f"{name}.gate_proj", "mlp.gate_proj", names.of("gate", index), normed, gates)
            self.linear(f"{name}.up_proj", "mlp.up_proj", names.of("up", index), normed, up)
            self.plan.draw(gate(f"{name}.gate", "mlp.gate", gates, hidden, up=up, activation=act, kernels=self.kernels))
        else:
            self.linear(f"{name}.up_proj", "mlp.up_proj", names.of("up", index), normed, hidden, activation=act)
        out = self.scratch(f"{name}.down", rows, config.hidden_size)
        self.linear(f"{name}.down", "mlp.down_proj", names.of("down", index), hidden, out)
        self.end_branch(name, "mlp", index, out)

    def use_experts(self, index: int, experts: Experts, normed: TensorSpec) -> None:
        """Draw every expert of a layer for all rows, and the sum of each row's chosen experts."""
        config, names, name, plan = self.config, self.names, f"h.{index}.mlp", self.plan
        rows, inner, width, kernels = self.rows, config.intermediate_size, config.hidden_size, self.kernels
        logits, weight = self.scratch(f"{name}.router", rows, experts.count), self.scratch(f"{name}.weight", rows, 1)
        self.linear(f"{name}.router", "mlp.router", names.of("router", index), normed, logits)
        gates, up, hidden = (self.scratch(f"{name}.{part}", rows, inner) for part in ("gate_proj", "up_proj", "inner"))
        out, part, sums, other = (
            self.scratch(f"{name}.{each}", rows, width) for each in ("down", "part", "sum.a", "sum.b")
        )
        for number in range(experts.count):
            own, letter = f"{name}.experts.{number}", str(number)
            self.linear(f"{own}.gate_proj", "mlp.gate_proj", names.of("gate", index, letter), normed, gates)
            self.linear(f"{own}.up_proj", "mlp.up_proj", names.of("up", index, letter), normed, up)
            act = config.hidden_act
            plan.draw(
                gate(f"{own}.gate", "mlp.gate", gates, hidden, up=up, activation=act, experts=experts, kernels=kernels)
            )
            self.linear(f"{own}.down", "mlp.down_proj", names.of("down", index, letter), hidden, out)
            plan.draw(
                expert_weight(f"{own}.weight", "mlp.choice", logits, weight, experts, expert=number, kernels=kernels)
            )
            into = part if number else sums
            plan.draw(arithmetic(f"{own}.part", "mlp.mix", out, weight, into, operation="multiply", kernels=kernels))
            if number:
                plan.draw(arithmetic(f"{own}.sum", "mlp.mix", sums, part, other, operation="add", kernels=kernels))
                sums, other = other, sums
        if experts.shared:
            own, logit = f"{name}.shared", self.scratch(f"{name}.shared_router", rows, 1)
            self.linear(f"{own}.router", "mlp.router", names.of("shared_router", index), normed, logit)
            self.linear(f"{own}.gate_proj", "mlp.gate_proj", names.of("shared_gate", index), normed, gates)
            self.linear(f"{own}.up_proj", "mlp.up_proj", names.of("shared_up", index), normed, up)
            plan.draw(
                gate(f"{own}.gate", "mlp.gate", gates, hidden, up=up, activation=config.hidden_act, kernels=kernels)
            )
            self.linear(f"{own}.down", "mlp.down_proj", names.of("shared_down", index), hidden, out)
            plan.draw(
                sigmoid(f"{own}.weight", "mlp.choice", logit, weight, kernels=kernels),
                arithmetic(f"{own}.part", "mlp.mix", out, weight, part, operation="multiply", kernels=kernels),
                arithmetic(f"{own}.sum", "mlp.mix", sums, part, other, operation="add", kernels=kernels),
            )
            sums = other
        self.end_branch(name, "mlp", index, sums)

    def end_branch(self, name: str, kind: str, index: int, out: TensorSpec) -> None:
        """Draw the end of a branch of a layer: its norm and its factor, where it has them, and the sum."""
        of, role = self.config.layer(index), "mlp_post_norm" if kind == "mlp" else "attention_post_norm"
        if of.norm_after:
            out = self.norm(f"{name}.post_norm", f"{kind}.post_norm", self.names.of(role, index), out)
        if of.branch_scale != 1.0:
            scaled = self.scratch(f"{name}.scaled", *out.shape)
            draw = scale(f"{name}.scaled", f"{kind}.scale", out, scaled, factor=of.branch_scale, kernels=self.kernels)
            self.plan.draw(draw)
            out = scaled
        self.add(f"{name}.add", out)

    def add(self, name: str, x: TensorSpec) -> None:
        """Draw the sum of the stream and ``x``, from one texture of the stream into the other."""
        self.plan.draw(arithmetic(name, "residual", self.hidden, x, self.other, operation="add", kernels=self.kernels))
        self.hidden, self.other = self.other, self.hidden
