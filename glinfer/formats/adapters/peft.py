"""Hugging Face PEFT adapters: a directory with adapter_config.json and adapter_model.safetensors.

Names and scales follow ``peft/tuners/lora`` and ``peft/utils/save_and_load.py``. PEFT features beyond plain LoRA change
more than the two matrices, and are refused by name.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families.huggingface import HuggingFace, nothing
from glinfer.families.names import Names
from glinfer.families.settings import Settings, quoted
from glinfer.formats.adapters.adapter import Adapter, FloatArray, LowRank, Pair, adaptable, low_ranks, refused_name
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.files import AnyPath, inside, shown
from glinfer.formats.huggingface.layouts import ALTERNATING, file_shape, layout_of, order_in_file
from glinfer.formats.huggingface.model import loaded
from glinfer.formats.json_files import read_json
from glinfer.formats.packed import row_bytes
from glinfer.formats.safetensors_file import STORED, FoundTensor, check_stored, load_tensor, read_header
from glinfer.formats.tensors import EXPERT_ROLES, StoredTensor, stored_tensors, tensors_of
from glinfer.graph.nodes import ModelTensor
from glinfer.limits import MAX_CONFIG_BYTES
from glinfer.quant.words import bfloat16_bits

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_OTHER_WEIGHTS = "adapter_model.bin"
_PREFIX, _WRAPPED = "base_model.model.", ".base_layer"
_WRAPPERS = re.compile(r"\.(base_layer|original_module|modules_to_save(\.default)?)(?=\.)")
"""The parts that PEFT inserts into the names of the model's own tensors."""
_TOGETHER = 1 << 22  # weights compared at a time
_STEPS = 6
"""Largest error of a row relative to its norm, in units of 2**-b for a format of b bits a weight; capped at 1."""
_OTHERS = {"lora_embedding_": "embeddings", "lora_magnitude_vector": "DoRA", ".bias": "biases"}
_EXPERTS = "experts"
"""The end of the module whose parameters ``gate_up_proj`` and ``down_proj`` hold all experts in transformers 5."""
_PART = re.compile(r"(.+)\.lora_(A|B)(?:\.default)?\.weight")
_TABLE = re.compile(r"(.+)\.lora_embedding_(A|B)(?:\.default)?")
"""The matrices of a table, which are stored as those of its transpose."""
_PLAIN: Mapping[str, tuple[object, ...]] = {
    "use_dora": (False,),
    "bias": ("none",),
    "lora_bias": (False,),
    "layer_replication": ([],),
    "trainable_token_indices": ([], {}),
    "alora_invocation_tokens": ([],),
    "use_qalora": (False,),
    "use_bdlora": (False,),
    "arrow_config": (),
}
"""Settings beyond plain LoRA, each with the values besides null that have no effect."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that also change the base weights, which the adapter's files do not contain."""


def read_peft(path: AnyPath, config: ModelConfig, base: Checkpoint | None = None) -> Adapter:
    """Read an adapter that PEFT's ``save_pretrained`` wrote, for a model of this shape.

    Ranks come from the matrices; alpha may differ by module (``alpha_pattern``). The scale is alpha / rank, or
    alpha / √rank with ``use_rslora``. A parameter that holds all experts (``target_parameters``) has two matrices for
    each expert. Matrices may be float32, float16 or bfloat16, and become float32. PEFT also saves copies of the head
    or embeddings if an adapter changes one of them or ``modules_to_save`` names them. Copies that equal the model's
    are ignored; without ``base``, the model, they are refused.
    """
    folder = Path(path)
    settings_file, weights = _located(folder)
    label = shown(settings_file)
    settings = Settings(read_json(settings_file, MAX_CONFIG_BYTES), label)
    _check_plain(settings)
    if config.family.huggingface is None:
        raise FormatError(f"{label}: this model is {config.model_type}; expected a Hugging Face family")
    form = config.family.in_huggingface
    if form.factors is not nothing:
        raise FormatError(
            f"{label}: this model is {config.model_type}, whose files have factors of its matrices, so adapters of "
            "PEFT are not supported; expected a GGUF adapter: convert it with llama.cpp's convert_lora_to_gguf.py"
        )
    if config.family.layer.rounded:
        raise FormatError(
            f"{label}: this model is {config.model_type}, whose matrices read inputs of 8 bits, and adapters of PEFT "
            "read floats, which is not supported; expected a model of another family"
        )
    stored_as = form.modules or form.names or config.family.names
    pairs, others = _pairs(weights, tables=config.embeds)
    _check_copies(others, config, stored_as, base, shown(weights))
    known, modules = adaptable(config, stored_as), _modules_of_experts(config, form)
    matrices: dict[str, LowRank] = {}
    for name, pair in pairs.items():
        module = name
        while module.endswith(_WRAPPED):  # PEFT nests the wrappers of several parameters of one module
            module = module.removesuffix(_WRAPPED)
        asked = (module, form.prefix + module)
        stored = next((known[each] for each in asked if each in known), None)
        stored = stored or next((_meant(modules[each], pair) for each in asked if each in modules), None)
        if stored is None:
            raise FormatError(f"{shown(weights)}: {refused_name(name, config, stored_as)}")
        where = f"{shown(weights)}: tensor {quoted(name)}"
        if stored.experts > 1:
            pair = _by_expert(pair, stored, alternate=layout_of(stored, form) == ALTERNATING)
        scale = _scale(settings, stored.name.removesuffix(".weight"), pair.rank)
        matrices.update(low_ranks(config, stored, pair, scale, where, order=order_in_file(stored, config)))
    if not matrices:
        raise FormatError(f"{shown(weights)}: found no matrices lora_A and lora_B; expected an adapter of PEFT's LoRA")
    return Adapter(MappingProxyType(matrices), shown(path), (settings_file, weights))


