"""Exported sites in a real browser: the same tokens, logits and draw calls as Python's, and nothing complains."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import subnormals
from goldens import ModelWriter, gab_records, recorded
from goldens.models import LONGROPE, write_model
from scripted_models import SMALL
from sites import ChatSite, in_blocks_of_256

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.model import Model
from glinfer.export.site import ExportedSite, export_web
from glinfer.formats import random_checkpoint, save_checkpoint
from glinfer.gl.program import VERTEX_SHADER, load_source
from glinfer.kernels.flat.elementwise import arithmetic
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Pass
from glinfer.program.plan import PlanBuilder
from qa.renderers import cells

pytestmark = [pytest.mark.gl, pytest.mark.web]

PROMPT = "ROMEO:\nWhat light"
TOKENS, COMPARED = 24, 3
LOGITS_TOLERANCE = 1e-4
PROBS_TOLERANCE = {"webgl_probs": 5e-6, "cpu_probs": 1e-6}  # those of tests/models/test_goldens.py
LLAMA = ModelConfig.from_options("family=llama,blocks=2,heads=4,kv_heads=2,dim=64,inner=128,vocab=300,context=64")
WIDE = ModelConfig.from_options("blocks=1,heads=2,dim=16,vocab=5000,context=32")
LIMITS = {"usual": "", "webgl2": "?minimum=1"}
"""What is put behind the page's address, by the limits of the export."""

Array = np.ndarray[Any, Any]
Drive = Callable[..., dict[str, Any]]


def expected_of(model: Model, prompt: list[int], count: int) -> tuple[list[int], list[Array]]:
    """Python's greedy tokens, and the logits of the first of them."""
    ids = model.generate(prompt, max_tokens=count, temperature=0, stop_ids=())
    return ids, [model.logits([*prompt, *ids[:step]]) for step in range(COMPARED)]


