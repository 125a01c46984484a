"""Tokenizers and chat templates of every kind, and what Python makes of texts and conversations with them, as JSON.

``python web/tests/texts_in_python.py TEXTS CONVERSATIONS`` prints what library.test.js compares: each of ``tokenizers``
with that number of texts, each of ``templates`` with that number of conversations, and the ``tokenizer`` of those.
"""

from __future__ import annotations

import base64
import json
import random
import struct
import sys
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "helpers")]

from gguf_embedders import word_pieces  # noqa: E402
from goldens import given  # noqa: E402
from goldens.gguf_models import ATOMS, LINES, K, piece_level, vocabularies  # noqa: E402
from tiny_embedders import VOCABULARY  # noqa: E402

from glinfer.errors import InputError  # noqa: E402
from glinfer.export.texts import library_entry, template_entry  # noqa: E402
from glinfer.formats.gguf.words import EXPRESSIONS  # noqa: E402
from glinfer.text import template_worker, templates  # noqa: E402
from glinfer.text.templates import JinjaTemplate  # noqa: E402
from glinfer.text.tokenizer import Tokenizer  # noqa: E402
from glinfer.text.tokenizers.gguf import gguf_tokenizer  # noqa: E402
from glinfer.text.tokenizers.huggingface import of_library  # noqa: E402

BLOCKS = [
    *((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x600, 0x1000), (0x1E00, 0x2100), (0x3000, 0x3100)),
    *((0x4E00, 0x5000), (0xAC00, 0xAD00), (0x1F300, 0x1F700), (0, 0x20), (0x20000, 0x20100), (0xFE00, 0x10000)),
]
MORE = ["ſ", "'ſ", "'RE", "İ", "ΟΔΟΣ ", "\ufeff", "\u200b", "\x1c", "▁", "▁▁", "ﬁ", "²³", "१२३", "<mask>", "a" * 130]


def written_texts(count: int, names: list[str], *, characters: str = "") -> Iterator[str]:
    """Texts of all scripts, spaces, digits and control tokens, whole and in pieces."""
    chance = random.Random(11)
    atoms = [*ATOMS, *MORE, *names, *(name[:-1] for name in names), *(f" {name} " for name in names)]
    yield from ("", " ", "\n", "hello world", "  two  spaces  ", *(characters and [characters]))
    for number in range(count):
        if number % 3:
            yield "".join(chance.choices(atoms, k=chance.randint(1, 12)))
        else:
            letters = (chr(chance.randrange(*chance.choice(BLOCKS))) for _ in range(chance.randint(1, 30)))
            yield "".join(filter(is_old, letters))


def is_old(letter: str) -> bool:
    """Whether a character is in all versions of Unicode that are compared; of marks, which NFC sorts, in an old one."""
    kind = unicodedata.category(letter)
    return kind != "Cn" and (kind[0] != "M" or unicodedata.ucd_3_2_0.category(letter) != "Cn")


# ---- Tokenizers


def of_words(kind: Any, normalizer: Any = None, **options: Any) -> tokenizers.Tokenizer:
    """A byte-level BPE with this pre-tokenizer, the special tokens of a chat, and one that takes spaces."""
    library = tokenizers.Tokenizer(models.BPE(**options))
    library.pre_tokenizer, library.decoder = kind, decoders.ByteLevel()
    if normalizer is not None:
        library.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(LINES, trainer)
    library.add_special_tokens(["<|im_start|>", "<|im_end|>", AddedToken("<mask>", lstrip=True, special=True)])
    library.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("we", single_word=True), "Ⅷ!"])
    return library


def split(expression: str, behavior: str = "isolated") -> Any:
    return pre_tokenizers.Split(Regex(expression), behavior)


IN_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def llama3() -> tokenizers.Tokenizer:
    (expression,) = EXPRESSIONS["llama-bpe"]
    library = of_words(pre_tokenizers.Sequence([split(expression), IN_BYTES]), ignore_merges=True)
    first = library.token_to_id("<|endoftext|>")
    around = processors.TemplateProcessing(single="b:0 $A:0", special_tokens=[("b", first)])
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), around])
    return library


def qwen2() -> tokenizers.Tokenizer:
    (expression,) = EXPRESSIONS["qwen2"]
    return of_words(pre_tokenizers.Sequence([split(expression), IN_BYTES]), normalizers.NFC())


def smollm() -> tokenizers.Tokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return of_words(pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=True)]))


