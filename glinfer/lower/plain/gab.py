"""Gab, first generation: a GPT-2-style decoder with learned positions, LayerNorm and a tanh-form GELU MLP.

GPT-2 itself (Radford et al. 2019) takes the same passes, with biases in its attention and none in its head.

Weight names are those of Hugging Face's GPT-J (plus ``wpe``), the layout of the .gab file is in
:mod:`glinfer.formats.gab.file`.
"""

from __future__ import annotations

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.formats.tensors import head_weight
from glinfer.kernels.published.attention import attention_scores, attention_values, concat_head
from glinfer.kernels.published.linear import linear
from glinfer.kernels.published.rows import embed, layer_norm, softmax
from glinfer.kernels.spec import DrawSpec, RunValue, TensorSpec
from glinfer.program.plan import Plan, PlanBuilder
from glinfer.program.points import View

TOKENS, LOGITS, PROBS = "tokens", "logits", "probs"
MAX_DRAWS = 100_000
"""Limit for the draws of a plan: hundreds of times Gab's, which take a second to build."""


def reference_plan(config: ModelConfig, *, all_rows: bool = False) -> Plan:
    """The published WebGL algorithm pass for pass: ``blocks × (8 + 4 × heads) + 4`` draws.

    It computes the whole sequence again for every token, one pass an operation, in R32F textures, with the hidden state
    and the joined heads in ping-pong pairs. It is the oracle on the GPU, so it stays slow and obvious.

    With ``all_rows`` the last two passes cover every row: logits [S, V] and probs [S, V] of the token after each
    position, for scoring a text; otherwise only the last row's, [1, V].

    Raises:
        PlanError: the plan would have more than :data:`MAX_DRAWS` draws.
    """
    draws = config.num_hidden_layers * (8 + 4 * config.num_attention_heads) + 4
    if draws > MAX_DRAWS:
        raise PlanError(
            f"{config.num_hidden_layers} blocks of {config.num_attention_heads} heads need {draws} draws; "
            f"expected at most {MAX_DRAWS}"
        )
    return _ReferenceBuilder(config, all_rows).build()


