"""Sampling defaults: from a model's files, else usual ones; the same in Python, batches, commands and sites."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from scripted_models import SMALL, random_file
from token_streams import finished

import glinfer
from glinfer.cli.options import take_sampling
from glinfer.engine.defaults import USUAL, default_sampling, merged
from glinfer.engine.random_model import demo_tokenizer
from glinfer.engine.sampler import NEUTRAL, SamplingOptions
from glinfer.errors import GlinferWarning, InputError
from glinfer.export.site import export_web
from glinfer.formats import write_bpe
from glinfer.formats.sampling import named_sampling

PROMPT = [13, 132, 251, 70]


def write(folder: Path, values: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


def test_files_that_name_nothing_get_the_usual_defaults(tmp_path: Path) -> None:
    assert (
        default_sampling("shakespeare") == default_sampling(tmp_path) == default_sampling(tmp_path / "m.gab") == USUAL
    )
    assert named_sampling(tmp_path)[0] == {}
    assert default_sampling(write(tmp_path, {"eos_token_id": 2, "temperature": None})) == USUAL
    assert default_sampling(write(tmp_path, {"do_sample": True})) == USUAL
    assert (USUAL.temperature, USUAL.top_k, USUAL.top_p, USUAL.min_p, USUAL.repetition_penalty) == (0.7, 40, 0.95, 0, 1)


def test_a_generation_config_is_taken_as_a_whole(tmp_path: Path) -> None:
    for values, expected in (
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, SamplingOptions(temperature=0.6, top_p=0.9)),
        ({"top_k": 64, "top_p": 0.95}, SamplingOptions(top_k=64, top_p=0.95)),
        ({"min_p": 0.1, "repetition_penalty": 1.05}, SamplingOptions(min_p=0.1, repetition_penalty=1.05)),
        ({"repetition_penalty": 1.1}, dataclasses.replace(USUAL, repetition_penalty=1.1)),
        ({"do_sample": False, "temperature": 0.6}, SamplingOptions(temperature=0)),
        ({"do_sample": False, "repetition_penalty": 1.2}, SamplingOptions(temperature=0, repetition_penalty=1.2)),
    ):
        write(tmp_path, values)
        assert default_sampling(tmp_path) == default_sampling(tmp_path / "config.json") == expected


def test_what_cannot_be_used_is_warned_of_in_one_line(tmp_path: Path) -> None:
    for bad, words, left in (
        ({"temperature": -1}, r"temperature is -1; expected a finite number, 0 \(greedy\) or more; using 0\.7", USUAL),
        ({"top_k": "many", "top_p": 0.5}, r"top_k is 'many'; expected an int.*; using 0", SamplingOptions(top_p=0.5)),
        ({"top_p": 2}, r"top_p is 2; expected a number from 0 to 1 \(1 is off\); using 0\.95", USUAL),
        ({"min_p": [], "temperature": 1}, r"min_p is \[\]; .*; using 0", NEUTRAL),
        ({"repetition_penalty": 0}, r"repetition_penalty is 0; .*; using 1", USUAL),
        ([1], "found a JSON list; .*; its recommendations are not used", USUAL),
    ):
        with pytest.warns(GlinferWarning, match=rf"^\S*generation_config\.json: {words}$"):
            assert default_sampling(write(tmp_path, bad)) == left


def test_off_is_the_same_in_files_and_options(tmp_path: Path) -> None:
    for off in (-1, 0):
        values = {"temperature": 0.6, "top_k": off, "top_p": None, "min_p": None, "repetition_penalty": None}
        assert default_sampling(write(tmp_path, values)) == SamplingOptions(temperature=0.6)
        assert merged(USUAL, {"top_k": off}).top_k == 0
        assert take_sampling({**dict.fromkeys(vars(USUAL)), "top_k": off}) == {"top_k": off}


def test_a_gguf_file_names_them_in_its_metadata(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")

    def written(**values: float) -> Path:
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        for name, value in values.items():
            add = writer.add_int32 if name == "top_k" else writer.add_float32
            add(f"general.sampling.{name}", value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / "m.gguf"

    write(tmp_path, {"temperature": 0.1})  # of another model
    assert default_sampling(written()) == USUAL
    found = default_sampling(written(temp=0.5, top_k=20, top_p=0.75, min_p=0.0625, penalty_repeat=1.25))
    assert found == SamplingOptions(0.5, 20, 0.75, 0.0625, 1.25)
    assert default_sampling(written(temp=0.6)).temperature == 0.6  # float32 has 0.60000002384
    assert default_sampling(written(temp=-1.0)) == SamplingOptions(temperature=0)
    assert default_sampling(written(temp=0.5, top_k=-1)).top_k == 0
    with pytest.warns(GlinferWarning, match=r"m\.gguf: top_p is 7\.0; .*; using 0\.95"):
        assert default_sampling(written(top_p=7.0)) == USUAL


def test_explicit_options_win_and_none_is_not_one() -> None:
    assert merged(USUAL, {"temperature": 1.0, "top_k": None, "seed": 3}) == dataclasses.replace(
        USUAL, temperature=1.0, seed=3
    )
    assert merged(USUAL, {"top_k": 0, "top_p": 1.0}) == SamplingOptions(temperature=USUAL.temperature)
    with pytest.raises(InputError, match="top_k is -2"):
        merged(USUAL, {"top_k": -2})


@pytest.fixture
def greedy_file(tmp_path: Path) -> Path:
    """A small model whose files say that it takes the likeliest token."""
    path = random_file(tmp_path / "m.gab", SMALL)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    write(tmp_path, {"do_sample": False})
    return path


@pytest.mark.gl
def test_everything_of_a_model_samples_by_its_defaults(small: Path, greedy_file: Path) -> None:
    with glinfer.load(small) as model:
        assert model.sampling == USUAL
    with glinfer.load(greedy_file) as model:
        assert model.sampling == SamplingOptions(temperature=0)
        greedy = model.generate(PROMPT, max_tokens=6, temperature=0)
        assert model.generate(PROMPT, max_tokens=6, seed=1) == list(model.stream(PROMPT, max_tokens=6)) == greedy
        assert model.generate([PROMPT, PROMPT], max_tokens=6, seed=1) == [greedy, greedy]
        with model.scheduler(slots=1) as scheduler:
            running = scheduler.insert(glinfer.BatchRequest(PROMPT, {"max_tokens": 6, "seed": 1}))
            finished(scheduler)
        assert running.ids == greedy
        drawn = model.generate(PROMPT, max_tokens=6, seed=1, temperature=1.0)
        assert drawn != greedy
        model.sampling = NEUTRAL
        assert model.generate(PROMPT, max_tokens=6, seed=1) == drawn


def test_a_site_has_them_in_its_plan(greedy_file: Path, tmp_path: Path) -> None:
    site = export_web(greedy_file, tmp_path / "site")
    expected = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert site.plan["model"]["generation"] == expected
    assert json.loads((tmp_path / "site" / "plan.json").read_text())["model"]["generation"] == expected
