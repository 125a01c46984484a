"""Calls of tools: the grammar of replies, and the parser of what the grammar lets through."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from template_models import byte_library, write_other

from glinfer.errors import StructureError
from glinfer.structured import compiler as compiler_module
from glinfer.structured.calls import CallParser, ToolPart
from glinfer.structured.compiler import Compiler
from glinfer.structured.gemma import GemmaArguments
from glinfer.structured.structure import Structure
from glinfer.structured.tagged import TagForm, TagParser
from glinfer.structured.tools import FORMS, NO_ARGUMENTS, MessageForm, ToolForm, ToolParser, call_grammar, tool_form
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("here")
NUMBERS = {"type": "array", "items": {"type": "integer"}}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "n": NUMBERS},
    "required": ["city"],
}
CITY |= {"additionalProperties": False}
TOOLS = {"look": (CITY, False), "now": (NO_ARGUMENTS, False)}
LOOK = '<tool_call>\n{"name": "look", "arguments": {"city": "Pa\\"}ris", "n": [1, 2]}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WRONG = NOW.replace("now", "nobody")
LIST = '<tool_call>[{"name": "now", "arguments": {}}, {"name": "look", "arguments": {"city": "x"}}]</tool_call>'
THOUGHT = "<|channel|>analysis<|message|>A<|end|><|start|>assistant"
HEADER = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
ASKED = HEADER + '{"city":"}{", "n": [1,2]}'
FIRST = " to=functions.now<|channel|>commentary json<|message|>{}"
SAID = "<|channel|>final<|message|><tool> hello"
BARE = '{"name": "look", "parameters": {"city": "}{"}}'


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    words = Tokenizer.from_file(Path(compiler_module.__file__).parents[1] / "bundled" / "shakespeare.bpe")
    return Compiler(words, words.vocab_size)


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> tuple[Compiler, Tokenizer]:
    """Tokens of bytes, and the control tokens of gpt-oss."""
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    _, words = write_other(tmp_path_factory.mktemp("harmony"), {}, harmony=True)
    return Compiler(words, words.vocab_size), words


def accepts(compiler: Compiler, grammar: str, text: str | list[int]) -> bool:
    constraint = compiler.constraint(Structure.checked("grammar", grammar))
    try:
        for token in text.encode() if isinstance(text, str) else text:
            constraint.push(token)
    except StructureError:
        return False
    return constraint.complete


def check(compiler: Compiler, grammar: str, good: list[str], bad: list[str], words: Tokenizer | None = None) -> None:
    """A grammar accepts each of ``good``, as tokens of ``words`` or of bytes, and none of ``bad``."""
    accepted = [text for text in (*good, *bad) if accepts(compiler, grammar, words.encode(text) if words else text)]
    assert accepted == good


def pieces(text: str, seed: int) -> Iterator[str]:
    """The pieces of a text, of any size."""
    draw, start = random.Random(seed), 0
    while start < len(text):
        size = draw.choice((1, 2, 5, 9, 40))
        yield text[start : start + size]
        start += size


def parsed(parser: CallParser, text: str, seed: int) -> list[ToolPart]:
    return [*(part for piece in pieces(text, seed) for part in parser.push(piece)), *parser.finish()]


@each_case(
    ("form", "required", "parallel", "good", "bad"),
    [
        ("hermes", False, True, ["", "hello", f"hi {LOOK}", f"{LOOK}\n{NOW}"], [f"x {WRONG}", WRONG]),
        ("hermes", False, False, [LOOK, "hello"], [f"{LOOK}\n{NOW}"]),
        ("hermes", True, True, [LOOK, f"{NOW}\n{LOOK}"], ["", "hello", f"hi {LOOK}"]),
        ("hermes", True, False, [NOW], [f"{NOW}\n{NOW}"]),
        ("list", True, True, [LIST], ["hello", NOW]),
        ("list", False, False, ["hello"], [LIST]),
        ("bare", False, True, [BARE, "hello {x", ""], ['{"name": "nobody", "parameters": {}}', f"{BARE}!"]),
        ("bare", True, True, [BARE], ["hello"]),
        (
            "pythonic",
            False,
            True,
            ["[now(), now()]", "hello [x", ""],
            ["[nobody()]", "[now()]!", "[]", "[now(),now()]"],
        ),
        ("pythonic", True, False, ["[now()]"], ["hello", "[now(), now()]"]),
    ],
)
def test_replies(
    compiler: Compiler, form: str, required: bool, parallel: bool, good: list[str], bad: list[str]
) -> None:
    grammar = call_grammar(FORMS[form], TOOLS, required=required, parallel=parallel)
    check(compiler, grammar, good, bad)


GLM = '<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>5 </tool_call> "é</arg_value>\n<arg_key>n</arg_key>\n'
GLM += "<arg_value>[1, 2]</arg_value>\n</tool_call>"
GLM_NOW = "<tool_call>now\n</tool_call>"
MINIMAX = '<minimax:tool_call>\n<invoke name="look">\n<parameter name="city">5</parameter>\n</invoke>\n'
MINIMAX_NOW = MINIMAX + '<invoke name="now">\n</invoke>\n</minimax:tool_call>'
MINIMAX += "</minimax:tool_call>"
CODER = "<tool_call>\n<function=look>\n<parameter=city>\nx\n y\n</parameter>\n</function>\n</tool_call>"
CODER_NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
TEXTS = {**TOOLS, "look": ({**CITY, "properties": {"city": {"type": "string"}, "n": NUMBERS}}, False)}


@each_case(
    ("form", "one", "both", "calls"),
    [
        ("glm-4.5", GLM, f"{GLM}\n{GLM_NOW}", [{"city": '5 </tool_call> "é', "n": [1, 2]}, {}]),
        ("glm-4.5", GLM.replace("\n", ""), GLM.replace("\n", "") * 2, [{"city": '5 </tool_call> "é', "n": [1, 2]}] * 2),
        ("minimax", MINIMAX, MINIMAX_NOW, [{"city": "5"}, {}]),
        ("coder", CODER, f"{CODER}\n{CODER_NOW}", [{"city": "x\n y"}, {}]),
    ],
)
def test_replies_with_tags(compiler: Compiler, form: str, one: str, both: str, calls: list[dict[str, Any]]) -> None:
    tagged = FORMS[form]
    assert isinstance(tagged, TagForm)
    tagged = tagged.of(TEXTS)
    for required, parallel in ((False, True), (True, True), (True, False)):
        grammar = call_grammar(tagged, TEXTS, required=required, parallel=parallel)
        assert accepts(compiler, grammar, one)
        assert accepts(compiler, grammar, both) == parallel
        assert accepts(compiler, grammar, f"hi {one}") == accepts(compiler, grammar, "hello") == (not required)
        for wrong in (one.replace("look", "cook"), one.replace("city", "town"), one[:-3], f"{one} more"):
            assert not accepts(compiler, grammar, f"x {wrong}" if not required else wrong), wrong
    for seed in range(20):
        parts = parsed(TagParser(tagged), f"hi <tool\n{both}", seed)
        assert "".join(part.text for part in parts) == "hi <tool"
        assert [json.loads(part.arguments) for part in parts if part.call is not None] == calls
        assert [part.name for part in parts if part.call is not None] == ["look", "now" if calls[1] == {} else "look"]


@each_case(
    ("required", "good", "bad"),
    [
        (
            False,
            [SAID, ASKED, FIRST, THOUGHT + ASKED, THOUGHT + SAID, THOUGHT + FIRST, THOUGHT * 2 + ASKED],
            ["", "hello", THOUGHT, ASKED.replace("look", "lo"), ASKED.replace("city", "town"), HEADER, ASKED + " more",
             ASKED.replace("<|constrain|>", "< |constrain|>"), SAID.replace("final", "analysis"), SAID + "<|end|>"],
        ),
        (True, [ASKED, THOUGHT + FIRST, THOUGHT.replace("analysis", "commentary") + ASKED], [SAID, THOUGHT + SAID]),
    ],
)  # fmt: skip
def test_replies_in_channels(
    harmony: tuple[Compiler, Tokenizer], required: bool, good: list[str], bad: list[str]
) -> None:
    compiler, words = harmony
    grammar = call_grammar(FORMS["harmony"], TOOLS, required=required, parallel=True)
    check(compiler, grammar, good, bad, words)
    # Text that spells a control token is none.
    spelt = words.encode("<|channel|>final<|message|>") + words.encode("<|start|>", allow_special=False)
    assert accepts(compiler, grammar, spelt) is not required
    assert not accepts(compiler, grammar, words.encode(ASKED, allow_special=False))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> tuple[Compiler, Tokenizer]:
    """Tokens of bytes, and the control tokens of Gemma 4."""
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    _, words = write_other(tmp_path_factory.mktemp("gemma"), {}, gemma=True)
    return Compiler(words, words.vocab_size), words


GEMMA_LOOK = '<|tool_call>call:look{city:<|"|>Pa"<ris}<|"|>,n:[1,-2]}<tool_call|>'
GEMMA_NOW = "<|tool_call>call:now{}<tool_call|>"
THINKING = "<|channel>thought\nA<channel|>"


@each_case(
    ("required", "parallel", "good", "bad"),
    [
        (
            False,
            True,
            ["", "hello", THINKING + "hi" + GEMMA_LOOK, GEMMA_LOOK + GEMMA_NOW, GEMMA_LOOK.replace(",n:[1,-2]", "")],
            [GEMMA_LOOK.replace("city", "town"), GEMMA_LOOK.replace("-2", "2.5"), GEMMA_NOW.replace("now", "no"),
             GEMMA_LOOK + "more", GEMMA_LOOK[:-12], '<|tool_call>call:look{n:[1]}<tool_call|>'],
        ),
        (False, False, [GEMMA_NOW, "hello"], [GEMMA_NOW + GEMMA_NOW]),
        (True, True, [GEMMA_LOOK, THINKING + GEMMA_NOW], ["", "hello", THINKING, "hi" + GEMMA_NOW]),
    ],
)  # fmt: skip
def test_calls_between_control_tokens(
    gemma: tuple[Compiler, Tokenizer], required: bool, parallel: bool, good: list[str], bad: list[str]
) -> None:
    compiler, words = gemma
    grammar = call_grammar(FORMS["gemma4"], TOOLS, required=required, parallel=parallel)
    check(compiler, grammar, good, bad, words)
    assert not accepts(compiler, grammar, words.encode("<|tool_call>") + words.encode(GEMMA_NOW, allow_special=False))


ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "b": {"enum": ["x", 3, None]},
        "A": {"anyOf": [{"type": "boolean"}, {"type": "object", "properties": {"k": {"type": "number"}}}]},
        "c": {"type": ["string", "null"]},
        "d": {},
    },
    "required": ["b"],
}


@each_case(
    ("arguments", "value"),
    [
        ('b:<|"|>x<|"|>', {"b": "x"}),
        ("b:3,c:null", {"b": 3, "c": None}),
        ('A:true,b:null,c:<|"|>\n"\\:,<|"|>', {"A": True, "b": None, "c": '\n"\\:,'}),
        (
            'A:{k:1.5},b:3,d:{x y:[<|"|>é<|"|>,{}]}'.replace("x y", "xy"),
            {"A": {"k": 1.5}, "b": 3, "d": {"xy": ["é", {}]}},
        ),
        ("A:{},b:3,d:[[],2]", {"A": {}, "b": 3, "d": [[], 2]}),
        ("c:null,b:3", None),
        ("b:4", None),
        ("A:3,b:3", None),
    ],
)
def test_arguments_between_control_tokens(
    gemma: tuple[Compiler, Tokenizer], arguments: str, value: dict[str, Any] | None
) -> None:
    """What the grammar lets through becomes JSON, in pieces of any size."""
    compiler, words = gemma
    text = f"call:f{{{arguments}}}"
    grammar = call_grammar(FORMS["gemma4"], {"f": (ORDER, False)}, required=True, parallel=False)
    accepted = accepts(compiler, grammar, words.encode(f"<|tool_call>{text}<tool_call|>"))
    assert accepted is (value is not None)
    for seed in range(20 * accepted):
        assert json.loads("".join(map(GemmaArguments().push, pieces(text, seed)))) == value


FREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "c d": {"enum": ["it's", 'a"b', 3, None, True]},
        "s": {"type": "string", "maxLength": 3},
        "o": {"type": "object", "properties": {"k": {"type": ["boolean", "null"]}, "x": {"type": "string"}}},
        "r": {"type": "array", "items": {"$ref": "#/$defs/r"}},
        "m": {"type": "object", "additionalProperties": {"type": "integer"}},
        "f": {},
    },
    "$defs": {"r": {"type": "integer", "minimum": 3}},
}


def python_value(text: str) -> Any:
    """What Python reads in the arguments of a call; names have no spaces."""
    call = ast.parse(f"f({text})".replace("\n", "\\n"), mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}


def arguments_of(call: str, seed: int) -> Any:
    form = FORMS["pythonic"]
    assert isinstance(form, ToolForm)
    return json.loads("".join(part.arguments for part in parsed(ToolParser(form), call, seed)))


@each_case(
    ("arguments", "good"),
    [
        ("", True),
        ('c_d=None, s="a\\\\b", o={\'k\': True, "x": \')\\u00e9\\\'\\n\'}, r=[3, 4], m={"a": 1}, f=-2.5e-3', True),
        ('c_d=\'a"b\',o={"k": None},f=[{}, [], \'a\nb\', {"a":False}]', True),
        ('c_d="it\'s", o={}, r=[], f=""', True),
        ("c_d=False", False),
        ("s='abcd'", False),
        ("o={'x': 'a', 'k': None}", False),
        ("o={'z': 1}", False),
        ("r=[2]", False),
        ("m={\"a\": 'x'}", False),
        ("f=x", False),
        ("f='\\d'", False),
        ("f='\\ud83d'", False),
        ("f=01", False),
        ('f=1, s="a"', False),
        ("f=1,", False),
    ],
)
def test_arguments_of_python(compiler: Compiler, arguments: str, good: bool) -> None:
    grammar = call_grammar(FORMS["pythonic"], {"f": (FREE, False)}, required=True, parallel=False)
    text = arguments.replace("c_d", "c d")
    assert accepts(compiler, grammar, f"[f({text})]") is good
    if good:
        found = arguments_of(f"[f({text})]", len(text))
        assert found == {key.replace("_", " "): value for key, value in python_value(arguments).items()}


def test_any_value_of_python(compiler: Compiler) -> None:
    """Python's own spelling of random values; those of JSON may stand in it."""
    draw = random.Random(0)
    grammar = call_grammar(FORMS["pythonic"], {"f": ({"type": "object"}, False)}, required=True, parallel=False)

    def value(depth: int) -> Any:
        text = "".join(draw.choices("a'\"\\\n\t,)]é😀=: ", k=draw.randrange(5)))
        inner = [value(depth - 1) for _ in range(draw.randrange(4))] if depth else []
        return draw.choice(
            [text, inner, {f"{text}{place}": each for place, each in enumerate(inner)}, None, True, -1.5]
        )

    for seed in range(60):
        given = {"a": value(3), "b": value(2)}
        for spelled in (repr, partial(json.dumps, ensure_ascii=False)):
            text = f"[f({', '.join(f'{key}={spelled(each)}' for key, each in given.items())})]"
            assert accepts(compiler, grammar, text), text
            assert arguments_of(text, seed) == given, text


