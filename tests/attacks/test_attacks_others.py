"""Attacks on llama-cpp-python, SGLang, transformers, xgrammar and Starlette, tried here."""

from __future__ import annotations

import json
import socket
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from hostile_templates import ways_to_run
from own_process import DEADLINE
from running_server import HELLO, Running
from small_models import hugging_face_files
from template_models import CHATML
from tiers import tiered
from worker_here import answered_here

from glinfer.errors import FormatError, GlinferError, InputError, StructureError
from glinfer.export.convert import convert_model
from glinfer.formats.gguf.embedders import RERANK_TEMPLATE, _pair
from glinfer.limits import MAX_STRUCTURE_DEPTH
from glinfer.structured import structure as structures
from glinfer.structured.structure import structure_of
from glinfer.text import templates as rendering
from glinfer.text.templates import find_template
from qa.fuzz.mutate import build_gguf, parse_gguf
from qa.fuzz.seeds import gguf_vocabularies

pytestmark = pytest.mark.gl


def test_cve_2024_34359(tmp_path: Path) -> None:
    """llama-cpp-python: the chat template in a GGUF file's metadata ran any code when a conversation was rendered.

    The first is rendered as usual; what its process does is enough of the others.
    """
    marker, path = tmp_path / "pwned", tmp_path / "m.gguf"
    for place, source in enumerate(ways_to_run(marker)):
        parts = parse_gguf(gguf_vocabularies()[0])
        next(each for each in parts["entries"] if each[0] == "tokenizer.chat_template")[2] = source
        path.write_bytes(build_gguf(parts))
        template = find_template(path)
        assert template is not None
        assert template.source == source
        with pytest.MonkeyPatch.context() as patch:
            if place:
                patch.setattr(rendering, "answer_of", answered_here)
            with pytest.raises(InputError, match=r"the model's chat template cannot be used: .*(unsafe|undefined)"):
                template.render(HELLO)
        assert not marker.exists(), source


def test_cve_2026_5760(attacked: Running, marker: Path) -> None:
    """SGLang: /v1/rerank rendered such a template outside of any sandbox. Here it is not rendered at all."""
    asked = {"model": "ranker", "query": "cat?", "documents": ["the cat sat", "a dog {{ 7 * 7 }}"]}
    answer = attacked.post("/v1/rerank", {**asked, "return_documents": True})
    assert answer.status_code == 200, answer.text
    assert "a dog {{ 7 * 7 }}" in answer.text
    for path, body in (
        ("/v1/score", {"input": "a b"}), ("/v1/embeddings", {"input": "a"}), ("/tokenize", {"messages": HELLO}),
        ("/apply-template", {"messages": HELLO}), ("/v1/chat/completions", {"messages": HELLO}),
    ):  # fmt: skip
        assert attacked.post(path, {"model": "ranker", **body}).status_code == 400, path
    assert not marker.exists()


def test_cve_2026_5760_forms_of_pairs() -> None:
    """The form of a pair of texts in a GGUF file is no template: a text with two places, once each."""
    for written in (
        "{query}", "{document}", "", "{query}{document}{document}", "{query}" * 9 + "{document}",
        "{query.__class__} {document}", "{query}{document}" + "x" * (1 << 18),
    ):  # fmt: skip
        file: Any = SimpleNamespace(metadata={RERANK_TEMPLATE: written}, source="m.gguf")
        with pytest.raises(FormatError, match=r"^m\.gguf: .*expected a text of .* once each") as caught:
            _pair(file)
        assert len(str(caught.value)) < 500
    file.metadata[RERANK_TEMPLATE] = "{{ x }} {query} {0.__class__} {document}"
    assert _pair(file) == "{{ x }} {query} {0.__class__} {text}"


NAMES = ("../outside", "../../outside.jinja", "/tmp/glinfer-outside", "a/../../outside", "..", "C:\\outside", "x\0y")


