"""ExportedSite sites: the plan's file says what the Python plan says, weights lie as uploaded, and folders are safe."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ran_json
from own_process import DEADLINE, interrupted
from safetensors.numpy import load_file

from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import FormatError, GlinferError, InputError, PlanError
from glinfer.export import site as module
from glinfer.export import weights as weights_module
from glinfer.export.page import renamed, single_file
from glinfer.export.serve import HOST, site_server
from glinfer.export.site import LIMITS, export_web, offline_version, web_kernels, web_root
from glinfer.formats import BpeModel, load_checkpoint, random_checkpoint, save_checkpoint, write_bpe
from glinfer.gl.integer_targets import INTEGER_TARGETS
from glinfer.gl.program import shader_root
from glinfer.lower.plans import plan_for, weights_for, weights_named
from glinfer.program.plan import Plan
from glinfer.program.session import weight_matrix

GAB = ModelConfig.from_options("blocks=2,heads=3,dim=36,vocab=300,context=40")
LLAMA = ModelConfig.from_options("family=llama,blocks=2,heads=4,kv_heads=2,dim=48,inner=72,vocab=301,context=48")
GEMMA3 = ModelConfig.from_options(
    "family=gemma3_text,blocks=6,heads=4,kv_heads=2,dim=48,head_dim=12,inner=72,vocab=301,context=48,window=9"
)
WIDE = ModelConfig.from_options("blocks=1,heads=1,dim=4,vocab=5000,context=16")  # wrapped, and a limit passed
CASES = {
    "fast, q8": (GAB, "fast", "q8", "webgl2"),
    "reference": (GAB, "reference", "file", "usual"),
    "llama": (LLAMA, "fast", "file", "usual"),
    "fast, f16": (GAB, "fast", "f16", "usual"),
    "reference, wrapped": (WIDE, "reference", "file", "webgl2"),
    "llama, reference": (LLAMA, "reference", "file", "usual"),
    "gemma3": (GEMMA3, "fast", "file", "webgl2"),
}
KEPT = ("fast, q8", "reference", "llama")
"""The cases that are no slow ones."""


def written(folder: Path, config: ModelConfig, name: str = "model.gab") -> Path:
    """A random model in a file, .safetensors where .gab cannot hold it."""
    ending = ".gab" if config.model_type == "gab" else ".safetensors"
    path = (folder / name).with_suffix(ending)
    save_checkpoint(random_checkpoint(config, seed=1), path)
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a tokenizer, exported as it is by default."""
    folder = tmp_path_factory.mktemp("site")
    path = written(folder, GAB)
    write_bpe(demo_tokenizer(GAB.vocab_size), path.with_suffix(".bpe"))
    return export_web(path, folder / "out").folder


@dataclass(frozen=True)
class Case:
    """What was exported, and what Python has: the plan's file and the plan, the site, the model, the texture size."""

    found: dict[str, Any]
    made: Plan
    out: Path
    path: Path
    plan: str
    weights: str
    size: int


def plan_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return found


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in KEPT else pytest.mark.slow) for name in CASES]
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    config, plan, weights, limits = CASES[request.param]
    folder = tmp_path_factory.mktemp("case")
    path = written(folder, config)
    out = export_web(path, folder / "out", plan=plan, weights=weights, limits=limits).folder
    weights = weights_named(weights)
    size, kernels = LIMITS[limits].max_texture_size, web_kernels(weights)
    made = plan_for(config, plan, weights=weights, formats={}, kernels=kernels, max_texture_size=size)
    return Case(plan_of(out), made, out, path, plan, weights, size)


def test_the_files_that_open_the_page_are_listed_under_a_name_of_this_export(site: Path, tmp_path: Path) -> None:
    offline = plan_of(site)["offline"]
    files = {path.relative_to(site).as_posix(): path for path in site.rglob("*") if path.is_file()}
    elsewhere = {"plan.json", "offline.js", "tokenizer.json", "weights.safetensors"}
    kept = {name for name in files if not name.startswith("shaders/")} - elsewhere
    assert offline["files"] == {name: hashlib.sha256(files[name].read_bytes()).hexdigest() for name in kept}
    assert {"index.html", "app.js", "page/worker.js", "glinfer/model.js", "page/offline.js"} <= kept
    assert (site / "offline.js").read_bytes() == (web_root() / "offline.js").read_bytes()
    model = site.parent / "model.gab"
    same = export_web(model, tmp_path / "same").plan["offline"]
    other = export_web(model, tmp_path / "other", context=16).plan["offline"]
    assert same == offline
    assert (other["version"] != offline["version"], other["files"]) == (True, offline["files"])
    shutil.copytree(site, tmp_path / "edited")
    (tmp_path / "edited" / "style.css").write_text("body {}")
    plan = {**plan_of(site), "offline": None}
    versions = {offline_version(folder, plan)["version"] for folder in (site, tmp_path / "edited")}
    assert len(versions) == 2, "the version depends on the files"


