"""Granite 4 (IBM 2025) with experts: many small MLPs in a layer, and next to them a wider one that all tokens use."""

from dataclasses import replace

from glinfer.families import granitemoe, granitemoehybrid
from glinfer.families.huggingface import Fields, marked
from glinfer.families.names import EXPERT_NAMES, GGUF_EXPERT_NAMES, scanning
from glinfer.families.settings import Settings

NAMES = scanning(EXPERT_NAMES)
_DENSE, _FORM, _GGUF = granitemoehybrid.FAMILY, granitemoehybrid.FAMILY.in_huggingface, granitemoehybrid.FAMILY.in_gguf


def _shared_width(settings: Settings, fields: Fields) -> Fields:
    """The width of the MLP that all tokens use."""
    return {"shared_intermediate_size": settings.integer("shared_intermediate_size", 1024)}


FAMILY = replace(
    _DENSE,
    name="granitemoehybrid_moe",
    names=NAMES,
    usual={**_DENSE.usual, "norm_topk_prob": True, "shared_intermediate_size": 1024},
    huggingface=replace(
        _FORM,
        sizes=(32000, 4096, 11008, 32, 32, 0, 0, 2048),
        keys={},
        names=replace(
            scanning(granitemoe.IN_FILE),
            delta_in="mamba.in_proj",
            shared_gate="shared_mlp.input_linear",
            shared_up="shared_mlp.input_linear",
            shared_down="shared_mlp.output_linear",
        ),
        experts=(8, 2, None),
        more=_shared_width,
        variant=(_DENSE.name, marked("num_local_experts")),
    ),
    gguf=replace(
        _GGUF,
        names=replace(GGUF_EXPERT_NAMES, letters=_GGUF.names.letters),
        marked_by="expert_count",
        attending="",
    ),
)
