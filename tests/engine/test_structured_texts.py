"""Texts with a structure: alone, in a batch beside free ones, by every plan and kind of sampling, and cut short."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from scripted_models import SMALL

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.defaults import USUAL
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.errors import InputError, StructureError
from glinfer.formats import random_checkpoint, save_checkpoint

pytestmark = pytest.mark.gl
pytest.importorskip("llguidance", reason="llguidance is not installed")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["king", "queen", "fool"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
ANYTHING = "(?s:.)*"
CORPUS = Path(__file__).parents[1] / "structured" / "corpus"


@pytest.fixture(autouse=True)
def usual(model: Model) -> None:
    """Filters, unless a text has other options."""
    model.sampling = USUAL


def test_a_text_has_its_structure(model: Model) -> None:
    issued = model.device.draws_issued
    stream = model.stream("ROMEO:", json_schema=SCHEMA, seed=1, temperature=1.5)
    text = "".join(stream)
    jsonschema.validate(json.loads(text), SCHEMA)
    stats = stream.stats
    assert (stats.finish_reason, stats.complete) == ("stop", True)
    assert stats.forced > 10
    assert stats.tokens == len(stream.ids)
    assert stats.draws + stats.prompt_draws == model.device.draws_issued - issued
    plain = model.stream("ROMEO:", seed=1, max_tokens=stats.tokens)
    list(plain)
    assert 0 < stats.draws_saved < model.draws().total, "what later chunks of forced tokens save is among its draws"
    assert stats.draws < plain.stats.draws, "forced tokens took as many draws as chosen ones"
    assert (plain.stats.forced, plain.stats.complete) == (0, None)
    assert re.fullmatch("[A-Z][a-z]{3}!", model.generate("ROMEO:", regex="[A-Z][a-z]{3}!", seed=1))
    assert model.generate("ROMEO:", choices=["yea", "nay"], seed=1) in ("yea", "nay")
    assert re.fullmatch("(ab){1,5}c", model.generate("ROMEO:", grammar='start: ("a" "b"){1,5} "c"', seed=1))


def test_a_text_that_is_cut_has_not_its_structure(model: Model) -> None:
    """By a stop string, by a stop id that the structure has as text, and by one among forced tokens."""
    e = model.require_tokenizer().encode("e")
    forced = model.require_tokenizer().encode("yea nay, the king")
    for given in (
        {"choices": ["yea", "yes"], "stop": "e"},
        {"regex": "[e]{30}", "stop_ids": e},
        {"choices": ["yea nay, the king"], "stop_ids": forced[-2:-1]},
    ):
        text = model.generate("ROMEO:", seed=1, **given)
        result = next(iter(model.batch([BatchRequest("ROMEO:", {"seed": 1, **given})])))
        for each, stats in ((text, text.stats), (result.text, result.stats)):
            assert (stats.finish_reason, stats.complete) == ("stop", False), given
            assert each == text
            assert len(each) < 30


SAMPLING = (
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 1.2, "top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1, "repetition_penalty": 1.3},
)


@pytest.fixture
def plain_text(small: Path, tmp_path: Path, model: Model) -> Iterator[Model]:
    """The small model, which gives no bytes beyond ASCII: alone they are no characters."""
    made = random_checkpoint(ModelConfig.from_options(SMALL), seed=1)
    made.tensors["transformer.ln_f.bias"][0] = 8.0
    made.tensors["lm_head.weight"][128:, 0] -= 8.0
    save_checkpoint(made, tmp_path / "ascii.gab")
    with glinfer.load(tmp_path / "ascii.gab", tokenizer=small.with_suffix(".bpe"), device=model.device) as opened:
        yield opened


def test_a_mask_that_allows_everything_changes_no_text(plain_text: Model) -> None:
    for sampling in SAMPLING:
        given: Any = {"seed": 4, "max_tokens": 40, "stop_ids": [], **sampling}
        plain = plain_text.generate("ROMEO:", **given)
        assert plain_text.generate("ROMEO:", regex=ANYTHING, **given) == plain, sampling


def test_a_batch_gives_what_each_text_gives_alone(model: Model) -> None:
    """Free texts beside texts with structures of all kinds of sampling; one is forced as a whole, one is cut."""
    given: list[dict[str, Any]] = [
        {"max_tokens": 20},
        {"json_schema": SCHEMA},
        {"json_schema": SCHEMA, "top_k": 4},
        {"choices": ["x"]},
        {"json_schema": SCHEMA, "max_tokens": 9},
        {"regex": "[a-z]{3} [a-z]{3}", "temperature": 0.0},
        {"regex": "[A-Z]+: [a-z]{4}", "top_k": 3},
        {"regex": "[a-z]{2}é[a-z]{4}"},  # two forced tokens between chosen ones
    ]
    requests = [
        BatchRequest("KING:", {"seed": 7, "max_tokens": 50, **options}, key=place)
        for place, options in enumerate(given)
    ]
    found = {result.request.key: result for result in model.batch(requests, slots=2)}
    assert len(found) == len(requests)
    for request in requests:
        result = found[request.key]
        stream = model.stream(request.prompt, incomplete="partial", **request.options)
        text = "".join(stream)
        same = ("finish_reason", "complete", "forced", "tokens")
        assert (result.text, result.ids) == (text, stream.ids)
        assert [getattr(result.stats, name) for name in same] == [getattr(stream.stats, name) for name in same]


def test_a_whole_row_under_a_mask(model: Model) -> None:
    """With log-probabilities every token is chosen from the whole row, and none is forced."""
    options = {"json_schema": SCHEMA, "seed": 2, "logprobs": 1, "logit_bias": {65: 2.0}, "max_tokens": 80}
    (result,) = model.batch([BatchRequest("ROMEO:", options)])
    assert result.text is not None
    jsonschema.validate(json.loads(result.text), SCHEMA)
    assert result.stats.forced == 0
    assert result.logprobs is not None
    assert [each.token for each in result.logprobs] == result.ids


def test_a_text_that_is_cut(model: Model) -> None:
    given: Any = {"json_schema": SCHEMA, "max_tokens": 8, "seed": 1}
    with pytest.raises(StructureError, match="ends after 8 tokens and does not match the requested") as caught:
        model.generate("ROMEO:", **given)
    partial = model.generate("ROMEO:", **given, incomplete="partial")
    assert caught.value.text == partial
    assert partial.startswith('{"name')
    with pytest.raises(StructureError, match=r"^request [01]: the text ends after 8 tokens"):
        model.generate(["ROMEO:", "JULIET:"], **given)
    with pytest.raises(StructureError):
        model.generate([1, 2, 3], **given)
    assert model.generate(["ROMEO:"], **given, incomplete="partial") == [partial]


def test_a_text_may_be_complete_and_cut(model: Model) -> None:
    """It goes on as long as the structure lets it."""
    stream = model.stream("ROMEO:", regex="[a-z]+", max_tokens=6, seed=1, stop_ids=[])
    assert re.fullmatch("[a-z]+", "".join(stream))
    assert (stream.stats.finish_reason, stream.stats.complete) == ("length", True)


def test_a_full_context(model: Model) -> None:
    """What does not fit is dropped, and the text goes on within its structure."""
    context = model.config.max_position_embeddings
    prompt = model.require_tokenizer().encode("to be or not to be " * context)[: context - 10]
    stream = model.stream(prompt, regex="(abcdefgh)+[0-9]{3}z", max_tokens=64, seed=1, incomplete="partial")
    data = b"".join(map(model.require_tokenizer().token_bytes, stream))
    assert re.match(b"(abcdefgh)*[a-h0-9z]*$", data)
    assert stream.stats.dropped > 0


def test_what_does_not_go_together(model: Model) -> None:
    for given in ({"speculate": "ngram"}, {"draft": model}):
        with pytest.raises(InputError, match="found regex together with speculation; leave out speculate and draft"):
            model.stream("a", regex="b", **given)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="found both json_schema and regex"):
        model.stream("a", regex="b", json_schema={})
    with pytest.raises(InputError, match="request 1: regex cannot be used"):
        list(model.batch([BatchRequest("a"), BatchRequest("a", {"regex": "("})]))
    with pytest.raises(InputError, match="incomplete is 'often'"):
        model.generate("a", regex="b", incomplete="often")  # type: ignore[call-overload]


def test_the_reference_plan(model: Model, reference: Model) -> None:
    expected = model.generate("KING:", regex="[a-z]{3}-[0-9]", temperature=0)
    assert reference.generate("KING:", regex="[a-z]{3}-[0-9]", temperature=0) == expected


@pytest.mark.slow
def test_texts_of_the_corpus() -> None:
    """Of every 24th schema and expression; jsonschema and Python's re validate those that are finished."""
    lines = (CORPUS / "schemas.jsonl").read_text("utf-8").splitlines()
    cases = [("json_schema", json.loads(line)["schema"]) for line in lines]
    cases += [("regex", each) for each in json.loads((CORPUS / "regexes.json").read_text("utf-8"))]
    requests = [
        BatchRequest(
            "JULIET:\n", {"seed": 5, "temperature": 1.5, "max_tokens": 120, option: value}, key=(option, value)
        )
        for option, value in cases[::24]
    ]
    finished = 0
    with glinfer.load("shakespeare") as model:
        for result in model.batch(requests):
            (option, value), text = result.request.key, result.text  # type: ignore[misc]
            finished += bool(result.stats.complete)
            if result.stats.complete and option == "regex":
                assert re.fullmatch(value, text or ""), (value, text)
            elif result.stats.complete:
                jsonschema.Draft202012Validator(value).validate(json.loads(text or ""))
    assert finished > 0.85 * len(requests)