def check(found: dict[str, Any], ids: list[int], logits: list[Array], plan: dict[str, Any], prompt: int) -> None:
    draws, rows = plan["model"]["draws_per_token"], plan["companions"].get("rows")
    in_pieces = rows is not None and prompt >= rows["least"]
    assert found["ids"] == ids
    assert len(found["logits"]) == len(logits)
    for step, (theirs, ours) in enumerate(zip(found["logits"], logits, strict=True)):
        assert np.abs(np.array(theirs, np.float32) - ours).max() <= LOGITS_TOLERANCE, f"step {step}"
    # A piece has done all of the last token but for its last layer and the head.
    assert found["draws"] == [draws - (rows["tail"] if in_pieces else 0)] + [draws] * (len(ids) - 1)
    runs = -(-prompt // rows["most"]) * len(rows["draws"]) if in_pieces else (prompt - 1) * (draws - plan["head_draws"])
    assert found["promptDraws"] == runs


def test_the_bundled_model_writes_what_it_writes_in_python(
    run_site: Drive, bundled: Callable[[str], ExportedSite]
) -> None:
    """Greedy, and drawn with the same seed."""
    made, how = bundled("f32"), {"temperature": 0.8, "top_k": 0, "top_p": 1.0}
    with glinfer.load("shakespeare") as model:
        assert model.tokenizer is not None
        prompt = model.tokenizer.encode(PROMPT)
        ids, logits = expected_of(model, prompt, TOKENS)
        drawn = model.generate(prompt, max_tokens=40, seed=3, stop_ids=(), **how)
        last = model.logits([*prompt, *drawn[:39]])
    jobs = [
        {"kind": "encode", "text": PROMPT},
        {"kind": "greedy", "ids": prompt, "count": TOKENS, "logits": COMPARED},
        {"kind": "greedy", "ids": prompt[:3], "count": 1},  # what was held before must not matter
        {"kind": "greedy", "ids": prompt, "count": 1},
        {"kind": "drawn", "ids": prompt, "count": 40, "temperature": 0.8, "seed": 3, "logits": 40},
    ]
    encoded, found, _, again, sampled = run_site(made.folder, jobs)["results"]
    assert encoded["ids"] == prompt
    assert encoded["text"] == PROMPT
    check(found, ids, logits, made.plan, len(prompt))
    assert again["ids"] == ids[:1]
    assert again["logits"][0] == found["logits"][0]
    assert sampled["ids"] == drawn
    drift = np.abs(np.array(sampled["logits"][-1]) - last).max() / np.ptp(last)
    assert drift < 1e-5
    [integers] = run_site(made.folder, jobs[1:2], query=LIMITS["webgl2"])["results"]  # without float targets
    assert (integers["ids"], integers["logits"]) == (found["ids"], found["logits"])


def test_figures_of_transformers_without_extensions(run_site: Drive, tmp_path: Path) -> None:
    """Of a model with convolutions; `python -m qa renderers` runs five families."""
    figures = cells.figures_of("lfm2")
    made = export_web(cells.golden_file("lfm2"), tmp_path / "site")
    job = {"kind": "greedy", "ids": figures.ids[: cells.GIVEN], "count": 12}
    ran = run_site(made.folder, [job], query="?extensions=0")
    (found,) = ran["results"]
    assert not ran["computes"]["floats"], "the extension is not hidden"
    assert found["ids"] == figures.ids[cells.GIVEN :][:12]
    assert figures.error(cells.GIVEN - 1, np.array(found["logits"][0], np.float64)) <= cells.OF_RANGE


def softmax(logits: list[float]) -> Array:
    values = np.array(logits, np.float64)
    powers = np.exp(values - values.max())
    probs: Array = powers / powers.sum()
    return probs


@pytest.mark.parametrize(("model", "limits"), [("tiny", "usual"), ("odd", "webgl2")])
def test_goldens(run_site: Drive, golden_model: ModelWriter, tmp_path: Path, model: str, limits: str) -> None:
    records = sorted(gab_records(model), key=lambda record: -len(record["tokens"]))
    assert records
    made = export_web(golden_model(model), tmp_path / "site", plan="reference", limits=limits)
    jobs = [{"kind": "logits", "ids": record["tokens"]} for record in records]
    results = run_site(made.folder, jobs, query=LIMITS[limits])["results"]
    assert len(results) == len(records)
    for record, found in zip(records, results, strict=True):
        probs = softmax(found["logits"][0])
        assert found["ids"] == [record["argmax"]]
        assert found["draws"] == [record.get("draw_calls", made.draws)]
        for key in PROBS_TOLERANCE.keys() & record.keys():
            difference = np.abs(probs - np.array(record[key])).max()
            assert difference <= PROBS_TOLERANCE[key], f"{key}: {difference:.1e}"


def test_the_published_passes_are_244_draws(run_site: Drive, tmp_path: Path) -> None:
    """The bundled model has Gab's architecture; the page counts the draws at WebGL itself."""
    made = export_web("shakespeare", tmp_path / "site", plan="reference")
    with glinfer.load("shakespeare", plan="reference") as model:
        ids, logits = expected_of(model, [5, 3], COMPARED)
    [found] = run_site(made.folder, [{"kind": "greedy", "ids": [5, 3], "count": COMPARED, "logits": COMPARED}])[
        "results"
    ]
    assert (found["ids"], found["draws"]) == (ids, [244] * COMPARED)
    for theirs, ours in zip(found["logits"], logits, strict=True):
        assert np.abs(np.array(theirs, np.float32) - ours).max() <= LOGITS_TOLERANCE


def compare_with_python(run_site: Drive, made: ExportedSite, path: Path, prompt: list[int], **options: str) -> None:
    """12 greedy tokens, and the logits of the first, of a site within WebGL2's minimum and of the same model here."""
    with glinfer.load(path, **options) as model:
        ids, logits = expected_of(model, prompt, 12)
    jobs = [
        {"kind": "greedy", "ids": prompt, "count": 12, "logits": COMPARED},
        {"kind": "stream", "ids": [*prompt, *ids[:2]], "count": 9, "options": {"temperature": 0}},
    ]
    found, chosen = run_site(made.folder, jobs, query=LIMITS["webgl2"])["results"]
    assert chosen["ids"] == ids[2:11]  # by the plan itself, several at once
    if made.plan["driver"] == "reference":
        assert found["promptDraws"] == 0
        found["promptDraws"] = (len(prompt) - 1) * made.draws  # the whole sequence is run each time, and only then
    check(found, ids, logits, made.plan, len(prompt))


@pytest.mark.parametrize("plan", ["fast", "reference"])
def test_texts_that_turn_by_one_of_two_sets_of_angles(run_site: Drive, tmp_path: Path, plan: str) -> None:
    """Over the length at which they change, after it, and a short text in between; with what transformers gives."""
    path = write_model(LONGROPE, tmp_path / "model")
    made = export_web(path, tmp_path / "site", plan=plan, limits="webgl2")
    texts = {tokens: recorded("longrope")["prompts"][str(tokens)]["ids"] for tokens in (24, 45)}
    jobs = [
        {"kind": "greedy", "ids": ids[:tokens], "count": len(ids) - tokens}
        for tokens, ids in (*texts.items(), (7, texts[24][:8]), (24, texts[24]))
    ]
    over, after, _, again = run_site(made.folder, jobs, query=LIMITS["webgl2"])["results"]
    assert over["ids"] == again["ids"] == texts[24][24:]
    assert after["ids"] == texts[45][45:]


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float32", {"weights": "q8", "cache": "q8"}),
        ("q5_1", {"weights": "file"}),
        ("q4_1", {}),
        ("q8_0", {"plan": "reference"}),
    ],
)
def test_a_llama_in_many_formats(run_site: Drive, tmp_path: Path, dtype: str, options: dict[str, str]) -> None:
    path = tmp_path / ("llama.safetensors" if dtype == "float32" else "llama.gguf")
    save_checkpoint(random_checkpoint(LLAMA, seed=3), path, dtype=dtype)
    made = export_web(path, tmp_path / "site", limits="webgl2", **options)
    if "plan" not in options:
        assert made.draws == (7 if options.get("cache") == "q8" else 6) * LLAMA.num_hidden_layers + 3
    compare_with_python(run_site, made, path, [1, 2, 3, 4, 299], **options)