def test_any_browser_can_run_it(case: Case) -> None:
    found, needs = case.found, case.found["requires"]
    assert needs["max_texture_size"] <= 4096
    assert needs["draw_buffers"] <= 4
    assert needs["texture_units"] <= 16
    assert needs["point_size"] == 1
    assert needs["extensions"] == ["EXT_color_buffer_float"]
    draws = [*found["draws"], *(draw for each in found["companions"].values() for draw in each["draws"])]
    for draw in draws:
        assert len(draw["outputs"]) <= needs["draw_buffers"]
        assert len(draw["inputs"]) <= needs["texture_units"]
    assert not any(program["defines"].get("QUAD") for program in found["programs"])


def test_shaders_are_copied_byte_for_byte_and_no_others(case: Case) -> None:
    found, out = case.found, case.out
    here = {path.relative_to(out / "shaders").as_posix() for path in (out / "shaders").rglob("*") if path.is_file()}
    for name in here:
        assert (out / "shaders" / name).read_bytes() == (shader_root() / name).read_bytes()
    wanted = {name for program in found["programs"] for name in (program["fragment"], program["vertex"])}
    wanted |= {INTEGER_TARGETS, "self_test.frag", "self_test.json"}
    for name in sorted(wanted):
        wanted |= set(re.findall(r'#include "(.*)"', (shader_root() / name).read_text()))
    assert wanted <= here
    for name in here - wanted:  # an include of an include
        assert any(f'"{name}"' in (shader_root() / other).read_text() for other in here)


def test_weights_come_back_as_they_were_from_the_files_that_the_plan_names(case: Case) -> None:
    found, made, out = case.found, case.made, case.out
    texels = load_file(out / "weights.safetensors")
    arrays = weights_for(load_checkpoint(case.path), case.plan, case.weights)
    uploaded = [texture["tensor"] for texture in found["textures"] if texture["kind"] == "weight"]
    assert set(texels) == {*uploaded, "logits_order", "line_checksums"}
    data = (out / "weights.safetensors").read_bytes()
    text, sums = data[8 : 8 + int.from_bytes(data[:8], "little")], texels["line_checksums"].tobytes()
    assert data.endswith(sums)
    entry = {"name": "weights.safetensors", "bytes": len(data), "crc32": zlib.crc32(text + sums)}
    assert found["files"]["weights"] == [entry]
    header = json.loads(text)
    places = [header[name]["data_offsets"][0] for name in (*uploaded, "logits_order", "line_checksums")]
    assert places == sorted(places)
    for name in uploaded:
        tensor = made.table[name]
        layout = tensor.layout_within(case.size)
        assert texels[name].shape == (layout.height, layout.width, layout.format.channels)
        flat = texels[name][..., 0] if layout.format.channels == 1 else texels[name]
        expected = weight_matrix(tensor, arrays)
        np.testing.assert_array_equal(layout.unpack(flat, *tensor.shape), expected, err_msg=name)
    expected = [zlib.crc32(line.tobytes()) for name in uploaded for line in texels[name]]
    assert texels["line_checksums"].dtype == np.uint32
    np.testing.assert_array_equal(texels["line_checksums"], expected)


def test_a_fingerprint_is_that_of_the_files_that_a_browser_keeps(tmp_path: Path) -> None:
    """The same files have the same one, at any address; another weight, tokenizer or format has another."""
    path = written(tmp_path, GAB)

    def made(**options: Any) -> str:
        return str(export_web(path, tmp_path / "out", **options).plan["files"]["fingerprint"])

    plain = made()
    assert re.fullmatch("[0-9a-f]{64}", plain)
    assert made() == made(single=True) == plain
    half = made(weights="f16")
    write_bpe(demo_tokenizer(GAB.vocab_size), path.with_suffix(".bpe"))
    texts = made()
    checkpoint = random_checkpoint(GAB, seed=1)
    name, last = list(checkpoint.tensors.items())[-1]
    changed = last.copy()
    changed.flat[3] += 1
    save_checkpoint(dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, name: changed}), path)
    assert len({plain, half, texts, made()}) == 4