@tiered("name", NAMES, keep=2)
def test_cve_2026_9856(tmp_path: Path, name: str) -> None:
    """transformers: names of chat templates became names of files when a tokenizer was saved.

    Here a template has no name that counts but ``default``, and what is written has names of its own.
    """
    source, target = tmp_path / "in" / "source", tmp_path / "out" / "made"
    source.mkdir(parents=True)
    target.mkdir(parents=True)
    files = hugging_face_files()
    config = json.loads(files.get("tokenizer_config.json", b"{}"))
    templates = [{"name": "default", "template": CHATML}, {"name": name, "template": "pwned"}]
    files["tokenizer_config.json"] = json.dumps({**config, "chat_template": templates}).encode()
    files.pop("chat_template.jinja", None)
    for file, data in files.items():
        (source / file).write_bytes(data)
    before = {each for each in tmp_path.rglob("*") if each.is_file()}
    convert_model(source, target / "m.safetensors")
    made = {each for each in tmp_path.rglob("*") if each.is_file()} - before
    usual = {
        "m.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    }
    assert {each.relative_to(target).as_posix() for each in made} <= usual
    assert not Path("/tmp/glinfer-outside").exists()
    found = find_template(target)
    assert found is not None
    assert found.source == CHATML
    for only in ([templates[1]] * 2, {name: "pwned"}):
        (source / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": only}))
        with pytest.raises(GlinferError):
            convert_model(source, target / "other.safetensors")


@pytest.mark.parametrize("letters", ["()", "[]", "{}"])
def test_cve_2026_25048(monkeypatch: pytest.MonkeyPatch, letters: str) -> None:
    """xgrammar: 30 000 open brackets, balanced or not, ended the stack of its parser and with it the server."""

    def given(depth: int, *, closed: bool) -> list[dict[str, Any]]:
        nested = letters[0] * depth + (letters[1] * depth if closed else "")
        schema: Any = {"type": "integer"}
        for _ in range(min(depth, 900)):
            schema = {"type": "array", "items": schema}
        text = '{"items":' * depth + "{}" + "}" * depth
        return [{"grammar": f"start: {nested}"}, {"regex": nested}, {"json_schema": schema}, {"json_schema": text}]

    for depth in (MAX_STRUCTURE_DEPTH + 1, 30_000):
        for closed in (True, False):
            for options in given(depth, closed=closed):
                with pytest.raises(StructureError, match=r"nested|is not JSON|expected at most"):
                    structure_of(options)
    assert structures.MAX_STRUCTURE_DEPTH < 100


def ranges(server: Running, value: str, path: str = "/large.bin") -> tuple[bytes, int]:
    """Head and length of the answer to a request with this Range."""
    place = urlsplit(server.url)
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nRange: {value}\r\n\r\n"
    found = b""
    with socket.create_connection((str(place.hostname), place.port or 80), timeout=DEADLINE) as made:
        made.sendall(head.encode())
        while part := made.recv(1 << 16):
            found += part
    return found.partition(b"\r\n")[0], len(found)


def test_cve_2025_62727(attacked: Running, page: Path) -> None:
    """Starlette: a Range of thousands of parts took the square of their number, and as long of digits too."""
    size = (page / "large.bin").stat().st_size
    assert ranges(attacked, "bytes=0-9")[0] == b"HTTP/1.1 206 Partial Content"
    for value in (
        "bytes=" + ",".join(f"{place * 2}-{place * 2}" for place in range(8000)), "bytes=" + "0-," * 20_000,
        "bytes=" + "9" * 60_000, "bytes=" + "0" * 50_000 + "-", "bytes=" + "-," * 30_000, "bytes=5-1", "bytes=-",
    ):  # fmt: skip
        tracemalloc.start()
        status, length = ranges(attacked, value)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert status.split()[1] in (b"200", b"206", b"400", b"416", b"431"), (value[:40], status)
        assert length < 2 * size + 4096
        assert peak < 32 << 20
    assert attacked.get("/health").status_code == 200