def steps() -> tokenizers.Tokenizer:
    """Steps that few tokenizers have."""
    cuts = [
        split(r"\p{L}+", "merged_with_previous"),
        split(r"[\s]+", "merged_with_next"),
        split(r"\d", "contiguous"),
        pre_tokenizers.Punctuation("isolated"),
        pre_tokenizers.Digits(),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    changes = [
        normalizers.Strip(),
        normalizers.Replace("x=", "$&="),
        normalizers.Replace(Regex(r"\s{3,}"), "  "),
        normalizers.Lowercase(),
        normalizers.Prepend("a"),
    ]
    return of_words(pre_tokenizers.Sequence(cuts), normalizers.Sequence(changes))


def gemma() -> tokenizers.Tokenizer:
    """Spaces as ``▁``, nothing before a text, and added tokens of several spaces."""
    library = given.piece_level()
    library.normalizer = normalizers.Replace(" ", "▁")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    library.add_tokens([AddedToken("▁▁", normalized=False), AddedToken("\n\n", normalized=False)])
    library.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    return library


def first_alone() -> tokenizers.Tokenizer:
    """A space before the first text only, as Llama 2 in its newer form has it."""
    library = given.piece_level(metaspace=True)
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    library.add_special_tokens(["<|im_start|>", "<|im_end|>", AddedToken("<mask>", rstrip=True, special=True)])
    around = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    library.post_processor = around
    return library


def unigram(*, table: bool, in_bytes: bool = False) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["<unk>", "<s>", "</s>", *([f"<0x{value:02X}>" for value in range(256)] if in_bytes else [])]
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=names, unk_token="<unk>", show_progress=False)
    library.train_from_iterator(LINES, trainer)
    library.decoder = decoders.Metaspace()
    values = json.loads(library.to_str())
    values["added_tokens"] = [token for token in values["added_tokens"] if not token["content"].startswith("<0x")]
    values["model"]["byte_fallback"] = in_bytes
    if in_bytes:
        values["decoder"] = json.loads(
            decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]).__getstate__()
        )
    if table:
        values["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": character_map()}
    return tokenizers.Tokenizer.from_str(json.dumps(values))


def character_map() -> str:
    """SentencePiece's table of some characters: a trie as a double array, then texts with a zero behind each."""
    table = {
        **{chr(code): " " for code in (0xA0, 0x2003, 0x3000, 0x85, 0x9, 0xA, 0xD)},
        **{"ﬁ": "fi", "½": "1⁄2", "²": "2", "e\u0301": "é", "Ⅷ": "VIII", "\u200b": "", "ÀB": "never", "０": "0"},
    }
    texts, places = b"", {}
    for value in table.values():
        places.setdefault(value, len(texts))
        texts += value.encode() + b"\0"
    root: dict[int, Any] = {}
    for key, value in table.items():
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = places[value]
    units: dict[int, int] = {0: 0}

    def place(at: int, node: dict[int, Any]) -> None:
        offset = next(each for each in range(1, 1 << 16) if all(at ^ each ^ label not in units for label in node))
        units[at] |= offset << 10 | (0 in node) << 8
        for label, below in node.items():
            units[at ^ offset ^ label] = below | 1 << 31 if label == 0 else label
        for label, below in node.items():
            if label:
                place(at ^ offset ^ label, below)

    place(0, root)
    array = [units.get(unit, 0) for unit in range((max(units) | 255) + 1)]
    return base64.b64encode(struct.pack(f"<I{len(array)}I", 4 * len(array), *array) + texts).decode()


def hugging_face() -> dict[str, Callable[[], tokenizers.Tokenizer]]:
    """The makers of tokenizers of every kind, by their names."""
    return {
        "byte-level": lambda: given.byte_level("<|endoftext|>", "<s>", "</s>"),
        "llama 3": llama3,
        "qwen 2": qwen2,
        "smollm": smollm,
        "steps": steps,
        "pieces": given.piece_level,
        "metaspace": lambda: given.piece_level(metaspace=True),
        "first alone": first_alone,
        "gemma": gemma,
        "unigram": lambda: unigram(table=False),
        "unigram, a table": lambda: unigram(table=True),
        "unigram, bytes": lambda: unigram(table=True, in_bytes=True),
    }


def scored() -> dict[str, Any]:
    """The metadata of a GGUF file with SentencePiece's Unigram, and its table of characters."""
    pieces = json.loads(unigram(table=False).to_str())["model"]["vocab"]
    table = base64.b64decode(character_map())
    return {
        K + "model": "t5",
        K + "tokens": [piece for piece, _ in pieces],
        K + "scores": [float(score) for _, score in pieces],
        K + "token_type": [2, 3, 3] + [1] * (len(pieces) - 3),
        K + "bos_token_id": 1,
        K + "eos_token_id": 2,
        K + "unknown_token_id": 0,
        K + "precompiled_charsmap": list(table),
    }


def gguf_files() -> dict[str, dict[str, Any]]:
    """The metadata of GGUF files of every kind."""
    spaces = {f"spaces, {merged}": piece_level(remove_extra_whitespaces=merged) for merged in (True, False)}
    return {**vocabularies(), "word pieces": word_pieces(VOCABULARY), "scored": scored(), **spaces}


