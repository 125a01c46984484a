"""Tokenizer, tables, prompts and pooling for the site of an embedding model.

The page tokenizes with the library ``@huggingface/tokenizers``, which reads the same ``tokenizer.json`` as Python's
library. Their Unicode tables have different versions. So the export includes Python's marks and punctuation for BERT's
tokenizer, as ranges of code points, and the ids of probe texts, with which the page checks its tokenizer first.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from os import PathLike
from typing import Any

import tokenizers

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.export.plan import PlanExport
from glinfer.formats import Checkpoint
from glinfer.formats.embedding import Embedding
from glinfer.lower.fused.encode import EMBEDDINGS, TEXTS
from glinfer.lower.fused.rows import ROWS
from glinfer.program.plan import Plan
from glinfer.text.encoder import TextEncoder
from glinfer.text.tokenizer import Tokenizer, find_tokenizer

PROBES = (
    "",
    "The quick brown fox jumps over the lazy dog.",
    "  Tabs\tand\r\nlines, \u00a0spaces\u3000and \ufeffmarks\u200b.",
    "ÜBER naïve café — «déjà vu» ŒUVRE İstanbul ﬁne",
    "ΟΔΥΣΣΕΥΣ Όμηρος; Москва и Київ",
    "東京タワー 서울 北京 𠀀𠮷 ｆｕｌｌ ｗｉｄｔｈ",
    "שלום عَرَبِيّ हिन्दी ไทย",
    "3.14 + x² = ½ … 😀👩‍💻 #tag @name https://example.org/a?b=c",
    "don't stop; it's 5 o'clock! [CLS] <s> </s> <mask>",
    "antidisestablishmentarianism " + "z" * 120,
)
"""Probe texts; the page compares its tokenizer's ids with Python's."""


def exported_tokenizer(
    path: str | PathLike[str], given: str | PathLike[str] | None, checkpoint: Checkpoint
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ``tokenizer.json`` of an embedding model, and the entry for texts in the plan."""
    config, embedding = checkpoint.config, checkpoint.embedding
    width = config.dense[-1][0] if config.dense else config.hidden_size
    if embedding.ranks and width != 1:
        raise InputError(f"this model gives {width} scores for a pair of texts; expected one")
    found, why = find_tokenizer(path, given, config)
    if found is None:
        raise InputError(f"a site that embeds texts needs the model's tokenizer; found none: {why}")
    values: dict[str, Any] = json.loads(found.library_json())
    # The page cuts texts itself.
    values.update(truncation=None, padding=None)
    return values, {**_texts(found, embedding, config), "characters": characters_of(values)}


def _texts(tokenizer: Tokenizer, embedding: Embedding, config: ModelConfig) -> dict[str, Any]:
    """Return prompts, lengths, the special tokens around a text, and the ids of the probes."""
    context = config.max_position_embeddings
    encoder = TextEncoder(tokenizer, min(embedding.most_tokens or context, context), lower=embedding.lower)
    probes = encoder.texts(PROBES)
    before, after = tokenizer.around
    if not embedding.ranks and any(any(each.types) for each in probes):
        raise InputError("found token types other than 0 for a single text; sites support only type 0")
    return {
        "prompts": dict(embedding.prompts),
        "default_prompt": embedding.default_prompt,
        "counts_prompt": embedding.counts_prompt,
        "normalizes": embedding.normalizes,
        "most_tokens": min(embedding.most_tokens or context, context),
        "lower": embedding.lower,
        "before": before,
        "after": after,
        "probes": [[text, each.ids] for text, each in zip(PROBES, probes, strict=True)],
        "ranks": _pairs(tokenizer, encoder, embedding) if embedding.ranks else None,
    }