def test_large_weights_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a file of its own with checksums of its own; together they have what a single one has."""
    path = written(tmp_path, GAB)
    whole = load_file(export_web(path, tmp_path / "whole").folder / "weights.safetensors")
    largest = max(texels.nbytes for texels in whole.values())
    monkeypatch.setattr(weights_module, "MAX_SITE_FILE_BYTES", largest)
    made = export_web(path, tmp_path / "out")
    names = [entry["name"] for entry in made.plan["files"]["weights"]]
    count = len(names)
    assert count > 2
    assert names == [f"weights-{place:05}-of-{count:05}.safetensors" for place in range(1, count + 1)]
    assert sorted(file.name for file in made.folder.glob("*.safetensors")) == names
    files = [load_file(made.folder / name) for name in names]
    sums = [each.pop("line_checksums") for each in files]
    np.testing.assert_array_equal(np.concatenate(sums), whole.pop("line_checksums"))
    assert ["logits_order" in each for each in files] == [False] * (count - 1) + [True]
    found = {name: texels for each in files for name, texels in each.items()}
    assert all(sum(t.nbytes for n, t in each.items() if n != "logits_order") <= largest for each in files)
    assert found.keys() == whole.keys()
    for name, texels in whole.items():
        np.testing.assert_array_equal(found[name], texels, err_msg=name)


def test_what_the_drivers_need(case: Case) -> None:
    found = case.found
    tail = [draw["kind"] for draw in found["draws"]][len(found["draws"]) - found["head_draws"] :]
    names = {value["name"] for value in found["run_values"]}
    assert found["driver"] == case.plan
    if found["driver"] == "fast":
        assert tail == ["lm_head", "pick"]
        assert found["input"] is None
        assert {"position", "token", "score_slots", "noise", "inverse_temperature", "noise_key"} == names
    else:
        token = found["textures"][found["input"]]
        assert (token["name"], token["kind"]) == ("tokens", "input")
        assert names == ({"rows"} if token["layout"]["kind"] == "matrix" else {"rows", "last_row"})
        assert tail == []
        assert found["head_draws"] == 0
    derived = {value["name"]: value["value"] for value in found["run_values"] if value["value"] is not None}
    expected = {"score_slots": {"ceildiv": [{"add": ["position", 1]}, 64]}, "last_row": {"add": ["rows", -1]}}
    assert derived == {name: expected[name] for name in names & expected.keys()}
    whole = {value["name"]: value["whole"] for value in found["run_values"]}
    assert all(whole[name] == (name not in ("noise", "inverse_temperature")) for name in names)
    for picture in found["pictures"]:
        draw = found["draws"][picture["draw"]]
        assert picture["name"] == draw["name"]
        assert draw["outputs"] == [picture["texture"]]


def test_the_site_has_page_tokenizer_and_facts(site: Path) -> None:
    for name in ("index.html", "app.js", "style.css"):
        assert (site / name).read_bytes() == (web_root() / name).read_bytes()
    for folder in ("page", "glinfer"):
        modules = {path.name for path in (web_root() / folder).glob("*.js")}
        assert modules
        assert {path.name for path in (site / folder).iterdir()} == modules
    tokenizer = json.loads((site / "tokenizer.json").read_text())
    model = demo_tokenizer(GAB.vocab_size)
    assert tokenizer["kind"] == "bpe1"
    assert [tuple(merge) for merge in tokenizer["merges"]] == list(model.merges)
    assert tuple(base64.b64decode(piece) for piece in tokenizer["pieces"]) == model.vocabulary
    facts = plan_of(site)["model"]
    assert facts["name"] == "model"
    assert facts["tokenizer"] is True
    assert facts["licence"] == ""
    assert facts["config"] == GAB.to_dict()
    assert facts["parameters"] == random_checkpoint(GAB).parameter_count
    control = tokenizer["control"]
    chat = {"user": control["<|user|>"], "assistant": control["<|assistant|>"], "end": control["<|end|>"]}
    assert facts["chat"] == {**chat, "think": control.get("<|think|>")}
    assert facts["stop_ids"] == [control["<|end|>"]]
    assert "What can you help me with?" in facts["examples"]


def test_examples_suit_the_model(tmp_path: Path) -> None:
    """Plain texts where there is no chat, and none of token ids; a bundled model has its card's."""
    path = written(tmp_path, GAB)
    made = export_web(path, tmp_path / "ids")
    about = made.plan["model"]
    assert (about["examples"], about["chat"], about["tokenizer"]) == ([], None, False)
    assert [note.partition(":")[0] for note in made.notes] == ["the site takes token ids only"]
    assert not (made.folder / "tokenizer.json").exists()
    merges = [(byte, byte + 1, 256 + byte) for byte in range(GAB.vocab_size - 256)]
    pieces = [*(bytes([byte]) for byte in range(256)), *(bytes(merge[:2]) for merge in merges)]
    write_bpe(BpeModel(tuple(merges), tuple(pieces)), path.with_suffix(".bpe"))  # without control tokens
    texts = export_web(path, tmp_path / "texts").plan["model"]
    assert texts["chat"] is None
    assert "Once upon a time" in texts["examples"]


