"""Structures as users give them, compiled: what is allowed, forced and refused; without a device."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from template_models import write_other
from tiers import tiered

from glinfer.errors import InputError, StructureError
from glinfer.kernels.fused.allowed import allowed_tokens, mask_words
from glinfer.structured import compiler as compiler_module
from glinfer.structured.compiler import Compiler, TokenBytes
from glinfer.structured.constraint import Constraint, DeadEnd
from glinfer.structured.names import named_by_patterns
from glinfer.structured.structure import Structure, requires_complete, structure_of
from glinfer.text.own_process import ProcessError, answer_of
from glinfer.text.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="llguidance is not installed")

pytestmark = pytest.mark.usefixtures("here")
UNSUPPORTED = Path(__file__).parent / "corpus" / "unsupported.jsonl"
BUNDLED = Path(compiler_module.__file__).parents[1] / "bundled" / "shakespeare.bpe"


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return Tokenizer.from_file(BUNDLED)


@pytest.fixture(scope="module")
def compiler(words: Tokenizer) -> Compiler:
    return Compiler(words, words.vocab_size)


def begun(compiler: Compiler, stop_ids: tuple[int, ...] = (), **given: Any) -> Constraint:
    ((kind, value),) = given.items()
    return compiler.constraint(Structure.checked(kind, value), stop_ids)


def allowed(constraint: Constraint, vocab: int = 512) -> set[int]:
    words = constraint.mask()
    assert len(words) == mask_words(vocab)
    return {int(token) for token in np.flatnonzero(allowed_tokens(words, vocab))}


def test_the_next_tokens_of_an_expression(compiler: Compiler, words: Tokenizer) -> None:
    """All tokens whose bytes may come next, and no other."""
    constraint = begun(compiler, regex="[ab](bc|d)")
    constraint.push(ord("a"))
    texts = {token: words.token_bytes(token) for token in range(words.vocab_size)}
    assert allowed(constraint) == {token for token, text in texts.items() if text in (b"b", b"bc", b"d")}
    constraint.push(ord("d"))
    assert (constraint.done, constraint.complete, constraint.forced(10)) == (True, True, [])
    constraint = begun(compiler, choices=["abcdefgh"])
    taken = [constraint.forced(3), constraint.forced(0), constraint.forced(100)]
    assert [len(taken[0]), taken[1]] == [3, []], "no more than asked for"
    assert constraint.done


def test_the_end_is_a_stop_id_where_the_text_may_end(compiler: Compiler) -> None:
    assert ord("a") not in allowed(begun(compiler, (ord("a"),), regex="bc")), "one that may not come is left out"
    constraint = begun(compiler, (7, 300), regex="[ab]+")
    assert not allowed(constraint) & {7, 300}
    constraint.push(ord("a"))
    assert allowed(constraint) & {7, 300} == {7, 300}
    assert (constraint.done, constraint.complete) == (False, True)
    constraint.push(300)
    assert (constraint.done, constraint.complete) == (True, True)


def test_a_token_that_is_a_part_of_a_character(compiler: Compiler) -> None:
    """The bundled tokenizer writes such a character byte by byte."""
    constraint = begun(compiler, regex="[äö]!")
    first, *second = "ä".encode()
    assert constraint.forced(10) == [first]
    assert allowed(constraint) >= {*second, "ö".encode()[1]}
    constraint.push(second[0])
    assert constraint.forced(10) == [ord("!")]
    assert constraint.complete


def test_forced_tokens_are_those_of_the_tokenizer(compiler: Compiler, words: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"the king": {"const": "speak"}}, "required": ["the king"]}
    constraint = begun(compiler, json_schema={**schema, "additionalProperties": False})
    forced = constraint.forced(100)
    text = '{"the king": "speak"}'
    spelled = b"".join(map(words.token_bytes, forced)).decode()
    assert text.startswith(spelled)
    assert len(spelled) > 10
    assert forced == words.encode(spelled)
    assert len(forced) < len(spelled), "the tokenizer has longer tokens for this text"


def test_a_digit_is_an_ascii_one(compiler: Compiler) -> None:
    """Rust's Unicode has digits that Python's does not know."""
    assert allowed(begun(compiler, regex=r"\d{2}/x")) <= set(range(ord("0"), ord("9") + 1)) | set(range(256, 512))
    constraint = begun(compiler, regex=r"\d/x")
    constraint.push(ord("5"))
    assert constraint.forced(5) == [ord("/"), ord("x")]


def test_a_dead_end(words: Tokenizer) -> None:
    """A vocabulary of 64 bytes cannot write a letter."""
    constraint = Compiler(words, 64).constraint(Structure.checked("regex", "[xyz]"))
    with pytest.raises(DeadEnd):
        constraint.mask()
    assert not constraint.complete


def test_control_tokens_are_allowed_only_by_name(tmp_path: Path) -> None:
    _, words = write_other(tmp_path, {}, harmony=True)
    made = Compiler(words, words.vocab_size)
    anything = allowed(begun(made, regex="(?s:.)*x"), words.vocab_size)
    assert not anything & set(words.control_tokens.values())
    assert len(anything) > 150
    named = begun(made, grammar='start: "a" <|end|> "b"')
    named.push(*words.encode("a"))
    assert allowed(named, words.vocab_size) == {words.control_tokens["<|end|>"]}


def test_a_text_of_other_than_the_tokenizers_bytes_is_spelled_by_the_longest_tokens(words: Tokenizer) -> None:
    tokens = TokenBytes(words, words.vocab_size)
    broken = b"the \xff"
    found = tokens(broken)
    assert b"".join(tokens.tokens[token] for token in found) == broken
    assert found[-1] == 0xFF
    assert TokenBytes(words, 64)(b"xyz") == []


@each_case("case", map(json.loads, UNSUPPORTED.read_text("utf-8").splitlines()))
def test_unsupported_keywords_are_refused_by_name(compiler: Compiler, case: Any) -> None:
    with pytest.raises(StructureError) as caught:
        begun(compiler, json_schema=case["schema"])
    assert case["word"].split()[-1] in str(caught.value)


DAYS = {"$defs": {"Day": {"enum": ["mon.", 'ö"\n'], "title": "Day", "type": "string"}}}


@each_case(
    ("schema", "fitting", "others"),
    [
        ({"propertyNames": {"const": "a"}}, ["", "a"], ["b", "aa"]),
        ({"propertyNames": {"enum": ["a", "bc", 5]}}, ["a", "bc"], ["abc", "5"]),
        ({"propertyNames": {"enum": ["a", "bc"], "maxLength": 1}}, ["a"], ["bc"]),
        ({**DAYS, "propertyNames": {"$ref": "#/$defs/Day"}}, ["mon.", 'ö"\n'], ["monx", "ö"]),
        ({"propertyNames": {"pattern": "^[a-z]{2}$"}}, ["ab"], ["a", "abc"]),
        ({"propertyNames": {"pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}}, ["ab", "abc"], ["a", "abcd"]),
        ({"patternProperties": {"^a+$": {"type": "integer"}}, "propertyNames": {"minLength": 2}}, ["aa"], ["a", "bb"]),
        ({"propertyNames": {"minLength": 2}}, ["ab", "é\n", '\\"x'], ["a", "é"]),
        ({"propertyNames": {"maxLength": 2}}, ["", "ab"], ["abc"]),
        ({"propertyNames": {"format": "date"}}, ["2024-02-28", "2024-12-31"], ["2024-13-01", "2024-04-31"]),
        ({"propertyNames": {"format": "date-time"}}, ["2024-02-28T23:59:59Z"], ["2024-02-28"]),
        ({"propertyNames": {"format": "time"}}, ["23:59:59.5+01:00"], ["24:00:00Z"]),
        ({"propertyNames": {"format": "uuid"}}, ["01234567-89ab-cdef-0123-456789abcdef"], ["01234567"]),
        ({"propertyNames": True}, ["", "a"], []),
        ({"propertyNames": {"type": "string", "title": "X"}}, ["", "a"], []),
        ({"propertyNames": False}, [], ["", "a"]),
    ],
)
def test_names_of_properties(compiler: Compiler, words: Tokenizer, schema: Any, fitting: Any, others: Any) -> None:
    """An object with such a name fits, whose value has the schema of further properties."""
    whole = {"type": "object", "additionalProperties": {"type": "integer"}, **schema}

    def fits(name: str, value: Any = 1) -> bool:
        constraint = begun(compiler, json_schema=whole)
        for token in words.encode_plain(json.dumps({name: value}, ensure_ascii=False)):
            if token not in allowed(constraint):
                return False
            constraint.push(token)
        return constraint.complete

    assert [name for name in (*fitting, *others) if fits(name)] == [name for name in fitting if name or fits("")]
    assert not any(fits(name, "x") for name in fitting)


def test_names_within_many_definitions_are_rewritten_once() -> None:
    """Twice at each depth would take for ever."""
    schema: Any = {"propertyNames": {"const": "a"}}
    for _ in range(60):
        schema = {"$defs": {"x": schema}}
    assert json.loads(named_by_patterns(json.dumps(schema)))["$defs"]["x"].keys() == {"$defs"}


def test_names_of_properties_stand_anywhere(compiler: Compiler, words: Tokenizer) -> None:
    """In parts of a schema, beside properties of which one drops out; and a property may have that name itself."""
    keys = {"additionalProperties": {"const": 1}, "propertyNames": {"enum": ["a", "b"]}}
    inner = {"type": "object", "properties": {"a": {"const": 2}, "c": {"const": 3}}, **keys}
    own = {"type": "object", "properties": {"propertyNames": {"enum": [{"propertyNames": 5}]}}}
    whole = {"anyOf": [{"type": "array", "items": inner}, own]}
    for text, fits in (
        ('[{"a": 2, "b": 1}]', True), ('[{"b": 1}]', True), ('[{"a": 1}]', False), ('[{"c": 3}]', False),
        ('{"propertyNames": {"propertyNames": 5}}', True),
    ):  # fmt: skip
        constraint = begun(compiler, json_schema=whole)
        try:
            for token in words.encode_plain(text):
                assert token in allowed(constraint)
                constraint.push(token)
            assert (constraint.complete, fits) == (True, True), text
        except AssertionError:
            assert not fits, text


@each_case(
    ("given", "said"),
    [
        ({"json_schema": 5}, "json_schema is int; expected an object"),
        (
            {"json_schema": int},
            "json_schema is the class int; expected an object, its JSON as text, or a pydantic class",
        ),
        ({"json_schema": "[" * 100_000}, "json_schema is not JSON"),
        (
            {"json_schema": {"anyOf": [{"properties": {f"{part}{n}": {} for n in range(501)}} for part in "ab"]}},
            "json_schema has 1002 properties; expected at most 1000",
        ),
        ({"json_schema": '{"items": ' * 100 + "{}" + "}" * 100}, "nested more than 96 deep"),
        ({"json_schema": {"properties": {f"p{n}": True for n in range(1001)}}}, "1001 properties; expected at most"),
        ({"json_schema": {"const": "x" * (1 << 18)}}, "bytes; expected at most 262144"),
        ({"json_schema": {"const": float("nan")}}, "cannot be written as JSON"),
        ({"json_schema": {"type": "objet"}}, "objet"),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable"),
        ({"json_schema": {"$ref": "#/$defs/nobody"}}, "nobody"),
        ({"json_schema": {"$ref": "https://example.org/schema"}}, "not present in a registry"),
        ({"regex": 5}, "regex is int; expected a text"),
        ({"regex": ""}, "regex is empty"),
        ({"regex": "(" * 5000 + "a" + ")" * 5000}, "nested 5000 deep; expected at most 96"),
        ({"regex": "(a)\\1"}, "backreferences are not supported"),
        ({"regex": "[a-"}, "unclosed"),
        ({"grammar": "begin: x"}, "no start rule"),
        ({"choices": "abc"}, "choices is str; expected a list of texts"),
        ({"choices": []}, "choices has 0 texts"),
        ({"choices": ["a", 5]}, "choice 1 is 5"),
        ({"choices": ["x"] * 10_001}, "choices has 10001 texts"),
    ],
)
def test_what_cannot_be_a_structure(compiler: Compiler, given: dict[str, Any], said: str) -> None:
    """Size and nesting are looked at before anything is compiled: deep nesting has ended other engines' processes."""
    with pytest.raises(StructureError) as caught:
        begun(compiler, **given)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


