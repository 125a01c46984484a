"""ExportedSite sites in a real browser: the same tokens, logits and draw calls as Python's, and nothing complains."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import subnormals
from goldens import ModelWriter, gab_records, recorded, smollm2_file
from goldens.models import LONGROPE, write_model

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.model import Model
from glinfer.engine.random_model import demo_tokenizer
from glinfer.export.site import ExportedSite, export_web
from glinfer.formats import Checkpoint, random_checkpoint, save_checkpoint, write_bpe
from glinfer.formats.packed import PackedTensor
from glinfer.gl.program import VERTEX_SHADER, load_source
from glinfer.models.plan import PlanBuilder
from glinfer.ops.flat.elementwise import arithmetic
from glinfer.ops.kernels import KernelOptions
from qa.kernels.cases.embedding import random_blocks

pytestmark = [pytest.mark.gl, pytest.mark.web]

PROMPT = "ROMEO:\nWhat light"
TOKENS, COMPARED = 50, 5
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


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("weights", ["f32", "q8"])
def test_the_bundled_model_writes_what_it_writes_in_python(
    run_site: Drive, tmp_path: Path, limits: str, weights: str
) -> None:
    made = export_web("shakespeare", tmp_path / "site", limits=limits, weights=weights)
    with glinfer.load("shakespeare", weights=weights) as model:
        assert model.tokenizer is not None
        prompt = model.tokenizer.encode(PROMPT)
        ids, logits = expected_of(model, prompt, TOKENS)
    jobs = [
        {"kind": "encode", "text": PROMPT},
        {"kind": "greedy", "ids": prompt, "count": TOKENS, "logits": COMPARED},
        {"kind": "greedy", "ids": prompt[:3], "count": 1},  # what was held before must not matter
        {"kind": "greedy", "ids": prompt, "count": 1},
    ]
    encoded, found, _, again = run_site(made.folder, jobs, query=LIMITS[limits])["results"]
    assert encoded["ids"] == prompt
    assert encoded["text"] == PROMPT
    check(found, ids, logits, made.plan, len(prompt))
    assert again["ids"] == ids[:1]
    assert again["logits"][0] == found["logits"][0]


def test_a_published_model_counts_on_as_in_llama_cpp(run_site: Drive, tmp_path: Path) -> None:
    """SmolLM2 in the 4-bit blocks of its file; few tokens, since all of its weights go through a CPU for each."""
    made, golden = export_web(smollm2_file(), tmp_path / "site", context=32), recorded("llama_smollm2")["count"]
    job = {"kind": "greedy", "ids": golden["ids"], "count": len(golden["greedy"])}
    (found,) = run_site(made.folder, [job])["results"]
    assert found["ids"] == golden["greedy"]
    assert set(found["draws"][1:]) == {made.draws} == {6 * 30 + 3}


def test_the_same_seed_draws_the_same_text_as_in_python(run_site: Drive, tmp_path: Path) -> None:
    made, seeds = export_web("shakespeare", tmp_path / "site"), range(1, 5)
    with glinfer.load("shakespeare") as model:
        assert model.tokenizer is not None
        prompt = model.tokenizer.encode("ROMEO:")
        how = {"temperature": 0.8, "top_k": 0, "top_p": 1.0}
        texts = [model.generate(prompt, max_tokens=100, seed=seed, stop_ids=(), **how) for seed in seeds]
        logits = model.logits([*prompt, *texts[-1][:99]])
    job = {"kind": "drawn", "ids": prompt, "count": 100, "temperature": how["temperature"], "logits": 100}
    found = run_site(made.folder, [{**job, "seed": seed} for seed in seeds])["results"]
    assert [each["ids"] for each in found] == texts
    drift = np.abs(np.array(found[-1]["logits"][-1]) - logits).max() / np.ptp(logits)
    print(f"logits of Chromium and Python differ by {drift:.1e} of their range")
    assert drift < 1e-5


def test_a_full_context_drops_the_oldest_half_as_python_does(run_site: Drive, tmp_path: Path) -> None:
    made = export_web("shakespeare", tmp_path / "site", context=16)
    prompt = [82, 79, 77, 69, 79, 58, 10]
    with glinfer.load("shakespeare", context=16) as model:
        ids = model.generate(prompt, max_tokens=24, temperature=0, stop_ids=())
    (found,) = run_site(made.folder, [{"kind": "greedy", "ids": prompt, "count": 24}])["results"]
    assert found["ids"] == ids


def softmax(logits: list[float]) -> Array:
    values = np.array(logits, np.float64)
    powers = np.exp(values - values.max())
    probs: Array = powers / powers.sum()
    return probs


def check_goldens(run_site: Drive, path: Path, out: Path, limits: str) -> None:
    records = sorted(gab_records(path.stem), key=lambda record: -len(record["tokens"]))
    assert records
    made = export_web(path, out, plan="reference", limits=limits)
    jobs = [{"kind": "logits", "ids": record["tokens"]} for record in records]
    results = run_site(made.folder, jobs, query=LIMITS[limits])["results"]
    assert len(results) == len(records)
    for record, found in zip(records, results, strict=True):
        probs = softmax(found["logits"][0])
        assert found["ids"] == [record["argmax"]]
        assert found["draws"] == [record.get("draw_calls", made.draws)]
        for key in PROBS_TOLERANCE.keys() & record.keys():
            difference = np.abs(probs - np.array(record[key])).max()
            print(f"{path.name}, {len(record['tokens'])} tokens, {key}: {difference:.1e}")
            assert difference <= PROBS_TOLERANCE[key], key


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("model", ["tiny", "odd"])
def test_goldens(run_site: Drive, golden_model: ModelWriter, tmp_path: Path, model: str, limits: str) -> None:
    check_goldens(run_site, golden_model(model), tmp_path / "site", limits)


def test_the_golden_of_the_full_size_model(run_site: Drive, golden_model: ModelWriter, tmp_path: Path) -> None:
    check_goldens(run_site, golden_model("full"), tmp_path / "site", "usual")


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
@pytest.mark.parametrize("tokens", [24, 45])
def test_texts_that_turn_by_one_of_two_sets_of_angles(run_site: Drive, tmp_path: Path, tokens: int, plan: str) -> None:
    """Over the length at which they change, and behind it; with what transformers gives."""
    path = write_model(LONGROPE, tmp_path / "model")
    made = export_web(path, tmp_path / "site", plan=plan, limits="webgl2")
    ids = recorded("longrope")["prompts"][str(tokens)]["ids"]
    job = {"kind": "greedy", "ids": ids[:tokens], "count": len(ids) - tokens}
    jobs = [job, {"kind": "greedy", "ids": ids[:7], "count": 1}, job]
    found, _, again = run_site(made.folder, jobs, query=LIMITS["webgl2"])["results"]
    assert found["ids"] == again["ids"] == ids[tokens:]


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float32", {}),
        ("float32", {"weights": "q8"}),
        ("float32", {"cache": "q8"}),
        ("bfloat16", {}),
        ("q8_0", {}),
        ("q4_0", {}),
        ("q5_1", {}),
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
    "gemma": ("family=gemma,blocks=2,heads=4,kv_heads=1,dim=64,inner=128,vocab=300,context=64", 2 * 6),
    "qwen3_moe": (
        "family=qwen3_moe,blocks=2,heads=4,kv_heads=2,dim=64,inner=96,experts=5,vocab=300,context=64",
        2 * 10,
    ),
    "mistral": ("family=mistral,blocks=2,heads=4,kv_heads=2,dim=64,inner=128,window=4,vocab=300,context=96", 2 * 6),
    "gpt2": ("family=gpt2,blocks=2,heads=4,dim=64,vocab=300,context=64", 2 * 6),
    "gpt_oss": (
        "family=gpt_oss,blocks=2,heads=4,kv_heads=2,dim=64,inner=96,experts=5,window=4,vocab=300,context=64",
        2 * 9,
    ),
    "lfm2": ("family=lfm2,blocks=3,heads=4,kv_heads=2,dim=64,inner=96,vocab=300,context=64", 6 + 6 + 7),
}
"""A shape of each, and the draws of its layers."""


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_from_blocks_of_a_file(run_site: Drive, tmp_path: Path, family: str) -> None:
    """Normalised heads, a packed table that is the head too, a window, LayerNorm, convolutions, experts, sinks."""
    shape, draws = FAMILIES[family]
    config, path = ModelConfig.from_options(shape), tmp_path / f"{family}.gguf"
    save_checkpoint(random_checkpoint(config, seed=5), path, dtype="q8_0")
    made = export_web(path, tmp_path / "site", limits="webgl2")
    assert made.draws == draws + 3
    compare_with_python(run_site, made, path, [299, 7, 250, 1, 16, 90])


def test_a_delta_rule_over_several_spans(run_site: Drive, tmp_path: Path) -> None:
    """Beside attention with gates; the prompt is longer than two spans, after which states are read."""
    shape = "family=qwen3_5_text,blocks=4,heads=4,kv_heads=2,dim=64,head_dim=16,inner=96,vocab=300,context=64"
    rule = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16}
    config = dataclasses.replace(ModelConfig.from_options(shape), **rule, linear_value_head_dim=12)
    path = tmp_path / "qwen3_5.safetensors"
    save_checkpoint(random_checkpoint(config, seed=5), path)
    made = export_web(path, tmp_path / "site", limits="webgl2")
    assert made.draws == 3 * 11 + 8 + 3
    compare_with_python(run_site, made, path, [7 * place % 300 for place in range(40)])


def in_blocks_of_256(config: ModelConfig, forms: list[str]) -> Checkpoint:
    """A random model whose matrices have random blocks of these formats in turn."""
    floats, random = random_checkpoint(config, seed=6), np.random.default_rng(6)
    matrices = [name for name, tensor in floats.tensors.items() if tensor.ndim == 2]
    packed = {}
    for place, name in enumerate(matrices):
        form = forms[place % len(forms)]
        packed[name] = PackedTensor(form, random_blocks(random, form, *floats.tensors[name].shape))
    vectors = {name: tensor for name, tensor in floats.tensors.items() if name not in packed}
    return Checkpoint(config, vectors, "blocks of 256", packed)


@pytest.mark.parametrize(
    "forms",
    [["Q4_K"], ["Q2_K", "Q6_K", "Q3_K", "Q5_K"], ["IQ4_XS"], ["IQ4_NL", "MXFP4", "IQ2_S", "IQ1_M"]],
    ids="+".join,
)
def test_blocks_of_256(run_site: Drive, tmp_path: Path, forms: list[str]) -> None:
    """Of one format, and of several, which within a product become wide."""
    shape = "family=llama,blocks=2,heads=4,kv_heads=2,dim=256,inner=512,vocab=300,context=64"
    path, prompt = tmp_path / "llama.gguf", [1, 2, 3, 4, 299]
    save_checkpoint(in_blocks_of_256(ModelConfig.from_options(shape), forms), path, dtype="file")
    made = export_web(path, tmp_path / "site", limits="webgl2")
    with glinfer.load(path) as model:
        ids, logits = expected_of(model, prompt, 8)
    job = {"kind": "greedy", "ids": prompt, "count": 8, "logits": COMPARED}
    (found,) = run_site(made.folder, [job], query=LIMITS["webgl2"])["results"]
    assert found["ids"] == ids
    for theirs, ours in zip(found["logits"], logits, strict=True):  # random blocks are large numbers
        assert np.abs(np.array(theirs, np.float32) - ours).max() <= 1e-5 * np.ptp(ours)


@pytest.mark.parametrize(
    ("family", "plan"),
    [
        *(("llama", "fast"), ("llama", "reference"), ("mistral", "fast"), ("mistral", "reference")),
        *(("gemma", "reference"), ("gpt_oss", "fast"), ("gpt_oss", "reference")),
    ],
)
def test_pictures_of_attention_are_pythons_probabilities(
    run_site: Drive, tmp_path: Path, family: str, plan: str
) -> None:
    """A row for each head: what the last token looks at."""
    shape = LLAMA if family == "llama" else ModelConfig.from_options(FAMILIES[family][0])
    path, prompt = tmp_path / f"{family}.gguf", [7 * place % 300 for place in range(shape.max_position_embeddings - 20)]
    save_checkpoint(random_checkpoint(shape, seed=3), path, dtype="q8_0")
    made = export_web(path, tmp_path / "site", plan=plan, limits="webgl2")
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
    config = ModelConfig.from_options("blocks=2,heads=3,dim=36,vocab=300,context=40")
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


@pytest.mark.parametrize("plan", ["fast", "reference"])
def test_edges_that_are_longer_than_any_texture(run_site: Drive, tmp_path: Path, plan: str) -> None:
    path = tmp_path / "wide.gab"
    save_checkpoint(random_checkpoint(WIDE, seed=4), path)
    made = export_web(path, tmp_path / "site", plan=plan, limits="webgl2")
    wrapped = [texture["name"] for texture in made.plan["textures"] if texture["layout"].get("wrapped")]
    assert ("logits" in wrapped) == (plan == "reference")
    with glinfer.load(path, plan=plan) as model:
        ids, logits = expected_of(model, [4999, 7, 2500], 6)
    job = {"kind": "greedy", "ids": [4999, 7, 2500], "count": 6, "logits": COMPARED}
    (found,) = run_site(made.folder, [job], query=LIMITS["webgl2"])["results"]
    assert found["ids"] == ids
    assert max(np.abs(np.array(a) - b).max() for a, b in zip(found["logits"], logits, strict=True)) <= LOGITS_TOLERANCE


def test_subnormal_numbers_in_arithmetic(run_site: Drive, tmp_path: Path) -> None:
    """The browser's renderer does what docs/kernels.md says."""
    made, jobs = export_web("shakespeare", tmp_path / "site"), []
    for case in subnormals.CASES.values():
        builder = PlanBuilder("one draw", 1, ())
        x, y, out = (builder.flat(name, kind, 1, 4, "rgba32f", 64) for name, kind in (
            ("x", "input"), ("y", "input"), ("out", "activation")))  # fmt: skip
        spec = arithmetic("draw", "draw", x, y, out, operation=case.operation, kernels=KernelOptions())
        sources = [
            load_source(VERTEX_SHADER, {}, api="es"),
            load_source("arithmetic.frag", dict(spec.defines), api="es"),
        ]
        inputs = {name: np.resize(numbers, 16).tolist() for name, numbers in (("x", case.x), ("y", case.y))}
        jobs.append({"kind": "draw", "vertex": sources[0].text, "fragment": sources[1].text, "inputs": inputs})
    ran = run_site(made.folder, jobs)
    bits = [np.array(found["bits"][:4], np.uint32).view(np.float32) for found in ran["results"]]
    found = subnormals.outcomes(dict(zip(subnormals.CASES, bits, strict=True)))
    known = subnormals.renderer_of(ran["renderer"])
    print(ran["renderer"], found)
    assert known is None or found == subnormals.BEHAVIOUR[known]


