"""``glinfer.ray.Generator`` by itself: batches of every form, every task, and noise that no place changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydantic", reason="pydantic is not installed")

from tiny_embedders import TEXTS, write_embedder

import glinfer
from glinfer.engine.model import Model
from glinfer.errors import InputError
from glinfer.jobs.lines import seed_of
from glinfer.ray import Generator

pytestmark = pytest.mark.gl


@pytest.fixture
def make(small: Path) -> Iterator[Any]:
    """A generator with these options, the same for the same."""
    made: dict[str, Generator] = {}

    def of(**options: Any) -> Generator:
        name = repr(options)
        if name not in made:
            made[name] = Generator(str(small), device="auto", slots=2, **options)
        return made[name]

    yield of
    for each in made.values():
        each.close()
        each.close()


@pytest.fixture(scope="module")
def model(small: Path) -> Iterator[Model]:
    with glinfer.load(small) as opened:
        yield opened


def test_noise_is_the_rows_own(make: Any, model: Model) -> None:
    generator = make(key="id", body={"max_tokens": 5})
    first = generator({"id": np.arange(4), "prompt": np.array(["a", "b", "c", "a"])})
    order = np.array([2, 0, 3, 1])
    second = generator({"id": order, "prompt": first["prompt"][order]})
    assert list(second["generated_text"]) == list(first["generated_text"][order])
    assert first["generated_text"][0] != first["generated_text"][3], "equal prompts of other rows"
    assert set(first["error"]) == {None}
    for number, prompt in enumerate("abca"):
        expected = model.generate(prompt, max_tokens=5, seed=seed_of(str(number)))
        assert first["generated_text"][number] == expected
    by_prompt = make(body={"max_tokens": 5})({"prompt": np.array(["a", "b", "a"])})["generated_text"]
    assert by_prompt[0] == by_prompt[2] != by_prompt[1]


def test_columns_give_a_row_its_own_fields_and_errors_are_the_rows_own(make: Any) -> None:
    given = {
        "text": ["a", "x" * 200, "b", ""],
        "max_tokens": [2, 2, None, 2],
        "seed": [7, 7, 7, 7],
        "more": list("abcd"),
    }
    found = make(column="text", body={"max_tokens": 4})(given)
    assert list(found) == ["text", "max_tokens", "seed", "more", "generated_text", "error"]
    again = make(column="text", body={"max_tokens": 4})({"text": ["b"], "seed": [7]})
    assert found["generated_text"][2] == again["generated_text"][0]
    short, long = (make(column="text", body={"max_tokens": most})({"text": ["a"], "seed": [7]}) for most in (2, 4))
    assert found["generated_text"][0] == short["generated_text"][0] != long["generated_text"][0]
    assert found["generated_text"][1] is found["generated_text"][3] is None
    assert "the prompt has" in found["error"][1]
    assert found["error"][0] is found["error"][2] is None
    with pytest.raises(InputError, match="there is no column 'text'; found prompt"):
        make(column="text", body={"max_tokens": 4})({"prompt": np.array(["a"])})


def test_batches_of_pandas_and_arrow(make: Any) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    generator, prompts = make(body={"max_tokens": 5}), ["a", "b", ""]
    plain = generator({"prompt": np.array(prompts)})
    frame = generator(pandas.DataFrame({"prompt": prompts}))
    table = generator(pyarrow.table({"prompt": prompts}))
    assert isinstance(frame, pandas.DataFrame)
    assert isinstance(table, pyarrow.Table)
    for name in ("generated_text", "error"):
        assert list(frame[name]) == table[name].to_pylist() == list(plain[name])
    assert generator(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())})).num_rows == 0


def test_chats_and_scores(make: Any, model: Model) -> None:
    chats = make(task="chat", body={"max_tokens": 3, "temperature": 0})
    messages = [{"role": "user", "content": "hi"}]
    found = chats({"messages": [messages, json.dumps(messages), []]})
    assert found["generated_text"][0] == found["generated_text"][1]
    assert found["generated_text"][2] is None
    scores = make(task="score")({"text": np.array(["Once upon", "a"])})
    assert scores["logprob"][0] == pytest.approx(model.score("Once upon").total, abs=1e-9)
    assert scores["perplexity"][0] > 1
    assert scores["logprob"][1] is None
    assert "at least 2" in scores["error"][1] or "two" in scores["error"][1]


def test_what_cannot_be_made(small: Path) -> None:
    for options, words in (
        ({"task": "sing"}, 'there is no task "sing"; expected generate, chat, score'),
        ({"weights": "q99"}, "q99"),
    ):
        with pytest.raises(InputError, match=words):
            Generator(str(small), device="auto", **options)


def test_vectors(tmp_path: Path) -> None:
    """Of an embedder, equal to those of the model itself."""
    write_embedder(tmp_path / "m", prompts={"query": "in the rain "})
    with glinfer.load(tmp_path / "m") as model:
        plain, asked = model.embed(TEXTS[:3]), model.embed([TEXTS[1]], prompt_name="query")
    generator = Generator(str(tmp_path / "m"), task="embed", device="auto")
    try:
        found = generator({"text": np.array(TEXTS[:3])})
        assert np.array_equal(np.asarray(list(found["embedding"]), np.float32), plain)
        found = generator({"text": [TEXTS[0], TEXTS[1], ""], "prompt_name": [None, "query", None]})
        assert np.array_equal(np.asarray(found["embedding"][1], np.float32), asked[0])
        assert found["error"][0] is None
    finally:
        generator.close()
