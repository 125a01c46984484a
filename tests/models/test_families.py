"""Every family against the figures of Hugging Face's transformers, and on the device against float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from goldens import check_digest, recorded
from goldens.embedders import FORMS
from goldens.figures import Array, Figures
from goldens.gguf_models import COMPARED
from goldens.models import GIFT, HALVES, MODELS, gift_tensors, save_tensors, write_recorded
from made_models import of_family, opened, worst

from glinfer.families import DECODERS, FAMILIES
from glinfer.formats import Checkpoint, load_checkpoint
from glinfer.formats.huggingface.config import read_config
from glinfer.kernels.fused.rows import interleaved, row_table
from glinfer.kernels.options import KernelOptions
from glinfer.lower.feed import chunk_feed, runs
from glinfer.lower.fused.rows import LOGITS, ROWS, fitting_chunk_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.plans import plan_for, weights_for
from glinfer.lower.weights.fold import FoldedWeights
from glinfer.program.oracle import final_tensors

pytestmark = pytest.mark.gl

OF_RANGE = 1e-4  # of the logits' range, as float32 allows
FLOAT64 = 2e-5  # of the logits' range: folded weights are float32
NAMES = [*MODELS, "gift_of_gab"]
FIGURES = {name: Figures.from_json(figures) for name, figures in recorded("families").items()}
Reader = Callable[[str], Checkpoint]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """The recorded models by their names, each read from the very file of its figures."""

    @cache
    def made(name: str) -> Checkpoint:
        folder = tmp_path_factory.mktemp("family")
        if name != "gift_of_gab":
            return load_checkpoint(write_recorded(name, folder))
        tensors = gift_tensors()
        save_tensors(tensors, folder / "gift.safetensors")
        check_digest(folder / "gift.safetensors", {recorded("families")[name]["sha256"]})
        return Checkpoint(GIFT, tensors, name)

    return made


def float64_logits(made: Checkpoint, ids: list[int]) -> Array:
    """The logits after every token, by the oracle of the plan that scores a text; no device is needed."""
    options = PlanOptions(made.config, "file", KernelOptions(), 2048, made.formats())
    plan = fitting_chunk_plan(options, rows=len(ids), cache_slots=256, likelihoods=True)
    weights, targets, done = dict(FoldedWeights(made, "file")), options.kernels.rows_per_draw, 0
    caches: dict[str, Array] = {}
    found: list[Array] = []
    while done < len(ids):
        piece, table = ids[done : done + plan.max_rows], row_table(plan.table[ROWS].shape[0])
        values = plan.values(chunk_feed(table, piece, done, targets))
        tensors = final_tensors(plan, weights, {ROWS: table}, values, caches)
        found += list(interleaved([tensors[f"{LOGITS}.{target}"] for target in range(targets)])[: len(piece)])
        done += len(piece)
    return np.array(found)


def check_float64(made: Checkpoint, figures: Figures, tokens: int) -> None:
    logits = float64_logits(made, figures.ids[:tokens])
    errors = [figures.error(place, row) for place, row in enumerate(logits)]
    wrong = [place for place, error in enumerate(errors) if not error <= FLOAT64]
    how = f"{len(wrong)} of {tokens} positions differ from transformers by up to {max(errors):.1e} of the logits' range"
    assert not wrong, f"{how}; the first one is {wrong[0]}"
    assert logits.argmax(axis=1).tolist() == figures.likeliest[:tokens]


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_every_position_are_those_of_transformers(read: Reader, name: str) -> None:
    """In float64: the configuration, the names and order of weights, and what the plan computes with them."""
    check_float64(read(name), FIGURES[name], 64)


@pytest.mark.parametrize("name", ["qwen2_moe", "phi", "lfm2_moe", "apertus", "gemma4_moe", "falcon_h1"])
def test_branches_read_the_stream_before_blending_adds_to_it(read: Reader, name: str) -> None:
    made, figures, caches = read(name), FIGURES[name], dict[str, Array]()
    plan = plan_for(made.config, "fast", kernels=KernelOptions(part_steps=2, split_values=True))
    weights = dict(weights_for(made, "fast"))
    for place, given in enumerate(runs(plan, figures.ids[:4])):
        assert figures.error(place, final_tensors(plan, weights, *given, caches)["logits"][0]) <= FLOAT64, place


def test_every_family_is_compared_with_another_engine(tmp_path: Path) -> None:
    """All other tests compare a record with itself."""
    compared = {"gab", "gift_of_gab", "nomic_bert_moe", *FORMS}  # nomic_bert_moe in test_gguf_embedders.py
    forms = [FAMILIES["bitnet"].gguf]  # in test_formats_bitnet.py
    forms += [FAMILIES[made.model_type].gguf for made in COMPARED.values()]
    unseen = [name for name, family in DECODERS.items() if family.gguf is not None and family.gguf not in forms]
    assert unseen == [], "their GGUF files are compared with nothing: make some in tests/goldens/gguf_models.py"
    for number, made in enumerate(MODELS.values()):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(made.settings), "utf-8")
        compared.add(read_config(path).model_type)
    assert sorted(FAMILIES.keys() - compared) == [], "make one in tests/goldens/models.py or embedders.py"
    assert [*FIGURES] == NAMES, "python -m tests.goldens.record families"


@pytest.mark.parametrize("family", DECODERS)
def test_a_whole_run_of_every_family_agrees_with_float64(family: str) -> None:
    made, ids = of_family(family), [3, 141, 59, 26]
    plan, weights, caches = plan_for(made.config, "fast"), dict(weights_for(made, "fast")), dict[str, Array]()
    expected = [final_tensors(plan, weights, *given, caches)["logits"][0] for given in runs(plan, ids)]
    with opened(made) as model, model.session() as session:
        for token, logits in zip(ids, expected, strict=True):
            session.step(token)
            assert worst(session.logits(), logits) <= 1e-5, token
            assert session.logits().argmax() == logits.argmax()


@pytest.mark.parametrize("name", HALVES)
def test_half_precision_files_give_the_logits_of_their_rounded_weights(read: Reader, name: str) -> None:
    figures, family, made = Figures.from_json(recorded("halves")[name]), name.split("-")[0], read(name)
    rounding = np.array(figures.rows[6]) - FIGURES[family].rows[6]
    assert np.abs(rounding).max() > OF_RANGE * figures.range, "rounding does not show"
    kept = "F32" if family == "gpt2" else {"bfloat16": "BF16", "float16": "F16"}[name.split("-")[1]]
    assert {each for tensor, each in made.formats().items() if tensor.endswith("proj.weight")} == {kept}
    check_float64(made, figures, 7)


# On the device


# Learned positions, caps and windows, norms behind branches, two sets of angles, convolutions, delta rules, experts.
ON_THE_DEVICE = (
    *("llama", "gpt2-untied", "gemma2", "olmo2", "phi3", "lfm2-biases", "lfm2_moe", "qwen3_5_moe", "gpt_oss-limits"),
    *("nemotron_h_moe", "falcon_h1", "lfm3", "gemma4_moe", "gpt_neox", "cohere2", "glm4_moe", "bitnet"),
    "ernie4_5_moe",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_THE_DEVICE)
def test_tokens_prompts_and_scores_on_the_device(read: Reader, name: str) -> None:
    figures, ids = FIGURES[name], FIGURES[name].ids
    assert len(set(ids[100:])) > 5, "a model that says one thing only shows little"
    with opened(read(name)) as model:
        with model.session() as session:
            for place, token in enumerate(ids[:40]):
                session.step(token)
                assert figures.error(place, session.logits()) <= OF_RANGE, place
        assert model.generate(ids[:100], max_tokens=30, temperature=0) == ids[100:130]
        for tokens in (7, 200):
            assert figures.error(tokens - 1, model.logits(ids[:tokens])) <= OF_RANGE, tokens
        texts = [ids[:7], ids]
        for text, score in zip(texts, model.score(texts), strict=True):
            # Where a text turns by the second set of angles, its beginning by itself does not.
            first = model.plan.long_after if model.plan.is_long(len(text)) else 0
            places = slice(first, len(text) - 1)
            assert np.abs(score.logprobs[first:] - figures.logprobs[places]).max() <= OF_RANGE * figures.range
            assert score.likeliest.tolist()[first:] == figures.likeliest[places]


# Sequences of every length are padded to those of a plan; they begin, and end, at their edges.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        *(("llama", (2, 64, 131)), ("gemma3-scaled", (65,)), ("qwen3_5_moe", (65,)), ("nemotron_h_moe", (65,))),
        *(("falcon_h1", (65,)), ("lfm3", (65,)), ("gemma4_moe", (65,)), ("gpt_neox", (65,)), ("cohere2", (65,))),
        ("bitnet", (65,)),
    ],
)
def test_the_reference_plan(read: Reader, name: str, lengths: tuple[int, ...]) -> None:
    with opened(read(name), "reference") as model:
        for tokens in lengths:
            found = model.logits(FIGURES[name].ids[:tokens])
            assert FIGURES[name].error(tokens - 1, found) <= OF_RANGE, tokens
            assert int(found.argmax()) == FIGURES[name].likeliest[tokens - 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma-bfloat16", "gpt_oss-float16"])
def test_half_precision_files_on_the_device(read: Reader, name: str) -> None:
    figures = Figures.from_json(recorded("halves")[name])
    with opened(read(name)) as model:
        formats = {tensor.format for tensor in model.plan.of_kind("weight") if "proj" in tensor.name}
        assert {"bfloat16": "rgba32ui", "float16": "rgba16f"}[name.split("-")[1]] in formats
        for tokens in (1, 7):
            assert figures.error(tokens - 1, model.logits(figures.ids[:tokens])) <= OF_RANGE, tokens
