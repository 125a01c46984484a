"""The tokenizer of a second-generation Gab: its JSON read as its own script reads it, its chat form, bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.formats.gab.bpe import is_merges_json, read_merges_json
from glinfer.text.chat import find_chat, split_reply
from glinfer.text.conversation import Conversation
from glinfer.text.tokenizer import Tokenizer, find_tokenizer

# The order of the published file: longest first, which is not the order in which the merges make them.
RESERVED = ["<|assistant|>", "<|endoftext|>", "<|user|>", "</think>", "<|end|>", "<think>"]
MADE_FIRST = ["<|assistant|>", "<|end|>", "<|endoftext|>", "<|user|>", "<think>", "</think>"]
TEXTS = ["", "then the hen", "<|user|>hi<|end|><|assistant|>", "a<think>hen</think>\n", "<|endo", "日本 é", "<<|end|>>"]


def own_merges() -> list[list[int]]:
    """Merges as Gab's ``tokenizer.py`` makes them: each reserved text is encoded, and its pieces joined in a chain."""
    merges: list[list[int]] = []
    for text in [*MADE_FIRST, "he", "th", "the", "hen", " the"]:
        first, *rest = encoded(merges, text)
        for part in rest:
            merges.append([first, part])
            first = 255 + len(merges)
    return merges


def encoded(merges: list[list[int]], text: str) -> list[int]:
    """What Gab's ``tokenizer.py`` gives: every merge in turn, from left to right over the whole text."""
    ids = list(text.encode())
    for number, pair in enumerate(merges):
        done, place = [], 0
        while place < len(ids):
            both = ids[place : place + 2] == pair
            done.append(256 + number if both else ids[place])
            place += 1 + both
        ids = done
    return ids


MERGES = own_merges()


def write(folder: Path, values: Any = None) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"reserved": RESERVED, "merges": MERGES} if values is None else values), "utf-8")
    return path


def config(vocab: int, family: str = "gift_of_gab") -> ModelConfig:
    return ModelConfig.from_options(f"family={family},vocab={vocab},dim=8,heads=2,blocks=1,context=64")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_file(write(tmp_path))


@each_case("text", TEXTS)
def test_text_gets_the_ids_that_its_own_script_gives(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text) == encoded(MERGES, text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_is_reserved_are_the_control_tokens_and_text_forges_none(tokenizer: Tokenizer) -> None:
    assert set(tokenizer.control_tokens) == set(RESERVED)
    assert all([token] == encoded(MERGES, text) for text, token in tokenizer.control_tokens.items())
    for text in [*RESERVED, "".join(RESERVED)]:
        ids = tokenizer.encode(text, allow_special=False)
        assert not set(ids) & set(tokenizer.control_tokens.values())
        assert tokenizer.decode(ids) == text


def test_the_file_may_be_laid_out_otherwise(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "vocab"
    path.write_text(json.dumps({"merges": MERGES, "reserved": ["a", *RESERVED]}, indent=2), "utf-8")
    found = Tokenizer.from_file(path)
    assert found.encode(TEXTS[3]) == tokenizer.encode(TEXTS[3])
    assert found.control_tokens == tokenizer.control_tokens, "a single byte is not a control token"


def test_it_is_found_beside_a_manifest_and_in_its_directory(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.bpe").write_bytes(b"of another model")
    for path in (tmp_path / "model-q8.json", tmp_path):
        found, reason = find_tokenizer(path, None, config(256 + len(MERGES)))
        assert found is not None, reason
        assert found.encode("the hen") == encoded(MERGES, "the hen")
    found, reason = find_tokenizer(tmp_path, tmp_path / "tokenizer.json", config(256 + len(MERGES)))
    assert found is not None, reason
    with pytest.raises(InputError, match="they must be the pair"):
        find_tokenizer(tmp_path, tmp_path / "tokenizer.json", config(300))


def test_a_hugging_face_file_is_told_from_it(tmp_path: Path) -> None:
    path = write(tmp_path, {"version": "1.0", "reserved": [], "merges": []})
    assert not is_merges_json(path)


def test_chat_is_gabs_own_form(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}", "utf-8")
    form = find_chat(tmp_path / "model-q8.json", tokenizer, config(tokenizer.vocab_size))
    user, end, assistant = (tokenizer.control_tokens[text] for text in ("<|user|>", "<|end|>", "<|assistant|>"))
    hen = tokenizer.encode("hen")
    assert Conversation(form, 64).prompt("hen", reserve=1).ids == (user, *hen, end, assistant)
    assert set(form.stop_ids) == {end, user, tokenizer.control_tokens["<|endoftext|>"]}


def test_thinking_ends_with_its_own_token(tmp_path: Path, tokenizer: Tokenizer) -> None:
    form = find_chat(tmp_path, tokenizer, config(tokenizer.vocab_size))
    think, answer = tokenizer.control_tokens["<think>"], tokenizer.control_tokens["</think>"]
    conversation = Conversation(form, 64)
    prompt = conversation.prompt("hen", think=True, reserve=1).ids
    assert prompt[-2:] == (tokenizer.control_tokens["<|assistant|>"], think)
    reply = [104, 105, answer, 111, 107]
    assert split_reply(form, reply, think=True) == ((104, 105), (111, 107))
    assert conversation.add_reply([*reply, form.stop_ids[0]]).reply_ids == (111, 107)


def test_without_the_tokens_of_chat_it_says_so(tmp_path: Path) -> None:
    bare = Tokenizer.from_file(write(tmp_path, {"reserved": [], "merges": [[104, 101]]}))
    with pytest.raises(InputError, match=r"cannot chat: .*no <\|user\|> token"):
        find_chat(tmp_path, bare, config(257))


def doubling() -> list[list[int]]:
    return [[97, 97], *([number, number] for number in range(256, 300))]


@each_case(
    ("values", "said"),
    [
        ("cut", "found no JSON"),
        ({"reserved": []}, "merges is None; expected a list of pairs"),
        ({"reserved": "<|end|>", "merges": []}, "reserved is '<|end|>'; expected a list of texts"),
        ({"reserved": [], "merges": [[97]]}, "merge 0 is [97]; expected two ids"),
        ({"reserved": [], "merges": [[97, True]]}, "merge 0 is [97, True]"),
        ({"reserved": [], "merges": [[97, 98], [257, 97]]}, "merge 1 uses id 257; expected one made before it, 0 to"),
        ({"reserved": [], "merges": [[97, 10**400]]}, "merge 0 uses id 1000"),
        ({"reserved": [], "merges": [[97, 98], [97, 98]]}, "ids 256 and 257 are both b'ab'"),
        ({"reserved": ["<|end|>"], "merges": []}, "no merge makes the reserved text '<|end|>'"),
        ({"reserved": [], "merges": doubling()}, "bytes, which exceeds the limit of 4194304"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, values: Any, said: str) -> None:
    path = write(tmp_path, values)
    if values == "cut":
        path.write_text('{"merges": [[1, 2', "utf-8")
    for read in (read_merges_json, Tokenizer.from_file):
        with pytest.raises(FormatError) as caught:
            read(path)
        message = str(caught.value)
        assert message.startswith(str(path))
        assert said in message
        assert len(message) < 600
