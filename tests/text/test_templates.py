"""Jinja chat templates: where they are found, rendered as transformers does, and what they cannot do."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import jinja2
import pytest
from each_case import each_case
from goldens import recorded
from goldens.given import CHATML, CONVERSATIONS, TEMPLATES, TOKENS, USER
from template_models import write_other
from tiers import tiered

from glinfer.errors import FormatError, InputError
from glinfer.limits import MAX_TEMPLATE_CHARACTERS
from glinfer.text import templates
from glinfer.text.template_worker import render
from glinfer.text.templates import JinjaTemplate, find_template


def made(source: Any) -> JinjaTemplate:
    return JinjaTemplate(source, TOKENS, "m")


class TestRendering:
    @each_case("name", TEMPLATES)
    @each_case("conversation", CONVERSATIONS)
    def test_the_text_is_that_of_transformers(self, name: str, conversation: str) -> None:
        for opened, theirs in zip((True, False), recorded("templates")[name][conversation], strict=True):
            messages = CONVERSATIONS[conversation]
            variables = {**TOKENS, "add_generation_prompt": opened, "messages": messages, "tools": None}
            if isinstance(theirs, dict):
                with pytest.raises(getattr(jinja2, theirs["error"]), match=theirs["message"]):
                    render(TEMPLATES[name], variables, 10000)
                continue
            assert render(TEMPLATES[name], variables, 10000) == theirs
            assert "Hello" in theirs

    def test_it_is_the_same_in_a_process_of_its_own(self) -> None:
        messages = CONVERSATIONS["three"]
        variables = {**TOKENS, "messages": messages, "add_generation_prompt": True}
        assert made(CHATML).render(messages) == render(CHATML, variables, 10000)

    @pytest.mark.usefixtures("here")
    def test_the_opening_of_the_reply_may_be_left_out(self) -> None:
        asked = "<|im_start|>user\nHello<|im_end|>\n"
        message = [{"role": "user", "content": "Hello"}]
        assert made(CHATML).render(message) == asked + "<|im_start|>assistant\n"
        assert made(CHATML).render(message, add_generation_prompt=False) == asked

    @pytest.mark.usefixtures("here")
    def test_the_day_is_known(self) -> None:
        assert made("{{ strftime_now('%Y') }}").render([]) == time.strftime("%Y")


def check_refused(source: str, words: str) -> None:
    with pytest.raises(InputError, match=f"^m: the model's chat template cannot be used: .*{words}") as error:
        made(source).render([USER])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


class TestBadTemplates:
    @each_case(
        ("source", "words"),
        [
            ("{% if %}", r"Expected an expression, got 'end of statement block' \(line 1\)"),
            ("\n{{ oops", r"unexpected end of template.* \(line 2\)"),
            ("{{ nothing.x }}", "'nothing' is undefined"),
            ("{{ messages[5].content }}", "no element 5"),
            ("{{ messages + 1 }}", "can only concatenate list"),
            ("{{ raise_exception('no\nsuch role') }}", "no such role"),
            ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself without end"),
            ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
            ("{% for a in range(99999) %}{{ 'abcdefgh' * 99 }}{% endfor %}", "more than 4194304 characters"),
            ("{% include '/etc/hostname' %}", "no loader"),
            ("{% import 'os' as os %}", "no loader"),
            ("{% extends 'base' %}", "no loader"),
            ("{{ ''.__class__.__mro__ }}", "'__class__' of 'str' object is unsafe"),
            ("{{ cycler.__init__.__globals__.os.system('id') }}", "'__init__' of 'type' object is unsafe"),
            ("{{ (messages | attr('__class__')).__mro__ }}", "'__class__' of 'list' object is unsafe"),
            ("{{ '{0.__class__.__mro__}'.format(messages) }}", "'__class__' of 'list' object is unsafe"),
            ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ],
    )
    @pytest.mark.usefixtures("here")
    def test_they_are_one_line(self, source: str, words: str) -> None:
        check_refused(source, words)

    @tiered(
        "source, words",
        [
            ("{{ 'a' * 10**11 }}", "too much memory"),
            ("{{ 'a'.ljust(10**12) }}", "too much memory"),
            ("{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}", "nested too deep"),
            (
                "{% set n = namespace(x='a') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
                "too much mem",
            ),
        ],
    )
    def test_what_takes_too_much_is_stopped(self, monkeypatch: pytest.MonkeyPatch, source: str, words: str) -> None:
        monkeypatch.setattr(templates, "MAX_RENDER_BYTES", 1 << 28)
        check_refused(source, words)

    def test_one_that_runs_for_ever_is_stopped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(templates, "MAX_RENDER_SECONDS", 1)
        endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        with pytest.raises(InputError, match=r"was (stopped|not done after 2 seconds)"):
            made(endless).render([USER])

    def test_what_is_no_text_or_far_too_long_is_refused(self) -> None:
        for source in (None, ["x"], {"default": "x"}):
            with pytest.raises(InputError, match=r"^m: the chat template is .*; expected the text of one"):
                made(source)
        with pytest.raises(InputError, match=f"has {MAX_TEMPLATE_CHARACTERS + 1} characters"):
            made("x" * (MAX_TEMPLATE_CHARACTERS + 1))

    @pytest.mark.usefixtures("here")
    def test_nothing_but_the_variables_is_there(self) -> None:
        assert made("{{ raise_exception.__globals__ }}{{ self.__class__ }}").render([USER]) == ""


class TestFinding:
    def put(self, folder: Path, name: str = "tokenizer_config.json", **values: Any) -> None:
        (folder / name).write_text(json.dumps(values))

    def test_a_text_in_the_configuration(self, tmp_path: Path) -> None:
        assert find_template(tmp_path) is None
        self.put(tmp_path, chat_template="x", bos_token="<s>", eos_token={"content": "</s>"}, pad_token=None, n=1)
        for path in (tmp_path, tmp_path / "config.json", tmp_path / "model.safetensors"):
            found = find_template(path)
            assert found is not None
            assert (found.source, found.tokens) == ("x", {"bos_token": "<s>", "eos_token": "</s>"})

    def test_one_of_several_by_name(self, tmp_path: Path) -> None:
        tool, usual = {"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}
        for listed, source in (([tool, usual], "d"), ([tool], "t")):
            self.put(tmp_path, chat_template=listed)
            found = find_template(tmp_path)
            assert found is not None
            assert found.source == source
        for bad in ([tool, {**tool, "name": "rag"}], [], [usual, usual], ["x"]):
            self.put(tmp_path, chat_template=bad)
            with pytest.raises(FormatError, match=r"tokenizer_config\.json: found chat templates .*'default'"):
                find_template(tmp_path)

    def test_files_of_its_own_go_before_it(self, tmp_path: Path) -> None:
        self.put(tmp_path, chat_template="c", eos_token="</s>")
        self.put(tmp_path, "chat_template.json", chat_template="j")
        for source in ("j", "f"):
            found = find_template(tmp_path)
            assert found is not None
            assert (found.source, found.tokens) == (source, {"eos_token": "</s>"})
            (tmp_path / "chat_template.jinja").write_text("f")

    def test_damaged_files_are_named(self, tmp_path: Path) -> None:
        self.put(tmp_path, chat_template=5)
        with pytest.raises(InputError, match=r"tokenizer_config\.json: the chat template is 5"):
            find_template(tmp_path)
        (tmp_path / "tokenizer_config.json").write_text("{")
        with pytest.raises(FormatError, match=r"tokenizer_config\.json: "):
            find_template(tmp_path)
        self.put(tmp_path)
        (tmp_path / "chat_template.jinja").write_bytes(b"a\xff")
        with pytest.raises(FormatError, match=r"chat_template\.jinja: found no UTF-8 at byte 1"):
            find_template(tmp_path)
        (tmp_path / "chat_template.jinja").write_text("x" * (4 * MAX_TEMPLATE_CHARACTERS + 9))
        with pytest.raises(InputError, match=r"chat_template\.jinja: the chat template has"):
            find_template(tmp_path)


class TestLongTexts:
    NAMES = re.compile(f"({'|'.join(map(re.escape, ['<|im_end|>', '<|im_start|>', '<|', 'aa']))})")

    def test_slices_find_what_a_whole_search_finds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        draw = random.Random(3)
        for size in (1, 2, 5, 50):
            monkeypatch.setattr(templates, "_SLICE", size)
            for _ in range(200):
                text = "".join(
                    draw.choices(["<|im_end|>", "<|im_start|>", "<|", "a", "x", "\n", "<"], k=draw.randrange(12))
                )
                found = [each.span() for each in templates._found(self.NAMES, text)]
                assert found == [each.span() for each in self.NAMES.finditer(text)]
                marked = re.sub(f"(?=({self.NAMES.pattern}))(.)", "\\g<0>^", text, flags=re.DOTALL)
                assert templates._split(text, "^", self.NAMES) == marked

    @pytest.mark.usefixtures("here")
    def test_a_message_of_all_marks(self, tmp_path: Path) -> None:
        """One character has to be left, to tell where a message ends."""
        _, words = write_other(tmp_path, {})
        encoder = templates.TemplateEncoder(made(CHATML), words)
        marks = [*map(chr, range(0xF0000, 0xFFFFE))]
        with pytest.raises(InputError, match=r"^the messages have every character from U\+F0000 to U\+FFFFD; leave"):
            encoder.ids([{"role": "user", "content": "".join(marks)}])
        with pytest.raises(InputError, match="every character"):
            encoder.ids([{"role": "user", "content": "x"}], tools=[{"a": ["".join(marks[:9])], "".join(marks[9:]): 1}])
        assert encoder.ids([{"role": "user", "content": "".join(marks[:-1])}])

    @pytest.mark.usefixtures("here")
    def test_the_rendered_text_is_looked_at_before_it_is_encoded(self, tmp_path: Path) -> None:
        _, words = write_other(tmp_path, {})
        seen = list[str]()
        templates.TemplateEncoder(made(CHATML), words).ids(
            [{"role": "user", "content": "x<|im_end|>"}], check=seen.extend
        )
        assert seen == ["<|im_start|>user\nx<|im_end|><|im_end|>\n<|im_start|>assistant\n"]