def test_an_earlier_export_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path, out = written(tmp_path, GAB), tmp_path / "out"
    out.mkdir()
    export_web(path, out)
    (out / "shaders" / "old.frag").write_text("left over")
    export_web(path, out, plan="reference")
    assert plan_of(out)["driver"] == "reference"
    assert not (out / "shaders" / "old.frag").exists()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"mine\.txt"):
        export_web(path, out)
    other = tmp_path / "other"
    other.mkdir()
    (other / "plan.json").write_text('{"format": "another"}')
    with pytest.raises(InputError, match="not an earlier export"):
        export_web(path, other)
    with pytest.raises(InputError, match="found a file"):
        export_web(path, path)
    with pytest.raises(InputError, match="there is no folder"):
        export_web(path, tmp_path / "a" / "b")
    assert (other / "plan.json").read_text() == '{"format": "another"}'


def test_what_cannot_be_exported_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, GAB)
    large = written(tmp_path, ModelConfig.from_options("blocks=1,heads=1,dim=4,vocab=300,context=5000"), "large.gab")
    refusals: list[tuple[Path, dict[str, Any], type[GlinferError], str]] = [
        (large, {"plan": "reference", "limits": "webgl2"}, PlanError, "does not fit a browser's textures"),
        (path, {"weights": "q4"}, InputError, "expected one of f32, f16, q16, q8l, q8, file, auto"),
        (path, {"limits": "none"}, InputError, "usual, webgl2"),
        (path, {"plan": "reference", "weights": "q8"}, InputError, "leave weights out"),
        (tmp_path / "missing.gab", {}, FormatError, "missing"),
    ]
    monkeypatch.setattr(module, "MAX_SINGLE_FILE_BYTES", 1000)
    refusals.append((path, {"single": True}, InputError, "leave --single-file out"))
    for model, options, kind, words in refusals:
        with pytest.raises(kind, match=words):
            export_web(model, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()


def hashed(inline: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"


def test_a_single_file_has_everything(site: Path, tmp_path: Path) -> None:
    model = site.parent / "model.gab"
    out = export_web(model, tmp_path / "one", single=True).folder
    assert [entry.name for entry in out.iterdir()] == ["index.html"]
    page = (out / "index.html").read_text()
    embedded: dict[str, bytes] = {}
    for name, text in re.findall(r'<script type="text/plain" data-file="([^"]+)">([^<]*)</script>', page):
        embedded[name] = embedded.get(name, b"") + base64.b64decode(text, validate=True)
    files = {path.relative_to(site).as_posix(): path for path in site.rglob("*") if path.is_file()}
    files = {name: path for name, path in files.items() if not name.startswith("tour")}  # a page of its own
    modules = {name for name in files if name.endswith(".js")} - {"offline.js"}
    assert set(embedded) == set(files) - modules - {"index.html", "style.css", "offline.js"}
    assert json.loads(embedded.pop("plan.json")) == {**plan_of(site), "offline": None}  # it needs no server anyway
    assert all(content == files[name].read_bytes() for name, content in embedded.items())
    (found,) = re.findall(r'<script type="importmap">(.*?)</script>', page, re.DOTALL)
    imports = json.loads(found)["imports"]
    assert set(imports) == {f"glinfer-site/{name}" for name in modules}
    for name in modules:
        text = base64.b64decode(imports[f"glinfer-site/{name}"].partition(",")[2]).decode()
        assert text == renamed(name, files[name])
        assert all(f"glinfer-site/{other}" in imports for other in re.findall(r'from "glinfer-site/([^"]+)"', text))
    assert (site / "style.css").read_text() in page
    assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="(?!data:)', page)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    inline = re.findall(r'<script type="(?:importmap|module)">(.*?)</script>', page, re.DOTALL)
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    scripts, styles = (" ".join(map(hashed, texts)) for texts in (inline, [style]))
    assert policy.split("; ") == [
        *("default-src 'none'", f"script-src data: {scripts}", f"style-src {styles}", "img-src data:"),
        *("base-uri 'none'", "form-action 'none'"),
    ]
    assert page.index("Content-Security-Policy") < page.index("<script")
    export_web(model, out, single=True)  # such a page is an earlier export too
    export_web(model, out)
    assert (out / "plan.json").is_file()


def test_a_single_file_may_be_called_so(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, page = site.parent / "model.gab", tmp_path / "site.html"
    for _ in range(2):
        assert run(["export-web", str(model), str(page), "--single-file"]) == 0
        assert capsys.readouterr().out.endswith(f"open {page}\n")
        assert [entry.name for entry in tmp_path.iterdir()] == ["site.html"]
        assert page.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(InputError, match="the name of a page; name a folder, or add --single-file"):
        export_web(model, page)
    with pytest.raises(InputError, match="this is a file; open it in a browser"):
        site_server(page)
    (tmp_path / "mine.htm").write_text("mine")
    (tmp_path / "folder.html").mkdir()
    for name, said in (("mine.htm", "this page is not an earlier export"), ("folder.html", "found a folder")):
        with pytest.raises(InputError, match=said):
            export_web(model, tmp_path / name, single=True)


def test_imports_are_renamed_and_odd_ones_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.js"
    source.write_text(
        'import {\n  b,\n} from "./b.js";\nexport { c } from "../c.js";\nimport "./d.js";\nconst e = "./b.js";\n'
    )
    assert renamed("glinfer/a.js", source) == (
        'import {\n  b,\n} from "glinfer-site/glinfer/b.js";\nexport { c } from "glinfer-site/c.js";\n'
        'import "glinfer-site/glinfer/d.js";\nconst e = "./b.js";\n'
    )
    for odd in ('const b = await import("./b.js");\n', "fetch(new URL('x', import.meta.url));\n"):
        source.write_text(odd)
        with pytest.raises(FormatError, match=r"glinfer/a\.js:1"):
            renamed("glinfer/a.js", source)


def test_a_page_that_would_fetch_something_is_refused(tmp_path: Path) -> None:
    policy, module = (
        '<meta http-equiv="Content-Security-Policy" content="x">',
        '<script type="module" src="a.js"></script>',
    )
    (tmp_path / "a.js").write_text("")
    for page, said in (
        (f'{policy}{module}<img src="a.png">', '<img src="a.png", which cannot be embedded'),
        (f'{policy}<script src="a.js"></script>', '<script src="a.js", which cannot be embedded'),
        (policy, "expected one of each"),
        (module, "expected one of each"),
    ):
        (tmp_path / "index.html").write_text(f"<!DOCTYPE html>{page}")
        with pytest.raises(FormatError, match=said):
            single_file(tmp_path, tmp_path / "a.js")


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[HTTPConnection]:
    with site_server(site, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        connection = HTTPConnection(HOST, server.server_address[1], timeout=DEADLINE)
        yield connection
        connection.close()
        server.shutdown()
        thread.join()


def get(connection: HTTPConnection, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def test_a_site_is_served_with_types_and_headers(served: HTTPConnection, site: Path) -> None:
    types = {
        "/": "text/html; charset=utf-8",
        "/app.js": "text/javascript; charset=utf-8",
        "/style.css": "text/css; charset=utf-8",
        "/plan.json": "application/json",
        "/weights.safetensors": "application/octet-stream",
        "/shaders/gemm.frag": "text/plain; charset=utf-8",
        "/shaders/common/blocks.vert": "text/plain; charset=utf-8",
    }
    for path, expected in types.items():
        status, headers, body = get(served, path)
        assert (status, headers["content-type"]) == (200, expected), path
        assert body == (site / (path[1:] or "index.html")).read_bytes()
        assert headers["cache-control"] == "no-cache"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-opener-policy"] == "same-origin"


def test_nothing_else_is_served(served: HTTPConnection) -> None:
    for path in ("/shaders/", "/nothing.js", "/../model.gab", "/%00", "/%2e%2e/model.gab"):
        assert get(served, path)[0] == 404, path


def test_servers_refuse_what_they_cannot_serve(site: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not an exported site"):
        site_server(tmp_path)
    with site_server(site) as server:
        assert server.server_address[0] == "127.0.0.1"
        with pytest.raises(InputError, match="--port"):
            site_server(site, server.server_address[1])


def test_a_part_of_a_file_is_served(served: HTTPConnection, site: Path) -> None:
    data = (site / "weights.safetensors").read_bytes()
    size = len(data)
    for asked, part in {"0-9": data[:10], "10-": data[10:], "-7": data[-7:], f"5-{size + 9}": data[5:]}.items():
        status, headers, body = get(served, "/weights.safetensors", Range=f"bytes={asked}")
        assert (status, body) == (206, part), asked
        assert headers["content-length"] == str(len(part))
        first, last, total = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers["content-range"]).groups()  # type: ignore[union-attr]
        assert data[int(first) : int(last) + 1] == part
        assert int(total) == size
        assert headers["content-type"] == "application/octet-stream"
    status, headers, body = get(served, "/weights.safetensors", Range=f"bytes={size}-")
    assert (status, headers["content-range"], body) == (416, f"bytes */{size}", b"")
    for odd in ("bytes=1-2,4-5", "lines=1-2", "bytes=-", "bytes=9-3", "bytes=a-b"):  # may be ignored, says HTTP
        assert get(served, "/weights.safetensors", Range=odd)[::2] == (200, data), odd


def test_a_file_that_is_known_is_not_sent_again(served: HTTPConnection, site: Path) -> None:
    status, headers, body = get(served, "/plan.json")
    tag = headers["etag"]
    assert (status, body, headers["accept-ranges"]) == (200, (site / "plan.json").read_bytes(), "bytes")
    for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again, headers, body = get(served, "/plan.json", If_None_Match=known)
        assert (again, headers["etag"], body) == (304, tag, b"")
    assert get(served, "/plan.json", If_None_Match='"other"')[0] == 200
    assert get(served, "/plan.json", Range="bytes=0-3", If_Range=tag)[0] == 206
    assert get(served, "/plan.json", Range="bytes=0-3", If_Range='"other"')[0] == 200
    (site / "plan.json").write_bytes((site / "plan.json").read_bytes())
    assert get(served, "/plan.json", If_None_Match=tag)[0] == 200  # it was written anew


@pytest.mark.slow
def test_ctrl_c_ends_the_server(site: Path) -> None:
    said: list[bytes] = []

    def serving(process: subprocess.Popen[bytes]) -> bool:
        assert process.stdout is not None
        said.append(process.stdout.readline())
        found = re.search(rb"http://127\.0\.0\.1:(\d+)/ \(Ctrl-C to stop\)$", said[0])
        assert found, said
        connection = HTTPConnection(HOST, int(found[1]), timeout=DEADLINE)
        assert get(connection, "/plan.json")[0] == 200
        connection.close()
        return True

    assert interrupted("serve-web", site, "--port", "0", when=serving) == (0, "")


def test_the_commands_say_what_they_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    said = ran_json(capsys, "export-web", "shakespeare", out, "--weights", "q8", "--context", "64")
    assert (said["driver"], said["draws_per_token"], said["weights"]) == ("fast", 39, "q8")
    about = plan_of(out)["model"]
    assert about["config"]["max_position_embeddings"] == 64
    card = json.loads((web_root().parent / "glinfer" / "bundled" / "shakespeare.json").read_text())
    assert about["examples"] == card["examples"]
    assert run(["export-web", "shakespeare", str(tmp_path)]) == 2
    assert run(["serve-web", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all(line.startswith("glinfer: ") for line in errors)