@pytest.mark.parametrize("plan", ["fast", "reference"])
def test_activations_far_below_zero_are_zero(run_site: Drive, tmp_path: Path, plan: str) -> None:
    """Biases of −1e37 in front of GELU give the very logits that biases of −50 give, times weights of 1e3."""
    config = ModelConfig.from_options("blocks=1,heads=2,dim=16,vocab=300,context=32")
    found = []
    for biases in ([-50.0], [-50.0, -1e10, -1e37, -3e38]):
        checkpoint = random_checkpoint(config, seed=4)
        checkpoint.tensors["transformer.h.0.mlp.fc_in.bias"][:] = np.resize(np.float32(biases), 64)
        checkpoint.tensors["transformer.h.0.mlp.fc_out.weight"][:] *= 1e3
        path = tmp_path / f"{len(biases)}.gab"
        save_checkpoint(checkpoint, path)
        made = export_web(path, tmp_path / path.stem, plan=plan, limits="webgl2")
        found += run_site(made.folder, [{"kind": "logits", "ids": [7, 250, 1]}], query=LIMITS["webgl2"])["results"]
    assert np.ptp(found[0]["logits"][0]) > 0
    assert found[0]["logits"] == found[1]["logits"]


def test_a_single_file_runs_without_a_server(open_page: Drive, tmp_path: Path) -> None:
    made = export_web("shakespeare", tmp_path / "one", weights="q8", single=True)
    with glinfer.load("shakespeare", weights="q8") as model:
        assert model.tokenizer is not None
        prompt = model.tokenizer.encode(PROMPT)
        ids, logits = expected_of(model, prompt, 12)
    job = {"kind": "greedy", "ids": prompt, "count": 12, "logits": COMPARED}
    (found,) = open_page((made.folder / "index.html").as_uri(), [job])["results"]
    check(found, ids, logits, made.plan, len(prompt))


