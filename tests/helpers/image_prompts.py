"""Prompts with images, compared with what transformers computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from goldens import recorded
from goldens.figures import Figures
from goldens.pictures import about

import glinfer
from glinfer.engine.model import Model
from glinfer.text.images import ImageToken

PARITY = 1e-4


def ids_of(model: Model, *images: object, text: str = "What is it?") -> list[int]:
    """A prompt of images, each with a text after it."""
    parts = [part for image in images for part in about(image, text)[0]["content"]]
    return model.chat_ids([{"role": "user", "content": parts}])


def written(ids: Sequence[int], mark: int) -> list[int]:
    """The ids as transformers has them, with a mark for each part of an image."""
    return [mark if isinstance(token, ImageToken) else token for token in ids]


def check_logits(folder: Path, plan: str, name: str, images: Sequence[object], text: str, mark: int) -> None:
    """At each place from the end of the recorded prompt on, and the greedy reply; by the reference plan at a few."""
    values = recorded(name)
    figures, prompt = Figures.from_json(values), values["prompt"]
    many = figures.ids[prompt:]
    with glinfer.load(folder, plan=plan) as model:
        ids = ids_of(model, *images, text=text)
        assert written(ids, mark) == figures.ids[:prompt]
        with model.session() as session:
            for place in range(prompt - 1, len(figures.ids) - 1, 1 if plan == "fast" else len(many) // 3):
                session.hold([*ids, *many[: place + 1 - prompt]])
                assert figures.error(place, session.logits()) <= PARITY
        if plan == "fast":
            assert model.generate(ids, max_tokens=len(many), temperature=0) == many


def check_close(model: Model, ids: Sequence[int], wanted: np.ndarray, most: float, least: float = -1.0) -> None:
    """The logits differ by at most, and by more than at least, these parts of their range."""
    error = np.abs(model.logits(list(ids)) - wanted).max() / np.ptp(wanted)
    assert least < error <= most
