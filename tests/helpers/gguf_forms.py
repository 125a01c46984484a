"""GGUF files written again in other forms, and the logits of their models in float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from gguf_embedders import finish

from glinfer.formats import Checkpoint
from glinfer.lower.feed import runs
from glinfer.lower.fused.token import LOGITS
from glinfer.lower.plans import plan_for, weights_for
from glinfer.program.oracle import final_tensors

Array = np.ndarray[Any, Any]


def logits_of(checkpoint: Checkpoint, ids: list[int]) -> Array:
    """The logits after the last token, in float64 by the oracle of the fast plan."""
    config, names = checkpoint.config, [*checkpoint.tensors, *checkpoint.packed]
    scaling = dict(config.rope_scaling)
    if "long_factor" in scaling:  # llama.cpp chooses the factors by the context, glinfer by the length of a sequence
        config = dataclasses.replace(config, rope_scaling={**scaling, "short_factor": scaling["long_factor"]})
    floats = Checkpoint(config, {name: checkpoint.floats(name) for name in names}, "made")
    plan, arrays, caches = plan_for(config, "fast", max_texture_size=2048), dict(weights_for(floats, "fast")), {}
    *_, last = (final_tensors(plan, arrays, *given, caches)[LOGITS][0] for given in runs(plan, ids))
    return np.asarray(last)


def rewritten(source: Path, target: Path, keys: dict[str, int], tensors: dict[str, Any]) -> None:
    """Write a file again with these keys, and these tensors in place of others or added; None leaves one out."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in keys:
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if field.types[1:] else None)
    for name, value in keys.items():
        writer.add_uint32(name, value)
    for name, values in ({each.name: np.array(each.data) for each in reader.tensors} | tensors).items():
        if values is not None:
            writer.add_tensor(name, values)
    finish(writer)