def smollm2() -> Tokenizer | None:
    """The tokenizer of the published model, where its package is installed."""
    from glinfer.formats import find_model

    try:
        return Tokenizer.from_file(find_model("smollm2"))
    except Exception:
        return None


def all_tokenizers() -> Iterator[tuple[str, Tokenizer]]:
    folder = Path("/nowhere/tokenizer.json")
    for name, make in hugging_face().items():
        yield name, Tokenizer(of_library(make(), folder))
    for name, metadata in gguf_files().items():
        yield f"gguf {name}", Tokenizer(gguf_tokenizer(metadata, name))
    found = smollm2()
    if found is not None:
        yield "smollm2", found


def words_of(library: tokenizers.Tokenizer, text: str) -> list[str]:
    """A text as normalizer and pre-tokenizer leave it to the model, whether its vocabulary shows the cuts or not."""
    changed = text if library.normalizer is None else library.normalizer.normalize_str(text)
    if library.pre_tokenizer is None:
        return [changed] if changed else []
    return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(changed)]


def of_tokenizer(tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    """A site's tokenizer.json, and texts with their words, their ids in each way, and what those decode to."""
    names = list(tokenizer.control_tokens)[:4]
    cases = []
    chance = random.Random(5)
    library = tokenizers.Tokenizer.from_str(tokenizer.library_json())
    texts = list(written_texts(count, names))
    for place, text in enumerate(texts):
        plain = tokenizer.encode(text, allow_special=False)
        mixed = [text, tokenizer.control_tokens[names[0]], texts[place - 1]] if names and place % 3 == 0 else []
        ids = chance.choices(range(tokenizer.vocab_size), k=8)
        cases.append(
            {
                "text": text,
                "words": words_of(library, text),
                "whole": tokenizer.encode(text),
                "plain": plain,
                "decoded": tokenizer.decode(plain),
                "mixed": mixed,
                "mixed_ids": tokenizer.encode_mixed(mixed),
                "ids": ids,
                "ids_decoded": tokenizer.decode(ids),
            }
        )
    return {"entry": library_entry(tokenizer), "cases": cases}


# ---- Templates

TEMPLATES = {
    **given.TEMPLATES,
    # Those of published models, shortened where they tell of tools, and one with much of the language.
    **{file.stem: file.read_text("utf-8") for file in sorted(Path(__file__).with_name("templates").glob("*.jinja"))},
}
NAMES = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<think>", "</think>"),
)


def chat_tokenizer() -> Tokenizer:
    """A tokenizer with the control tokens of all of them, one of which takes the spaces before it."""
    library = given.byte_level("<|endoftext|>", *NAMES[:-1])
    library.add_special_tokens([AddedToken("</think>", lstrip=True, rstrip=True, special=True)])
    return Tokenizer(of_library(library, Path("/nowhere/tokenizer.json")))


def conversations(count: int) -> Iterator[list[dict[str, str]]]:
    chance = random.Random(3)
    texts = list(written_texts(2 * count, list(NAMES), characters="\x85\x1c \ufeff a \ufeff \x1f"))
    for number in range(count):
        roles = ["user", "assistant"] * chance.randint(0, 3) + ["user"]
        if number % 10 == 9:
            chance.shuffle(roles)
        first = ["system"] * (number % 3 == 0)
        made = [{"role": role, "content": chance.choice(texts)} for role in (*first, *roles)]
        for message in made:
            if message["role"] == "assistant" and chance.random() < 0.4:
                message["content"] = f"<think>\n{chance.choice(texts)}\n</think>\n\n{message['content']}"
        yield made


def of_template(tokenizer: Tokenizer, source: str, count: int) -> dict[str, Any]:
    """The form as ``plan.json`` has it, and conversations with their texts and ids; null where they are refused."""
    template = JinjaTemplate(source, given.TOKENS, "m")
    cases = []
    for messages in conversations(count):
        try:
            cases.append(
                {"messages": messages, "text": template.render(messages), "ids": template.ids(tokenizer, messages)}
            )
        except InputError:
            cases.append({"messages": messages, "text": None, "ids": None})
    return {"chat": template_entry(template, tokenizer, [2]), "cases": cases}


template_worker.compiled = cache(template_worker.compiled)  # type: ignore[assignment]


def render_here(_: JinjaTemplate, request: dict[str, Any]) -> dict[str, Any]:
    """Render in this process; the test of the process has others."""
    return template_worker.answer(request)


def main() -> None:
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    texts, talks = map(int, sys.argv[1:])
    templates.JinjaTemplate._answer = render_here  # type: ignore[method-assign,assignment]
    tokenizer = chat_tokenizer()
    found = {
        "tokenizers": {name: of_tokenizer(each, texts) for name, each in all_tokenizers()},
        "tokenizer": library_entry(tokenizer),
        "templates": {name: of_template(tokenizer, source, talks) for name, source in TEMPLATES.items()},
    }
    sys.stdout.write(json.dumps(found, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()
