"""Prompts with images of Qwen3-VL and Qwen 3.5: the encoder, deeper features and positions against transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import image_prompts
import numpy as np
import pytest
from each_case import each_case
from goldens import recorded
from goldens.pictures import picture, write_smolvlm
from goldens.qwen_pictures import (
    DEEP,
    PAD,
    PATCH,
    QWEN_SIZES,
    SECTIONS,
    TEXT,
    TOWER,
    write_mmproj,
    write_qwen3_5,
    write_qwen3_vl,
)
from image_prompts import check_close, check_logits
from made_models import fresh
from PIL import Image
from token_streams import finished

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.engine.vision import fitted, interpolated
from glinfer.errors import FormatError
from glinfer.export.convert import convert_model
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.vision import ImageForm, Vision, read_vision
from glinfer.gl.context import Limits, open_device
from glinfer.kernels.options import KernelOptions
from glinfer.text.images import ImageToken, Square, decoded, rotary_positions, squares_of

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("no_processes")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3_vl(tmp_path_factory.mktemp("pictures") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with glinfer.load(folder) as model:
        yield model


@pytest.fixture(scope="module")
def newer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3_5(tmp_path_factory.mktemp("pictures") / "newer")


@pytest.fixture(scope="module")
def newer(newer_folder: Path) -> Iterator[Model]:
    with glinfer.load(newer_folder) as model:
        yield model


BOTH = picture(), picture(30, 90, 3)
"""The images of the prompt that is recorded."""
ids_of = partial(image_prompts.ids_of, text="A")
written = partial(image_prompts.written, mark=PAD)


def both(model: Model) -> list[int]:
    return ids_of(model, *BOTH)


def squares_in(ids: list[int]) -> list[Any]:
    """The images of a prompt."""
    return list(dict.fromkeys(token.square for token in ids if isinstance(token, ImageToken)))


@each_case("size", QWEN_SIZES)
def test_pieces_are_those_of_transformers(folder: Path, size: tuple[int, int]) -> None:
    theirs, vision = recorded("qwen_images")["pieces"]["x".join(map(str, size))], read_vision(folder, TEXT)
    assert isinstance(vision, Vision)
    (pixels,), rows, cols = squares_of(decoded(picture(*size)), vision.form)
    assert (rows, cols) == (0, 0)
    assert [1, pixels.shape[0] // PATCH, pixels.shape[1] // PATCH] == theirs["grid"]
    scaled = (pixels.astype(np.float32) / 255 - 0.5) / 0.5
    high, wide = (side // PATCH // 2 for side in pixels.shape[:2])
    parts = scaled.reshape(high, 2, PATCH, wide, 2, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    patches = np.repeat(parts.reshape(-1, 3, 1, PATCH, PATCH), 2, axis=2).reshape(4 * high * wide, -1)
    assert np.allclose(patches[::7, ::11].reshape(-1)[:40], theirs["pixels"], atol=1e-5)


@pytest.mark.parametrize(("name", "vectors"), [("qwen_images", 3), ("qwen35_images", 1)])
def test_rows_are_those_of_transformers(name: str, vectors: int, model: Model, newer: Model) -> None:
    found = np.concatenate([square.rows for square in squares_in(both(model if vectors > 1 else newer))])
    assert found.shape[1] == vectors * TEXT.hidden_size
    for ours, theirs in zip(np.split(found, vectors, axis=1), recorded(name)["seen"], strict=True):
        error = np.abs(ours[::5, ::7].reshape(-1) - theirs).max()
        assert error <= 1e-5 * np.abs(theirs).max()
        assert np.abs(ours - ours.mean(axis=0)).max() > 0.1, "rows that are all alike show little"


@pytest.mark.parametrize("plan", ["fast", "reference"])
@pytest.mark.parametrize(("name", "folders"), [("qwen_images", "folder"), ("qwen35_images", "newer_folder")])
def test_logits_are_those_of_transformers(name: str, folders: str, plan: str, request: pytest.FixtureRequest) -> None:
    check_logits(request.getfixturevalue(folders), plan, name, BOTH, "A", PAD)


@pytest.mark.parametrize("name", ["model", pytest.param("newer", marks=pytest.mark.slow)])
def test_chunks_batches_and_drafts_change_nothing(
    name: str, folder: Path, model: Model, newer_folder: Path, newer: Model
) -> None:
    folder, model = (folder, model) if name == "model" else (newer_folder, newer)
    prompts = [both(model), ids_of(model, picture(seed=3)), ids_of(model, picture(), picture(seed=3))]
    alone = [model.generate(each, max_tokens=12, temperature=0) for each in prompts]
    results = list(model.batch([BatchRequest(each, {"max_tokens": 12, "temperature": 0}) for each in prompts]))
    assert {tuple(each.ids) for each in results} == set(map(tuple, alone))
    many = model.generate(prompts[0], max_tokens=60, temperature=0)
    assert list(model.stream(prompts[0], max_tokens=60, temperature=0, speculate="ngram")) == many
    with model.session() as session:
        session.hold([*prompts[0], *many[:20]])
        first = session.logits()
        with session.fork() as other:
            assert np.array_equal(other.logits(), first)
        session.hold([*prompts[0][:3], 65, 66])  # the image is gone, and with it what it leaves out
        assert np.array_equal(session.logits(), model.logits([*prompts[0][:3], 65, 66]))
    with glinfer.load(folder, kernels=KernelOptions(chunk=16)) as small:
        check_close(small, both(small), model.logits(prompts[0]), 2e-6)


def test_a_text_after_an_image_goes_on_behind_its_longer_side(model: Model) -> None:
    ids = ids_of(model, picture(30, 90))
    (square,) = squares_in(ids)
    rows, cols = square.shape
    first = next(place for place, token in enumerate(ids) if isinstance(token, ImageToken))
    end = first + rows * cols
    turns, back = rotary_positions(ids)
    assert rows > cols
    assert turns[first : first + cols + 1].tolist() == [
        *([first, first, first + col] for col in range(cols)),
        [first, first + 1, first],
    ]
    assert turns[end].tolist() == [first + rows] * 3
    assert back == rows * cols - rows
    assert rotary_positions(ids[: first + 2])[0].tolist() == turns[: first + 2].tolist()
    assert rotary_positions([5, 6])[1] == 0


@pytest.mark.parametrize("name", ["model", pytest.param("newer", marks=pytest.mark.slow)])
def test_observers_see_images_as_the_reference_plan_does(
    name: str, folder: Path, model: Model, newer_folder: Path, newer: Model
) -> None:
    """Embeddings, further vectors and angles of each token, and nothing of it stays."""
    folder, model = (folder, model) if name == "model" else (newer_folder, newer)
    wanted = fresh(model, both(model))
    seen = model.capture(["blocks.[13].attn.q", "blocks.[13].attn.k", "blocks.*.resid_post", "embed"], both(model))
    with glinfer.load(folder, plan="reference") as other:
        whole = other.capture([*seen], both(other))
    assert len(seen) == 1 + 4 + TEXT.num_hidden_layers
    for name, array in seen.items():
        assert array.shape == whole[name].shape
        assert np.abs(array - whole[name]).max() <= 1e-5 * np.abs(whole[name]).max(), name
    with model.session() as session:  # an image at the end, and then more
        ids = both(model)
        places = [place for place, token in enumerate(ids) if isinstance(token, ImageToken)]
        for end in (places[3], places[-1] + 1, len(ids)):
            session.prefill(ids[len(session) : end])
            session.logits()
        assert np.abs(session.logits() - wanted).max() <= 2e-6 * np.ptp(wanted)
    with model.patch("blocks.3.resid_post", lambda seen: seen.array + 1):
        assert np.abs(fresh(model, both(model)) - wanted).max() > 1e-3
    assert np.array_equal(fresh(model, both(model)), wanted)


def test_a_text_after_images_is_scored(model: Model) -> None:
    """Its log-probabilities are those of the logits, in windows too; tokens of images have none."""
    ids = [*both(model), *b"and a text"]
    other = [*ids_of(model, picture(30, 90, 3)), 70, 71]
    found, beside = model.score([ids, other])
    pictured = [isinstance(token, ImageToken) for token in ids[1:]]
    assert np.isnan(found.logprobs).tolist() == pictured
    assert np.isfinite(beside.logprobs[-3:]).all()
    for place in [pictured.index(True) - 1, len(both(model)) - 4, len(ids) - 2]:
        logits = model.logits(ids[: place + 1]).astype(np.float64)
        wanted = logits[ids[place + 1]] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert abs(found.logprobs[place] - wanted) <= 1e-5
    assert found.perplexity == pytest.approx(np.exp(-np.nanmean(found.logprobs)))
    assert "[image]" in found._repr_html_()


def test_a_draft_model_guesses_by_the_text(folder: Path, model: Model) -> None:
    prompt = both(model)
    wanted = model.generate(prompt, max_tokens=40, temperature=0)
    with glinfer.load(folder) as draft:
        stream = model.stream(prompt, max_tokens=40, temperature=0, draft=draft)
        assert list(stream) == wanted
    assert stream.stats.drafted > 0


def test_images_have_ids_by_pixels_and_shape(model: Model) -> None:
    one, same, other = (ids_of(model, Image.new("RGB", size)) for size in ((64, 32), (64, 32), (32, 64)))
    assert one == same
    assert written(one) == written(other)
    assert one != other
    assert not np.array_equal(model.logits(one), model.logits(other))


def test_larger_images_after_smaller_ones(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger image gets a plan with more rows, and the same rows as before."""
    (square,) = squares_in(ids_of(model, picture(seed=20)))
    wanted, reader = square.rows, square.reader
    monkeypatch.setattr(reader, "form", ImageForm(8, 1 << 16, False, 3, pixels=(20000, 1 << 16)))
    (large,) = squares_in(ids_of(model, picture(seed=20)))
    assert large.rows.shape[0] * 4 * PATCH**2 >= 20000
    again = Square(np.asarray(decoded(picture(seed=20)).resize((48, 32), Image.Resampling.BICUBIC)), reader)
    assert np.array_equal(again.rows, wanted)


