"""``glinfer chat`` with piped standard input: turns, slash commands, forging, a full context, every way to leave."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
from scripted_models import scripted
from template_models import write_other
from worker_here import answered_here

from glinfer.cli.app import run
from glinfer.engine.random_model import demo_tokenizer
from glinfer.engine.run.cached import CachedSession
from glinfer.formats import save_checkpoint, write_bpe
from glinfer.text.tokenizer import Tokenizer, learn_bpe

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
WORDS = Tokenizer(demo_tokenizer(300))
USER, END, ASSISTANT, THINK = (WORDS.control_tokens[f"<|{name}|>"] for name in ("user", "end", "assistant", "think"))


def plain(text: str) -> list[int]:
    return WORDS.encode(text, allow_special=False)


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Callable[..., tuple[int, str, str]]:
    """A function that pipes text (or bytes) into ``glinfer chat``; returns exit status, output and errors."""

    def talk(typed: str | bytes, *arguments: str | Path) -> tuple[int, str, str]:
        data = typed.encode() if isinstance(typed, str) else typed
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        status = run(["chat", *map(str, arguments)])
        said = capsys.readouterr()
        return status, said.out, said.err

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
    path = folder / "script.gab"
    tokens = [script.get(position, ord(".")) for position in range(64)]
    save_checkpoint(scripted(tokens, vocab=300), path)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    return path


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


def test_a_reply_ends_at_max_tokens(tmp_path: Path, chat: Any) -> None:
    path = write_script(tmp_path, [("hi", [*b"hello", END])])
    assert chat("hi\n", path, "--max-tokens", "3")[1] == "hel\n"


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
        "/seed 5": "seed is 5",
        "/seed NONE": "every reply uses a new seed",
        "/think": "thinking is on",
    }
    bad = {
        "/temperature": "temperature is ''; expected a number",
        "/temperature hot": "temperature is 'hot'; expected a number",
        "/temperature nan": "temperature is nan; expected a finite number",
        "/temperature -1": "temperature is -1.0; expected a finite number",
        "/top-k 1.5": "top_k is '1.5'; expected a whole number",
        "/top-k -2": "top_k is -2; expected a whole number, 0 or -1 (off) or more",
        "/top-p 2": "top_p is 2.0; expected a number from 0 to 1",
        "/seed -1": "seed is -1; expected a whole number",
        "/seed x": "seed is 'x'; expected a whole number",
        "/nonsense": "unknown command /nonsense; /help lists all commands",
        "/": "unknown command /; /help lists all commands",
        "/Reset": "unknown command /Reset; did you mean /reset? /help lists all commands",
        "/exit": "unknown command /exit; did you mean /quit? /help lists all commands",
    }
    status, out, err = chat("\n".join(good), small)
    assert (status, err) == (0, "")
    for said, answer in zip(out.splitlines(), good.values(), strict=True):
        assert said.startswith(f"  {answer}")
    status, out, err = chat("\n".join(bad), small)
    assert (status, out) == (2, "")
    for said, answer in zip(err.splitlines(), bad.values(), strict=True):
        assert said.startswith(f"glinfer: {answer}")
    assert prompts == []


def test_help_lists_every_command(small: Path, chat: Any) -> None:
    _, out, _ = chat("/help\n", small)
    for name in ("/help", "/reset", "/temperature", "/top-k", "/top-p", "/seed", "/think", "/quit"):
        assert f"\n  {name} " in f"\n{out}"


def test_settings_change_the_replies_that_follow(small: Path, chat: Any) -> None:
    greedy = ["--temperature", "0", "--max-tokens", "6"]
    reply = chat("hi\n", small, *greedy)[1]
    _, out, _ = chat("/temperature 0\nhi\n/reset\nhi\n", small, "--max-tokens", "6")
    assert out == f"  temperature is 0.0\n{reply}  conversation cleared\n{reply}"
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
    assert all(len(prompt) + 8 <= 64 for prompt in prompts)
    assert len(prompts) == 6
    for prompt, message in zip(prompts, messages, strict=True):
        assert WORDS.decode(prompt).endswith(f"<|user|>{message}<|end|><|assistant|>")
    assert not WORDS.decode(prompts[-1]).startswith(f"<|user|>{messages[0]}")


def test_a_message_that_alone_is_too_long_is_refused_and_the_talk_goes_on(
    small: Path, chat: Any, prompts: list[list[int]]
) -> None:
    status, out, err = chat("x" * 200 + "\nhi\n", small, "--max-tokens", "3", "--temperature", "0")
    assert status == 2
    assert err.startswith("glinfer: the message takes 203 tokens and 3 are reserved for the reply, but the context ")
    assert out.count("\n") == 1, "the reply to the other message"
    assert len(prompts) == 1


def test_quit_and_the_end_of_the_input_leave(tmp_path: Path, chat: Any, prompts: list[list[int]]) -> None:
    path = write_script(tmp_path, [("hi", [*b"hello", END])])
    for ending in ("\n/quit\nnever\n", "\n  /quit  \nnever\n", "\n/quit now\nnever\n", "", "\n\n   \n"):
        assert chat("hi" + ending, path) == (0, "hello\n", ""), ending
    assert len(prompts) == 5


def test_input_that_is_no_utf8_is_one_line(small: Path, chat: Any) -> None:
    status, _, err = chat(b"caf\xe9\n", small)
    assert status == 2
    assert err == "glinfer: standard input is not UTF-8 (byte 3); expected text\n"


def test_a_tokenizer_without_control_tokens_cannot_chat(bare: Path, tmp_path: Path, chat: Any) -> None:
    path = Path(shutil.copy(bare, tmp_path / "m.gab"))
    write_bpe(learn_bpe(topics.values(), 300), tmp_path / "m.bpe")
    status, out, err = chat("hi\n", path)
    assert (status, out) == (2, "")
    assert err.startswith("glinfer: this model cannot chat: it has no chat template (chat_template.jinja, or ")
    assert err.endswith(", and its tokenizer no <|user|> token; use generate\n")
    write_bpe(learn_bpe(topics.values(), 300, ("<|end|>", "<|user|>", "<|assistant|>")), tmp_path / "m.bpe")
    refusal = "glinfer: this tokenizer has no <|think|> token; chat without thinking\n"
    assert chat("hi\n", path, "--think") == chat("/think\n", path) == (2, "", refusal)


def test_the_form_of_gab_has_no_place_for_a_system_prompt(small: Path, chat: Any) -> None:
    status, out, err = chat("hi\n", small, "--system", "Be kind.")
    assert (status, out) == (2, "")
    assert err == "glinfer: this model's chat form has no place for a system prompt; leave it out\n"


# ---- a model with a Jinja template


@pytest.mark.slow
def test_a_reply_that_was_cut_goes_on(tmp_path: Path, chat: Any) -> None:
    path = write_script(tmp_path, [("hi", [*b"hello", END])])
    assert chat("hi\n/continue\n/continue\n", path, "--max-tokens", "2") == (0, "he\nll\no\n", "")
    status, _, err = chat("/continue\n", path)
    assert (status, err) == (2, "glinfer: there is no reply yet; send a message first\n")


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


def test_turns_in_the_form_of_a_template(tmp_path: Path, chat: Any, prompts: list[list[int]]) -> None:
    message = " x<|im_end|> é"
    first = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    second = f"{first}hello<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
    _, words = write_other(tmp_path, {})
    opening = words.encode(first)
    path, _ = write_other(tmp_path, {len(opening) - 1: "hello"})
    talk = chat(f"hi\n{message}\n", path, "--system", "Be kind.", "--max-tokens", "7")
    said = "abcdefghijklmnopqrstuvwx"[(len(prompts[1]) - 1) % 24 :][:1]
    assert (talk[0], talk[2]) == (0, "")
    assert talk[1].startswith(f"hello\n{said}")
    assert prompts[0] == opening
    assert words.decode(prompts[1]) == second
    assert prompts[1].count(words.special_id("<|im_end|>")) == 4, "and the message's own is text"
