"""Families that embed texts against Hugging Face's transformers, on random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens import recorded
from goldens.embedders import FORMS, RECORDED, pooled, texts, transformers_model, weights_of, write_pooling

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.progress import run_steps
from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.formats.adapters.merge import with_task
from glinfer.kernels.fused.rows import interleaved, row_table
from glinfer.kernels.options import KernelOptions
from glinfer.lower.feed import encode_feed
from glinfer.lower.fused.encode import EMBEDDINGS, TEXTS, encode_plan
from glinfer.lower.fused.rows import ROWS
from glinfer.lower.options import PlanOptions
from glinfer.lower.weights.fold import FoldedWeights
from glinfer.program.oracle import final_tensors

pytestmark = pytest.mark.gl


def saved(folder: Path, family: str) -> Any:
    """A model of transformers, which is saved as a directory of sentence-transformers."""
    name, more, pooling = FORMS[family]
    model = transformers_model(name, **more)
    model.save_pretrained(folder)
    write_pooling(folder, pooling)
    return model


def given(longest: int) -> list[list[int]]:
    return texts(1, 2, 6, 7, 30, 64, 100, longest - 2)


@pytest.mark.parametrize("family", FORMS)
def test_the_plan_computes_what_was_recorded(family: str) -> None:
    """In float64 without OpenGL, with the weights that transformers had."""
    figures = recorded("embedders")[family]
    found, expected = computed(weights_of(ModelConfig.from_mapping(figures["config"]))), np.array(figures["vectors"])
    assert np.abs(expected - expected.mean(axis=0)).max() > 0.1, "texts that are all alike show little"
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


def computed(checkpoint: Checkpoint) -> Any:
    """The vectors of the recorded texts, or their scores, by the plan in float64."""
    config, kernels = checkpoint.config, KernelOptions()
    plan = encode_plan(PlanOptions(config, "f32", kernels, 2048), rows=128)
    rows, table = (row_table(plan.table[name].shape[0]) for name in (ROWS, TEXTS))
    encoded = [(ids, [0] * len(ids)) for ids in RECORDED]
    positions = 0 if config.family.rotary else config.max_position_embeddings
    targets, first = kernels.rows_per_draw, [0] * len(encoded)
    values = encode_feed(rows, table, encoded, first, targets, positions=positions, pooling=config.pooling)
    made = final_tensors(plan, FoldedWeights(checkpoint, "f32"), {ROWS: rows, TEXTS: table}, plan.values(values))
    parts = [made[f"{EMBEDDINGS}.{number}"] for number in range(targets)]
    width = config.dense[-1][0] if config.dense else config.hidden_size
    return interleaved(parts)[: len(encoded), :width]


def test_a_classifier_has_a_norm_before_its_last_matrix() -> None:
    config = ModelConfig.from_mapping(recorded("embedders")["modernbert"]["config"])
    dense: Any = ((config.hidden_size, False, "silu"), (2, True, "none"))
    scored = weights_of(replace(config, dense=dense, dense_norm=True))
    weights = {name: np.asarray(tensor, np.float64) for name, tensor in scored.tensors.items()}
    plain = {name: tensor for name, tensor in scored.tensors.items() if not name.startswith("dense.")}
    x = computed(replace(scored, config=config, tensors=plain)) @ weights["dense.0.weight"].T
    x = x / (1 + np.exp(-x))
    x = x - x.mean(axis=1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + config.layer_norm_eps) * weights["dense.1.norm.weight"]
    expected = x @ weights["dense.1.weight"].T + weights["dense.1.bias"]
    assert np.abs(computed(scored) - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize("family", FORMS)
def test_vectors(tmp_path: Path, family: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs, pooling, ids_of = saved(tmp_path / "m", family), FORMS[family][2], given(290)
    with torch.no_grad():
        run: Callable[..., Any] = theirs.double()
        expected = np.array([pooled(run(torch.tensor([ids])).last_hidden_state[0].numpy(), pooling) for ids in ids_of])
    with glinfer.load(tmp_path / "m") as model:
        assert model.config.model_type == family
        found = model.embed(ids_of)
        alone = model.embed([ids_of[3]])[0]
    assert np.abs(expected - expected.mean(axis=0)).max() > 0.1, "texts that are all alike show little"
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert np.array_equal(alone, found[3])


TASKS = {"retrieval_query": ["q_proj", "o_proj", "fc1"], "text_matching": ["v_proj", "fc2", "word_embeddings"]}


@pytest.mark.slow
def test_adapters_of_tasks_are_those_of_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed (make test-all installs it)")
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    name, _, pooling = FORMS["jina_embeddings_v3"]
    saved(tmp_path / "m", "jina_embeddings_v3")
    ids, vectors = given(100), {}
    for task, targets in TASKS.items():
        base = getattr(transformers, f"{name}Model").from_pretrained(tmp_path / "m")
        settings = peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets)
        theirs = peft.get_peft_model(base, settings).eval()
        with torch.no_grad():
            for part, tensor in theirs.named_parameters():
                if "lora_" in part:
                    tensor.normal_(0, 0.3)
            rows = [theirs.double()(torch.tensor([each])).last_hidden_state[0].numpy() for each in ids]
        theirs.float().save_pretrained(tmp_path / "m" / task)
        vectors[task] = np.array([pooled(each, pooling) for each in rows])
    (tmp_path / "here" / "text_matching").mkdir(parents=True)  # a folder of that name, which is no adapter
    monkeypatch.chdir(tmp_path / "here")
    for task, expected in vectors.items():
        with glinfer.load(tmp_path / "m", lora=task) as model:
            found = model.embed(ids)
            assert model.verify_textures().ok, "against the files, which are read again"
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    with glinfer.load(tmp_path / "m") as model:
        assert np.abs(model.embed(ids) - vectors["text_matching"]).max() > 0.1, "the adapter changes nothing"


def test_an_unknown_task_is_refused_with_those_of_the_model(tmp_path: Path) -> None:
    checkpoint = weights_of(ModelConfig.from_mapping(recorded("embedders")["jina_embeddings_v3"]["config"]))
    with pytest.raises(InputError, match=r"^there is no adapter 'retrieval'; .* this model's directory has none$"):
        with_task(tmp_path, checkpoint, {"default": "retrieval"})
    for task in TASKS:
        (tmp_path / task).mkdir()
        (tmp_path / task / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"expected the path of one, or a task of this model: retrieval_query, text_m"):
        with_task(tmp_path, checkpoint, {"default": "retrieval"})
    with pytest.raises(InputError, match="found 2 adapters for a model that embeds texts; expected one"):
        with_task(tmp_path, checkpoint, dict.fromkeys(TASKS, "text_matching"))


CLASSIFIERS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {}),
    ("xlm-roberta", {}),
    ("qwen3", {}),
    ("modernbert", {"classifier_activation": "silu", "classifier_bias": True}),
    ("modernbert", {"classifier_pooling": "mean"}),
    ("eurobert", {"classifier_pooling": "bos"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "settings"), CLASSIFIERS)
def test_scores(tmp_path: Path, family: str, settings: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    name, more, _ = FORMS[family]
    theirs = transformers_model(name, "ForSequenceClassification", **{**more, **settings, "num_labels": 1})
    theirs.save_pretrained(tmp_path / "m")
    ids_of = given(200)
    with torch.no_grad():
        expected = np.array([theirs.double()(torch.tensor([ids])).logits[0].numpy() for ids in ids_of])
    with glinfer.load(tmp_path / "m") as model:
        assert model.embedding.ranks
        found = run_steps(model.embedder.encoder.steps(model.embedder.encoded(ids_of)))
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