def _pairs(tokenizer: Tokenizer, encoder: TextEncoder, embedding: Embedding) -> dict[str, Any]:
    """Return the form of a pair of texts, with the ids and types of probe pairs.

    ``form`` is a text with {query} and {text}. If it is empty, ``before``, ``between`` and ``after`` are the (id, type)
    pairs around two texts, whose types are ``types``.
    """
    whole = tokenizers.Tokenizer.from_str(tokenizer.library_json()).encode("a", "a")
    marked = list(zip(whole.ids, whole.type_ids, strict=True))
    first, second = (_span(whole.sequence_ids, number) for number in (0, 1))
    indices = {
        "before": slice(first.start),
        "between": slice(first.stop, second.start),
        "after": slice(second.stop, None),
    }
    query, *texts = ("What purrs?", "Cats do.", "", "a " * 600, "[SEP] </s> <|im_end|> yes")
    pairs = encoder.framed(embedding.pair, query, texts) if embedding.pair else encoder.pairs(query, texts)
    return {
        "form": embedding.pair,
        "squashes": embedding.squashes,
        "types": [whole.type_ids[first.start], whole.type_ids[second.start]],
        **{name: [list(each) for each in marked[index]] for name, index in indices.items()},
        "probes": [[query, text, *each] for text, each in zip(texts, pairs, strict=True)],
    }


def _span(sequences: Sequence[int | None], number: int) -> slice:
    """Return the range of one text's tokens in a pair."""
    first = sequences.index(number)
    return slice(first, first + sequences.count(number))


def characters_of(values: dict[str, Any]) -> dict[str, str] | None:
    """Return the characters that BERT's normalizer removes, the marks that it strips, and the punctuation of words.

    Each is the inside of a character class for JavaScript; None for other tokenizers.
    """
    return _bert_characters() if splits_as_bert(values) else None


def splits_as_bert(values: Mapping[str, Any]) -> bool:
    """Whether the normalizer and the pre-tokenizer of a ``tokenizer.json`` are BERT's."""
    kinds = [(values[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer")]
    return kinds == ["BertNormalizer", "BertPreTokenizer"]


@cache
def _bert_characters() -> dict[str, str]:
    # Marks and punctuation of an older Unicode are these or symbols in Python's; private use, Co, never changes.
    kinds_of = {chr(code): unicodedata.category(chr(code)) for code in range(sys.maxunicode + 1)}
    plain = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    clean = tokenizers.normalizers.BertNormalizer(**{**plain, "clean_text": True}).normalize_str
    strip = tokenizers.normalizers.BertNormalizer(**{**plain, "strip_accents": True}).normalize_str
    split = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    found = {
        "removed": [one for one, kind in kinds_of.items() if kind in ("Cc", "Cf", "So") and not clean(one)],
        "marks": [one for one, kind in kinds_of.items() if kind[0] == "M" and not strip(one)],
        "punctuation": [one for one, kind in kinds_of.items() if kind[0] in "MPS" and len(split(f"a{one}")) == 2],
    }
    return {name: _ranges([ord(each) for each in every]) for name, every in found.items()}


def _ranges(codes: list[int]) -> str:
    """Sorted code points as the inside of a character class, with the flag ``u``."""
    spans: list[list[int]] = []
    for code in codes:
        if spans and spans[-1][1] == code - 1:
            spans[-1][1] = code
        else:
            spans.append([code, code])
    return "".join(f"\\u{{{first:x}}}-\\u{{{last:x}}}" for first, last in spans)


def embedding_entry(plan: Plan, export: PlanExport, config: ModelConfig) -> dict[str, Any]:
    """Describe the tables and the results of a run, its positions and its pooling."""
    targets = [tensor.name for tensor in plan.tensors if tensor.name.startswith(f"{EMBEDDINGS}.")]
    return {
        "rows": export.texture(ROWS),
        "texts": export.texture(TEXTS),
        "vectors": [export.texture(name) for name in targets],
        "positions": 0 if config.family.rotary else config.max_position_embeddings,
        "pooling": config.pooling,
    }
