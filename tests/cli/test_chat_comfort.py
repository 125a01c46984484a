"""Comforts of ``glinfer chat``: saved talks, other replies, messages of several lines, marks where a reply was cut."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_models import scripted

from glinfer.cli.app import run
from glinfer.engine.model import Model
from glinfer.engine.random_model import demo_tokenizer
from glinfer.engine.run.cached import CachedSession
from glinfer.formats import save_checkpoint, write_bpe
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
Talk = Callable[..., str]
WORDS = Tokenizer(demo_tokenizer(300))
USER, END, ASSISTANT = (WORDS.control_tokens[f"<|{name}|>"] for name in ("user", "end", "assistant"))


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers a first "hi" with "yes", and everything else with what comes."""
    start = len([USER, *WORDS.encode("hi", allow_special=False), END, ASSISTANT]) - 1
    script = [ord("?")] * start + [*b"yes", END]
    path = tmp_path_factory.mktemp("speaker") / "speaker.gab"
    save_checkpoint(scripted(script, vocab=300), path)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    return path


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text of every prompt that a stream begins with."""
    seen: list[str] = []
    stream = Model.stream

    def spy(self: Model, prompt: Any, **options: Any) -> Any:
        seen.append(WORDS.decode(prompt))
        return stream(self, prompt, **options)

    monkeypatch.setattr(Model, "stream", spy)
    return seen


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, capsys: Capture, speaker: Path) -> Talk:
    """Pipe lines into a chat; returns what it says."""

    def talk(typed: str, *options: str) -> str:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode()), encoding="utf-8"))
        assert run(["chat", str(speaker), "-t", "0", *options]) == 0
        return capsys.readouterr().out

    return talk


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: Capture, speaker: Path) -> Talk:
    """Type lines, or raise errors, at a terminal; returns what the chat says."""

    def talk(*lines: str | type[BaseException], status: int = 0, options: tuple[str, ...] = ()) -> str:
        waiting: Iterator[str | type[BaseException]] = iter(lines)

        def answer(prompt: str = "") -> str:
            print(prompt, end="")
            line = next(waiting, EOFError)
            if not isinstance(line, str):
                raise line
            return line

        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("builtins.input", answer)
        assert run(["chat", "-m", str(speaker), "-t", "0", *options]) == status
        return "".join(capsys.readouterr())

    return talk


def test_a_talk_is_saved_and_goes_on(piped: Talk, prompts: list[str], tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    assert piped(f"hi\n/save {file}\n") == f"yes\n  saved 2 messages to {file}\n"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    saved = json.loads(file.read_text())
    assert saved == {"format": "glinfer-chat", "version": 1, "model": "speaker", "messages": messages}
    assert piped(f"/load {file}\nmore\n", "-n", "1").startswith(f"  loaded 2 messages from {file}\n")
    assert prompts[-1] == "<|user|>hi<|end|><|assistant|>yes<|end|><|user|>more<|end|><|assistant|>"
    piped(f"/load {file}\n/reset\n/save {file}\n")
    assert json.loads(file.read_text())["messages"] == []
    assert list(tmp_path.glob(".glinfer-*")) == []


def test_a_file_that_is_no_talk_is_one_line_and_changes_nothing(
    typed: Talk, prompts: list[str], tmp_path: Path
) -> None:
    said = '{"role": "user", "content": "x"}'
    reply = '{"role": "assistant", "content": "y"}'
    system = '{"role": "system", "content": "x"}'
    bad = {
        None: "cannot read it: No such file",
        "[]": "found a JSON list; expected an object",
        "{": "found no JSON",
        '{"messages": []}': "this is not a conversation saved by /save; give another file",
        '{"format": "glinfer-chat", "messages": 5}': "this is not a conversation saved by /save",
        '{"format": "glinfer-chat", "messages": [5]}': "message 0 is int; expected a mapping",
        f'{{"format": "glinfer-chat", "messages": [{said}]}}': "the last message is the user's",
        f'{{"format": "glinfer-chat", "messages": [{system}, {said}, {reply}]}}': "no place for a system prompt",
    }
    files = [tmp_path / f"bad{number}.json" for number in range(len(bad))]
    for file, content in zip(files, bad, strict=True):
        if content is not None:
            file.write_text(content)
    out = typed("hi", *(f"/load {file}" for file in files), "more", options=("-n", "4"))
    for file, words in zip(files, bad.values(), strict=True):
        (line,) = (line for line in out.splitlines() if str(file) in line)
        assert words in line
    assert prompts[-1].startswith("<|user|>hi<|end|><|assistant|>yes<|end|>")


def test_a_file_of_something_else_is_not_replaced(typed: Talk, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    out = typed("hi", f"/save {file}", f"/save {tmp_path / 'nowhere' / 'x.json'}", "/save", "/load")
    assert file.read_text() == "mine"
    for words in ("found no JSON", "cannot write it", "/save needs a file name", "/load needs a file name"):
        assert words in out


def test_another_reply_to_the_same_message(piped: Talk, prompts: list[str]) -> None:
    assert piped("hi\n/regen\nmore\n", "-n", "4").startswith("yes\nyes\n")
    assert prompts[0] == prompts[1] == "<|user|>hi<|end|><|assistant|>"
    assert prompts[2] == "<|user|>hi<|end|><|assistant|>yes<|end|><|user|>more<|end|><|assistant|>"


def test_messages_of_several_lines(piped: Talk, prompts: list[str]) -> None:
    piped('a\\\nb\\\n\\\nc\n"""x\n/help\n\ny"""\n"""\none\n"""\n"""z"""\nlast\\\n', "-n", "1")
    said = [prompt.rpartition("<|user|>")[2].partition("<|end|>")[0] for prompt in prompts]
    assert said == ["a\nb\n\nc", "x\n/help\n\ny", "one\n", "z", "last"]


def test_settings(piped: Talk, typed: Talk) -> None:
    system = "  no system prompt\n  system prompt removed\n"
    out = piped("/max-tokens 2\nhi\n/min-p 0.5\n/system\n/system none\n")
    assert out == f"  max_tokens is 2\nye\n  min_p is 0.5\n{system}"
    out = typed("/max-tokens 0", "/max-tokens x", "/system Be kind.", "/regen")
    assert "max_tokens is 0; expected a whole number of at least 1" in out
    assert "max_tokens is 'x'; expected a whole number" in out
    assert "this model's chat form has no place for a system prompt" in out
    assert "there is no reply yet; send a message first" in out


def test_a_terminal_gets_a_header_marks_and_counts(typed: Talk) -> None:
    out = typed("hi", "/max-tokens 2", "/reset", "hi", "/max-tokens 99", "a" * 20)
    assert out.startswith("speaker · gab · context 64 tokens · OpenGL ES ")
    assert out.splitlines()[1] == "Type a message, /help for commands, /quit to leave."
    assert "yes\n  9 draws/token · 4 tokens · " in out
    assert "ye\n  [stopped at 2 tokens; /max-tokens changes the limit]\n" in out
    assert "\n  [stopped: the context of 64 tokens is full; /reset clears it]\n" in out
    assert out.count("OpenGL") == 1, "the renderer is in the header alone"


def test_ctrl_c_clears_the_line_first_and_then_leaves(typed: Talk, prompts: list[str]) -> None:
    out = typed("a\\", KeyboardInterrupt, "hi", KeyboardInterrupt, "/help", KeyboardInterrupt, EOFError)
    assert out.count("(to leave, press Ctrl-C again or Ctrl-D, or type /quit)") == 3
    assert prompts == ["<|user|>hi<|end|><|assistant|>"], "what was on the line is gone"
    typed(KeyboardInterrupt, KeyboardInterrupt, "hi", status=130)
    typed('"""a', KeyboardInterrupt, KeyboardInterrupt, "hi", status=130)
    assert len(prompts) == 1


def test_ctrl_c_during_a_reply_is_marked_and_the_talk_goes_on(
    typed: Talk, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_ids, calls = CachedSession.generate_ids, []

    def interrupted(self: CachedSession, *given: Any) -> Any:
        calls.append(len(self))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generate_ids(self, *given)

    monkeypatch.setattr(CachedSession, "generate_ids", interrupted)
    out = typed("hi", "more", options=("-n", "4"))
    assert "y\n  [stopped]\n" in out
    assert len(prompts) == 2
    assert prompts[1].startswith("<|user|>hi<|end|><|assistant|>y")
