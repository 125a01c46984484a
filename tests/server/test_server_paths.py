"""No answer tells where the server keeps its files: every route, and every error that a client can provoke."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_server import Running, running
from template_models import CHATML, write_other

from glinfer.engine.engine import FastEngine
from glinfer.errors import ConfigError, FormatError, GlinferError, HubError, ShaderError
from glinfer.server.routes import ROUTES

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("no_processes")]

SECRET = "home-of-somebody"
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('No system here') }}{% endif %}" + CHATML
TEMPLATES = {"strict": STRICT, "broken": "{% if %}", "number": 5, "plain": None, "wordless": CHATML}
USER, SYSTEM = {"role": "user", "content": "hi"}, {"role": "system", "content": "x"}
TOOL = {"type": "function", "function": {"name": "a"}}
GIVEN: dict[str, tuple[Any, ...]] = {
    "messages": ([USER], [SYSTEM, USER], [{"role": "user", "content": "x" * 9000}], [{"role": "tool"}], 5),
    "input": ("hi", ["hi", "ho"], [[1, 2]], "x" * 9000, [SYSTEM], [{"type": "function_call"}]),
    "prompt": ("hi", [1, 2], [9999], "x" * 9000, None),
    "query": ("hi",), "documents": (["a"],), "tokens": ([1, 2], [9999], [-1]), "block": (0, 99),
    "tools": ([TOOL], [TOOL, TOOL]), "guided_regex": ("[", "a"), "guided_json": ({"not": {}},),
    "chat_template": ("x",), "chat_template_kwargs": ({"x": 1},), "continue_final_message": (True,),
}  # fmt: skip
FIRST = ("messages", "input", "prompt", "query", "documents", "tokens", "block")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, no_processes: None) -> Iterator[Running]:
    """Models in a folder with a telling name, most of which cannot chat."""
    home, sources = tmp_path_factory.mktemp(SECRET), []
    for name, template in TEMPLATES.items():
        (folder := home / f"{SECRET}-{name}").mkdir()
        path, _ = write_other(folder, {}, template, context=64)  # type: ignore[arg-type]
        if name == "wordless":
            (folder / "tokenizer.json").write_text("{")
        sources.append((name, path.rename(folder / f"{SECRET}.safetensors")))
    with running(*sources, slots=1) as found:
        yield found


def bodies(route: Any) -> Iterator[dict[str, Any]]:
    """What a route needs, and then each of its fields with each value."""
    known = route.body.model_fields
    fields = {name: GIVEN[name] for name in GIVEN if name in known}
    usual = {
        name: fields[name][0] for name in FIRST if name in fields and not (name == "prompt" and "messages" in known)
    }
    usual |= {name: 1 for name in ("max_tokens", "max_output_tokens") if name in known}
    yield usual
    for name, values in fields.items():
        yield from ({**usual, name: value} for value in values)


def asked(server: Running, path: str, body: dict[str, Any] | None = None) -> str:
    answer = server.get(path) if body is None else server.post(path, body)
    assert SECRET not in answer.text, (path, body)
    assert SECRET not in str(answer.headers), (path, body)
    return answer.text


def test_no_answer_has_a_path(served: Running) -> None:
    said = set[str]()
    for route in ROUTES:
        if route.body is None:
            said.add(asked(served, route.path.replace("{model}", "strict")))
            continue
        asked_for = [("strict", body) for body in bodies(route)]
        asked_for += ((name, next(bodies(route))) for name in (*TEMPLATES, "none"))
        said |= {asked(served, route.path, {"model": name, **body}) for name, body in asked_for}
    for words in (
        "strict: the model's chat template cannot be used: No system here",
        "broken: the model's chat template cannot be used: Expected an expression",
        "wordless: this model has no tokenizer; send token ids",
        "context of strict holds 64",
        "there is no model 'none'; expected strict, broken, ",
    ):
        assert any(words in each for each in said), words


@pytest.mark.parametrize("kind", [ConfigError, FormatError, HubError, ShaderError])
def test_errors_of_files_are_for_the_log(
    served: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: type[GlinferError]
) -> None:
    def failing(*_: Any) -> Any:
        raise kind(f"/{SECRET}/file: damaged")

    monkeypatch.setattr(FastEngine, "scorer", failing)
    found = json.loads(asked(served, "/v1/score", {"model": "strict", "input": "hello"}))["error"]
    assert found["message"] == "the server failed; see its log"
    assert f"glinfer: strict: /{SECRET}/file: damaged\n" in capfd.readouterr().err


def test_a_missing_package(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that installs it names the folder of a source checkout."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    text = asked(served, "/v1/completions", {"model": "strict", "prompt": "a", "guided_regex": "b"})
    assert "llguidance, which is not installed" in text
    assert "pip" not in text
    assert str(Path(__file__).parents[2]) not in text
