"""``glinfer chat``: turns, slash commands, saved talks, messages of several lines, a full context, ways to leave."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import Terminal, pipe
from scripted_models import scripted
from template_models import write_other
from worker_here import answered_here

from glinfer.cli.app import run
from glinfer.engine.random_model import demo_tokenizer
from glinfer.engine.run.cached import CachedSession
from glinfer.formats import save_checkpoint, write_bpe
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
Talk = Callable[..., str]
WORDS = Tokenizer(demo_tokenizer(300))
USER, END, ASSISTANT, THINK = (WORDS.control_tokens[f"<|{name}|>"] for name in ("user", "end", "assistant", "think"))


def plain(text: str) -> list[int]:
    return WORDS.encode(text, allow_special=False)


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Callable[..., tuple[int, str, str]]:
    """A function that pipes text (or bytes) into ``glinfer chat``; returns exit status, output and errors."""

    def talk(typed: str | bytes, *arguments: str | Path) -> tuple[int, str, str]:
        pipe(monkeypatch, typed)
        status = run(["chat", *map(str, arguments)])
        return status, *capsys.readouterr()

    return talk


@pytest.fixture
def piped(chat: Any, speaker: Path) -> Talk:
    """Pipe lines into a chat with the speaker; returns what it says."""

    def talk(typed: str, *options: str) -> str:
        status, out, _ = chat(typed, speaker, "-t", "0", *options)
        assert status == 0
        return str(out)

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

        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("builtins.input", answer)
        assert run(["chat", "-m", str(speaker), "-t", "0", *options]) == status
        return "".join(capsys.readouterr())

    return talk


def write_script(folder: Path, turns: Sequence[tuple[str, list[int]]], *, think: bool = False) -> Path:
    """A model with its tokenizer that answers these messages, in this order, with exactly these tokens."""
    script: dict[int, int] = {}
    length = 0
    for message, reply in turns:
        length += len([USER, *plain(message), END, ASSISTANT])
        script.update({length - 1 + place: token for place, token in enumerate(reply)})
        if not think:
            length += len(reply)  # the reply's own end token is in it, as in the next prompt
    path = folder / "speaker.gab"
    save_checkpoint(scripted([script.get(position, ord(".")) for position in range(64)], vocab=300), path)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    return path


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers a first "hi" with "yes"."""
    return write_script(tmp_path_factory.mktemp("speaker"), [("hi", [*b"yes", END])])


def texts(prompts: list[list[int]]) -> list[str]:
    return [WORDS.decode(prompt) for prompt in prompts]


FIRST = "<|user|>hi<|end|><|assistant|>"


def test_two_turns_in_the_template_of_gab(tmp_path: Path, chat: Any, prompts: list[list[int]]) -> None:
    first, second = [*b"hello", END], [*"é!".encode(), END]
    path = write_script(tmp_path, [("hi", first), ("again", second)])
    assert chat("hi\nagain\n", path) == (0, "hello\né!\n", "")
    opening = [USER, *plain("hi"), END, ASSISTANT]
    assert prompts == [opening, [*opening, *first, USER, *plain("again"), END, ASSISTANT]]