def _modules_of_experts(config: ModelConfig, form: HuggingFace) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    """The two parameters (gate with up, and down) of each module that holds a layer's experts, by module name."""
    names = form.names or config.family.names
    stem, _, rest = f".{names.down}".partition(f".{_EXPERTS}.")
    if not rest:
        return {}
    parts: dict[str, tuple[list[ModelTensor], list[ModelTensor]]] = {}
    for tensor in tensors_of(config):
        if tensor.layer is not None and tensor.part == "weight" and tensor.role in EXPERT_ROLES:
            module = f"{names.layer.format(tensor.layer)}{stem}.{_EXPERTS}".replace("..", ".")
            parts.setdefault(module, ([], []))[tensor.role == "down"].append(tensor)
    return {
        module: (
            StoredTensor(f"{module}.gate_up_proj", tuple(gate_up)),
            StoredTensor(f"{module}.down_proj", tuple(down)),
        )
        for module, (gate_up, down) in parts.items()
    }


def _meant(parameters: tuple[StoredTensor, StoredTensor], pair: Pair) -> StoredTensor:
    """The parameter that a pair of matrices updates; both have one name, so the number of outputs decides."""
    gate_up, down = parameters
    return down if pair.up is not None and len(pair.up) == down.stacked_shape[-2] else gate_up


def _by_expert(pair: Pair, stored: StoredTensor, *, alternate: bool) -> Pair:
    """Split a pair by expert: PEFT stacks the experts' ranks in A and interleaves them in B.

    With ``alternate``, the interleaved rows of gate and up in B are separated too.
    """
    down, up, experts = pair.down, pair.up, stored.experts
    if down is None or up is None or down.ndim != 2 or up.ndim != 2 or len(down) % experts or up.shape[1] % experts:
        return pair  # low_ranks refuses its shapes
    apart = up.reshape(len(up), -1, experts).transpose(2, 0, 1)
    if alternate and stored.tensors[0].role == "gate":
        apart = np.concatenate([apart[:, 0::2], apart[:, 1::2]], axis=1)
    return Pair(down.reshape(experts, -1, down.shape[1]), apart)


def _located(folder: Path) -> tuple[Path, Path]:
    if not os.path.lexists(folder / CONFIG):
        raise FormatError(f"{shown(folder)}: found a directory without {CONFIG}; expected an adapter of PEFT")
    if os.path.lexists(folder / WEIGHTS):
        return inside(folder / CONFIG), inside(folder / WEIGHTS)
    if os.path.lexists(folder / _OTHER_WEIGHTS):
        raise FormatError(
            f"{shown(folder)}: found {_OTHER_WEIGHTS} only; expected {WEIGHTS}; save the adapter with "
            "safe_serialization=True"
        )
    raise FormatError(f"{shown(folder)}: found {CONFIG} but no weights next to it; expected {WEIGHTS}")


def _check_plain(settings: Settings) -> None:
    label = settings.label
    if settings.value("peft_type") != "LORA":
        raise settings.refused("peft_type", "'LORA', as no other type is supported")
    for key, plain in _PLAIN.items():
        found = settings.value(key)
        if found is not None and not any(found == value and type(found) is type(value) for value in plain):
            raise FormatError(
                f"{label}: {key} is {quoted(found)}, which is not supported; expected {quoted([*plain, None][0])}; "
                "merge the adapter with PEFT"
            )
    start = settings.value("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise FormatError(
            f"{label}: init_lora_weights is {quoted(start)}, which changes the model's own weights too; save the "
            "adapter with path_initial_model_for_weight_conversion, which makes a plain one of it"
        )


