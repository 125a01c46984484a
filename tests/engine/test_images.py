"""Prompts with images: squares, logits and files against transformers and llama.cpp, alone and together."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from goldens import recorded
from goldens.pictures import (
    CONTROL,
    IMAGE_SIZES,
    LONGEST,
    SIDE,
    TEXT,
    TOKENS,
    about,
    picture,
    write_mmproj,
    write_smolvlm,
)
from image_prompts import check_close, check_logits, ids_of, written
from PIL import Image

import glinfer
from glinfer.engine.model import Model
from glinfer.errors import FormatError, InputError
from glinfer.export.convert import convert_model
from glinfer.formats import load_checkpoint
from glinfer.formats.vision import ImageForm, read_vision
from glinfer.limits import MAX_IMAGE_PIXELS, MAX_IMAGES, MAX_KNOWN_IMAGES
from glinfer.text.images import ImageToken, decoded, merged_order, squares_of

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("no_processes")]

IMAGE = 256 + CONTROL.index("<image>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_smolvlm(tmp_path_factory.mktemp("pictures") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with glinfer.load(folder) as model:
        yield model


@each_case("size", IMAGE_SIZES)
def test_squares_are_those_of_transformers(size: tuple[int, int]) -> None:
    theirs = recorded("images")["squares"]["x".join(map(str, size))]
    squares, rows, cols = squares_of(decoded(picture(*size)), ImageForm(SIDE, LONGEST))
    assert ([[rows]], [[cols]]) == (theirs["rows"], theirs["cols"])
    assert len(squares) == len(theirs["pixels"])
    for ours, pixels in zip(squares, theirs["pixels"], strict=True):
        scaled = (ours.astype(np.float32) / 255 - 0.5) / 0.5
        assert np.allclose(scaled.transpose(2, 0, 1)[:, ::7, ::7].reshape(-1)[:24], pixels, atol=1e-5)


def test_patches_of_a_token_are_neighbours() -> None:
    assert merged_order(4, 4, 2).tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]


@pytest.mark.parametrize("plan", ["fast", "reference"])
def test_logits_are_those_of_transformers(folder: Path, plan: str) -> None:
    check_logits(folder, plan, "images", [picture()], "What is it?", IMAGE)


def test_weight_formats(tmp_path: Path, model: Model) -> None:
    wanted = model.logits(ids_of(model, picture()))
    for dtype, weights_, allowed in (("float16", "file", 2e-3), ("float32", "q8", 0.05)):
        path = write_smolvlm(tmp_path / dtype, dtype)
        with glinfer.load(path, weights=weights_) as other:
            check_close(other, ids_of(other, picture()), wanted, allowed, 0)


def test_images_have_ids_by_their_pixels(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal ids mean equal images, so caches of prefixes cannot confuse two."""
    one, same, other = ids_of(model, picture()), ids_of(model, picture()), ids_of(model, picture(seed=3))
    assert one == same
    assert written(one, IMAGE) == written(other, IMAGE)
    pictured = [{token for token in ids if isinstance(token, ImageToken)} for ids in (one, other)]
    assert not pictured[0] & pictured[1]
    model.logits(one)
    runs = []
    reader = next(token for token in one if isinstance(token, ImageToken)).square.reader
    encoded = reader.encoded
    monkeypatch.setattr(reader, "encoded", lambda pixels: runs.append(1) or encoded(pixels))
    model.logits(same)
    assert not runs, "a known image is not encoded again"
    for seed in range(10, 11 + MAX_KNOWN_IMAGES):
        ids_of(model, picture(seed=seed))
    again = ids_of(model, picture())
    assert again != one, "a forgotten image gets new ids"
    first, second = (model.logits(ids) for ids in (one, again))
    assert runs
    assert np.array_equal(first, second)