FAMILIES = {
    "qwen3": ("family=qwen3,blocks=2,heads=4,kv_heads=2,dim=64,head_dim=24,inner=96,vocab=300,context=64", 2 * 7),
    "mistral": ("family=mistral,blocks=2,heads=4,kv_heads=2,dim=64,inner=128,window=4,vocab=300,context=96", 2 * 6),
    "gpt2": ("family=gpt2,blocks=2,heads=4,dim=64,vocab=300,context=64", 2 * 6),
    "gpt_oss": (
        "family=gpt_oss,blocks=2,heads=4,kv_heads=2,dim=64,inner=96,experts=5,window=4,vocab=300,context=64",
        2 * 9,
    ),
}
"""A shape of each, and the draws of its layers."""


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "gpt_oss"])
def test_other_families_from_blocks_of_a_file(run_site: Drive, tmp_path: Path, family: str) -> None:
    """Normalised heads, LayerNorm, a window, experts, sinks."""
    shape, draws = FAMILIES[family]
    config, path = ModelConfig.from_options(shape), tmp_path / f"{family}.gguf"
    save_checkpoint(random_checkpoint(config, seed=5), path, dtype="q8_0")
    made = export_web(path, tmp_path / "site", weights="file", limits="webgl2")
    assert made.draws == draws + 3
    compare_with_python(run_site, made, path, [299, 7, 250, 1, 16, 90], weights="file")


@pytest.mark.parametrize(
    "forms",
    [["Q4_K"], ["IQ4_NL", "MXFP4", "IQ2_S", "Q6_K"]],
    ids="+".join,
)
def test_blocks_of_256(run_site: Drive, tmp_path: Path, forms: list[str]) -> None:
    """Of one format, and of several, which within a product become wide."""
    shape = "family=llama,blocks=1,heads=4,kv_heads=2,dim=256,inner=256,vocab=300,context=64"
    path, prompt = tmp_path / "llama.gguf", [1, 2, 3, 4, 299]
    save_checkpoint(in_blocks_of_256(ModelConfig.from_options(shape), forms), path, dtype="file")
    made = export_web(path, tmp_path / "site", weights="file", limits="webgl2")
    with glinfer.load(path, weights="file") as model:
        ids, logits = expected_of(model, prompt, 4)
    job = {"kind": "greedy", "ids": prompt, "count": 4, "logits": COMPARED}
    (found,) = run_site(made.folder, [job], query=LIMITS["webgl2"])["results"]
    assert found["ids"] == ids
    for theirs, ours in zip(found["logits"], logits, strict=True):  # random blocks are large numbers
        assert np.abs(np.array(theirs, np.float32) - ours).max() <= 1e-5 * np.ptp(ours)