RULES = "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(40))
ANY = [{"type": "object", "properties": {f"k{a}{b}": {"type": "string"} for b in range(4)}} for a in range(10)]


@tiered(
    "given",
    [
        {"regex": "((a{0,999}){0,999}){0,999}b"},
        {"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}},
        {"grammar": f'start: r0\n{RULES}\nr40: "a"'},
        {"json_schema": {"$ref": "#"}},
        {"regex": ".*a.{200}"},
        {"json_schema": {"type": "string", "minLength": 10**9, "maxLength": 2 * 10**9}},
        {"json_schema": {"type": "number", "multipleOf": 1e-7}},
        {"json_schema": {"allOf": [{"anyOf": [each]} for each in ANY]}},
        {"grammar": 'start: start start | "a" | '},
    ],
    keep=3,
)
def test_what_would_grow_without_end_is_compiled_or_refused(
    monkeypatch: pytest.MonkeyPatch, compiler: Compiler, given: dict[str, Any]
) -> None:
    """Either way within the bounds: counted repetitions, products of alternatives, rules that double and recur."""
    monkeypatch.setattr(compiler_module, "answer_of", answer_of)
    with contextlib.suppress(StructureError, DeadEnd):
        constraint = begun(compiler, **given)
        constraint.forced(3)
        constraint.mask()


def test_compiling_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch, words: Tokenizer) -> None:
    """The time for properties that may all be left out grows with their square, and this many take many seconds."""
    monkeypatch.setattr(compiler_module, "answer_of", answer_of)
    monkeypatch.setattr(compiler_module, "MAX_COMPILE_SECONDS", 1)
    many = {"type": "object", "properties": {f"p{place}": {"type": "string"} for place in range(10_000)}}
    structure = Structure("json_schema", json.dumps(many))
    with pytest.raises(StructureError, match=r"cannot be used: its compilation (was stopped|did not finish)"):
        Compiler(words, words.vocab_size).constraint(structure)