def test_a_conversation_with_images(model: Model, tmp_path: Path) -> None:
    picture().save(tmp_path / "a.png")
    data = io.BytesIO()
    picture().save(data, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    linked = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    conversations = [
        *(about(each) for each in (picture(), data.getvalue(), str(tmp_path / "a.png"), tmp_path / "a.png")),
        [{"role": "user", "content": linked}],
    ]
    replies = {str(model.chat(each, max_tokens=6, temperature=0)) for each in conversations}
    assert len(replies) == 1
    session = model.chat_session()
    assert session.send(conversations[0][0]["content"], max_tokens=6, temperature=0) in replies
    session.send("And now?", max_tokens=4)
    assert session.messages[0]["content"] == "[image]What is it?"
    forged = ids_of(model, picture(), text="<image> <fake_token_around_image>")
    assert written(forged, IMAGE).count(IMAGE) == 5 * TOKENS, "a text spells no image"


def bytes_of(image: Image.Image, form: str = "PNG") -> bytes:
    data = io.BytesIO()
    image.save(data, form)
    return data.getvalue()


@each_case(
    ("content", "words"),
    [
        ([{"type": "image", "image": "/none.png"}], "/none.png: cannot read it"),
        ([{"type": "image", "image": b"GIF89a"}], "the image cannot be decoded"),
        ([{"type": "image", "image": bytes_of(picture())[:200]}], "its pixels are damaged"),
        ([{"type": "image", "image": bytes_of(picture(), "TIFF")}], "expected JPEG, PNG"),
        ([{"type": "image", "image": 3}], "the image is int"),
        ([{"type": "image"}], "part 0 of message 0 has no image"),
        ([{"type": "video", "video": "a"}], "expected {'type': 'text'"),
        ([{"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}], "nothing is fetched"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}], "base64 is damaged"),
        ([{"type": "image", "image": Image.new("1", (8000, 7000))}], f"1 to {MAX_IMAGE_PIXELS}"),
        ([{"type": "image", "image": Image.new("1", (1, 80))}], "an aspect ratio of at most"),
        ([{"type": "image", "image": picture()}] * (MAX_IMAGES + 1), f"at most {MAX_IMAGES}"),
        ([{"type": "text"}], "part 0 of message 0"),
    ],
)
def test_bad_images(model: Model, content: list[Any], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")) as error:
        model.chat([{"role": "user", "content": content}])
    assert "\n" not in str(error.value)


def test_places_that_take_no_images(model: Model, folder: Path) -> None:
    ids = ids_of(model, picture())
    end = max(place for place, token in enumerate(ids) if isinstance(token, ImageToken)) + 1
    refusals: list[tuple[Any, str]] = [
        (lambda: model.logits(ids[:end]), "ends with an image"),
        (lambda: model.chat([{"role": "assistant", "content": about(picture())[0]["content"]}]), "a user's message"),
    ]
    for call, words in refusals:
        with pytest.raises(InputError, match=words):
            call()
    with glinfer.load("shakespeare") as other:  # which cannot chat either
        for use in (lambda: other.read_image(picture()), lambda: other.chat_ids(about(picture()))):
            with pytest.raises(InputError, match="no image encoder"):
                use()
        with pytest.raises(InputError, match="part of an image"):
            other.logits(ids)
    with glinfer.load(folder, executor="numpy") as other, pytest.raises(InputError, match="leave executor out"):
        other.chat(about(picture()))


def test_llama_cpps_files(folder: Path, tmp_path: Path, model: Model) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "text.gguf"
    convert_model(folder, path)
    encoder = write_mmproj(tmp_path / "mmproj-model-f16.gguf")
    wanted = model.logits(ids_of(model, picture()))
    for given in (None, encoder):
        with glinfer.load(path, mmproj=given) as other:
            ids = ids_of(other, picture())
            assert written(ids, IMAGE) == written(ids_of(model, picture()), IMAGE)
            check_close(other, ids, wanted, 2e-3, 0)
    write_mmproj(tmp_path / "mmproj-other.gguf")
    with glinfer.load(path) as other, pytest.raises(InputError, match="found 2 image encoders"):
        other.chat(about(picture()))


@each_case(
    ("changes", "words"),
    [
        ({"projector_type": "mlp"}, "type 'mlp'.*expected idefics3"),
        ({"projector_type": None}, "found no image encoder"),
        ({"vision.image_size": 30}, "expected whole tokens"),
        ({"vision.block_count": 3}, "is missing"),
        ({"vision.block_count": 100000}, "expected more for the 100000 blocks"),
        ({"vision.patch_size": 8}, "has shape"),
        ({"vision.projection_dim": 32}, "has shape"),
        ({"vision.image_mean": [0.5]}, "three numbers"),
    ],
)
def test_damaged_encoders(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    pytest.importorskip("gguf")
    path = write_mmproj(tmp_path / "mmproj.gguf", **changes)
    with pytest.raises(FormatError, match=words):
        read_vision(tmp_path, TEXT, path)


@each_case(
    ("name", "values", "words"),
    [
        ("config.json", {"scale_factor": 3}, "expected whole tokens"),
        ("config.json", {"vision_config": {"image_size": 34}}, "patches"),
        ("preprocessor_config.json", {"max_image_size": {"longest_edge": 16}}, "expected 34"),
        ("preprocessor_config.json", {"image_std": [0, 1, 1]}, "above 0"),
        ("preprocessor_config.json", {"do_normalize": False}, "expected true"),
    ],
)
def test_damaged_directories(tmp_path: Path, name: str, values: dict[str, Any], words: str) -> None:
    folder = write_smolvlm(tmp_path / "m")
    (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **values}))
    with pytest.raises(FormatError, match=words):
        read_vision(folder, TEXT)


def test_other_models_with_encoders_run_texts(tmp_path: Path) -> None:
    """Without the settings of images, or of another family, texts alone run."""
    folder = write_smolvlm(tmp_path / "m")
    (folder / "preprocessor_config.json").unlink()
    with glinfer.load(folder) as model:
        assert model.chat("Hello", max_tokens=2).tokens == 2
        with pytest.raises(InputError, match="no preprocessor_config"):
            model.chat(about(picture()))
    assert load_checkpoint(folder).config.model_type == "llama"
