"""What templates make of texts: exactly jinja2's text, and never a control token out of a message."""

from __future__ import annotations

import json
import os
import random
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

import jinja2.ext
import pytest
from each_case import each_case
from jinja2.filters import FILTERS
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glinfer.text.template_worker import compiled, own_of, parts_of, render, text_of

FOLDERS = (
    str(Path(__file__).with_name("published")),
    *filter(None, os.environ.get("GLINFER_TEMPLATES", "").split(os.pathsep)),
)
PUBLISHED = {file: file.read_text("utf-8") for folder in FOLDERS for file in sorted(Path(folder).rglob("*.jinja"))}
"""Chat templates in the structures that published models have them in, and those of folders that you name."""

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
MOST = 10**6


class Generation(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012 (jinja2 has it so)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def refuse(words: str) -> None:
    raise jinja2.TemplateError(words)


@cache
def peer() -> jinja2.Environment:
    """Jinja2 as transformers sets it up."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **how: json.dumps(
        value, ensure_ascii=ensure_ascii, **how
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": time.strftime}
    return environment


def of_both(source: str, **variables: Any) -> tuple[Any, Any, str]:
    """The text or the error of a template, here and in plain jinja2; and the text with its origins."""
    try:
        theirs: Any = peer().from_string(source).render(**{**TOKENS, **variables})
    except Exception as error:
        theirs = type(error), str(error)
    try:
        text = render(source, variables, MOST, TOKENS)
        return str.__str__(text), theirs, text
    except Exception as error:
        return (type(error), str(error)), theirs, ""


def own_part(text: str) -> str:
    """The characters that the template wrote, with ``·`` for each other."""
    return "".join(letter if own else "·" for letter, own in zip(str.__str__(text), own_of(text), strict=True))


# What a template can do with a text X and another one Y.

METHODS = {
    **{name: f"X.{name}()" for name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper", "isalnum")},
    **{name: f"X.{name}()" for name in ("isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower")},
    **{name: f"X.{name}()" for name in ("isnumeric", "isprintable", "isspace", "istitle", "isupper")},
    **{name: f"X.{name}(30, 'fo'[1])" for name in ("center", "ljust", "rjust")},
    **{name: f"X.{name}(Y)" for name in ("count", "endswith", "find", "index", "rfind", "rindex", "startswith")},
    **{name: f"X.{name}(Y[:2])" for name in ("removeprefix", "removesuffix")},
    **{name: f"X.{name}(Y[:1] or 'x') | join('/')" for name in ("partition", "rpartition")},
    "encode": "X.encode().decode()",
    "expandtabs": "X.expandtabs(3)",
    "format": "(X ~ '{}{a}{0!r:>9}').format(Y, a=Y)",
    "format_map": "(X ~ '{a}<|b|>').format_map({'a': Y})",
    "join": "X.join([Y, 'a', X])",
    "lstrip": "X.lstrip() ~ X.lstrip('<a' ~ Y)",
    "maketrans": "X.maketrans({'a': Y})",
    "replace": "X.replace(Y[:1], '<|n|>') ~ X.replace('a', Y, 1) ~ X.replace('', Y) ~ X.replace(Y, '', 0)",
    "rstrip": "X.rstrip() ~ X.rstrip('>a' ~ Y)",
    "rsplit": "X.rsplit() | join('/') ~ X.rsplit(Y[:1] or ' ', 1) | join('/') ~ X.rsplit(none, 1) | join('/')",
    "split": "X.split() | join('/') ~ X.split(sep='a', maxsplit=2) | join('/') ~ X.split(none, 1) | join('/')",
    "splitlines": "X.splitlines() | join('/') ~ X.splitlines(true) | join('/')",
    "strip": "X.strip() ~ X.strip('<>a')",
    "translate": "X.translate({97: 'b', 60: Y, 124: none})",
    "zfill": "X.zfill(20)",
}
IN_FILTERS = {
    **{name: f"X | {name}" for name in ("abs", "capitalize", "count", "d", "default", "e", "escape", "filesizeformat")},
    **{name: f"X | {name}" for name in ("first", "float", "forceescape", "int", "items", "last", "length", "list")},
    **{name: f"X | {name}" for name in ("lower", "max", "min", "pprint", "reverse", "round", "safe", "string")},
    **{name: f"X | {name}" for name in ("striptags", "sum", "title", "tojson", "trim", "upper", "urlencode")},
    **{name: f"X | {name}" for name in ("urlize", "wordcount")},
    "attr": "(X | attr('upper'))() ~ (X | attr(Y))",
    "batch": "X | batch(3, Y) | map('join') | join('/')",
    "center": "X | center(40)",
    "dictsort": "{X: Y, Y: 'a'} | dictsort | tojson",
    "format": "('%s|%s' ~ X) | format(Y, 'b') ~ ('<|b|>%s' | format(X)) ~ ('%5s%%' | format(Y)) ~ (X | format(Y))",
    "groupby": "[{'a': X, 'b': Y}, {'a': X, 'b': 'z'}] | groupby('a') | map('first') | join",
    "indent": "X | indent ~ X | indent(2, true) ~ X | indent(Y, blank=true)",
    "join": "[X, Y, 5, none] | join ~ [X, Y] | join(Y) ~ [{'a': X}] | join('/', 'a') ~ X | join('-')",
    "map": "[X, Y] | map('trim') | map('upper') | join('/') ~ [{'a': X}] | map(attribute='a') | join",
    "random": "[X] | random",
    "reject": "[X, Y] | reject('equalto', 'a') | join('/')",
    "rejectattr": "[{'a': X}] | rejectattr('a', 'in', Y) | map(attribute='a') | join('/')",
    "replace": "X | replace(Y[:1], '<|n|>') ~ X | replace('a', Y, 1) ~ X | replace('<', '') ~ 5 | replace(5, X)",
    "select": "[X, Y] | select('string') | join('/')",
    "selectattr": "[{'a': X}] | selectattr('a', 'ne', Y) | map(attribute='a') | join('/')",
    "slice": "X | slice(3, Y) | map('join') | join('/')",
    "sort": "[X, Y, 'b'] | sort(reverse=true) | join('/')",
    "truncate": "X | truncate(9) ~ X | truncate(9, true, '<|e|>', 0) ~ X | truncate(5, end=Y)",
    "unique": "[X, Y, X] | unique | join('/')",
    "wordwrap": "X | wordwrap(5) ~ X | wordwrap(7, false, '<|b|>')",
    "xmlattr": "{'a': X, 'b': Y} | xmlattr",
}
OTHERS = (
    *("X + Y + 'a'", "'<|a|>' + X", "X ~ 5 ~ Y ~ none ~ true ~ 1.5", "X * 2 ~ 2 * X", "X * 1.5", "X + 5", "5 + X"),
    *("X + nothing", "X[0]", "X[-1]", "X[1:4]", "X[::-1]", "X[::2]", "X[99]", "X['a']", "X.nothing", "X == Y", "X < Y"),
    *("Y in X", "'<|a|>%s' % X ~ '%s/%s' % (X, Y) ~ '%(a)s%%' % {'a': X} ~ '%d%5.1f' % (3, 2)", "X % Y", "'%d' % X"),
    *("'%s%%s' % X", "'{}|{{{}}}'.format(X, Y)", "'{0}{1}{0}'.format(X, Y)", "'{a}{b}'.format(a=X, b=Y)"),
    *("'{}'.format(X, Y)", "'{0.x}'.format(X)", "'{:>30}{}'.format(X, Y)", "'{}{}'.format(X)", "'{'.format(X)"),
    *("'{a[0]}'.format(a=X)", "'x'.format()", "{X: Y}[X]", "{X: Y} | tojson(indent=1)", "[X, Y]", "(X, Y) | string"),
    *("dict(a=X).a", "namespace(a=X).a", "X if X else Y", "X is string", "X is mapping", "X is sequence"),
    *("X is iterable", "X is lower", "X is sameas none", "bos_token + X + eos_token", "(X | e) + Y", "Y + (X | safe)"),
    *("(X | safe) ~ Y", "(X | safe) % Y", "'%s' % (X | safe)", "'a'.join([X | safe, Y])", "X | trim | length"),
    *("joiner(X)() ~ cycler(X, Y).next()", "X.split(Y[:1])[-1].lstrip('\\n')"),
    *("(X ~ '\\n').strip('\\n').split('\\n')[-1]", "range(X | length) | list"),
)
EXPRESSIONS = (*METHODS.values(), *IN_FILTERS.values(), *OTHERS)
BLOCKS = (
    "{% set x = X %}{{ x }}",
    "{% set x %}<|a|>{{ X }}{% endset %}{{ x + Y }}",
    "{% set x | upper %}<|a|>{{ X }}{% endset %}{{ x }}",
    "{% macro m(a, b='<|b|>') %}<|a|>{{ a ~ b }}{{ caller(a) if caller }}{% endmacro %}{{ m(X) }}{{ m(Y, X) | trim }}"
    "{% call(x) m(X) %}{{ x }}{{ Y }}{% endcall %}",
    "{% filter indent(2) | title %}<|a|>\n{{ X }}\n{{ Y }}{% endfilter %}",
    "{% for c in X %}{{ c }}{{ loop.index }}{{ loop.nextitem }}{% else %}<|a|>{% endfor %}",
    "{% for a, b in {X: Y}.items() recursive %}{{ a }}{{ b }}{{ loop({}.items()) }}{% else %}z{% endfor %}",
    "{% set n = namespace(t='') %}{% for c in [X, Y] %}{% set n.t = n.t + c %}{% endfor %}{{ n.t }}",
    "{% autoescape true %}<|a|>{{ X }}{{ X ~ Y }}{{ '<|b|>' }}{{ 5 }}{{ [X, 5] | join('<') }}{% endautoescape %}",
    "{% autoescape X %}<|a|>{{ X }}{{ '<|b|>' }}{% endautoescape %}",
    "{% block b %}<|a|>{{ X }}{% endblock %}{{ self.b() }}",
    "{% if X.startswith('<|a|>') %}1{% elif X == Y %}2{% elif X in ('a', Y) %}3{% endif %}{{ X or Y }}{{ X | tojson }}",
)
TEXTS = (
    *("", "a", " a\n", "<|a|>", "aXbXa", "  two words \n\n of\ttext  ", "{}{0}{a}%s%d%%", "ßİﬁ Straße", "-5"),
    *("5.0", "&<b>'\"", "\r\n\x0b\x85x\u2028y", "a" * 30, "<|a|>\U000f0000\U000f0001</s>", "upper", "__class__"),
    *("😀é e\u0301", "Жщ", "<Ж|щ>", "Ж щ\nЖ", "{}Ж{0}{a}", "%sЖ%%%d", "%(a)sщ", "&Ж<b>", "ßЖ", "Ж" * 9, " Ж ", "İЖ"),
    *("-Ж",),
)


KINDS = (
    ("('<|a|> ' ~ m)", "n"),
    ("m", "'a'"),
    ("m", "n"),
    ("(n ~ 'Ab\\n<|a|>' ~ m)", "(n + '<|b|>')"),
    ("'<|a|>x'", "m"),
)
"""For X and Y: texts of messages, of the template and of both."""


def with_texts(expression: str, x: str, y: str) -> str:
    return expression.replace("X", "\0").replace("Y", y).replace("\0", x)


def check(expression: str, **variables: Any) -> None:
    """The text is jinja2's, and no letter of a message counts as written by the template, which has only ASCII."""
    source = expression if expression.startswith("{%") else f"{{{{ {expression} }}}}"
    ours, theirs, text = of_both(source, **variables)
    assert ours == theirs or " at 0x" in str(theirs), (source, variables)
    assert [letter for letter in own_part(text) if letter not in "·" and not letter.isascii()] == [], (
        source,
        variables,
    )


class TestSameAsJinja:
    def test_no_method_and_no_filter_is_left_out(self) -> None:
        assert set(METHODS) == {name for name in dir(str) if name[0] != "_"}
        assert set(IN_FILTERS) == set(FILTERS)

    @pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
    def test_every_method_filter_operator_and_block(self, count: int) -> None:
        for number, expression in enumerate((*EXPRESSIONS, *BLOCKS)):
            for kind, texts in enumerate(KINDS[: 2 * count]):
                for place in range(count):
                    first = number + 3 * kind + place
                    given = {"m": TEXTS[first % len(TEXTS)], "n": TEXTS[(7 * first + 1) % len(TEXTS)]}
                    check(with_texts(expression, *texts), **given)

    @pytest.mark.slow
    def test_one_after_another(self) -> None:
        draw = random.Random(1)
        for _ in range(250):
            source = ""
            for x, y in (draw.choice(KINDS), ("x", draw.choice(("n", "'a'"))), ("x", "m")):
                made = with_texts(draw.choice(EXPRESSIONS), x, y)
                source += f"{{% set x = {made} %}}{{{{ x }}}}"
            check(source, m=draw.choice(TEXTS), n=draw.choice(TEXTS))


class TestForging:
    @each_case(
        ("source", "message"),
        [
            ("<|{{ m }}", "a|>"),
            ("{{ '<|' ~ m }}|>", "a"),
            ("{{ m }}{{ 'a|>' }}", "<|"),
            ("{{ m | lower }}", "<|A|>"),
            ("{{ m | replace('x', '') }}", "<|xax|>"),
            ("{{ m.replace('x', 'a') }}", "<|x|>"),
            ("{{ ('<' ~ m).replace('b', 'a') }}", "|b|>"),
            ("{{ [m, 'a', m[::-1]] | join('|') }}", "<"),
            ("{{ m.split('x') | join('|') }}", "<xax>"),
            ("{{ '%s|a|%s' % (m[0], m[1]) }}", "<>"),
            ("{{ '{}a|>'.format(m) }}", "<|"),
            ("{{ '<{m[0]}a|>'.format(m=m) }}", "|"),
            ("{{ '%.2sa|>' % m }}", "<||"),
            ("{{ {m: 1} | tojson }}", "<|a|>"),
            ("{{ {m: 1} }}{% for key in {m: 1} %}{{ key }}{% endfor %}", "<|a|>"),
            ("{{ dict(a=m) | items | list | string }}", "<|a|>"),
            ("{{ ('<|' ~ m ~ '|>') | trim('x') }}", "a"),
            ("{{ (m ~ m).strip('a') }}", "a<|a|>"),
            ("{{ m.encode().decode() }}", "<|a|>"),
            ("{{ m | safe }}{{ m | urlize }}", "<|a|>"),
            ("{{ '<|a|>'.join(['', m]) | reverse | reverse | wordwrap(3) }}", "<|a|>"),
            ("{% set x %}{{ m }}|>{% endset %}{{ x }}", "<|a"),
            ("{% macro w(x) %}<|{{ x }}|>{% endmacro %}{{ w(m) }}", "a"),
            ("{{ '<|' ~ roles[0].role ~ '|>' }}", "a"),
        ],
    )
    def test_what_lies_beside_a_message_cannot_complete_a_control_token(self, source: str, message: str) -> None:
        text = render(source, {"m": message, "roles": [{"role": message}], "messages": [{"role": "a"}]}, MOST)
        assert parts_of(text, ["<|a|>"]) == [str.__str__(text)]

    def test_a_usual_role_may_and_another_may_not(self) -> None:
        source = "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}"
        text = render(source, {"messages": [{"role": "user"}, {"role": "end"}]}, MOST)
        assert parts_of(text, ["<|user|>", "<|end|>"]) == ["", "<|user|>", "<|end|>"]


class TestOrigins:
    """What the template wrote stays so: its control tokens would be lost otherwise."""

    @each_case(
        ("expression", "own"),
        [
            ("'<|a|>' + m + bos_token", "<|a|>··<s>"),
            ("bos_token ~ 5 ~ m", "<s>5··"),
            ("('<|a|> ' + m).split()[0].upper()", "<|A|>"),
            ("('a' ~ m ~ 'b,c').split(',') | join('<s>')", "a··b<s>c"),
            ("('<s>' + m) * 2", "<s>··<s>··"),
            ("('<s>' + m)[1:4] ~ ('<s>' + m)[::-1] ~ ('<s>' + m) | last", "s>···>s<·"),
            ("m.replace('Ж', '<s>')", "<s>·"),
            ("m | replace('щ', '<s>') | replace('<', '(')", "·(s>"),
            ("[m, '<s>', 5] | join('|')", "··|<s>|5"),
            ("['<s>', '</s>'] | join", "<s></s>"),
            ("m.join(['<s>', '</s>'])", "<s>··</s>"),
            ("'<|%s|%d>' % (m, 7)", "<|··|7>"),
            ("'<|%(a)s|>' % {'a': m}", "<|··|>"),
            ("'<|{}{a}{}|>'.format('b', m, a=5)", "<|b5··|>"),
            ("'<{1}|{0}>'.format(m, 'b') ~ '<{a}>'.format_map({'a': m})", "<b|··><··>"),
            ("('<s>\\n' + m + '\\n') | indent(1, true)", "·<s>\n···\n"),
            ("(' <s> ' + m) | trim | center(8)", "·<s> ···"),
            ("('inst ' + m) | title ~ ('INST' | capitalize)", "Inst ··Inst"),
            ("(m + '<s>').partition('<')[1:] | join ~ (m + '<s>').removeprefix(m)", "<s><s>"),
            ("('<s>' + m * 2) | truncate(6, true, '<e>', 0)", "<s><e>"),
            ("'<|' ~ ([1, 2] | length | string) ~ '|>'", "<|2|>"),
            ("('<s>' + m).rstrip('щ').ljust(6, '.')", "<s>···"),
            ("('<s>\\n' + m).splitlines() | first", "<s>"),
            ("dict(a='<s>').a ~ {'<s>': m}.keys() | first ~ ({'a': '<s>'} | dictsort | first | last)", "<s><s><s>"),
            ("['<s>', m] | map('trim') | select | reverse | join", "··<s>"),
        ],
    )
    def test_of_expressions(self, expression: str, own: str) -> None:
        shown = own_part(render(f"{{{{ {expression} }}}}", {"m": "Жщ"}, MOST, TOKENS))
        assert shown == own

    def test_the_longest_control_token_counts_and_texts_go_between(self) -> None:
        text = render("<s>a{{ m }}<s>b<s>", {"m": "<s>"}, MOST)
        assert parts_of(text, ["<s>", "<s>a", "", "x"]) == ["", "<s>a", "<s>", "<s>", "b", "<s>", ""]
        assert parts_of(render("{{ m }}", {"m": "<s>"}, MOST), ["<s>"]) == ["<s>"]


# Published templates

NAMES = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]"),
    *("[/SYSTEM_PROMPT]", "[gMASK]", "<sop>", "<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>"),
    *("<|assistant|>", "<|end|>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<|START_OF_TURN_TOKEN|>"),
    *("<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|start_of_role|>"),
    *("<|end_of_role|>", "<|end_of_text|>", "<|start|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
    *("<|end_of_turn|>", "<用户>", "<AI>"),
)
"""Control tokens of all of them."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather.\n TOOL",
            "parameters": {
                "type": "object",
                "properties": {
                    "city TOOL": {"type": "string", "description": "TOOL"},
                    "n": {"type": "integer", "enum": ["TOOL"]},
                },
                "required": ["TOOL"],
            },
        },
    }
]
CALL = {"type": "function", "function": {"name": "TOOL", "arguments": {"city TOOL": "TOOL", "n": 3}}}


def talk(*texts: str, system: str = "", call: str = "") -> list[dict[str, Any]]:
    turns = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    calls = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": call, "name": "TOOL"},
    ]
    return [*([{"role": "system", "content": system}] if system else []), *turns, *(calls if call else [])]


TALKS = (
    talk("MARK hello MARK"),
    talk(" hi\n", "<think>\nMARK hm\n</think>\n\nYes MARK", "MARK"),
    talk(
        "<tool_response>\n4 MARK\n</tool_response>",
        "ok",
        "MARK/no_think",
        "x" * 50,
        "z",
        system="Be kind. MARK /no_think ",
    ),
    talk("MARK", "one</think>two</think>MARK", "# MARK\nline\r\n\tMARK\n\n x", system="/think /system_override MARK"),
    talk("a", "b\n", system="  MARK"),
    talk(call="<tool_response>MARK 4</tool_response>"),
    talk("MARK", "b", call='{"a": "MARK"}', system="MARK"),
)


def given(messages: list[dict[str, Any]], mark: str, *, opened: bool, tools: bool) -> dict[str, Any]:
    """The variables of a template, with a text in many places of messages and tools."""
    values = {
        "messages": messages,
        "add_generation_prompt": opened,
        "tools": TOOLS if tools else None,
        "documents": None,
    }
    return dict(json.loads(json.dumps(values).replace("MARK", mark).replace("TOOL", mark)))


class TestPublished:
    def test_there_are_forty(self) -> None:
        assert len(PUBLISHED) > 40

    @pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
    def test_the_text_is_jinjas_and_messages_forge_nothing(self, every: int) -> None:
        seen = set[str]()
        for number, source in enumerate([*PUBLISHED.values()][::every]):
            program = compiled(source)
            theirs = peer().from_string(source)
            for place, messages in enumerate(TALKS):
                variables = given(messages, "zz", opened=bool(place % 2), tools=not number % 2)
                try:
                    expected = theirs.render(**{**TOKENS, **variables})
                except Exception as error:
                    with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
                        text_of(program, variables, MOST, TOKENS)
                    continue
                calm = text_of(program, variables, MOST, TOKENS)
                assert calm == expected
                # Without a message that spells one, each control token in the text is the template's.
                parts = parts_of(calm, NAMES)
                assert parts == re.split(f"({'|'.join(map(re.escape, NAMES))})", expected)
                seen.update(parts[1::2])
                for name in sorted(set(parts[1::2])):
                    spelled = given(messages, name, opened=bool(place % 2), tools=not number % 2)
                    hostile = text_of(program, spelled, MOST, TOKENS)
                    assert hostile == theirs.render(**{**TOKENS, **spelled})
                    if len(hostile) == len(calm) + calm.count("zz") * (len(name) - 2):  # not where it is cut
                        assert parts_of(hostile, NAMES) == [part.replace("zz", name) for part in parts], name
                    else:
                        assert parts_of(hostile, NAMES)[1::2] == parts[1::2]
        assert len(seen) > 5
        assert every > 1 or seen == set(NAMES)