def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch, compiler: Compiler) -> None:
    def dies(*_: object, **__: object) -> Any:
        raise ProcessError("was stopped (status -11); its limits are 5 seconds and 1024 MiB")

    monkeypatch.setattr(compiler_module, "answer_of", dies)
    with pytest.raises(
        StructureError, match=r"regex cannot be used: its compilation was stopped \(status -11\)"
    ) as caught:
        begun(compiler, regex="never seen before")
    assert isinstance(caught.value.__cause__, ProcessError)  # which the server logs


def test_few_compiled_structures_are_kept_and_none_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, words: Tokenizer, tmp_path: Path
) -> None:
    """A cache on the disk without a bound has filled the disks of another engine's servers."""
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr(compiler_module, "answer_of", lambda *_, **__: asked.append("") or {"error": ""})
    monkeypatch.setattr(compiler_module, "MAX_COMPILED", 3)
    made = Compiler(words, words.vocab_size)
    for number in (1, 2, 3, 1, 4, 1, 2):  # the one that was not used for longest goes
        begun(made, regex=f"a{number}")
    assert (len(made), len(asked)) == (3, 5)
    monkeypatch.setattr(compiler_module, "MAX_COMPILED_BYTES", 3)
    begun(made, regex="b")
    assert len(made) == 2
    assert list(tmp_path.iterdir()) == []


def test_constraints_of_one_structure_are_independent(compiler: Compiler) -> None:
    one, other = begun(compiler, regex="a[bc]d"), begun(compiler, regex="a[bc]d")
    assert one.forced(5) == other.forced(5) == [ord("a")]
    one.push(ord("b"))
    assert one.forced(5) == [ord("d")]
    assert (one.done, other.done) == (True, False)
    assert {ord("b"), ord("c")} <= allowed(other)


def test_at_most_one_structure(compiler: Compiler) -> None:
    assert structure_of({"json_schema": None, "regex": None}) is None
    with pytest.raises(InputError, match="found both json_schema and choices; give one of them"):
        structure_of({"json_schema": {}, "choices": ["a"]})
    with pytest.raises(InputError, match="incomplete is 'maybe'; expected 'error' or 'partial'"):
        requires_complete("maybe")


def test_a_class_of_pydantics(compiler: Compiler) -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    made = pydantic.create_model("Person", age=(int, 3))
    assert json.loads(Structure.checked("json_schema", made).text) == made.model_json_schema()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, words: Tokenizer) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r"needs the package llguidance.*pip install .*structured"):
        begun(Compiler(words, words.vocab_size), regex="a")
