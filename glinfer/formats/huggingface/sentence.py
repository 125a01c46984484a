"""sentence-transformers directories: the modules after an embedding model, and its prompts.

``modules.json`` lists the modules; each has a folder with a ``config.json``, and a dense one its weights. Source: the
modules of sentence-transformers 5.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from glinfer.errors import FormatError
from glinfer.families.settings import Settings, is_integer, quoted
from glinfer.formats.embedding import Embedding
from glinfer.formats.files import inside, shown
from glinfer.formats.json_files import read_json, read_json_list
from glinfer.formats.safetensors_file import FoundTensor, read_header
from glinfer.limits import MAX_CONFIG_BYTES, MAX_TOKENIZER_CONFIG_BYTES

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
_LENGTHS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
_TOKENIZER_CONFIG = "tokenizer_config.json"
_NO_LENGTH = 10**9  # transformers writes 10**30 for none
_POOLINGS = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_KEYS = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
_ACTIVATIONS = {"Identity": "none", "Tanh": "tanh", "GELU": "gelu", "SiLU": "silu"}


@dataclass(frozen=True)
class DenseLayer:
    """A dense layer after the pooling: its activation, and its tensors in the file of its folder."""

    activation: str
    tensors: Mapping[str, FoundTensor]

    @property
    def shape(self) -> tuple[int, bool, str]:
        """(outputs, has a bias, activation), as in ``dense`` of :class:`glinfer.config.ModelConfig`."""
        return self.tensors["weight"].shape[0], "bias" in self.tensors, self.activation


@dataclass(frozen=True)
class Sentence:
    """The sentence-transformers settings of a directory.

    Attributes:
        pooling: one of :data:`glinfer.config.POOLINGS`; empty if no file names it.
        tokens: the ids of "yes" and "no" in a model that answers whether a text fits a query; else None.
        dense: the dense layers after the pooling.
        embedding: prompts, lengths, and whether vectors are normalised.
        files: the files that have these settings.
    """

    pooling: str = ""
    tokens: tuple[int, int] | None = None
    dense: tuple[DenseLayer, ...] = ()
    embedding: Embedding = field(default_factory=Embedding)
    files: tuple[Path, ...] = ()

    def tensors(self) -> Iterator[tuple[int, str, FoundTensor]]:
        """The number of the layer, ``weight`` or ``bias``, and the found tensor, for every dense layer."""
        for number, layer in enumerate(self.dense):
            for part, found in layer.tensors.items():
                yield number, part, found


def _settings(file: Path) -> Settings:
    return Settings(read_json(inside(file), MAX_CONFIG_BYTES), shown(file))


def read_sentence(folder: Path) -> Sentence:
    """Read the sentence-transformers files next to a model; without them, all settings are empty."""
    found = Sentence()
    modules = folder / MODULES
    if os.path.lexists(modules):
        for module in read_json_list(inside(modules), MAX_CONFIG_BYTES):
            found = _with_module(found, folder, module, shown(modules))
        if not found.pooling and found.tokens is None:
            raise FormatError(
                f"{shown(modules)}: found no pooling in it; expected a Pooling module; get the files again"
            )
    return _with_prompts(_with_length(found, folder), folder)


def _with_module(found: Sentence, folder: Path, module: object, label: str) -> Sentence:
    kind = module.get("type") if isinstance(module, dict) else None
    if not isinstance(module, dict) or not isinstance(kind, str):
        raise FormatError(
            f"{label}: found {quoted(module)}; expected objects with the type and the path of each module"
        )
    name, path = kind.rpartition(".")[2], str(module.get("path", ""))
    if name == "Transformer":
        return found
    if name == "Normalize":
        return replace(found, embedding=replace(found.embedding, normalizes=True))
    own = folder / _plain(path, label)
    config = own / "config.json"
    if name == "Pooling":
        settings = _settings(config)
        counts = settings.flag("include_prompt", default=True)
        return replace(
            found,
            pooling=_pooling(settings),
            embedding=replace(found.embedding, counts_prompt=counts),
            files=(*found.files, config),
        )
    if name == "LogitScore":
        settings = _settings(config)
        tokens = settings.integer("true_token_id", -1, least=0), settings.integer("false_token_id", -1, least=0)
        return replace(found, tokens=tokens, files=(*found.files, config))
    if name == "Dense" and found.pooling:
        return replace(found, dense=(*found.dense, _dense(own, config)), files=(*found.files, config))
    raise FormatError(
        f"{label}: the module {quoted(name)} is not supported here; expected Transformer, Pooling, Dense after it, "
        "Normalize and LogitScore"
    )


def _plain(path: str, label: str) -> str:
    """Check the path of a module, which is a folder next to the file that names it."""
    parts = PurePosixPath(path).parts
    if len(parts) != 1 or parts[0] in ("..", "/") or "\\" in path or ":" in path:
        raise FormatError(f"{label}: the path {quoted(path)} is not a folder next to it; do not trust these files")
    return parts[0]


def _pooling(settings: Settings) -> str:
    named = settings.values.get("pooling_mode")
    if named is not None:
        chosen = [named] if isinstance(named, str) else list(named) if isinstance(named, list) else [named]
    else:
        flags = {name: f"pooling_mode_{_KEYS.get(name, name)}" for name in _POOLINGS}
        chosen = [name for name, key in flags.items() if settings.flag(key)]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise FormatError(f"{settings.label}: its pooling is {quoted(chosen)}; expected one of {', '.join(_POOLINGS)}")
    return str(chosen[0])


def _dense(folder: Path, config: Path) -> DenseLayer:
    settings = _settings(config)
    activation = str(settings.values.get("activation_function") or "Tanh").rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise settings.refused("activation_function", f"one of {', '.join(_ACTIVATIONS)}")
    weights = folder / "model.safetensors"
    if not os.path.lexists(weights):
        raise FormatError(f"{shown(folder)}: found no model.safetensors; expected the weights of this module there")
    held = {name.removeprefix("linear."): found for name, found in read_header(inside(weights))[0].items()}
    expected = {"weight", "bias"} if settings.flag("bias", default=True) else {"weight"}
    shape = settings.integer("out_features", 0, least=1), settings.integer("in_features", 0, least=1)
    if held.keys() != expected or held["weight"].shape != shape or ("bias" in held and held["bias"].shape != shape[:1]):
        raise FormatError(
            f"{shown(weights)}: found tensors {quoted(sorted(held))}; expected {', '.join(sorted(expected))} of "
            f"{list(shape)} from its config.json; get the files again"
        )
    return DenseLayer(_ACTIVATIONS[activation], held)


def _with_length(found: Sentence, folder: Path) -> Sentence:
    for name in _LENGTHS:
        file = folder / name
        if not os.path.lexists(file):
            continue
        settings = _settings(file)
        most = settings.integer("max_seq_length", 0) if settings.given("max_seq_length") else 0
        lower = settings.flag("do_lower_case")
        embedding = replace(found.embedding, most_tokens=most, lower=lower)
        found = replace(found, embedding=embedding, files=(*found.files, file))
        break
    return found


def with_tokenizers_length(found: Sentence, folder: Path) -> Sentence:
    """Add the tokenizer's maximum length, which sentence-transformers uses if its own files have none."""
    file = folder / _TOKENIZER_CONFIG
    if found.embedding.most_tokens or not os.path.lexists(file):
        return found
    most = read_json(inside(file), MAX_TOKENIZER_CONFIG_BYTES).get("model_max_length")
    if most is None or not is_integer(most, 1) or most > _NO_LENGTH:
        return found
    return replace(found, embedding=replace(found.embedding, most_tokens=int(most)))


def _with_prompts(found: Sentence, folder: Path) -> Sentence:
    file = folder / PROMPTS
    if not os.path.lexists(file):
        return found
    settings = _settings(file)
    prompts, default = settings.value("prompts") or {}, settings.value("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise settings.refused("prompts", "an object with a text for each name")
    if not isinstance(default, str) or (default and default not in prompts):
        raise settings.refused("default_prompt_name", "the name of one of the prompts")
    embedding = replace(found.embedding, prompts=dict(prompts), default_prompt=default)
    return replace(found, embedding=embedding, files=(*found.files, file))
