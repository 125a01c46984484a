"""``model.chat``, ``stream_chat`` and ``chat_session``: what goes to the model, what comes back, and why it ended."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted_models import BYTES, saying, scripted
from template_models import CHATML, write_other
from thinking import MARKS, TEMPLATES
from worker_here import answered_here

import glinfer
from glinfer.engine.chat import ChatPart, ChatReply
from glinfer.engine.model import Model
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import ContextError, InputError
from glinfer.formats import save_checkpoint, write_bpe
from glinfer.text import templates
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

WORDS = Tokenizer(demo_tokenizer(300))
USER, END, ASSISTANT = (WORDS.control_tokens[f"<|{name}|>"] for name in ("user", "end", "assistant"))
HELLO = [{"role": "user", "content": "hi"}]
TALK = [*HELLO, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "go"}]
SYSTEM = {"role": "system", "content": "Be kind."}


def turn(message: str, *reply: str) -> list[int]:
    """The ids of a turn in Gab's form, with its reply or up to where the model writes it."""
    ids = [USER, *WORDS.encode(message, allow_special=False), END, ASSISTANT]
    return [*ids, *WORDS.encode(reply[0], allow_special=False), END] if reply else ids


def speaker(folder: Path, replies: dict[int, Sequence[int]]) -> Path:
    """A model that gives these tokens after prompts of so many tokens, and full stops everywhere else."""
    script = {start - 1 + place: token for start, ids in replies.items() for place, token in enumerate(ids)}
    path = folder / "speaker.gab"
    save_checkpoint(scripted([script.get(place, ord(".")) for place in range(64)], vocab=300), path)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A model that answers a first "hi" with "héy" and its end token; it holds 64 tokens."""
    path = speaker(tmp_path_factory.mktemp("chat"), {len(turn("hi")): [*"héy".encode(), END]})
    with glinfer.load(path) as opened:
        yield opened


@pytest.fixture
def templates_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "answer_of", answered_here)


def test_a_reply_is_a_string_that_says_how_it_came_to_be(model: Model, prompts: list[list[int]]) -> None:
    reply = model.chat("hi")
    assert (reply, reply + "!", reply.finish_reason) == ("héy", "héy!", "stop")
    assert (reply.prompt_tokens, reply.tokens, reply.thinking) == (len(turn("hi")), 5, "")
    assert model.chat(HELLO) == reply
    assert prompts == [turn("hi")] * 2
    request = glinfer.BatchRequest(model.chat_ids("hi"), {"temperature": 0}, form=model.chat_form())
    assert [(each.text, each.stats.finish_reason) for each in model.batch([request])] == [("héy", "stop")]
    for other in (copy.deepcopy(reply), pickle.loads(pickle.dumps(reply))):
        assert isinstance(other, ChatReply)
        assert (other, other.finish_reason, other.tokens) == ("héy", "stop", 5)


def test_why_it_ended(model: Model) -> None:
    cases: list[tuple[dict[str, Any], str, str, int]] = [
        ({}, "héy", "stop", 5),
        ({"max_tokens": 4}, "héy", "length", 4),
        ({"max_tokens": 2}, "h\ufffd", "length", 2),
        ({"stop": "é"}, "h", "stop", 3),
        ({"stop": ["x", "y"]}, "hé", "stop", 4),
    ]
    for options, text, reason, tokens in cases:
        stream = model.stream_chat("hi", **options)
        pieces = list(stream)
        assert ("".join(pieces), stream.text, "" in pieces) == (text, text, False), options
        assert (stream.stats.finish_reason, stream.stats.tokens) == (reason, tokens)
        reply = model.chat("hi", **options)
        assert (reply, reply.finish_reason, reply.tokens) == (text, reason, tokens)


def test_a_full_context_ends_a_reply_and_drops_nothing(model: Model) -> None:
    message = "a" * 20
    reply = model.chat(message)
    assert (reply.finish_reason, reply.tokens) == ("context", 64 - len(turn(message)))
    assert reply.stats.dropped == 0
    assert model.chat(message, max_tokens=reply.tokens).finish_reason == "length"


def test_thoughts_come_apart_from_the_answer(tmp_path: Path) -> None:
    path = speaker(tmp_path, {len(turn("hi")): [*b"hm", ASSISTANT, *b"yes", END]})
    with glinfer.load(path) as model:
        reply = model.chat("hi", think=True)
        assert (reply, reply.thinking) == ("yes", "hm")
        stream = model.stream_chat("hi", think=True)
        parts = list(iter(stream.next_part, None))
        assert parts == [ChatPart("thinking", letter) for letter in "hm"] + [ChatPart("answer", x) for x in "yes"]
        assert model.chat("hi", think=True, stop="h") == "yes", "stop strings end answers, and no thoughts"


def test_thoughts_of_a_template_come_apart_too(tmp_path: Path) -> None:
    _, words = write_other(tmp_path, {}, added=MARKS)
    start = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    script = {len(words.encode(start)) - 1: "Hm.\n</think>\n\nYes."}
    path, _ = write_other(tmp_path, script, TEMPLATES["thinks"], added=MARKS)
    with glinfer.load(path) as model:
        reply = model.chat("hi", temperature=0)
        assert (reply, reply.thinking, reply.tokens) == ("Yes.", "Hm.", 12)
        with pytest.raises(InputError, match="chat template decides whether it thinks"):
            model.chat("hi", think=True)
        session = model.chat_session()
        stream = session.stream("hi", temperature=0)
        parts = list(iter(stream.next_part, None))
        assert "".join(part.text for part in parts if part.kind == "thinking") == "Hm."
        assert session.messages[-1]["content"] == "Yes."
        pytest.importorskip("llguidance", reason="llguidance is not installed")
        reply = model.chat("hi", choices=["ab", "cd"])
        assert (reply in ("ab", "cd"), reply.thinking) == (True, "")


REFUSED: list[tuple[Any, str]] = [
    ([], "there is no user message; expected at least one"),
    ([SYSTEM], "there is no user message"),
    ("", "the message is empty"),
    (None, "messages is NoneType; expected text, or a list of role and content"),
    (b"hi", "messages is bytes; expected text"),
    (HELLO[0], "messages is dict; expected text"),
    (["hi"], "message 0 is str; expected a mapping of role and content"),
    ([{"role": "user"}], "message 0 has no content"),
    ([{"content": "hi"}], "message 0 has no role"),
    ([{"role": "user", "content": ["hi"]}], "part 0 of message 0 is 'hi'; expected {'type': 'text'"),
    ([{"role": "tool", "content": "hi"}], "message 0 has the role 'tool'; expected system or user there"),
    ([*HELLO, *HELLO], "message 1 has the role 'user'; expected assistant there"),
    ([*HELLO, SYSTEM], "message 1 has the role 'system'; expected assistant there"),
    (TALK[:2], "the last message is the assistant's; expected the user's, to reply to"),
    ([{**HELLO[0], "tool_calls": []}], "message 0 has 'tool_calls'; expected only role and content"),
    ([{"role": "user", "content": "a\ud800"}], "half a surrogate pair"),
    ([SYSTEM, *HELLO], "this model's chat form does not support a system prompt"),
    ("ab" * 40, "the message takes .* tokens and the reply at least 1, but the context holds 64; shorten the message$"),
    ([*TALK[:2], {"role": "user", "content": "a" * 55}], "the messages take .* the context holds 64; leave the old"),
]


def test_messages_and_options_that_cannot_be_are_one_line(model: Model) -> None:
    before = model.bound.runs
    for messages, words in REFUSED:
        with pytest.raises(InputError, match=words):
            model.chat(messages)
    for message in (None, 5):
        with pytest.raises(InputError, match=f"the message is {type(message).__name__}; expected"):
            model.chat_session().send(message)  # type: ignore[arg-type]
    for options, words in (
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -1}, "temperature is -1"),
        ({"stop": 5}, "stop is int"),
        ({"stop": [""]}, "stop string 0 is empty"),
    ):
        for chat in (model.chat, model.stream_chat):
            with pytest.raises(InputError, match=words):
                chat("hi", **options)  # type: ignore[operator]
    assert model.bound.runs == before


def test_the_last_message_is_continued(model: Model, prompts: list[list[int]]) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "h"}]
    assert model.chat(begun, continue_final_message=True) == "éy"
    assert prompts == [[*turn("hi"), ord("h")]]
    for messages, words in ((HELLO, "not a text of the assistant's"), (TALK, "not a text of the assistant's")):
        with pytest.raises(InputError, match=words):
            model.chat(messages, continue_final_message=True)


@pytest.mark.usefixtures("templates_here")
def test_arguments_of_a_template(model: Model, tmp_path: Path, prompts: list[list[int]]) -> None:
    """In one call, and for all of a session's."""
    path, words = write_other(tmp_path, {}, "{{ note }}{{ n }}" + CHATML)
    with glinfer.load(path) as opened:
        opened.chat("hi", max_tokens=1, template_kwargs={"note": "é", "n": 2})
        session = opened.chat_session(template_kwargs={"n": 2}, system="Be kind.")
        session.send("hi", max_tokens=1)
        session.continue_reply(max_tokens=1).reply()
        session.system = ""
        session.regenerate(max_tokens=1).reply()
        wrong: tuple[tuple[Any, str], ...] = (
            ({"other": 1}, "has no argument 'other'; expected n, note$"), ({"n": {1}}, "expected a dict of names"),
            ({1: 1}, "has no argument '1'; expected n, note$"), (5, "template_kwargs is 5; expected a dict"),
        )  # fmt: skip
        for given, said in wrong:
            with pytest.raises(InputError, match=said):
                opened.chat("hi", template_kwargs=given)
    asked = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    system = "<|im_start|>system\nBe kind.<|im_end|>\n"
    reply = words.decode(prompts[2])[-1]
    assert list(map(words.decode, prompts)) == [
        f"é2{asked}",
        f"2{system}{asked}",
        f"2{system}{asked}{reply}",
        f"2{asked}",
    ]
    with pytest.raises(InputError, match="this model's chat form has no template; leave its arguments out"):
        model.chat("hi", template_kwargs={"n": 2})