@pytest.mark.parametrize(("family", "plan"), [("mistral", "fast"), ("gpt_oss", "reference")])
def test_pictures_of_attention_are_pythons_probabilities(
    run_site: Drive, tmp_path: Path, family: str, plan: str
) -> None:
    """A row for each head: what the last token looks at."""
    shape = ModelConfig.from_options(FAMILIES[family][0])
    path, prompt = tmp_path / f"{family}.gguf", [7 * place % 300 for place in range(24)]
    save_checkpoint(random_checkpoint(shape, seed=3), path, dtype="q8_0")
    made = export_web(path, tmp_path / "site", plan=plan, weights="file", limits="webgl2")
    with glinfer.load(path, plan="reference") as model:
        expected = model.capture("blocks.*.attn.probs", prompt)
    (found,) = run_site(made.folder, [{"kind": "attention", "ids": prompt}], query=LIMITS["webgl2"])["results"]
    assert len(found["pictures"]) == shape.num_hidden_layers
    for layer, picture in enumerate(found["pictures"]):
        probs = expected[f"blocks.{layer}.attn.probs"][:, -1]
        weights = np.array(picture["weights"], np.float32).reshape(picture["rows"], picture["cols"])
        assert weights.shape == probs.shape
        assert np.abs(weights - probs).max() <= 1e-5


def test_pictures_of_the_published_plan_are_one_head_each(run_site: Drive, tmp_path: Path) -> None:
    """A row for each token."""
    config = ModelConfig.from_options(SMALL)
    path, prompt = tmp_path / "model.gab", [7 * place % 300 for place in range(20)]
    save_checkpoint(random_checkpoint(config, seed=3), path)
    made = export_web(path, tmp_path / "site", plan="reference")
    with glinfer.load(path, plan="reference") as model:
        expected = model.capture("blocks.*.attn.probs", prompt)
    (found,) = run_site(made.folder, [{"kind": "attention", "ids": prompt}])["results"]
    heads = [(layer, head) for layer in range(config.num_hidden_layers) for head in range(config.num_attention_heads)]
    for (layer, head), picture in zip(heads, found["pictures"], strict=True):
        weights = np.array(picture["weights"], np.float32).reshape(picture["rows"], picture["cols"])
        assert np.abs(weights - expected[f"blocks.{layer}.attn.probs"][head]).max() <= 1e-5


def test_edges_that_are_longer_than_any_texture(run_site: Drive, tmp_path: Path) -> None:
    path = tmp_path / "wide.gab"
    save_checkpoint(random_checkpoint(WIDE, seed=4), path)
    made = export_web(path, tmp_path / "site", plan="reference", limits="webgl2")
    wrapped = [texture["name"] for texture in made.plan["textures"] if texture["layout"].get("wrapped")]
    assert "logits" in wrapped
    with glinfer.load(path, plan="reference") as model:
        ids, logits = expected_of(model, [4999, 7, 2500], 4)
    job = {"kind": "greedy", "ids": [4999, 7, 2500], "count": 4, "logits": COMPARED}
    (found,) = run_site(made.folder, [job], query=LIMITS["webgl2"])["results"]
    assert found["ids"] == ids
    assert max(np.abs(np.array(a) - b).max() for a, b in zip(found["logits"], logits, strict=True)) <= LOGITS_TOLERANCE