def _scale(settings: Settings, name: str, rank: int) -> float:
    """The scale of one module's update, as PEFT computes it."""
    alpha: Any = settings.value("lora_alpha") if settings.given("lora_alpha") else 8
    patterns = settings.value("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise settings.refused("alpha_pattern", "an object of numbers")
    for pattern, value in patterns.items():
        if _matches(pattern, name, settings):
            alpha = value
            break
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not abs(alpha) <= sys.float_info.max:
        raise FormatError(f"{settings.label}: alpha of {quoted(name)} is {quoted(alpha)}; expected a number")
    return float(alpha) / (math.sqrt(rank) if settings.flag("use_rslora") else rank)


def _matches(pattern: str, name: str, settings: Settings) -> bool:
    """Whether a key of alpha_pattern, a regular expression for the end of a name, matches a module."""
    plain = re.fullmatch(r"[\w.^\\|()\[\]*+?$-]{1,200}", pattern) and not re.search(r"[*+]\)?[*+]", pattern)
    with contextlib.suppress(re.error):
        if plain:
            return re.match(rf"(.*\.)?({pattern})$", name) is not None
    found = f"{settings.label}: alpha_pattern has the key {quoted(pattern)}"
    raise FormatError(f"{found}; expected the name of a module")


def _pairs(weights: Path, *, tables: bool) -> tuple[dict[str, Pair], dict[str, FoundTensor]]:
    """A and B of each module, and with ``tables`` of each table, by name without PEFT's prefix; and other tensors."""
    label = shown(weights)
    tensors, _ = read_header(weights)
    pairs: dict[str, dict[str, Any]] = {}
    others: dict[str, FoundTensor] = {}
    for name, found in tensors.items():
        table = _TABLE.fullmatch(name) if tables else None
        part = table or _PART.fullmatch(name)
        if part is None:
            others[name] = found
            continue
        check_stored(found, f"{label}: tensor {quoted(name)}")
        key, numbers = "down" if (part[2] == "A") != bool(table) else "up", load_tensor(found)
        pairs.setdefault(part[1].removeprefix(_PREFIX), {})[key] = numbers.T if table else numbers
    return {name: Pair(**parts) for name, parts in pairs.items()}, others


def _check_copies(
    others: Mapping[str, FoundTensor], config: ModelConfig, names: Names, base: Checkpoint | None, label: str
) -> None:
    """Check that every tensor besides A and B is a copy of the model's own; without ``base``, refuse them.

    A copy has the same numbers after rounding to the less precise of the two types. If the model is quantised, each
    row may differ by the error of the format, see :data:`_STEPS`.
    """
    known = {each.name: each for each in stored_tensors(config, names)} if others else {}
    if config.tie_word_embeddings and known:
        known[f"{names.head}.weight"] = known[f"{names.embeddings}.weight"]
    for name, found in others.items():
        bare, where = _WRAPPERS.sub("", name.removeprefix(_PREFIX)), f"{label}: tensor {quoted(name)}"
        stored = known.get(bare) or known.get(config.family.in_huggingface.prefix + bare)
        if stored is None or base is None or found.dtype not in STORED:
            hint = next((f", which is for {word}," for piece, word in _OTHERS.items() if piece in name), "")
            raise FormatError(
                f"{where} ({found.dtype}){hint} is not supported; expected matrices lora_A and lora_B, and copies of "
                "the model's own"
            )
        if found.shape != (shape := file_shape(config, stored)):
            problem = f"is {list(found.shape)}, and the model has {list(shape)}: it was resized"
        else:
            copy = loaded(config, [replace(stored, name=name)], {name: found}, label)
            if all(_is_copy(copy, base, part) for part in copy.formats()):
                continue
            problem = "has other numbers than the model: it was trained, or belongs to another model"
        raise FormatError(f"{where} {problem}, which is not supported; merge the adapter with PEFT")


def _is_copy(copy: Checkpoint, base: Checkpoint, name: str) -> bool:
    """Whether a tensor is the same in two checkpoints, within the precision of both formats."""
    mine, own = (each.formats()[name] for each in (copy, base))
    shape = (copy.packed[name] if name in copy.packed else copy.tensors[name]).shape
    step = max(1, _TOGETHER // shape[-1])
    for start in range(0, shape[0], step):
        one, other = (each.rows(name, start, min(start + step, shape[0])) for each in (copy, base))
        if own not in STORED:
            share = min(1.0, _STEPS * 2.0 ** (-8 * row_bytes(own, shape[1]) / shape[1]))
            good = (np.linalg.norm(one - other, axis=1) <= share * np.linalg.norm(one, axis=1)).all()
        else:
            good = np.array_equal(one, _rounded(other, mine)) or np.array_equal(_rounded(one, own), other)
        if not good:
            return False
    return True


def _rounded(numbers: FloatArray, kind: str) -> FloatArray:
    """Numbers rounded to a type in STORED, as float32."""
    if kind == "F16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16).astype(np.float32)
    return (bfloat16_bits(np.ascontiguousarray(numbers)) << 16).view(np.float32) if kind == "BF16" else numbers