def test_models_that_cannot_chat_say_why(bare: Path, tmp_path: Path) -> None:
    with glinfer.load(bare) as model, pytest.raises(InputError, match="no tokenizer was given"):
        model.chat("hi")
    save_checkpoint(saying([ord("?")], after=1), tmp_path / "bytes.gab")
    write_bpe(BYTES, tmp_path / "bytes.bpe")
    with glinfer.load(tmp_path / "bytes.gab") as model, pytest.raises(InputError, match="cannot chat"):
        model.chat("hi")
    with pytest.raises(ContextError, match="was closed"):
        model.chat("hi")


class TestSession:
    def test_it_remembers_its_turns(self, model: Model, prompts: list[list[int]]) -> None:
        session = model.chat_session()
        assert session.messages == []
        assert session.send("hi") == "héy"
        list(session.stream("go", max_tokens=2, temperature=0))
        assert prompts[1] == [*turn("hi"), *"héy".encode(), END, *turn("go")]
        talk = [*HELLO, ("assistant", "héy"), ("user", "go"), ("assistant", "..")]
        assert session.messages == [m if isinstance(m, dict) else {"role": m[0], "content": m[1]} for m in talk]

    def test_another_reply_takes_the_place_of_the_newest(self, model: Model, prompts: list[list[int]]) -> None:
        session = model.chat_session()
        with pytest.raises(InputError, match="there is no reply yet"):
            session.regenerate()
        session.send("hi")
        with pytest.raises(InputError, match="temperature is -1"):
            session.regenerate(temperature=-1)
        del prompts[1:]
        assert session.messages[1]["content"] == "héy", "a bad option takes nothing back"
        assert session.regenerate(max_tokens=1).reply() == "h"
        assert prompts == [turn("hi")] * 2
        assert [message["content"] for message in session.messages] == ["hi", "h"]

    def test_a_reply_that_was_cut_goes_on(self, model: Model, prompts: list[list[int]]) -> None:
        session = model.chat_session()
        with pytest.raises(InputError, match="there is no reply yet"):
            session.continue_reply()
        assert session.send("hi", max_tokens=2) == "h\ufffd"
        assert session.continue_reply().reply() == "\ufffdy"
        assert prompts == [turn("hi"), [*turn("hi"), *"hé".encode()[:2]]]
        assert session.messages == [*HELLO, {"role": "assistant", "content": "héy"}]
        session.send("go", max_tokens=1)
        assert prompts[2] == [*turn("hi"), *"héy".encode(), END, *turn("go")]

    def test_restored_it_goes_on_as_it_would_have(self, model: Model, prompts: list[list[int]]) -> None:
        session = model.chat_session()
        session.restore(TALK[:2])
        assert session.messages == TALK[:2]
        session.send("go", max_tokens=1)
        assert prompts == [[*turn("hi", "yes"), *turn("go")]]
        for bad in (TALK, [*HELLO, *HELLO], "hi", [SYSTEM, *TALK[:2]]):
            with pytest.raises(InputError):
                session.restore(bad)  # type: ignore[arg-type]
        assert len(session.messages) == 4
        session.reset()
        assert session.messages == []

    def test_a_stream_that_was_left_behind_changes_nothing(self, model: Model) -> None:
        session = model.chat_session()
        left = session.stream("go")
        next(left)
        assert session.send("hi") == "héy"
        left.close()
        assert [message["content"] for message in session.messages] == ["hi", "héy"]

    def test_a_closed_stream_is_remembered_as_far_as_it_came(self, model: Model) -> None:
        session = model.chat_session()
        ended: list[str] = []
        with session.stream("hi", on_end=lambda: ended.append("told")) as stream:
            assert next(stream) == "h"
        assert (stream.stats.finish_reason, ended) == ("closed", ["told"])
        assert [message["content"] for message in session.messages] == ["hi", "h"]

    def test_settings_that_the_form_does_not_know_are_refused(self, model: Model) -> None:
        session = model.chat_session()
        with pytest.raises(InputError, match="does not support a system prompt"):
            session.set_system("Be kind.")
        with pytest.raises(InputError, match="the system prompt is int"):
            model.chat_session(system=5)  # type: ignore[arg-type]
        session.set_think(True)
        assert (session.think, session.system) == (True, "")
