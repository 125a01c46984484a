"""Attacks on vLLM, tried here: templates and arguments of requests, structures, endless lists, and kept prefixes."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hostile_templates import ENDLESS, ENDLESS_FOR_SOME, GROWING
from own_process import DEADLINE
from running_server import HELLO, Running, running
from tiers import tiered
from worker_here import answered_here

from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import StructureError
from glinfer.server.auth import Access
from glinfer.server.limits import LIMITS
from glinfer.structured import compiler as structures
from glinfer.structured.structure import structure_of
from glinfer.text import own_process, templates
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

CHATS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2}), ("/v1/responses", {"input": "hi"}),
    ("/tokenize", {"messages": HELLO}), ("/apply-template", {"messages": HELLO}),
    ("/v1/attention", {"messages": HELLO, "block": 0}),
)  # fmt: skip
PLAIN: dict[str, Any] = {"model": "small", "prompt": "x", "max_tokens": 3, "temperature": 0}


def refused(server: Running, path: str, body: dict[str, Any]) -> str:
    """The code of a 400."""
    answer = server.post(path, body)
    assert answer.status_code == 400, (path, answer.text)
    return str(answer.json()["error"]["code"])


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be rendered or compiled."""

    def never(*_: object, **__: object) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(templates, "answer_of", never)
    monkeypatch.setattr(structures, "answer_of", never)