class _ReferenceBuilder:
    def __init__(self, config: ModelConfig, all_rows: bool) -> None:
        self.config, self.all_rows = config, all_rows
        self.names, self.biases = config.family.names, config.family.biases
        self.plan = plan = PlanBuilder(
            "reference",
            config.max_position_embeddings,
            [RunValue("rows", 1, config.max_position_embeddings, usual="tokens")],
        )
        context, dim = config.max_position_embeddings, config.hidden_size
        self.tokens = plan.input(TOKENS, context, 1, "r32i")
        self.hidden = (plan.activation("hidden.a", context, dim), plan.activation("hidden.b", context, dim))
        self.joined = (plan.activation("joined.a", context, dim), plan.activation("joined.b", context, dim))
        self.normed = plan.activation("normed", context, dim)
        self.q, self.k, self.v = (plan.activation(name, context, dim) for name in ("q", "k", "v"))
        self.scores = plan.activation("attn.scores", context, context)
        self.weights = plan.activation("attn.probs", context, context)
        self.mixed = plan.activation("attn.mixed", context, config.head_dim)
        self.inner = plan.activation("mlp.inner", context, config.intermediate_size)
        rows = context if all_rows else 1
        self.logits = plan.activation(LOGITS, rows, config.vocab_size)
        self.probs = plan.activation(PROBS, rows, config.vocab_size)

    def build(self) -> Plan:
        config, plan = self.config, self.plan
        vocab, dim = config.vocab_size, config.hidden_size
        wte = plan.weight(f"{self.names.embeddings}.weight", vocab, dim)
        wpe = plan.weight(f"{self.names.positions}.weight", config.max_position_embeddings, dim)
        plan.draw(embed("embed", self.tokens, wte, wpe, self.hidden[0]))
        plan.value("embed", View(dim))
        for block in range(config.num_hidden_layers):
            self.attention(block)
            self.mlp(block)
        plan.draw(self.norm("ln_f", "ln_f", self.names.final_norm, self.hidden[0]))
        plan.value("final_norm", View(dim))
        head = wte if config.tie_word_embeddings else plan.weight(head_weight(config), vocab, dim)
        bias = plan.weight(f"{self.names.head}.bias", vocab) if "head" in self.biases else None
        last, row = not self.all_rows, View(vocab, rows="only")
        plan.draw(linear("lm_head", "lm_head", self.normed, head, self.logits, bias=bias, last_row=last))
        plan.value("logits", row, last_only=True)
        plan.draw(softmax("probs", "probs", self.logits, self.probs, rows_in_use=self.all_rows))
        plan.value("probs", row, last_only=True)
        return plan.build()

    def norm(self, name: str, kind: str, weights: str, x: TensorSpec) -> DrawSpec:
        dim = self.config.hidden_size
        weight = self.plan.weight(f"{weights}.weight", dim)
        bias = self.plan.weight(f"{weights}.bias", dim)
        return layer_norm(name, kind, x, weight, bias, self.normed, eps=self.config.layer_norm_eps)

    def attention(self, block: int) -> None:
        """LN1, Q, K, V, four passes a head, output projection + residual: hidden a → b."""
        config, plan, prefix, to = self.config, self.plan, f"h.{block}", f"blocks.{block}"
        dim, head_dim = config.hidden_size, config.head_dim
        plan.draw(self.norm(f"{prefix}.ln_1", "ln_1", self.names.of("attention_norm", block), self.hidden[0]))
        plan.value(f"{to}.attn.norm", View(dim))
        for letter, out in (("q", self.q), ("k", self.k), ("v", self.v)):
            weight, bias = self.matrix("projection", block, dim, dim, letter)
            kind = f"attn.{letter}_proj"
            plan.draw(linear(f"{prefix}.{kind}", kind, self.normed, weight, out, bias=bias))
            plan.value(f"{to}.attn.{letter}", View(head_dim, config.num_attention_heads, cols_apart=head_dim))
        for head in range(config.num_attention_heads):
            before, name = None if head == 0 else self.joined[(head - 1) % 2], f"{prefix}.attn.head.{head}"
            joined, each = self.joined[head % 2], {"head": head, "head_dim": head_dim}
            plan.draw(attention_scores(f"{name}.scores", "attn.scores", self.q, self.k, self.scores, **each))
            plan.value(f"{to}.attn.scores", View("keys", 1))
            plan.draw(softmax(f"{name}.probs", "attn.probs", self.scores, self.weights, causal_square=True))
            plan.value(f"{to}.attn.probs", View("keys", 1))
            plan.draw(attention_values(f"{name}.mixed", "attn.mixed", self.weights, self.v, self.mixed, head=head))
            plan.value(f"{to}.attn.mixed", View(head_dim, 1))
            plan.draw(concat_head(f"{name}.joined", "attn.joined", self.mixed, before, joined, head=head))
        plan.value(f"{to}.attn.joined", View(dim))
        weight, bias = self.matrix("output", block, dim, dim, "o")
        kind = "attn.out_proj"
        plan.draw(linear(f"{prefix}.{kind}", kind, joined, weight, self.hidden[1], bias=bias, residual=self.hidden[0]))
        plan.value(f"{to}.resid_mid", View(dim))

    def matrix(
        self, role: str, block: int, rows: int, cols: int, letter: str = ""
    ) -> tuple[TensorSpec, TensorSpec | None]:
        """A matrix of a block and its bias, if the family has one."""
        name = self.names.of(role, block, letter)
        weight = self.plan.weight(f"{name}.weight", rows, cols)
        return weight, self.plan.weight(f"{name}.bias", rows) if (letter or role) in self.biases else None

    def mlp(self, block: int) -> None:
        """LN2, MLP-in + GELU, MLP-out + residual: hidden b → a."""
        config, plan, prefix, to = self.config, self.plan, f"h.{block}", f"blocks.{block}"
        dim, inner, act = config.hidden_size, config.intermediate_size, config.hidden_act
        plan.draw(self.norm(f"{prefix}.ln_2", "ln_2", self.names.of("mlp_norm", block), self.hidden[1]))
        plan.value(f"{to}.mlp.norm", View(dim))
        weight, bias = self.matrix("up", block, inner, dim)
        kind = "mlp.fc_in"
        plan.draw(linear(f"{prefix}.{kind}", kind, self.normed, weight, self.inner, bias=bias, activation=act))
        plan.value(f"{to}.mlp.hidden", View(inner))
        weight, bias = self.matrix("down", block, dim, inner)
        kind, (stream, out) = "mlp.fc_out", (self.hidden[1], self.hidden[0])
        plan.draw(linear(f"{prefix}.{kind}", kind, self.inner, weight, out, bias=bias, residual=stream))
        plan.value(f"{to}.resid_post", View(dim))
