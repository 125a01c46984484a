"""Qwen 3-VL's and 3.5's image encoder (Qwen Team 2025): patches of an image of any shape, which all see each other.

Positions are interpolated from a square of learned ones, and rotary angles follow the row and column of a patch. After
the last norm neighbouring patches are joined, and two products make them a vector of the language model. Layers named
in the configuration give further such vectors, which the first layers of the language model add to its stream.
"""

from dataclasses import replace

from glinfer.families import siglip
from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace
from glinfer.limits import MAX_DEEP_VECTORS


def _mergers(whole: str, deep: str, parts: tuple[str, str]) -> dict[str, str]:
    """The names of the matrices after joining, by number: two for the last layer, then two for each further vector,
    with a norm before."""
    first = {f"dense.{number}": whole.format(part) for number, part in enumerate(parts)}
    further = {
        f"dense.{2 * n + 2 + m}": deep.format(n, part) for n in range(MAX_DEEP_VECTORS) for m, part in enumerate(parts)
    }
    return first | further | {f"dense_norm.{2 * n + 2}": str(n) for n in range(MAX_DEEP_VECTORS)}


NAMES = replace(
    siglip.NAMES,
    embeddings="visual.pos_embed",
    patches="visual.patch_embed.proj",
    layer="visual.blocks.{}.",
    attention_norm="norm1",
    projection="attn.{}_proj",
    output="attn.proj",
    mlp_norm="norm2",
    up="mlp.linear_fc1",
    down="mlp.linear_fc2",
    final_norm="visual.merger.norm",
    dense="visual.{}",
    dense_norm="visual.deepstack_merger_list.{}.norm",
    letters=_mergers("merger.{}", "deepstack_merger_list.{}.{}", ("linear_fc1", "linear_fc2")),
)
FAMILY = replace(
    siglip.FAMILY,
    name="qwen3_vl_vision",
    names=NAMES,
    positions="halves",
    by_grid=True,
    usual={},
    huggingface=HuggingFace(sizes=(2304, 1152, 4304, 27, 16, 0, 0, 0), names=replace(NAMES, projection="attn.qkv")),
    gguf=Gguf(
        "clip",
        names=replace(
            siglip.FAMILY.in_gguf.names,
            projection="attn_qkv",
            dense="{}",
            dense_norm="v.deepstack.{}.norm",
            letters=_mergers("mm.{}", "v.deepstack.{}.{}", ("fc1", "fc2")) | {"dense.0": "mm.0", "dense.1": "mm.2"},
        ),
    ),
)