def test_subnormal_numbers_in_arithmetic(run_site: Drive, chat_site: Callable[[int], ChatSite]) -> None:
    """The browser's renderer does what docs/kernels.md says."""
    jobs = []
    for case in subnormals.CASES.values():
        builder = PlanBuilder("one draw", 1, ())
        x, y, out = (builder.flat(name, kind, 1, 4, "rgba32f", 64) for name, kind in (
            ("x", "input"), ("y", "input"), ("out", "activation")))  # fmt: skip
        spec = arithmetic(Pass("draw", KernelOptions()), x, y, out, operation=case.operation)
        sources = [
            load_source(VERTEX_SHADER, {}, api="es"),
            load_source("arithmetic.frag", dict(spec.defines), api="es"),
        ]
        inputs = {name: np.resize(numbers, 16).tolist() for name, numbers in (("x", case.x), ("y", case.y))}
        jobs.append({"kind": "draw", "vertex": sources[0].text, "fragment": sources[1].text, "inputs": inputs})
    ran = run_site(chat_site(3).folder, jobs)
    bits = [np.array(found["bits"][:4], np.uint32).view(np.float32) for found in ran["results"]]
    found = subnormals.outcomes(dict(zip(subnormals.CASES, bits, strict=True)))
    known = subnormals.renderer_of(ran["renderer"])
    assert known is None or found == subnormals.BEHAVIOUR[known]


def test_a_site_that_needs_more_than_the_browser_has_says_so(
    run_site: Drive, chat_site: Callable[[int], ChatSite], tmp_path: Path
) -> None:
    """``?minimum=1`` must refuse a plan for larger textures, or the tests above would prove nothing with it."""
    site = shutil.copytree(chat_site(3).folder, tmp_path / "site")
    plan = json.loads((site / "plan.json").read_text())
    plan["requires"]["max_texture_size"] = 4096
    (site / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(AssertionError, match="2048"):
        run_site(site, [{"kind": "logits", "ids": [1]}], query="?minimum=1")


def test_the_page_writes_into_its_log_and_checks_its_textures(
    run_site: Drive, bundled: Callable[[str], ExportedSite]
) -> None:
    """With an example that is clicked on, and textures that are checked where the address says so."""
    made = bundled("q8")
    example, generation = made.plan["model"]["examples"][1], made.plan["model"]["generation"]
    with glinfer.load("shakespeare", weights="q8") as model:
        expected = model.generate(example, max_tokens=12, temperature=0)
    shown = run_site(made.folder, query="?verify=1", talk={"example": 1, "tokens": 12, "checks": 2})["shown"]
    assert shown["examples"] == made.plan["model"]["examples"]
    assert "runs on this computer" in shown["about"]
    assert "This model continues a text" in shown["invitation"]
    assert shown["log"] == example + expected
    assert shown["status"] == "Done."
    assert shown["draws"] == str(made.draws)
    assert not shown["welcome"]
    assert shown["layers"] == [f"block {layer}" for layer in range(6)]
    ids = {"temperature": "temperature", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
    for name, field in {**ids, "repetition_penalty": "penalty"}.items():
        assert float(shown[field]) == generation[name], name
    assert min(shown["picture"]) >= 1
    assert max(shown["picture"]) > 1
    light, dark = shown["colours"]
    assert sum(light) < sum(dark)  # on light and on dark paper
    count = sum(texture["kind"] == "weight" for texture in made.plan["textures"])
    assert [(report["ok"], report["checked"]["textures"]) for report in shown["checks"]] == [(True, count)] * 2
    size = shown["checks"][0]["checked"]["bytes"] / 1e6
    assert shown["checked"] == f"Checked {count} textures ({size:.1f} MB) bit for bit against the files: all identical."
    plain = run_site(made.folder, talk={"text": PROMPT, "tokens": 2})["shown"]
    assert plain["log"].startswith(PROMPT)
    assert (plain["checks"], plain["checked"]) == ([], "")


def test_the_page_of_a_model_without_a_tokenizer_takes_token_ids(run_site: Drive, bare: Path, tmp_path: Path) -> None:
    made = export_web(bare, tmp_path / "site")
    shown = run_site(made.folder, talk={"text": "1 2 299", "tokens": 3})["shown"]
    assert shown["status"] == "Done."
    assert shown["examples"] == made.plan["model"]["examples"] == []
    assert "0 to 299" in shown["invitation"]
