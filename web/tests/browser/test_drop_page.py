"""The page that opens GGUF files, in Chromium: Python's replies, files that cannot run, addresses and second visits."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browsed import EXPECTED, KEEPS, Browsed
from goldens.gguf_models import byte_level, piece_level
from template_models import CHATML

import glinfer
from glinfer.config import ModelConfig
from glinfer.export.drop import export_drop
from glinfer.formats import random_checkpoint, save_checkpoint
from qa.renderers.browsers import serving

pytestmark = [pytest.mark.gl, pytest.mark.web]

PROMPT, TOKENS, CONTEXT = "the quick fox", 8, 96
WORDS = {**byte_level("smollm"), "tokenizer.chat_template": CHATML}
PIECES = piece_level()
SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 128, "max_position_embeddings": CONTEXT, "hidden_act": "silu", "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}  # fmt: skip
ROWS = [len(each["tokenizer.ggml.tokens"]) for each in (WORDS, PIECES)]
LLAMA, OTHER = (ModelConfig(rows, **SIZES, model_type="llama") for rows in ROWS)
MODELS = {
    "llama": (LLAMA, "q4_1"),
    "qwen2": (replace(LLAMA, model_type="qwen2", attention_bias=True), "q5_0"),
    "gemma3": (
        replace(
            OTHER, model_type="gemma3_text", hidden_act="gelu_new", rope_theta=1e6, rope_local_base_freq=1e4,
            sliding_window=8, layer_types=("sliding_attention",) * 5 + ("full_attention",), num_hidden_layers=6,
        ),
        "q8_0",
    ),
}  # fmt: skip
DROPS = """(async () => {
  const file = new File([await (await fetch("model.gguf")).blob()], "dropped.gguf");
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(file);
  const dropped = (type) => document.dispatchEvent(new DragEvent(type, { dataTransfer, cancelable: true }));
  return ["dragover", "drop"].map(dropped);
})()"""
"""Drops a file of the site on the page."""
IDS = """(async () => {
  const found = [];
  for await (const id of glinfer.model.stream(%s, { temperature: 0, maxTokens: %d, stopIds: [] })) found.push(id);
  return found;
})()"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of each family."""
    folder, found = tmp_path_factory.mktemp("files"), {}
    for name, (config, dtype) in MODELS.items():
        found[name] = folder / f"{name}.gguf"
        tokenizer = WORDS if config.vocab_size == LLAMA.vocab_size else PIECES
        save_checkpoint(random_checkpoint(config, 3), found[name], dtype=dtype, tokenizer=tokenizer)
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path]) -> Path:
    """A page for their shapes, with a file beside it."""
    shapes = {name: config for name, (config, _) in MODELS.items()}
    made = export_drop(tmp_path_factory.mktemp("drop") / "site", context=CONTEXT, shapes=shapes).folder
    (made / "model.gguf").write_bytes(files["llama"].read_bytes())
    return made


def reply(page: Browsed) -> str:
    """What the page replies to PROMPT."""
    page.do("says", "#status", "Ready.")
    page.do("click", "#clear")
    for field, value in (("#temperature", "0"), ("#length", str(TOKENS)), ("#message", PROMPT)):
        page.do("fill", field, value)
    page.do("press", "#message", "Enter")
    page.do("says", "#status", "Done.")
    return str(page.do("evaluate", "glinfer.page.turns.at(-1).answer"))


def expected(path: Path) -> str:
    with glinfer.load(path) as model:
        assert model.weights == "q8"
        return str(model.chat(PROMPT, max_tokens=TOKENS, temperature=0))


def check_console(page: Browsed) -> None:
    assert [line for line in page.console if EXPECTED not in line] == []


def test_a_dropped_file_replies_as_in_python_and_again_without_its_server(
    site: Path, files: dict[str, Path], browsed: Browsed
) -> None:
    wanted = expected(files["llama"])
    with serving(site) as url:
        browsed.do("open", url)
        browsed.do("wait", "#zone")
        assert browsed.do("axe") == []
        assert " MB." in browsed.do("text", "#drop li >> nth=0")
        browsed.do("click", "#drop summary")
        assert browsed.do("evaluate", DROPS) == [False, False], "the page leaves the file to the browser"
        assert reply(browsed) == wanted
        assert browsed.do("evaluate", "glinfer.plan.model.name") == "dropped"
        browsed.do("evaluate", KEEPS)
    browsed.do("reload")
    browsed.do("says", "#again", "Open dropped again")
    browsed.do("click", "#again")
    assert reply(browsed) == wanted