@each_case("form", ["gemma4", "pythonic"])
def test_the_rules_of_deep_schemas_are_few(form: str) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(25):
        schema = {"type": "object", "properties": {"a": schema}}
    assert len(call_grammar(FORMS[form], {"f": (schema, False)}, required=True, parallel=False)) < 10_000


@each_case(
    ("form", "schema", "words"),
    [
        ("gemma4", {"properties": {"a": {"type": "string", "pattern": "x"}}}, "'pattern' in a of the tool f is not"),
        ("pythonic", {"oneOf": []}, "'oneOf' in its arguments of the tool f is not supported"),
        ("pythonic", {"properties": {"a=b": {}}}, "the argument 'a=b' of the tool f has '='"),
    ],
)
def test_strict_schemas_that_are_refused(form: str, schema: dict[str, Any], words: str) -> None:
    with pytest.raises(StructureError, match=words):
        call_grammar(FORMS[form], {"f": (schema, True)}, required=True, parallel=False)


@each_case(
    ("form", "text", "said", "calls"),
    [
        ("hermes", f"Let me look. \n{LOOK}\n{NOW}", "Let me look.",
         [("look", '{"city": "Pa\\"}ris", "n": [1, 2]}'), ("now", "{}")]),
        ("hermes", LOOK[:50], "", [("look", LOOK[42:50])]),
        ("hermes", "plain <tool text \n", "plain <tool text \n", []),
        ("list", LIST, "", [("now", "{}"), ("look", '{"city": "x"}')]),
        ("bare", BARE, "", [("look", '{"city": "}{"}')]),
        ("bare", 'I say {"name": "x"', 'I say {"name": "x"', []),
        ("pythonic", "[look(city='\\n', n=[1]), now()]", "", [("look", '{"city": "\\n", "n": [1]}'), ("now", "{}")]),
        ("pythonic", "[look(n=[1, Tru", "", [("look", '{"n": [1, ')]),
    ],
)  # fmt: skip
def test_a_reply_in_pieces_of_any_size(form: str, text: str, said: str, calls: list[tuple[str, str]]) -> None:
    known = FORMS[form]
    assert isinstance(known, ToolForm)
    for seed in range(20):
        parser = ToolParser(known)
        parts = parsed(parser, text, seed)
        assert "".join(part.text for part in parts) == said
        of = [[part for part in parts if part.call == call] for call in range(parser.calls)]
        assert [("".join(p.name for p in each), "".join(p.arguments for p in each)) for each in of] == calls


