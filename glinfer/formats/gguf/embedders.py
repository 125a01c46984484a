"""Embedding models and rerankers in GGUF files: their metadata and tensors.

Source: llama.cpp's converters (conversion/bert.py, gemma.py, qwen.py) and ``build_pooling`` of its llama-graph.cpp.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families.names import Names
from glinfer.families.record import Family
from glinfer.families.settings import Keys, quoted
from glinfer.formats.embedding import Embedding
from glinfer.formats.gguf.file import GgufFile, keys_of
from glinfer.limits import MAX_TEMPLATE_CHARACTERS

RERANK_TEMPLATE = "tokenizer.chat_template.rerank"
"""The key of the template for a pair of texts, with {query} and {document}."""
YES_NO = ["yes", "no"]
"""The labels of a classifier whose rows are the head's rows of these two tokens."""

_KEY, _LABELS = "pooling_type", "classifier.output_labels"
_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}
_NONE, _RANK = 0, 4
_CLASSIFIER, _NORM = ("cls", "cls.output"), "cls.norm"
_DENSE = ("dense_2", "dense_3")
_JOINED = _QKV, _GATE_UP, _DELTA_IN = "attn_qkv", "ffn_gate_up_exps", "ssm_in"


def names_in(file: GgufFile, family: Family) -> Names:
    """The tensor names of a file, which may join projections in one tensor, or gate and up of experts.

    In a delta rule, ``attn_qkv`` has its queries, keys and values; older Qwen3-Next files join these with its gates in
    ``ssm_in``.
    """
    names = family.in_gguf.names
    joined = {name for name in _JOINED if f"{names.layer.format(0)}{name}.weight" in file.tensors}
    if _QKV in joined and not family.delta_rule:
        names = replace(names, projection=_QKV)
    if _GATE_UP in joined:
        names = replace(names, gate=_GATE_UP, up=_GATE_UP)
    behind = {str(number): name for number, name in enumerate(_behind(file, keys_of(file, family)))}
    delta_in = {"qkv": _DELTA_IN, "z": _DELTA_IN} if _DELTA_IN in joined else {}
    return replace(names, dense="{}", dense_norm=_NORM, letters={**names.letters, **delta_in, **behind})


def passed_over(file: GgufFile, config: ModelConfig) -> set[str]:
    """The tensors that an embedding model ignores: the head, and a classifier that is not used."""
    if not config.embeds:
        return set()
    form = config.family.in_gguf
    used = _behind(file, keys_of(file, config.family))
    names = [name for name in _CLASSIFIER if name not in used] + ([] if config.dense_norm else [_NORM])
    unused = {f"{name}.{part}" for name in names for part in ("weight", "bias")}
    return unused | {f"{form.names.head}.weight"}


def embedding_fields(family: Family, keys: Keys, file: GgufFile) -> dict[str, Any]:
    """The configuration fields of an embedding model; empty for a generative one."""
    kind = _kind(file, keys)
    if kind == _NONE and not family.encodes:
        return {}
    behind = _behind(file, keys)
    if kind == _RANK and "cls.output" not in behind:
        raise FormatError(
            f"{keys.where(_KEY)} is {_RANK}, scores of pairs, and there is no tensor 'cls.output.weight'; get the file "
            "again"
        )
    types = f"{family.in_gguf.names.token_types}.weight"
    counted = {"type_vocab_size": file.tensors[types].shape[0]} if types in file.tensors else {}
    pooling, between = family.in_gguf.classifier if family.encodes else ("lasttoken", "none")
    return {
        **(counted if family.token_types else {}),
        "pooling": pooling if kind == _RANK else _POOLINGS.get(kind, "mean"),
        "dense": tuple(
            (
                file.tensors[f"{name}.weight"].shape[0],
                f"{name}.bias" in file.tensors,
                between if name == "cls" else "none",
            )
            for name in behind
        ),
        "dense_norm": "cls" in behind and f"{_NORM}.weight" in file.tensors,
        "tie_word_embeddings": True,
    }


def embedding_of(file: GgufFile, config: ModelConfig) -> Embedding:
    """The embedding settings of a model; files do not say it, but vectors are normalised, as in llama.cpp's tools."""
    if not config.embeds:
        return Embedding()
    if _kind(file, keys_of(file, config.family)) != _RANK:
        return Embedding(normalizes=True)
    # As in sentence-transformers' CrossEncoder.
    return Embedding(ranks=True, squashes=config.dense[-1][0] == 1, pair=_pair(file))


def _pair(file: GgufFile) -> str:
    """The template of a pair of texts, with {query} and {text} once each; empty if the file has none."""
    written = file.metadata.get(RERANK_TEMPLATE)
    if not isinstance(written, str):
        return ""
    if len(written) > MAX_TEMPLATE_CHARACTERS or written.count("{query}") != 1 or written.count("{document}") != 1:
        raise FormatError(
            f"{file.source}: {RERANK_TEMPLATE} is {quoted(written)}; expected a text of at most "
            f"{MAX_TEMPLATE_CHARACTERS} characters with {{query}} and {{document}} once each"
        )
    return written.replace("{document}", "{text}")


def answers_yes_or_no(file: GgufFile, config: ModelConfig) -> bool:
    """Whether a classifier's outputs are the logits of "yes" and "no", to which llama.cpp applies a softmax."""
    labels = keys_of(file, config.family).listed(_LABELS)
    return config.embeds and not config.family.encodes and labels == YES_NO and len(config.dense) == 1


def _kind(file: GgufFile, keys: Keys) -> int:
    """The pooling type; files with a classifier may omit it."""
    found = keys.value(_KEY)
    if found is not None and (type(found) is not int or not _NONE <= found <= _RANK):
        raise keys.refused(_KEY, f"an integer from {_NONE} to {_RANK}")
    return found or (_RANK if "cls.output.weight" in file.tensors else _NONE)


def _behind(file: GgufFile, keys: Keys) -> list[str]:
    """The names of the dense layers after the pooling, in order."""
    known = _CLASSIFIER if _kind(file, keys) == _RANK else _DENSE
    # Ignore tensors of these names that are not matrices.
    return [name for name in known if len(_shape(file, f"{name}.weight")) == 2]


def _shape(file: GgufFile, name: str) -> tuple[int, ...]:
    return file.tensors[name].shape if name in file.tensors else ()