def test_a_site_that_needs_more_than_the_browser_has_says_so(run_site: Drive, tmp_path: Path) -> None:
    """``?minimum=1`` must refuse a plan for larger textures, or the tests above would prove nothing with it."""
    made = export_web("shakespeare", tmp_path / "site")
    plan = json.loads((made.folder / "plan.json").read_text())
    plan["requires"]["max_texture_size"] = 4096
    (made.folder / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(AssertionError, match="2048"):
        run_site(made.folder, [{"kind": "logits", "ids": [1]}], query="?minimum=1")


@pytest.mark.parametrize("single", [False, True], ids=["served", "single file"])
def test_the_page_writes_into_its_log(run_site: Drive, open_page: Drive, tmp_path: Path, single: bool) -> None:
    made = export_web("shakespeare", tmp_path / "site", weights="q8", single=single)
    with glinfer.load("shakespeare", weights="q8") as model:
        expected = model.generate(PROMPT, max_tokens=20, temperature=0)
    message = {"text": PROMPT, "tokens": 20}
    if single:
        found = open_page((made.folder / "index.html").as_uri(), talk=message)
    else:
        found = run_site(made.folder, talk=message)
    shown = found["shown"]
    assert shown["log"] == PROMPT + expected
    assert shown["status"] == "Done."
    assert shown["draws"] == str(made.draws)
    assert min(shown["picture"]) >= 1
    assert max(shown["picture"]) > 1


def test_the_page_begins_with_examples_and_plain_words(run_site: Drive, tmp_path: Path) -> None:
    made = export_web("shakespeare", tmp_path / "site", weights="q8")
    shown = run_site(made.folder, talk={"example": 1, "tokens": 5})["shown"]
    assert shown["examples"] == made.plan["model"]["examples"]
    assert "runs on this computer" in shown["about"]
    assert "goes on with the beginning of a text" in shown["invitation"]
    assert shown["log"].startswith(shown["examples"][1])
    assert not shown["welcome"]
    assert shown["layers"] == [f"block {layer}" for layer in range(6)]
    generation = made.plan["model"]["generation"]
    ids = {"temperature": "temperature", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
    for name, field in {**ids, "repetition_penalty": "penalty"}.items():
        assert float(shown[field]) == generation[name], name
    light, dark = shown["colours"]
    assert sum(light) < sum(dark)  # on light and on dark paper


def test_the_page_checks_its_textures_when_it_is_asked_to(run_site: Drive, tmp_path: Path) -> None:
    made = export_web("shakespeare", tmp_path / "site", weights="q8")
    asked = run_site(made.folder, query="?verify=1", talk={"example": 0, "tokens": 5, "checks": 2})["shown"]
    count = sum(texture["kind"] == "weight" for texture in made.plan["textures"])
    assert [(report["ok"], report["checked"]["textures"]) for report in asked["checks"]] == [(True, count)] * 2
    size = asked["checks"][0]["checked"]["bytes"] / 1e6
    assert asked["checked"] == f"Checked {count} textures ({size:.1f} MB) bit for bit against the files: all identical."
    plain = run_site(made.folder, talk={"example": 0, "tokens": 5})["shown"]
    assert plain["checks"] == []
    assert plain["checked"] == ""
    assert plain["log"] == asked["log"]


@pytest.mark.parametrize("chats", [True, False], ids=["chat", "token ids"])
def test_the_page_says_what_a_model_takes(run_site: Drive, tmp_path: Path, chats: bool) -> None:
    config, path = ModelConfig.from_options("blocks=1,heads=2,dim=16,vocab=300,context=64"), tmp_path / "model.gab"
    save_checkpoint(random_checkpoint(config, seed=2), path)
    if chats:
        write_bpe(demo_tokenizer(config.vocab_size), path.with_suffix(".bpe"))
    made = export_web(path, tmp_path / "site")
    talk = {"example": 2} if chats else {"text": "1 2 299"}
    shown = run_site(made.folder, talk={**talk, "tokens": 3})["shown"]
    assert shown["status"] == "Done."
    assert shown["examples"] == made.plan["model"]["examples"]
    assert len(shown["examples"]) == (3 if chats else 0)
    assert shown["invitation"].startswith("Ask something") if chats else "0 to 299" in shown["invitation"]