@pytest.mark.parametrize("name", MODELS)
def test_ids_are_those_of_python(site: Path, files: dict[str, Path], browsed: Browsed, name: str) -> None:
    prompt = [5, 40, 300, 7, 7, 90, 12, 33, 250, 18, 64, 2]
    with glinfer.load(files[name]) as model:
        wanted = model.generate(prompt, max_tokens=24, temperature=0, stop_ids=())
    with serving(site) as url:
        browsed.do("open", f"{url}?worker=0&cache=0&offline=0")
        browsed.do("files", "#file", [str(files[name])])
        browsed.do("says", "#status", "Ready.")
        assert browsed.do("evaluate", IDS % (json.dumps(prompt), 24)) == wanted
        assert browsed.do("evaluate", "glinfer.model.verifyTextures().then(({ ok }) => ok)") is True
    check_console(browsed)


def test_a_file_at_an_address_is_loaded_in_parts(site: Path, files: dict[str, Path], browsed: Browsed) -> None:
    with serving(site) as url:
        browsed.do("open", f"{url}?cache=0&offline=0")
        browsed.do("fill", "#address", f"{url}model.gguf")
        browsed.do("press", "#address", "Enter")
        browsed.do("says", "#found", "model.gguf is llama. It takes")
        assert "MB are downloaded" in browsed.do("text", "#found")
        browsed.do("click", "#download")
        assert reply(browsed) == expected(files["llama"])
    check_console(browsed)


