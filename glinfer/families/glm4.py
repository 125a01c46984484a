"""GLM-4 0414 and GLM-Z1 (Z.ai 2025): a GLM with norms before and after the branches."""

from dataclasses import replace

from glinfer.families import glm
from glinfer.families.gguf import Gguf
from glinfer.families.layer import LayerConfig
from glinfer.families.names import GGUF_NAMES, Names

NAMES = Names(attention_post_norm="post_self_attn_layernorm", mlp_post_norm="post_mlp_layernorm")
FAMILY = replace(
    glm.FAMILY,
    name="glm4",
    names=NAMES,
    layer=LayerConfig(norms="both"),
    huggingface=replace(
        glm.FAMILY.in_huggingface, names=replace(NAMES, gate="mlp.gate_up_proj", up="mlp.gate_up_proj")
    ),
    gguf=Gguf("glm4", partial_rotary=True, names=replace(GGUF_NAMES, gate="ffn_up", up="ffn_up")),
)
