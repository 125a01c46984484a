"""Attacks on llama.cpp, tried here: sizes that overflow, numbers below nothing, states, and parsers of replies."""

from __future__ import annotations

import itertools
import json
import random
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest
from own_process import DEADLINE
from running_server import HELLO, Running, running

from glinfer.errors import FormatError
from glinfer.formats import load_checkpoint
from glinfer.program.tuning import load_tuned
from glinfer.server.tool_calls import CallDeltas
from glinfer.structured.tools import FORMS, ToolForm
from qa.fuzz.mutate import build_gguf, parse_gguf
from qa.fuzz.reads import KEY, kernels_seeds
from qa.fuzz.seeds import ggufs

pytestmark = pytest.mark.gl

# Edges whose product is a multiple of 2^64, or a little more: 64-bit numbers make 0 to some hundred bytes of them.
OVERFLOWS = (
    [1 << 32, 1 << 32], [1 << 62, 4], [(1 << 62) + 1, 4], [1 << 63, 2], [(1 << 61) + 4, 8], [1 << 16] * 4,
    [(1 << 32) + 1, (1 << 32) - 1], [3, 0x5555555555555556], [1024, 1 << 54], [(1 << 64) - 1, (1 << 64) - 1],
)  # fmt: skip


@pytest.mark.parametrize("seed", range(0, len(ggufs()), 4))
def test_cve_2026_33298(tmp_path: Path, seed: int) -> None:
    """Edges of a tensor whose product overflows: a few bytes were made for what later took exabytes."""
    path, whole = tmp_path / "m.gguf", ggufs()[seed]
    for edges, place in itertools.product(OVERFLOWS, range(len(parse_gguf(whole)["tensors"]))):
        changed = parse_gguf(whole)
        changed["tensors"][place][1] = edges
        path.write_bytes(build_gguf(changed))
        tracemalloc.start()
        try:
            with pytest.raises(FormatError, match=r"m\.gguf: ") as caught:
                load_checkpoint(path)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20, edges
        finally:
            tracemalloc.stop()
        assert str(caught.value).isprintable()


def test_cve_2026_21869(attacked: Running) -> None:
    """``n_discard`` below nothing: where the context was full, memory before the first row was written to."""
    base: dict[str, Any] = {"model": "small", "prompt": "x", "max_tokens": 2}
    for name in ("n_discard", "n_keep", "id_slot", "cache_prompt", "n_probs", "t_max_predict_ms"):
        answer = attacked.post("/v1/completions", {**base, name: -1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_parameter")
    for name, number in itertools.product(("max_tokens", "n", "logprobs", "top_k"), (-2, -(1 << 31), -(1 << 63))):
        answer = attacked.post("/v1/completions", {**base, name: number})
        assert answer.status_code == 400, (name, number)
    # A full context ends the answer; nothing is discarded.
    room = attacked.post("/tokenize", {"model": "chatty", "prompt": "x"}).json()
    full = attacked.post("/v1/completions", {**base, "model": "chatty", "max_tokens": 1 << 40, "temperature": 0}).json()
    assert full["usage"]["total_tokens"] == room["max_model_len"]
    assert full["choices"][0]["finish_reason"] == "length"


def test_cve_2026_43629(attacked: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved state of keys and values whose count of rows overflows.

    No state is saved or read here, by no route either. What is read back out of a folder that others may write
    to is the cache of measurements, whose absurd numbers count as none.
    """
    for path in ("/slots/0?action=restore", "/slots/0?action=save", "/slots", "/state"):
        assert attacked.post(path, {"filename": "x.bin"}).status_code in (404, 405)
    monkeypatch.setenv("GLINFER_CACHE", str(tmp_path))
    values = json.loads(kernels_seeds()[0])
    file = tmp_path / "kernels" / KEY.file_name
    file.parent.mkdir()
    file.write_text(json.dumps(values))
    assert load_tuned(KEY) is not None
    absurd: tuple[dict[str, Any], ...] = (
        {"milliseconds": 1e400}, {"milliseconds": -1}, {"milliseconds": 10**400}, {"version": 1 << 64},
        {"kernels": values["kernels"] | {"tiles": 1 << 62}}, {"kernels": values["kernels"] | {"part_steps": -1}},
        {"kernels": [[1 << 63]]}, {"kernels": None}, {"default_milliseconds": float("nan")}, {"milliseconds": 1e300},
        *({"kernels": values["kernels"] | each} for each in ({"unroll": 4096}, {"part_steps": 4096}, {"tiles": 0})),
    )  # fmt: skip
    for change in absurd:
        file.write_text(json.dumps({**values, **change}))
        assert load_tuned(KEY) is None, change


def test_cve_2026_43631(small: Path) -> None:
    """Requests while the server puts its model away: the vocabulary was read after it was freed.

    Here they come while the server ends, which closes the model: each has its answer, or is refused in the usual form.
    """
    found: list[int] = []
    odd: list[str] = []
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/tokenize", {"prompt": "hello " * 20}), ("/detokenize", {"tokens": [65] * 40}),
        ("/apply-template", {"messages": HELLO}), ("/v1/completions", {"prompt": "x", "max_tokens": 30}),
        ("/v1/score", {"input": "hello"}),
    )  # fmt: skip

    def ask(server: Running, path: str, body: dict[str, Any], begun: threading.Semaphore) -> None:
        with server.http() as http:
            for _ in range(500):
                try:
                    answer = http.post(path, json={"model": "small", **body})
                except httpx.TransportError:  # the port is closed
                    return
                found.append(answer.status_code)
                begun.release()
                if answer.status_code == 503 and answer.json()["error"]["code"] == "not_ready":
                    return
                if answer.status_code != 200:
                    odd.append(answer.text)

    with running(("small", small), grace=0.2, slots=2) as server:
        begun = threading.Semaphore(0)
        threads = [threading.Thread(target=ask, args=(server, *each, begun)) for each in asked]
        for thread in threads:
            thread.start()
        for _ in range(3 * len(threads)):
            assert begun.acquire(timeout=DEADLINE)
        server.server.end()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
    assert odd == []
    assert found.count(200) >= 3 * len(threads)
    assert server.failure is None


def without_ids(deltas: CallDeltas) -> dict[str, Any]:
    message = deltas.message()
    return {**message, "tool_calls": [each["function"] for each in message.get("tool_calls", ())]}


def test_cve_2026_107183(attacked: Running) -> None:
    """A parser of replies that the client brings, and tags of calls in an order that no model writes.

    No request brings a parser. The parsers that there are take any text in any pieces, and lose none of it but spaces.
    """
    for name in ("chat_parser", "chat_format", "parser", "grammar_triggers"):
        answer = attacked.post("/v1/completions", {"model": "small", "prompt": "x", name: "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_parameter")
    for form in (each for each in FORMS.values() if isinstance(each, ToolForm)):
        tags = [each for each in (form.opening, form.before_name, form.before_arguments, form.closing, form.between,
                                  form.end, '{"a": "', "}", '"', "\\", "id", "text") if each]  # fmt: skip
        chosen = random.Random(form.name)
        for _ in range(150):
            text = "".join(chosen.choices(tags, k=chosen.randrange(12)))
            whole, parts = CallDeltas(form), CallDeltas(form)
            deltas_sent = whole.push(text, last=True)
            cuts = sorted(chosen.randrange(len(text) + 1) for _ in range(4))
            pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
            for place, piece in enumerate(pieces):
                parts.push(piece, last=place == len(pieces) - 1)
            assert without_ids(parts) == without_ids(whole), text
            assert len(json.dumps(deltas_sent)) < 200 * (len(text) + 10)