@pytest.mark.slow
def test_larger_images_are_made_smaller_where_textures_are_small(folder: Path) -> None:
    vision = read_vision(folder, TEXT)
    assert isinstance(vision, Vision)
    with open_device(limits=replace(Limits.webgl2_minimum(), max_texture_size=1024)) as device:
        small = fitted(vision, device)
    assert small.checkpoint.config.max_position_embeddings < vision.checkpoint.config.max_position_embeddings
    patches = small.checkpoint.config.max_position_embeddings
    assert small.form.longest == patches * PATCH**2
    (pixels,), *_ = squares_of(picture(400, 300), replace(small.form, pixels=(0, small.form.longest)))
    assert pixels.size // 3 <= patches * PATCH**2


def test_places_between_learned_ones() -> None:
    table = np.arange(9, dtype=np.float32)[:, None]
    row, col = np.divmod(np.arange(10), 5)
    found = interpolated(table, row, 2, col, 5)
    assert found[:, 0].tolist() == [0, 0.5, 1, 1.5, 2, 6, 6.5, 7, 7.5, 8]
    assert interpolated(table, row[:1], 1, col[:1], 1).tolist() == [[0]]


def test_llama_cpps_files(folder: Path, tmp_path: Path, model: Model) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "text.gguf"
    convert_model(folder, path)
    convert_model(path, tmp_path / "again.gguf")
    for each in (path, tmp_path / "again.gguf"):
        metadata = read_gguf_file(each).metadata
        assert metadata["qwen3vl.n_deepstack_layers"] == len(DEEP)
        assert list(metadata["qwen3vl.rope.dimension_sections"]) == [*SECTIONS, 0]
    (tmp_path / "again.gguf").unlink()
    encoder = write_mmproj(tmp_path / "mmproj-model-f16.gguf", "float32")
    wanted = model.logits(both(model))
    for given, text in ((None, path), (encoder, folder)):
        with glinfer.load(text, mmproj=given) as other:
            assert written(both(other)) == written(both(model))
            check_close(other, both(other), wanted, 2e-6)
    write_mmproj(encoder)
    with glinfer.load(path) as other:
        check_close(other, both(other), wanted, 5e-3, 0)


