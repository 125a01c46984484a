"""What ``glinfer look`` does: captures tensors, has them drawn, and collects the numbers behind the pictures.

Needs matplotlib; :mod:`glinfer.inspect.look.run` imports it when there is something to draw.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.formats import Checkpoint, weight_shapes
from glinfer.inspect.look import pictures
from glinfer.inspect.look.folder import FORMAT, VERSION
from glinfer.inspect.look.lens import Lens, likeliest, logit_lens, softmax
from glinfer.inspect.look.numbers import attention_numbers, layer_of, statistics
from glinfer.inspect.look.run import ATTENTION, HIDDEN, LENS, WEIGHTS, Wanted, Watched
from glinfer.inspect.look.sheet import Sheet
from glinfer.inspect.look.tokens import NOTHING, LookToken, token_label
from glinfer.inspect.look.weights import look_at_weight
from glinfer.text.tokenizer import Tokenizer

Floats = npt.NDArray[np.floating]

_ORDER = (LENS, ATTENTION, HIDDEN, WEIGHTS)  # of the page
_WHOLE = ("overview.png", "norms.png")  # which come before the layers they are about
_FOLLOWED = 5  # tokens whose probability is drawn over the layers
_MEMORY = 256_000_000  # bytes of captured tensors that are in memory together


@dataclass
class Drawing:
    """One output under construction: draws into a folder, and collects what ``look.json`` says."""

    checkpoint: Checkpoint
    wanted: Wanted
    tokens: list[LookToken]
    tokenizer: Tokenizer | None
    folder: Path
    on_picture: Callable[[int, int], None] | None
    drawn: list[dict[str, Any]] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, Floats] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """What the tokens are called."""
        return [token.label for token in self.tokens]

    def label(self, token: int) -> str:
        """What a token is called, or none where that is −1."""
        return NOTHING if token < 0 else token_label(token, self.tokenizer)

    def add(self, kind: str, layer: int | None, name: str, sheet: Sheet, title: str, alt: str) -> None:
        """Save a picture as ``kind/name.png``."""
        file = self.folder / kind / f"{name}.png"
        file.parent.mkdir(exist_ok=True)
        width, height = sheet.save(file)
        said = {"file": f"{kind}/{name}.png", "kind": kind, "layer": layer, "title": title, "alt": alt}
        self.drawn.append({**said, "width": width, "height": height})
        if self.on_picture is not None:
            self.on_picture(len(self.drawn), self._expected())

    def _expected(self) -> int:
        layers = len(self.wanted.layers)
        of = {ATTENTION: layers + 1, HIDDEN: layers + 2, LENS: 1 + len(_pieces(len(self.tokens))), WEIGHTS: layers + 1}
        return sum(of[kind] for kind in self.wanted.what)

    def document(self, model: Mapping[str, Any], text: str | None) -> dict[str, Any]:
        """Everything that ``look.json`` holds."""
        empty: dict[str, Any] = {"next": [], "tensors": [], "attention": [], "norms": None, "lens": None, "weights": []}
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": dict(model),
            "text": text,
            "tokens": [dataclasses.asdict(token) for token in self.tokens],
            "what": list(self.wanted.what),
            "layers": list(self.wanted.layers),
            **empty,
            **self.told,
            "pictures": sorted(self.drawn, key=_place),
        }

    def run(self, model: Watched, ids: Sequence[int]) -> None:
        """Capture what is wanted, a few layers at a time, and draw it."""
        small: list[np.ma.MaskedArray] = []
        logits: Floats | None = None
        order = {name: place for place, name in enumerate(model.names())}
        self.told.update(tensors=[], attention=[])
        for names in self._groups(list(order)):
            found = model.capture(names, list(ids))
            self.told["tensors"] += [statistics(name, array) for name, array in found.items()]
            logits = found.get("logits", logits)
            for name, array in found.items():
                layer = layer_of(name)
                if layer is not None and name.endswith("attn.probs") and ATTENTION in self.wanted.what:
                    small.append(self.attention(layer, array))
                elif name == "embed" or name.endswith(".resid_post"):
                    self.streams["embed" if layer is None else f"block {layer}"] = array
                    if HIDDEN in self.wanted.what:
                        self.hidden(layer, array)
        self.told["tensors"].sort(key=lambda told: order[told["name"]])
        if small:
            layers = self.wanted.layers
            alt = f"Small attention maps of all heads of {len(layers)} blocks, a row for each block."
            sheet = pictures.attention_overview(small, layers, len(ids))
            self.add(ATTENTION, None, "overview", sheet, "All blocks and heads", alt)
        if HIDDEN in self.wanted.what:
            self.norms()
        if logits is not None:
            self.told["next"] = self._named(likeliest(softmax(logits[-1]), self.wanted.top))
        if LENS in self.wanted.what:
            self.lens(logits)

    def _groups(self, names: Sequence[str]) -> Iterator[list[str]]:
        """The names to capture, all of some layers together, as many as there is memory for."""
        what, config, length = self.wanted.what, self.checkpoint.config, len(self.tokens)
        needed = ["embed", "logits"]
        if HIDDEN in what:
            needed += ["final_norm", "blocks.*.resid_*", "blocks.*.mlp.*"]
        if LENS in what:
            needed.append("blocks.*.resid_post")
        if ATTENTION in what:
            needed.append("blocks.*.attn.*")
            if not any(name.endswith("attn.probs") for name in names):
                raise InputError("this plan gives no attention probabilities; load the model with plan='reference'")
        chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in needed)]
        heads = config.num_attention_heads * (2 * length + 6 * config.head_dim)
        floats = length * (heads + 6 * config.hidden_size + 3 * config.intermediate_size)
        together = max(1, _MEMORY // (4 * floats))
        for first in range(0, len(self.wanted.layers), together):
            layers: set[int | None] = set(self.wanted.layers[first : first + together])
            yield [name for name in chosen if layer_of(name) in (layers if first else layers | {None})]

    def attention(self, layer: int, probs: Floats) -> np.ma.MaskedArray:
        """Draw the maps of a block [heads, S, S]; returns them for the overview."""
        heads, length = probs.shape[:2]
        numbers = attention_numbers(probs)
        self.told["attention"].append({"layer": layer, "heads": numbers})
        seen = pictures.seen_keys(length, self.checkpoint.config.window_of(layer))
        title = f"Attention of block {layer}"
        alt = f"{title}: maps of {heads} heads over {length} tokens."
        for key, words in (("to_previous", "the token before"), ("to_first", "the first token")):
            shares = [-1.0 if each[key] is None else float(each[key] or 0.0) for each in numbers]
            if max(shares) >= 0:
                alt += f" Head {np.argmax(shares)} looks most at {words}, {100 * max(shares):.0f}% on average."
        self.add(
            ATTENTION, layer, f"block-{layer:03d}", pictures.attention(probs, self.labels, seen, title), title, alt
        )
        return pictures.shrunk(probs, seen)

    def hidden(self, layer: int | None, stream: Floats) -> None:
        """Draw a stream [S, D]."""
        title = "Stream behind the embedding" if layer is None else f"Stream behind block {layer}"
        alt = f"{title}: a heat map of {stream.shape[0]} tokens by {stream.shape[1]} features."
        name = "embed" if layer is None else f"block-{layer:03d}"
        self.add(HIDDEN, layer, name, pictures.hidden(stream, self.labels, title), title, alt)

    def norms(self) -> None:
        """Draw how long the streams are."""
        rows = list(self.streams)
        values = np.stack([np.linalg.norm(stream.astype(np.float64), axis=1) for stream in self.streams.values()])
        self.told["norms"] = {"rows": rows, "values": _known(values)}
        title, (low, high) = "Norm of the stream", (values.argmin(), values.argmax())
        where = [f"{rows[place // values.shape[1]]}, position {place % values.shape[1]}" for place in (low, high)]
        alt = f"{title} by layer and token: from {values.min():.3g} ({where[0]}) to {values.max():.3g} ({where[1]})."
        self.add(HIDDEN, None, "norms", pictures.norms(values, rows, self.labels), title, alt)

    def lens(self, logits: Floats | None) -> None:
        """Draw the logit lens over the streams."""
        rows, seen = list(self.streams), logit_lens(self.checkpoint, list(self.streams.values()))
        ids = np.array([token.id for token in self.tokens])
        hits = np.zeros(seen.ids.shape, dtype=bool)
        hits[:, :-1] = seen.ids[:, :-1] == ids[1:]
        words = [[self.label(int(token)) for token in row] for row in seen.ids]
        top = [
            [(self.label(token), prob) for token, prob in seen.top(row, self.wanted.top)] for row in range(len(rows))
        ]
        self.told["lens"] = self._lens_numbers(rows, seen, logits)
        for first, end in _pieces(len(ids)):
            part = slice(first, end)
            sheet = pictures.lens(
                [row[part] for row in words], seen.probs[:, part], hits[:, part], rows, self.labels[part], first
            )
            title = f"Logit lens, positions {first} to {end - 1}"
            alt = f"{title}: the likeliest next token by layer. {rows[-1]} says {', '.join(words[-1][part])}."
            self.add(LENS, None, f"positions-{first:03d}", sheet, title, alt)
        own = seen.top(len(rows) - 1, _FOLLOWED)
        sheet = pictures.lens_last(top, rows, [(self.label(token), seen.last[:, token]) for token, _ in own])
        says = [f"{row}: {found[0][0]} {100 * found[0][1]:.0f}%" for row, found in zip(rows, top, strict=True) if found]
        alt = f"The likeliest tokens at the last position by layer. {'; '.join(says)}."
        self.add(LENS, None, "last", sheet, "Logit lens at the last position", alt)

    def _lens_numbers(self, rows: Sequence[str], seen: Lens, logits: Floats | None) -> dict[str, Any]:
        whole = self.wanted.layers[-1] == self.checkpoint.config.num_hidden_layers - 1
        difference = None
        if whole and logits is not None:
            difference = float(np.abs(seen.last[-1] - softmax(logits[-1])).max())
        return {
            "rows": list(rows),
            "ids": seen.ids.tolist(),
            "labels": [[self.label(int(token)) for token in row] for row in seen.ids],
            "probabilities": _known(seen.probs),
            "last": [self._named(seen.top(row, self.wanted.top)) for row in range(len(rows))],
            "difference": difference if difference is not None and math.isfinite(difference) else None,
        }

    def _named(self, tokens: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
        return [{"id": token, "label": self.label(token), "probability": prob} for token, prob in tokens]

    def weights(self, textures: Mapping[str, tuple[int, int, str]]) -> None:
        """Draw the weights, those of a block together."""
        self.told["weights"] = []
        for layer in (None, *self.wanted.layers):
            names = [name for name in weight_shapes(self.checkpoint.config) if layer_of(name) == layer]
            looks = [look_at_weight(self.checkpoint, name, textures[name]) for name in names]
            self.told["weights"] += [each.to_json() for each in looks]
            where = "outside of the blocks" if layer is None else f"of block {layer}"
            alt = f"Thumbnails and histograms of the {len(looks)} weights {where}."
            name = "outside" if layer is None else f"block-{layer:03d}"
            self.add(WEIGHTS, layer, name, pictures.weights(looks, f"Weights {where}"), f"Weights {where}", alt)


def _place(picture: Mapping[str, Any]) -> tuple[int, bool]:
    """Where a picture comes on the page; of those alike in that, as they were drawn."""
    return _ORDER.index(picture["kind"]), not picture["file"].endswith(_WHOLE)


def _pieces(length: int) -> list[tuple[int, int]]:
    """Positions (first, end) of the lens pictures: of nearly the same number each."""
    count = -(-length // pictures.POSITIONS)
    return [(piece * length // count, (piece + 1) * length // count) for piece in range(count)]


def _known(values: Floats) -> list[list[float | None]]:
    """Rows for JSON, which has no NaN."""
    return [[float(value) if math.isfinite(value) else None for value in row] for row in values]