def test_cve_2025_61620(attacked: Running, no_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat template that comes with the request, itself or among the arguments: none is taken, on no route."""
    for path, body in CHATS:
        assert refused(attacked, path, {"model": "chatty", **body, "chat_template": ENDLESS}) == "unsupported_parameter"
    monkeypatch.setattr(templates, "answer_of", answered_here)
    for path, body in CHATS:
        asked = {"model": "chatty", **body, "chat_template_kwargs": {"chat_template": ENDLESS}}
        assert refused(attacked, path, asked) == "unsupported_parameter"


def test_cve_2025_62426(attacked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of a template that made the server tokenize a long text where every request waited for it.

    Only arguments that the template names are taken, and none that the server sets. What cannot fit the context is not
    tokenized, and what is slow is not on the event loop.
    """
    monkeypatch.setattr(templates, "answer_of", answered_here)
    arguments: tuple[dict[str, Any], ...] = (
        {"tokenize": True}, {"tokenize": True, "tools": ["x" * 100]}, {"max_length": 1 << 62}, {"a": 1},
        {"messages": []}, {"bos_token": "<|im_end|>"}, {"add_generation_prompt": False}, {"raise_exception": 1},
    )  # fmt: skip
    for (path, body), given in itertools.product(CHATS, arguments):
        asked = {"model": "chatty", **body, "chat_template_kwargs": given}
        assert refused(attacked, path, asked) == "unsupported_parameter"
    texts: list[str] = []
    monkeypatch.setattr(Tokenizer, "encode_mixed", lambda self, pieces: texts.extend(map(str, pieces)))
    long = [{"role": "user", "content": "a" * (LIMITS.body_bytes - 1000)}]
    for path, body in CHATS:
        if "messages" in body:
            assert refused(attacked, path, {"model": "chatty", **body, "messages": long}) == "context_length_exceeded"
    assert texts == []


def test_cve_2026_115911(attacked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template of the model, or of the request, that ends never or grows: it held the one thread of all templates.

    Here each is rendered in a process that is stopped. Meanwhile all others are answered: texts, and other chats.
    """
    monkeypatch.setattr(templates, "MAX_RENDER_SECONDS", 1)
    begun, may_end, first = threading.Semaphore(0), threading.Event(), threading.Semaphore()
    answer_of = own_process.answer_of

    def held(script: str, request: Any, **limits: Any) -> Any:
        if request.get("source") == ENDLESS_FOR_SOME and "forever" in request["variables"]["messages"][0]["content"]:
            begun.release()
            assert may_end.wait(DEADLINE)
            if not first.acquire(blocking=False):  # one shows it
                raise own_process.ProcessError("was stopped")
        return answer_of(script, request, **limits)

    monkeypatch.setattr(templates, "answer_of", held)
    threads = attacked.server.state.slow.threads
    with ThreadPoolExecutor(threads + 2) as pool:
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": "forever"}], "max_tokens": 2}
        asked = {"model": "endless", **chat}
        waiting = [pool.submit(attacked.post, "/v1/chat/completions", asked) for _ in range(threads + 2)]
        for _ in range(threads // 2):
            assert begun.acquire(timeout=DEADLINE)
        # As many as one client may have, and none of them has ended.
        assert not begun.acquire(timeout=0.2)
        with attacked.http() as http:
            assert http.post("/v1/completions", json=PLAIN).status_code == 200
            assert http.post("/tokenize", json={"model": "small", "prompt": "hello"}).status_code == 200
            assert http.get("/health").status_code == 200
        may_end.set()
        answers = [each.result(DEADLINE) for each in waiting]
    for answer in answers:
        assert answer.status_code == 400, answer.text
        assert "did not finish" in answer.text or "was stopped" in answer.text
    monkeypatch.undo()  # on a busy machine any template may take more than a second
    assert attacked.post("/v1/chat/completions", {"model": "endless", **chat, "messages": HELLO}).status_code == 200


def test_cve_2026_115911_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other half of it: a template whose text doubles and doubles."""
    monkeypatch.setattr(templates, "MAX_RENDER_BYTES", 1 << 28)
    with pytest.raises(templates.InputError, match=r"too much memory|more than 4194304 characters"):
        templates.JinjaTemplate(GROWING, {}, "m").render(HELLO)


def test_cve_2025_29770(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small schemas, each of which a cache on the disk kept for ever."""
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    monkeypatch.chdir(tmp_path)
    for name in ("GLINFER_CACHE", "XDG_CACHE_HOME", "TMPDIR", "OUTLINES_CACHE_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(structures, "answer_of", lambda *_, **__: {"error": ""})
    made = structures.Compiler(Tokenizer(demo_tokenizer(300)), 300)
    for number in range(200):
        found = structure_of({"json_schema": {"const": f"value {number}"}})
        assert found is not None
        made.constraint(found)
    assert len(made) <= structures.MAX_COMPILED == 64
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


@tiered("regex", ["((a{0,999}){0,999}){0,999}b", "(a+)+b", "(a|aa)+$", "(.*a){40}", ".*a.{20000}"], keep=2)
def test_cve_2026_55574(monkeypatch: pytest.MonkeyPatch, regex: str) -> None:
    """Expressions whose automata explode, compiled without a limit: each ends in its own process, and in its time."""
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    monkeypatch.setattr(structures, "MAX_COMPILE_SECONDS", 1)
    found = structure_of({"regex": regex})
    assert found is not None
    made = structures.Compiler(Tokenizer(demo_tokenizer(300)), 300)
    said = ""
    try:
        constraint = made.constraint(found)
        for _ in range(3):
            constraint.mask()
    except StructureError as error:
        said = str(error)
    assert "\n" not in said


def test_cve_2026_73559(attacked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request with a list of any length, each element of which became a request of the engine."""
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("nothing may be tokenized"))
    text: dict[str, Any] = {"model": "small"}
    pairs = {"model": "ranker", "query": "x"}
    for path, field, body, most, elements in (
        ("/v1/completions", "prompt", text, LIMITS.prompts, ("x", [1])),
        ("/v1/score", "input", text, LIMITS.prompts, ("x", [1])),
        ("/v1/embeddings", "input", text, LIMITS.embed_texts, ("x", [1])),
        ("/v1/rerank", "documents", pairs, LIMITS.embed_texts, ("x", {"text": "x"})),
    ):
        for each, count in itertools.product(elements, (most + 1, 20_000)):
            assert refused(attacked, path, {**body, field: [each] * count}) == "invalid_value"
    assert LIMITS.sequences < LIMITS.prompts * LIMITS.choices
    for count, n in ((LIMITS.prompts, 2), (5, 32)):
        answer = attacked.post("/v1/completions", {**text, "prompt": ["x"] * count, "n": n})
        assert answer.status_code == 400
        assert f"{count * n} sequences; this server takes at most {LIMITS.sequences}" in answer.text
    live = attacked.server.worker.live
    assert live == 0


def test_cve_2026_114052(attacked: Running) -> None:
    """No description of it was found.

    Its neighbours of the same day in vLLM before 0.31.0 are requests whose parameters end the engine for everybody
    (CVE-2026-114051: ``min_tokens``) or stay in force for the next one's tokens (CVE-2026-114049: allowed tokens).
    """
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    free = attacked.post("/v1/completions", {**PLAIN, "max_tokens": 12}).json()["choices"][0]["text"]
    for change in ({"min_tokens": 1 << 62}, {"allowed_token_ids": [1]}, {"code_revision": "x"}, {"max_tokens": None}):
        answer = attacked.post("/v1/completions", {**PLAIN, **change})
        assert answer.status_code == (200 if change == {"max_tokens": None} else 400)
    bound = [{"guided_regex": "[ab]{1,4}"}, {"logit_bias": {"65": -100}}, {"guided_choice": ["yes"], "max_tokens": 1}]
    with ThreadPoolExecutor(6) as pool:
        asked = [{**PLAIN, "max_tokens": 12, **(bound[place % 3] if place % 2 else {})} for place in range(18)]
        answers = list(
            pool.map(lambda body: attacked.post("/v1/completions", body).json()["choices"][0]["text"], asked)
        )
    assert {text for body, text in zip(asked, answers, strict=True) if len(body) == len(PLAIN)} == {free}


def test_cve_2025_46570(small: Path) -> None:
    """Whether somebody else has asked with the same beginning, told by the time; here by draws, which are the same."""
    with running(("small", small), access=Access(keys=("victim", "thief")), slots=6) as server:

        def draws(key: str, prompt: str) -> tuple[int, int]:
            before = server.server.worker.served["small"].loaded.device.draws_issued
            headers = {"Authorization": f"Bearer {key}"}
            answer = server.post("/v1/completions", {**PLAIN, "prompt": prompt, "max_tokens": 1}, headers=headers)
            usage = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            return server.server.worker.served["small"].loaded.device.draws_issued - before, usage

        draws("victim", "what is said first")
        own = draws("victim", "the secret word is swordfish, of course")
        shared = draws("thief", "the secret word is swordfish, of course")
        unknown = draws("thief", "the secret word is haddock!!, of course"[::-1])
        again = draws("victim", "the secret word is swordfish, of course")
    assert shared == unknown == own
    assert shared[1] == 0
    assert again[1] > 8
    assert again[0] < own[0], "the instrument would see it"