@pytest.mark.slow
def test_llama_cpp_gives_converted_models_room_for_further_vectors(folder: Path, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-all)")
    convert_model(folder, tmp_path / "text.gguf")
    found = llama_cpp.llama_model_load_from_file(
        str(tmp_path / "text.gguf").encode(), llama_cpp.llama_model_default_params()
    )
    assert llama_cpp.llama_model_n_embd_inp(found) == (1 + len(DEEP)) * TEXT.hidden_size
    llama_cpp.llama_model_free(found)


def test_llama_cpps_files_of_qwen_3_5(newer_folder: Path, tmp_path: Path, newer: Model) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "text.gguf"
    convert_model(newer_folder, path)
    flags = {"vision.is_deepstack_layers": [False] * TOWER.num_hidden_layers}
    write_mmproj(tmp_path / "mmproj-model-f16.gguf", "float32", **flags)
    with glinfer.load(path) as other:
        check_close(other, both(other), newer.logits(both(newer)), 2e-6)
    encoder = write_mmproj(tmp_path / "mmproj-other.gguf")
    with pytest.raises(FormatError, match="image encoder of qwen3_vl; the model is of family qwen3_5_text"):
        glinfer.load(path, mmproj=encoder)


@each_case(
    ("changes", "words"),
    [
        ({"vision.is_deepstack_layers": [True] * 4}, "deepstack layers"),
        ({"vision.image_size": 28}, "has shape"),
        ({"vision.spatial_merge_size": 3}, "has shape"),
        ({"vision.projection_dim": 32}, "has shape"),
        ({"vision.block_count": 100000}, "expected more for the 100000 blocks"),
        ({"vision.attention.head_count": 16}, "multiple of 4"),
    ],
)
def test_damaged_encoders(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    pytest.importorskip("gguf")
    path = write_mmproj(tmp_path / "mmproj.gguf", **changes)
    with pytest.raises(FormatError, match=words):
        read_vision(write_qwen3_vl(tmp_path / "m"), TEXT, path)


@each_case(
    ("name", "values", "words"),
    [
        ("config.json", {"vision_config": {"temporal_patch_size": 1}}, "temporal_patch_size"),
        ("config.json", {"vision_config": {"num_position_embeddings": 24}}, "a square"),
        (
            "config.json",
            {"vision_config": {"deepstack_visual_indexes": [2, 0], "num_position_embeddings": 25}},
            "order",
        ),
        ("preprocessor_config.json", {"patch_size": 16}, "patch_size"),
        ("preprocessor_config.json", {"size": {"shortest_edge": -1}}, "shortest_edge"),
        ("preprocessor_config.json", {"do_resize": False}, "expected true"),
    ],
)
def test_damaged_directories(tmp_path: Path, name: str, values: dict[str, Any], words: str) -> None:
    folder = write_qwen3_vl(tmp_path / "m")
    given = json.loads((folder / name).read_text())
    if "vision_config" in values:
        values = {"vision_config": {**given["vision_config"], **values["vision_config"]}}
    (folder / name).write_text(json.dumps({**given, **values}))
    with pytest.raises(FormatError, match=words):
        read_vision(folder, TEXT)


def test_refusals(tmp_path: Path, model: Model, folder: Path) -> None:
    pytest.importorskip("gguf")
    encoder = write_mmproj(tmp_path / "mmproj.gguf")
    with pytest.raises(FormatError, match="image encoder of qwen3_vl; the model is of family llama"):
        glinfer.load(write_smolvlm(tmp_path / "m"), mmproj=encoder)
    write_qwen3_vl(tmp_path / "new", model_type="qwen3_vl_moe")
    assert "'qwen3_vl_moe' models are not supported" in str(read_vision(tmp_path / "new", TEXT))


def test_other_sequences_go_on_while_an_image_is_encoded(model: Model) -> None:
    """Pieces of two images at once, and tokens of a text between them, change no result."""
    prompts = [ids_of(model, picture(seed=seed)) for seed in (30, 31)]
    text = model.generate([70, 71, 72], max_tokens=40, temperature=0)
    how: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
    with model.scheduler() as scheduler:
        first = scheduler.insert(BatchRequest([70, 71, 72], {"max_tokens": 40, "temperature": 0}))
        scheduler.next()
        pictured = [scheduler.insert(BatchRequest(each, how)) for each in prompts]
        before = first.stats.tokens
        while not pictured[0].cached:
            scheduler.next()
        assert first.stats.tokens > before + 3
        finished(scheduler)
    assert first.ids == text
    assert [each.ids for each in pictured] == [model.generate(each, **how) for each in prompts]
