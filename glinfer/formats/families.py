"""The families of models: which tensors each has, under which names and in which shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glinfer.config import ModelConfig
from glinfer.formats.gab_layout import stored_arrays

GAB, GPT2 = "gab", "gpt2"
LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GIFT_OF_GAB = "llama", "mistral", "qwen2", "qwen3", "gemma", "gift_of_gab"

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Family:
    """What the models of a family have beside what all have.

    Attributes:
        rotary: whether positions are turns of queries and keys, in models laid out as Llama's; otherwise they are
            learned, in models laid out as GPT-2's.
        gated: whether the MLP has a gate.
        head_norms: whether the heads of queries and keys are normalised.
        attention_biases: which projections have a bias in a model with ``attention_bias``.
        mlp_biases: which have one in a model with ``mlp_bias``.
    """

    rotary: bool = True
    gated: bool = True
    head_norms: bool = False
    attention_biases: str = "qkvo"
    mlp_biases: tuple[str, ...] = ("gate", "up", "down")


FAMILIES = {
    GAB: Family(rotary=False, gated=False),
    GPT2: Family(rotary=False, gated=False),
    GIFT_OF_GAB: Family(gated=False, attention_biases="", mlp_biases=("up",)),
    LLAMA: Family(),
    MISTRAL: Family(attention_biases="", mlp_biases=()),
    QWEN2: Family(attention_biases="qkv", mlp_biases=()),
    QWEN3: Family(head_norms=True, mlp_biases=()),
    GEMMA: Family(mlp_biases=()),
}
"""Every family by its name, which is what ``model_type`` says."""


def weight_shapes(config: ModelConfig) -> Shapes:
    """The shape of every tensor of a model.

    Of a model laid out as GPT-2's, with width D, inner width I (4D in GAB1 files), vocabulary V and S positions:
    ``transformer.wte.weight`` [V, D], ``transformer.wpe.weight`` [S, D]; for each block ``transformer.h.{i}``
    ``.ln_1.weight`` and ``.bias`` [D], ``.attn.{q,k,v,out}_proj.weight`` [D, D], ``.ln_2.weight`` and ``.bias`` [D],
    ``.mlp.fc_in.weight`` [I, D] and ``.bias`` [I], ``.mlp.fc_out.weight`` [D, I] and ``.bias`` [D]; then
    ``transformer.ln_f.weight`` and ``.bias`` [D], ``lm_head.weight`` [V, D] and ``.bias`` [V], in the order of a GAB1
    file. The names are GPT-J's in Hugging Face's transformers. The family ``gpt2`` has biases in its attention too,
    ``.attn.{q,k,v,out}_proj.bias`` [D], and none in ``lm_head``.

    Of a model laid out as Llama's, with H heads and G heads of keys and values, each of d elements:
    ``model.embed_tokens.weight`` [V, D]; for each layer ``model.layers.{i}`` ``.input_layernorm.weight`` [D],
    ``.self_attn.q_proj.weight`` [H·d, D], ``.self_attn.{k,v}_proj.weight`` [G·d, D], ``.self_attn.o_proj.weight``
    [D, H·d], ``.post_attention_layernorm.weight`` [D], ``.mlp.{gate,up}_proj.weight`` [I, D], ``.mlp.down_proj.weight``
    [D, I], with a ``.bias`` where the family and the configuration say so, ``.self_attn.{q,k}_norm.weight`` [d] where
    heads are normalised, and no gate where the family has none; then ``model.norm.weight`` [D] and ``lm_head.weight``
    [V, D]. The names are Hugging Face's.

    Where the embeddings are tied there is no ``lm_head.weight``. Matrices are [out, in].
    """
    shapes = _like_llama(config) if FAMILIES[config.model_type].rotary else _like_gpt2(config)
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    return shapes


def _like_gpt2(config: ModelConfig) -> Shapes:
    shapes = {name: shape for array in stored_arrays(config) for name, shape in array.tensor_shapes().items()}
    if config.model_type == GPT2:
        del shapes["lm_head.bias"]
        for name in [name for name in shapes if name.endswith("_proj.weight")]:
            shapes[name.removesuffix("weight") + "bias"] = (config.hidden_size,)
    return shapes


def _like_llama(config: ModelConfig) -> Shapes:
    family, width, inner = FAMILIES[config.model_type], config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (config.vocab_size, width)}

    def linear(name: str, outputs: int, inputs: int, *, bias: bool) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        shapes[f"{layer}.input_layernorm.weight"] = (width,)
        projections = (("q", queries, width), ("k", keys, width), ("v", keys, width), ("o", width, queries))
        for letter, outputs, inputs in projections:
            biased = config.attention_bias and letter in family.attention_biases
            linear(f"{layer}.self_attn.{letter}_proj", outputs, inputs, bias=biased)
        if family.head_norms:
            shapes.update({f"{layer}.self_attn.{letter}_norm.weight": (config.head_dim,) for letter in "qk"})
        shapes[f"{layer}.post_attention_layernorm.weight"] = (width,)
        for part, outputs, inputs in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
            if part != "gate" or family.gated:
                linear(f"{layer}.mlp.{part}_proj", outputs, inputs, bias=config.mlp_bias and part in family.mlp_biases)
    shapes["model.norm.weight"] = (width,)
    shapes["lm_head.weight"] = (config.vocab_size, width)
    return shapes


def tensors_per_layer(config: ModelConfig) -> int:
    """How many tensors each layer has, without listing all: the count of layers comes from files, and may be absurd."""
    one, two = (len(weight_shapes(_with_layers(config, count))) for count in (1, 2))
    return two - one


def tensor_count(config: ModelConfig) -> int:
    """How many tensors a model has, without listing them."""
    return len(weight_shapes(_with_layers(config, 1))) + (config.num_hidden_layers - 1) * tensors_per_layer(config)


def _with_layers(config: ModelConfig, count: int) -> ModelConfig:
    return replace(config, num_hidden_layers=count)


def head_weight(config: ModelConfig) -> str:
    """The name of the vocabulary's matrix: the token embedding where the two are tied."""
    if not config.tie_word_embeddings:
        return "lm_head.weight"
    return "model.embed_tokens.weight" if FAMILIES[config.model_type].rotary else "transformer.wte.weight"
