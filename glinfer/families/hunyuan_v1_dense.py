"""Hunyuan without experts (Tencent 2025): a Llama whose queries and keys are normalised after their rotation.

With an ``alpha``, the type ``dynamic`` of its angles names a base that is larger at all positions (bloc97 2023).
"""

from dataclasses import replace

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import Fields, HuggingFace, angles
from glinfer.families.layer import LayerConfig
from glinfer.families.names import Names
from glinfer.families.record import Family
from glinfer.families.settings import Settings


def _angles(settings: Settings, fields: Fields) -> Fields:
    """The angles, none of which may change the lengths of heads, as these are normalised afterwards."""
    name = "rope_scaling" if settings.values.get("rope_scaling") else "rope_parameters"
    given = settings.value(name)
    scaling = Settings(given if isinstance(given, dict) else {}, f"{settings.label}: {name}")
    kind, dim = scaling.values.get("rope_type", scaling.values.get("type")), fields["head_dim"]
    if kind in ("yarn", "longrope"):
        raise scaling.refused("rope_type", "another one, as heads are normalised after their rotation")
    if kind != "dynamic" or not scaling.values.get("alpha") or dim <= 2:
        return angles(settings, fields)
    plain = {key: value for key, value in scaling.values.items() if key == "rope_theta"}
    found = angles(replace(settings, values={**settings.values, name: plain}), fields)
    return {**found, "rope_theta": found["rope_theta"] * scaling.number("alpha") ** (dim / (dim - 2))}


FAMILY = Family(
    "hunyuan_v1_dense",
    names=Names(head_norm="self_attn.{}_layernorm", letters={"head_norm.q": "query", "head_norm.k": "key"}),
    layer=LayerConfig(head_norms="head", rotated_first=True),
    attention_biases=("q", "k", "v", "o"),
    huggingface=HuggingFace(sizes=(290943, 4096, 11008, 32, 32, 32, 0, 2048), eps=1e-5, rope=_angles),
    gguf=Gguf("hunyuan-dense", attention_bias=False),
)
