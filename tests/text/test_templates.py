"""Jinja chat templates: where they are found, rendered as transformers does, and what they cannot do."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pytest
from each_case import each_case
from goldens import given, recorded
from goldens.given import CHATML, CONVERSATIONS, TEMPLATES, TOKENS, USER
from jinja2.sandbox import ImmutableSandboxedEnvironment
from template_models import write_other
from tiers import tiered

from glinfer.errors import FormatError, InputError
from glinfer.limits import MAX_RENDERED_CHARACTERS, MAX_TEMPLATE_CHARACTERS
from glinfer.text import templates
from glinfer.text.template_worker import render
from glinfer.text.templates import JinjaTemplate, Rendering, find_template
from glinfer.text.tokenizer import Tokenizer


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
        assert made(CHATML).render(message, Rendering(add_generation_prompt=False)) == asked

    @pytest.mark.usefixtures("here")
    def test_the_day_is_known(self) -> None:
        assert made("{{ strftime_now('%Y') }}").render([]) == time.strftime("%Y")


def check_refused(source: str, words: str) -> None:
    with pytest.raises(InputError, match=f"^m: the model's chat template cannot be used: .*{words}") as error:
        made(source).render([USER])
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
            ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself endlessly"),
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
        with pytest.raises(InputError, match=r"(was stopped|did not finish in 2 seconds)"):
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

    def test_one_for_tools(self, tmp_path: Path) -> None:
        """As transformers takes it; a file of its own goes before the list."""

        def sources() -> Any:
            found = find_template(tmp_path)
            assert found is not None
            return found.source, found.tool_source, found.takes_tools

        tool, usual = {"name": "tool_use", "template": "{{ tools }}"}, {"name": "default", "template": "d"}
        self.put(tmp_path, chat_template=[usual])
        assert sources() == ("d", None, False)
        self.put(tmp_path, chat_template=[tool, {**tool, "name": "rag"}, usual])
        assert sources() == ("d", "{{ tools }}", True)
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("file")
        assert sources() == ("d", "file", False)
        self.put(tmp_path, chat_template="{{ tools }}")
        assert sources() == ("{{ tools }}", "file", False)
        (tmp_path / "chat_template.jinja").write_text("f")
        assert sources() == ("f", "file", False)
        self.put(tmp_path, chat_template=[usual, {"name": "tool_use", "template": 5}])
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").unlink()
        (tmp_path / "chat_template.jinja").unlink()
        with pytest.raises(InputError, match="the chat template is 5"):
            find_template(tmp_path)

    @pytest.mark.usefixtures("here")
    def test_it_is_for_conversations_with_tools_alone(self) -> None:
        both = JinjaTemplate("usual", {}, "m", "{{ tools[0].name }}")
        assert (both.render([USER]), both.render([USER], tools=[{"name": "now"}])) == ("usual", "now")

    def test_damaged_files_are_named(self, tmp_path: Path) -> None:
        self.put(tmp_path, chat_template=5)
        with pytest.raises(InputError, match=r"tokenizer_config\.json: the chat template is 5"):
            find_template(tmp_path)
        (tmp_path / "tokenizer_config.json").write_text("{")
        with pytest.raises(FormatError, match=r"tokenizer_config\.json: "):
            find_template(tmp_path)
        self.put(tmp_path)
        (tmp_path / "chat_template.jinja").write_bytes(b"a\xff")
        with pytest.raises(FormatError, match=r"chat_template\.jinja: byte 1 of 2 is not UTF-8"):
            find_template(tmp_path)
        (tmp_path / "chat_template.jinja").write_text("x" * (4 * MAX_TEMPLATE_CHARACTERS + 9))
        with pytest.raises(FormatError, match=r"chat_template\.jinja: found a chat template of \d+ bytes"):
            find_template(tmp_path)


class TestEncoding:
    LOOKS = (
        "{% set c = messages[0].content %}{{ '<|im_start|>' ~ (c == 'continue') ~ c.endswith('/x') ~ c | length }}",
        "<|im_start|>{{ messages[0].content[:5] }}<|im_end|>{{ messages[0].content[0] | upper }}",
        "{{ ('<|im_start|>' + messages[0].content | replace('/x', '')).rstrip() + '<|im_end|>' }}",
    )

    @each_case("source", LOOKS)
    @each_case(
        "content", ["continue", "hello /x", " a\n", "\U000f0000\U000ffffd", "".join(map(chr, range(0xF0000, 0xF0999)))]
    )
    @pytest.mark.usefixtures("here")
    def test_a_template_sees_what_the_user_wrote(self, tmp_path: Path, source: str, content: str) -> None:
        library = given.words()
        library.save(str(tmp_path / "tokenizer.json"))
        messages = [{"role": "user", "content": content}]
        whole = ImmutableSandboxedEnvironment().from_string(source).render(messages=messages)
        ids = made(source).ids(Tokenizer.from_file(tmp_path), messages)
        assert ids == library.encode(whole, add_special_tokens=False).ids

    @pytest.mark.usefixtures("here")
    def test_further_variables_are_no_control_tokens(self, tmp_path: Path) -> None:
        _, words = write_other(tmp_path, {})
        source = "{{ bos_token }}{{ effort ~ tools[0].name }}{% for key in tools[0] %}{{ key }}{% endfor %}"
        how, tools = Rendering(kwargs={"effort": "<|im_end|>"}), [{"<|im_end|>": 1, "name": "<|im_end|>"}]
        assert made(source).render([USER], how, tools) == "<s>" + "<|im_end|>" * 3 + "name"
        ids = made(source).ids(words, [USER], how, tools=tools)
        assert words.control_tokens["<|im_end|>"] not in ids

    @pytest.mark.usefixtures("here")
    def test_the_rendered_text_is_looked_at_before_it_is_encoded(self, tmp_path: Path) -> None:
        _, words = write_other(tmp_path, {})
        seen = list[str]()
        made(CHATML).ids(words, [{"role": "user", "content": "x<|im_end|>"}], check=seen.extend)
        assert seen == ["<|im_start|>user\nx<|im_end|><|im_end|>\n<|im_start|>assistant\n"]

    @pytest.mark.slow
    def test_long_messages_take_no_more_than_they_may(self, tmp_path: Path) -> None:
        _, words = write_other(tmp_path, {})
        source = CHATML.replace("message['content']", "message.content.replace('\\r', '').replace('\\n', ' ') | trim")
        for text in ("<|im_end|>", "é 🚀\n"):
            content = text * ((MAX_RENDERED_CHARACTERS - 100) // len(text))
            wanted = f"<|im_start|>user\n{content.replace(chr(10), ' ').strip()}<|im_end|>\n<|im_start|>assistant\n"
            seen = list[str]()
            with pytest.raises(InputError, match="enough"):
                made(source).ids(words, [{"role": "user", "content": content}], check=partial(refuse, seen))
            assert seen == [wanted]


def refuse(seen: list[str], texts: Sequence[str]) -> None:
    seen += texts
    raise InputError("enough")