class _Hub(BaseHTTPRequestHandler):
    """Hugging Face and the storage that it redirects to, each at its own origin, as its headers were in 2026.

    ``/m/resolve/main/NAME`` of the first is at ``/signed/NAME`` of the second. NAME chooses a fault: ``gated`` needs a
    login, ``closed`` may not be read by other sites, ``whole`` comes whole, ``unsized`` hides its length, ``broken``
    breaks off twice in a part.
    """

    data, storage, asked = b"", "", Counter[str]()

    def log_message(self, *given: object) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes = b"", cut: int = 0, **headers: object) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) - cut])

    def do_GET(self) -> None:
        place, name = self.path.rsplit("/", 1)
        self.asked[f"{self.command} {place}"] += 1
        origin = {"Access_Control_Allow_Origin": self.headers.get("Origin", "*"), "Vary": "Origin"}
        exposed = {"Access_Control_Expose_Headers": "X-Linked-Size,X-Linked-ETag,ETag,Content-Range,X-Error-Message"}
        if place == "/m/resolve/main":
            if name.startswith("gated"):
                self.answer(401, b"Access is restricted", **origin, **exposed, X_Error_Code="GatedRepo")
            elif name.startswith("none"):
                self.answer(404, b"Entry not found", **origin, **exposed)
            else:
                linked = {"X_Linked_Size": len(self.data), "X_Linked_ETag": '"of the file"', "ETag": '"of the link"'}
                self.answer(302, b"Found", **origin, **exposed, **linked, Location=f"{self.storage}signed/{name}")
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        shared = {} if name.startswith("closed") else {"Access_Control_Allow_Origin": "*"}
        if not name.startswith("unsized"):
            shared["Access_Control_Expose_Headers"] = "Content-Range,ETag"
        if (self.command == "HEAD" and not found) or name.startswith("whole") or found is None:
            self.answer(200, self.data, **shared)
        else:
            first, last = int(found[1]), min(int(found[2]), len(self.data) - 1)
            part, self.asked[name] = self.data[first : last + 1], self.asked[name] + 1
            breaks = name.startswith("broken") and len(part) > 1 and self.asked[name] < 4
            sizes = {"Content_Range": f"bytes {first}-{last}/{len(self.data)}", "ETag": '"of the file"'}
            self.answer(206, part, len(part) // 2 if breaks else 0, **shared, **sizes)

    do_HEAD = do_GET  # noqa: N815 - the name of http.server


@pytest.fixture
def hub(files: dict[str, Path]) -> Iterator[str]:
    """The address of the first origin; the second is the handler's ``storage``."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Hub) for _ in range(2)]
    threads = [threading.Thread(target=each.serve_forever, kwargs={"poll_interval": 0.02}) for each in servers]
    first, second = (f"http://127.0.0.1:{each.server_address[1]}/" for each in servers)
    _Hub.data, _Hub.storage = files["llama"].read_bytes(), second
    _Hub.asked.clear()
    for thread in threads:
        thread.start()
    yield f"{first}m/resolve/main/"
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_file_of_a_hub_that_redirects_to_another_origin(
    site: Path, files: dict[str, Path], browsed: Browsed, hub: str
) -> None:
    with serving(site) as url:
        browsed.do("open", f"{url}?cache=0&offline=0")
        for name, words in (
            ("gated.gguf", "gated.gguf could not be loaded: the server answered 401: the file needs a login"),
            ("none.gguf", "none.gguf could not be loaded: the server answered 404; check the address"),
            ("closed.gguf", "or it does not let other sites read its files (CORS); check the address"),
            (
                "whole.gguf",
                "whole.gguf could not be loaded: the server does not support range requests; download the file",
            ),
        ):
            browsed.do("fill", "#address", hub + name)
            browsed.do("press", "#address", "Enter")
            browsed.do("says", "#problem li", words)
        for name in ("unsized.gguf", "broken.gguf"):
            browsed.do("fill", "#address", hub + name)
            browsed.do("press", "#address", "Enter")
            browsed.do("says", "#found", f"{name} is llama. It takes")
        browsed.do("click", "#download")
        assert reply(browsed) == expected(files["llama"])
    assert _Hub.asked["broken.gguf"] > 4, "nothing broke off"
    assert _Hub.asked["GET /signed"] <= _Hub.asked["GET /m/resolve/main"], "an address expires: each part asks the hub"


def test_files_that_cannot_run_get_one_sentence_and_the_next_one_runs(
    site: Path, files: dict[str, Path], browsed: Browsed, tmp_path: Path
) -> None:
    good = files["llama"].read_bytes()
    bad = {
        "noise.gguf": (bytes(range(256)) * 8, "noise.gguf: found first bytes 00 01 02 03; expected 47 47 55 46 (GGUF)"),
        "short.gguf": (good[: len(good) // 2], "it is truncated, get it again"),
        "other.gguf": (good.replace(b"llama", b"mamba"), "found architecture 'mamba', which is not supported here"),
    }
    with serving(site) as url:
        browsed.do("open", f"{url}?cache=0&offline=0")
        for name, (data, words) in bad.items():
            (tmp_path / name).write_bytes(data)
            browsed.do("files", "#file", [str(tmp_path / name)])
            browsed.do("says", "#problem li", words)
        browsed.do("fill", "#address", f"{url}missing.gguf")
        browsed.do("press", "#address", "Enter")
        browsed.do(
            "says", "#problem li", "missing.gguf could not be loaded: the server answered 404; check the address"
        )
        browsed.do("files", "#file", [str(files["llama"])])
        assert reply(browsed) == expected(files["llama"])


LOADERS = {"glinfer/model.js": "load", "drop/load.js": "loadGguf"}


def test_a_device_with_small_textures_is_told_before(site: Path, browsed: Browsed) -> None:
    plan = json.loads((site / "plan.json").read_text())
    plan["drop"]["shapes"][0]["requires"]["max_texture_size"] = 1 << 20
    (site / "plan.json").write_text(json.dumps(plan))
    lacks = "The model needs textures of 1048576 texels a side; your graphics driver allows"
    with serving(site) as url:
        browsed.do("open", f"{url}?cache=0&offline=0")
        browsed.do("click", "#drop summary")
        browsed.do("says", "#drop li.lacking", lacks)
        wrong = "import('./{}').then(({{ {} }}) => {}('.')).catch(({{ message }}) => message)"
        found = [browsed.do("evaluate", wrong.format(file, name, name)) for file, name in LOADERS.items()]
        assert [each.split("; ")[0] for each in found] == ["this site opens GGUF files", "found no file"]
        browsed.do("evaluate", DROPS)
        browsed.do("says", "#problem li", lacks)