CONTROL = ("[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|tools_prefix|>", "<|tools_suffix|>", "<|START_ACTION|>",
           "<|END_ACTION|>", "<seed:tool_call>", "</seed:tool_call>",
           "<|tool_call_start|>", "<|tool_call_end|>")  # fmt: skip
FIRST_OF, SECOND_OF = '[{"name": "look", "arguments": {"city": "]}"}}', ', {"name": "now", "arguments": {}}'
SEED = "<seed:tool_call>\n<function=look>\n<parameter=city>]}</parameter>\n</function>\n</seed:tool_call>"
SEED_NOW = "\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>"
COHERE = '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "look", "parameters": {"city": "]}"}}'


@pytest.fixture(scope="module", params=[True, False], ids=["control tokens", "text"])
def marked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Compiler, Tokenizer]:
    """Tokens of bytes, and control tokens of calls, or none."""
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    path = tmp_path_factory.mktemp("marked") / "tokenizer.json"
    byte_library(*(CONTROL if request.param else ())).save(str(path))
    words = Tokenizer.from_file(path)
    return Compiler(words, words.vocab_size), words


@each_case(
    ("template", "name", "first", "second", "end"),
    [
        ("<TOOLCALL>[", "toolcall", "<TOOLCALL>" + FIRST_OF, SECOND_OF, "]</TOOLCALL>"),
        ("<tool_calls>[", "tool-calls", "<tool_calls>" + FIRST_OF, SECOND_OF, "]</tool_calls>"),
        ("<tool_call>{", "inline", LOOK.replace("\n", ""), "\n" + NOW.replace("\n", ""), ""),
        ("[TOOL_CALLS]", "calls", "[TOOL_CALLS]" + FIRST_OF, SECOND_OF, "]"),
        ("[TOOL_CALLS] [ARGS]", "args", '[TOOL_CALLS]look[ARGS]{"city": "]}"}', "[TOOL_CALLS]now[ARGS]{}", ""),
        ("<|tool_call|>", "token", "<|tool_call|>" + FIRST_OF, SECOND_OF, "]"),
        (
            "<|tools_prefix|>",
            "prefix",
            '<|tools_prefix|>[{"look": {"city": "]}"}}',
            ', {"now": {}}',
            "]<|tools_suffix|>",
        ),
        ('"parameters": <|START_ACTION|>', "action", COHERE, "", "\n]<|END_ACTION|>"),
        ("<seed:tool_call> <parameter=", "seed", SEED, SEED_NOW, ""),
        ("List of tools: [", "liquid", "<|tool_call_start|>[look(city=')]')", ", now()", "]<|tool_call_end|>"),
    ],
)
def test_calls_whose_texts_may_be_control_tokens(
    marked: tuple[Compiler, Tokenizer], template: str, name: str, first: str, second: str, end: str
) -> None:
    compiler, words = marked
    form = tool_form("{{ tools }}" + template, words.control_tokens)
    assert form.name == name
    assert not isinstance(form, MessageForm)
    form = form.of(TEXTS) if isinstance(form, TagForm) else form
    one, both = first + end, first + second + end
    for required in (False, True):
        grammar = call_grammar(form, TEXTS, required=required, parallel=not required)
        others = [f"Wait. {one}", "hello", *([both] if second else [])]
        wrong = [one.replace("look", "cook"), one[: len(first) - 1], one + "x"]
        check(compiler, grammar, [one, *(() if required else others)], [*(others if required else ()), *wrong], words)
        if required and form.control:
            assert not accepts(compiler, grammar, words.encode(one, allow_special=False))
    for seed in range(20):
        found = parsed(TagParser(form) if isinstance(form, TagForm) else ToolParser(form), f"Wait. {both}", seed)
        assert "".join(part.text for part in found) == "Wait."
        assert [part.name for part in found if part.name] == ["look", "now"][: 1 + bool(second)]
        assert json.loads("".join(part.arguments for part in found if part.call == 0))["city"]