def test_a_reply_ends_also_where_the_model_would_speak_for_the_user(
    tmp_path: Path, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[list[int]] = []
    generate_ids = CachedSession.generate_ids

    def spy(self: CachedSession, *given: Any) -> list[int]:
        chosen.append(generate_ids(self, *given))
        return chosen[-1]

    monkeypatch.setattr(CachedSession, "generate_ids", spy)
    path = write_script(tmp_path, [("hi", [*b"yes", USER, *b"no"])])
    assert chat("hi\n", path)[1] == "yes\n"
    assert chosen == [[ord("y")], [ord("e")], [ord("s")], [USER]], "the model stops there, and is not only not shown"


def test_thinking_and_answer_come_on_lines_of_their_own(tmp_path: Path, chat: Any, prompts: list[list[int]]) -> None:
    path = write_script(tmp_path, [("hi", [*b"hm", ASSISTANT, *b"yes", END])], think=True)
    assert chat("hi\n", path, "--think") == (0, "hm\nyes\n", "")
    assert chat("/think\nhi\n", path)[1] == "  thinking is on\nhm\nyes\n"
    assert prompts == [[USER, *plain("hi"), END, THINK]] * 2
    chat("/think\n/think\nhi\n", path)
    assert prompts[2] == [USER, *plain("hi"), END, ASSISTANT]


def test_slash_commands_good_and_bad_answer_on_one_line(small: Path, chat: Any, prompts: list[list[int]]) -> None:
    good = {
        "/reset": "conversation cleared",
        "/temperature 0": "temperature is 0.0",
        "  /temperature   2  ": "temperature is 2.0",
        "/top-k 5": "top_k is 5",
        "/top-p 0.9": "top_p is 0.9",
        "/min-p 0.5": "min_p is 0.5",
        "/max-tokens 2": "max_tokens is 2",
        "/seed 5": "seed is 5",
        "/seed NONE": "every reply uses a new seed",
        "/system": "no system prompt",
        "/system none": "system prompt removed",
        "/think": "thinking is on",
    }
    bad = {
        "/temperature": "temperature is ''; expected a number",
        "/temperature hot": "temperature is 'hot'; expected a number",
        "/temperature nan": "temperature is nan; expected a finite number",
        "/top-k 1.5": "top_k is '1.5'; expected an integer",
        "/max-tokens 0": "max_tokens is 0; expected an integer of at least 1",
        "/max-tokens x": "max_tokens is 'x'; expected an integer",
        "/seed -1": "seed is -1; expected an integer",
        "/system Be kind.": "this model's chat form does not support a system prompt",
        "/regen": "there is no reply yet; send a message first",
        "/continue": "there is no reply yet; send a message first",
        "/save": "/save needs a file name",
        "/load": "/load needs a file name",
        "/nonsense": "unknown command /nonsense; /help lists all commands",
        "/": "unknown command /; /help lists all commands",
        "/Reset": "unknown command /Reset; did you mean /reset? /help lists all commands",
        "/exit": "unknown command /exit; did you mean /quit? /help lists all commands",
    }
    status, out, err = chat("\n".join(good), small)
    assert (status, err) == (0, "")
    for said, answer in zip(out.splitlines(), good.values(), strict=True):
        assert said == f"  {answer}"
    status, out, err = chat("\n".join(bad), small)
    assert (status, out) == (2, "")
    for said, answer in zip(err.splitlines(), bad.values(), strict=True):
        assert said.startswith(f"glinfer: {answer}")
    assert prompts == []
    _, out, _ = chat("/help\n", small)
    assert [
        name for name in ("/help", *(line.split()[0] for line in good), "/quit") if f"\n  {name} " not in f"\n{out}"
    ] == []


def test_settings_change_the_replies_that_follow(small: Path, chat: Any) -> None:
    greedy = ["--temperature", "0", "--max-tokens", "6"]
    reply = chat("hi\n", small, *greedy)[1]
    _, out, _ = chat("/temperature 0\n/max-tokens 6\nhi\n/reset\nhi\n", small)
    assert out == f"  temperature is 0.0\n  max_tokens is 6\n{reply}  conversation cleared\n{reply}"
    seeded = chat("hi\n", small, "--seed", "5", "--max-tokens", "6")[1]
    assert chat("/seed 5\nhi\n", small, "--max-tokens", "6")[1] == f"  seed is 5\n{seeded}"
    assert seeded != reply
    assert chat("/temperature -3\nhi\n", small, *greedy)[:2] == (2, reply), "a bad one leaves the old one"


def test_the_oldest_turns_are_left_out_when_the_context_is_full(
    small: Path, chat: Any, prompts: list[list[int]]
) -> None:
    messages = [f"number {turn} of them" for turn in range(6)]
    status, out, err = chat("\n".join(messages) + "\n", small, "--max-tokens", "8", "--seed", "1")
    assert (status, err) == (0, "")
    assert "  (context full: dropped the oldest turn)\n" in out
    for text, message in zip(texts(prompts), messages, strict=True):
        assert text.endswith(f"<|user|>{message}<|end|><|assistant|>")


def test_a_message_that_alone_is_too_long_is_refused_and_the_talk_goes_on(
    small: Path, chat: Any, prompts: list[list[int]]
) -> None:
    status, out, err = chat("x" * 200 + "\nhi\n", small, "--max-tokens", "3", "--temperature", "0")
    assert status == 2
    assert err.startswith("glinfer: the message takes 203 tokens and the reply at least 3, but the context ")
    assert out.count("\n") == 1, "the reply to the other message"
    assert len(prompts) == 1


def test_quit_and_the_end_of_the_input_leave(speaker: Path, chat: Any, prompts: list[list[int]]) -> None:
    for ending in ("\n/quit\nnever\n", "\n  /quit  \nnever\n", "\n/quit now\nnever\n", "", "\n\n   \n"):
        assert chat("hi" + ending, speaker) == (0, "yes\n", ""), ending
    assert len(prompts) == 5


def test_input_that_is_no_utf8_is_one_line(small: Path, chat: Any) -> None:
    words = "glinfer: standard input is not UTF-8 (byte 3); expected text; save it as UTF-8\n"
    assert chat(b"caf\xe9\n", small) == (2, "", words)


@pytest.mark.slow
def test_a_reply_that_was_cut_goes_on(tmp_path: Path, chat: Any) -> None:
    path = write_script(tmp_path, [("hi", [*b"hello", END])])
    assert chat("hi\n/continue\n/continue\n", path, "--max-tokens", "2") == (0, "he\nll\no\n", "")


def test_arguments_of_a_template(
    tmp_path: Path, chat: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glinfer.text.templates.answer_of", answered_here)
    path, words = write_other(tmp_path, {}, "{{ '+' if on else '-' }}{{ note }}{{ messages[0].content }}")
    assert chat("hi\n", path, "--max-tokens", "1", "--template-arg", "on=false", "--template-arg", "note=[é")[0] == 0
    assert words.decode(prompts[0]) == "-[éhi"
    for given, said in (
        ("on", "NAME=VALUE"),
        ("=1", "NAME=VALUE"),
        ("off=1", "has no argument 'off'; expected note, on"),
    ):
        status, _, err = chat("hi\n", path, "--template-arg", given)
        assert status == 2
        assert said in err


# Saved talks, other replies, messages of several lines, and terminals


def test_a_talk_is_saved_and_goes_on(piped: Talk, prompts: list[list[int]], tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    assert piped(f"hi\n/save {file}\n") == f"yes\n  saved 2 messages to {file}\n"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    saved = json.loads(file.read_text())
    assert saved == {"format": "glinfer-chat", "version": 1, "model": "speaker", "messages": messages}
    assert piped(f"/load {file}\nmore\n", "-n", "1").startswith(f"  loaded 2 messages from {file}\n")
    assert texts(prompts)[-1] == f"{FIRST}yes<|end|><|user|>more<|end|><|assistant|>"
    piped(f"/load {file}\n/reset\n/save {file}\n")
    assert json.loads(file.read_text())["messages"] == []
    assert list(tmp_path.glob(".glinfer-*")) == []


def test_a_file_that_is_no_talk_is_one_line_and_changes_nothing(
    typed: Talk, prompts: list[list[int]], tmp_path: Path
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
        f'{{"format": "glinfer-chat", "messages": [{system}, {said}, {reply}]}}': "does not support a system prompt",
    }
    files = [tmp_path / f"bad{number}.json" for number in range(len(bad))]
    for file, content in zip(files, bad, strict=True):
        if content is not None:
            file.write_text(content)
    out = typed("hi", *(f"/load {file}" for file in files), "more", options=("-n", "4"))
    for file, words in zip(files, bad.values(), strict=True):
        (line,) = (line for line in out.splitlines() if str(file) in line)
        assert words in line
    assert texts(prompts)[-1].startswith(f"{FIRST}yes<|end|>")


def test_a_file_of_something_else_is_not_replaced(typed: Talk, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    out = typed("hi", f"/save {file}", f"/save {tmp_path / 'nowhere' / 'x.json'}")
    assert file.read_text() == "mine"
    assert "found no JSON" in out
    assert "cannot write it" in out


def test_another_reply_to_the_same_message(piped: Talk, prompts: list[list[int]]) -> None:
    assert piped("hi\n/regen\nmore\n", "-n", "4").startswith("yes\nyes\n")
    assert texts(prompts) == [FIRST, FIRST, f"{FIRST}yes<|end|><|user|>more<|end|><|assistant|>"]


def test_messages_of_several_lines(piped: Talk, prompts: list[list[int]]) -> None:
    piped('a\\\nb\\\n\\\nc\n"""x\n/help\n\ny"""\n"""\none\n"""\n"""z"""\nlast\\\n', "-n", "1")
    said = [prompt.rpartition("<|user|>")[2].partition("<|end|>")[0] for prompt in texts(prompts)]
    assert said == ["a\nb\n\nc", "x\n/help\n\ny", "one\n", "z", "last"]


def test_a_terminal_gets_a_header_marks_and_counts(typed: Talk) -> None:
    out = typed("hi", "/max-tokens 2", "/reset", "hi", "/max-tokens 99", "a" * 20)
    assert out.startswith("speaker · gab · context 64 tokens · OpenGL ES ")
    assert out.splitlines()[1] == "Type a message, /help for commands, /quit to leave."
    assert "yes\n  9 draws/token · 4 tokens · " in out
    assert "ye\n  [stopped at 2 tokens; /max-tokens changes the limit]\n" in out
    assert "\n  [stopped: the context of 64 tokens is full; /reset clears it]\n" in out
    assert out.count("OpenGL") == 1, "the renderer is in the header alone"


def test_ctrl_c_clears_the_line_first_and_then_leaves(typed: Talk, prompts: list[list[int]]) -> None:
    out = typed("a\\", KeyboardInterrupt, "hi", KeyboardInterrupt, "/help", KeyboardInterrupt, EOFError)
    assert out.count("(to leave, press Ctrl-C again or Ctrl-D, or type /quit)") == 3
    assert texts(prompts) == [FIRST], "what was on the line is gone"
    typed(KeyboardInterrupt, KeyboardInterrupt, "hi", status=130)
    typed('"""a', KeyboardInterrupt, KeyboardInterrupt, "hi", status=130)
    assert len(prompts) == 1


def test_ctrl_c_during_a_reply_is_marked_and_the_talk_goes_on(
    typed: Talk, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
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
    assert texts(prompts)[1].startswith(f"{FIRST}y")
