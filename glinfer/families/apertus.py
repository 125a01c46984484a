"""Apertus (Swiss AI 2025): a Llama with normalised heads, whose MLP has xIELU in place of a gate."""

from functools import partial

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace, angles
from glinfer.families.layer import XIELU, LayerConfig
from glinfer.families.names import Names
from glinfer.families.record import Family

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_BUFFERS = r"(.*\.)?(rotary_emb\.inv_freq|act_fn\.(beta|eps))"

FAMILY = Family(
    "apertus",
    names=Names(
        attention_norm="attention_layernorm",
        mlp_norm="feedforward_layernorm",
        alpha_p="mlp.act_fn.alpha_p",
        alpha_n="mlp.act_fn.alpha_n",
    ),
    rope_theta=12_000_000.0,
    layer=LayerConfig(head_norms="head"),
    gated=False,
    activation=XIELU,
    attention_biases=("q", "k", "v", "o"),
    usual={"rope_scaling": _LLAMA3},
    huggingface=HuggingFace(
        sizes=(131072, 4096, 14336, 32, 32, 32, 0, 65536),
        eps=1e-5,
        rope=partial(angles, usual=_LLAMA3),
        buffers=_BUFFERS,
    ),
    gguf=Gguf(
        "apertus",
        head="own",
        slowed_pairs=True,
        attention_bias=False,
        listed=("alpha_p", "alpha_n"),
        constants={"xielu.beta": 0.5, "xielu.eps": -1e-6},
    ),
)