def test_the_form_follows_from_the_template() -> None:
    assert tool_form("{{ tools }} <tool_call>").name == "hermes"
    assert tool_form("{{ tools }} <tool_call>{{ n }}<arg_key>{{ k }}</arg_key>").name == "glm-4.5"
    assert tool_form("{{ tools }} {% set begin = '<minimax:tool_call>' %}").name == "minimax"
    assert tool_form("{{ tools }} <tool_call><function={{ n }}><parameter={{ k }}>").name == "coder"
    assert tool_form("{{ tools }} <tool_call>[").name == "list"
    assert tool_form('{{ tools }} {"name": x, "parameters": y}').name == "bare"
    assert tool_form("{{ tools }} [func_name1(param1=value1), func_name2(...)]").name == "pythonic"
    assert tool_form("{{ tools }} List of tools: <|tool_list_start|>[").name == "liquid"
    assert tool_form("{{ tools }} <|start|>assistant to=functions.{{ x }}<|channel|>").name == "harmony"
    assert tool_form("{{ tools }} {{ '<|tool_call>call:' + name }}").name == "gemma4"
    for other in ("", ' "parameters": <function={{ n }}', ' {"tool_name": x, "parameters": y}'):
        with pytest.raises(StructureError, match="tool calls in an unknown form"):
            tool_form("{{ tools }}" + other)
