"""Pictures of one run of a model: captures tensors a few layers at a time, draws them, and collects their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from glinfer.engine.logits import softmax
from glinfer.engine.model import Model
from glinfer.engine.progress import Progress
from glinfer.errors import InputError
from glinfer.formats import Checkpoint, weight_shapes
from glinfer.inspect.look import pictures
from glinfer.inspect.look.lens import likeliest, logit_lens
from glinfer.inspect.look.options import ATTENTION, HIDDEN, LENS, WEIGHTS, LookOptions
from glinfer.inspect.look.statistics import attention_numbers, layer_of, statistics, summarize_weight, texture_sizes
from glinfer.limits import MAX_LOOK_BYTES
from glinfer.text.labels import NO_TOKEN, token_label
from glinfer.text.tokenizer import Tokenizer

Floats = npt.NDArray[np.floating]

_ORDER = (LENS, ATTENTION, HIDDEN, WEIGHTS)  # order of the page
_WHOLE = ("overview.png", "norms.png")  # shown before the layers that they summarise
_FOLLOWED = 5  # tokens whose probability is drawn over the layers


def labelled_tokens(ids: Sequence[int], tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
    """Describe the tokens of a text: position, id, text (None without a tokenizer), and label in pictures."""
    return [
        {
            "position": position,
            "id": token,
            "text": None if tokenizer is None else tokenizer.token_bytes(token).decode("utf-8", "replace"),
            "label": token_label(token, tokenizer),
        }
        for position, token in enumerate(ids)
    ]


class Drawing:
    """Draws into a folder, and collects the contents of ``look.json``."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: LookOptions,
        ids: Sequence[int],
        tokenizer: Tokenizer | None,
        folder: Path,
        on_progress: Progress,
    ) -> None:
        """Prepare pictures of ``ids``; ``on_progress`` receives (drawn pictures, pictures)."""
        self.checkpoint, self.options, self.tokenizer = checkpoint, options, tokenizer
        self.folder, self.on_progress = folder, on_progress
        self.ids, self.tokens = list(ids), labelled_tokens(ids, tokenizer)
        self.labels = [token["label"] for token in self.tokens]
        self.pictures: list[dict[str, Any]] = []
        self.found: dict[str, Any] = {name: [] for name in ("next", "tensors", "attention", "weights")}
        self.found |= {"norms": None, "lens": None}
        self.streams: dict[str, Floats] = {}

    def label(self, token: int) -> str:
        """Label a predicted token; −1 means none."""
        return NO_TOKEN if token < 0 else token_label(token, self.tokenizer)

    def add(
        self,
        kind: str,
        layer: int | None,
        name: str,
        title: str,
        alt: str,
        draw: Callable[..., Figure],
        **values: Any,
    ) -> None:
        """Save a picture as ``kind/name.png``, and a dark version as ``kind/name-dark.png``."""
        (self.folder / kind).mkdir(exist_ok=True)
        drawn = partial(draw, title=title, **values)
        width, height = pictures.write_themes(drawn, self.folder / kind / name)
        files = {"file": f"{kind}/{name}.png", "dark": f"{kind}/{name}-dark.png"}
        about = {**files, "kind": kind, "layer": layer, "title": title, "alt": alt}
        self.pictures.append({**about, "width": width, "height": height})
        self.on_progress(len(self.pictures), self._expected())

    def _expected(self) -> int:
        layers = len(self.options.layers)
        of = {ATTENTION: layers + 1, HIDDEN: layers + 2, LENS: 1 + len(_pieces(len(self.ids))), WEIGHTS: layers + 1}
        return sum(of[kind] for kind in self.options.what)

    def document(self) -> dict[str, Any]:
        """Return the collected contents of ``look.json``; pictures by kind, summaries first."""
        ordered = sorted(
            self.pictures, key=lambda each: (_ORDER.index(each["kind"]), not each["file"].endswith(_WHOLE))
        )
        return {
            "tokens": self.tokens,
            "what": self.options.what,
            "layers": self.options.layers,
            **self.found,
            "pictures": ordered,
        }

    def run(self, model: Model) -> None:
        """Capture and draw tensors, a few layers at a time."""
        small: dict[int, np.ma.MaskedArray] = {}  # by block; some have no attention
        logits: Floats | None = None
        order = {name: index for index, name in enumerate(model.names())}
        for names in self._groups(list(order)):
            found = model.capture(names, self.ids)
            self.found["tensors"] += [statistics(name, array) for name, array in found.items()]
            logits = found.get("logits", logits)
            for name, array in found.items():
                layer = layer_of(name)
                if layer is not None and name.endswith("attn.probs") and ATTENTION in self.options.what:
                    small[layer] = self.attention(layer, array)
                elif name == "embed" or name.endswith(".resid_post"):
                    self.streams["embed" if layer is None else f"block {layer}"] = array
                    if HIDDEN in self.options.what:
                        self.hidden(layer, array)
        self.found["tensors"].sort(key=lambda each: order[each["name"]])
        if small:
            alt = f"Small attention maps of all heads of {len(small)} blocks, a row for each block."
            values = {"maps": list(small.values()), "layers": list(small), "length": len(self.ids)}
            self.add(ATTENTION, None, "overview", "All blocks and heads", alt, pictures.attention_overview, **values)
        if HIDDEN in self.options.what:
            self.norms()
        if logits is not None:
            self.found["next"] = self._named(likeliest(softmax(logits[-1]), self.options.top))
        if LENS in self.options.what:
            self.lens(logits)

    def _groups(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield names to capture together: whole layers, within MAX_LOOK_BYTES."""
        what, config, length = self.options.what, self.checkpoint.config, len(self.ids)
        needed = ["embed", "logits"]
        if HIDDEN in what:
            needed += ["final_norm", "blocks.*.resid_*", "blocks.*.mlp.*"]
        if LENS in what:
            needed.append("blocks.*.resid_post")
        if ATTENTION in what:
            needed.append("blocks.*.attn.*")
            if not any(name.endswith("attn.probs") for name in names):
                raise InputError("this plan has no attention probabilities; load the model with plan='reference'")
        chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in needed)]
        heads = config.num_attention_heads * (2 * length + 6 * max(config.head_dim, config.global_head_dim))
        floats = length * (heads + 6 * config.hidden_size + 3 * config.intermediate_size)
        together = max(1, MAX_LOOK_BYTES // (4 * floats))
        for first in range(0, len(self.options.layers), together):
            layers: set[int | None] = set(self.options.layers[first : first + together])
            yield [name for name in chosen if layer_of(name) in (layers if first else layers | {None})]

    def attention(self, layer: int, probs: Floats) -> np.ma.MaskedArray:
        """Draw the attention maps of a block [heads, S, S]; returns them shrunk for the overview."""
        heads, length = probs.shape[:2]
        numbers = attention_numbers(probs)
        self.found["attention"].append({"layer": layer, "heads": numbers})
        seen = pictures.visible_keys(length, self.checkpoint.config.layer(layer).window)
        title = f"Attention of block {layer}"
        alt = f"{title}: maps of {heads} heads over {length} tokens."
        for key, words in (("to_previous", "the previous token"), ("to_first", "the first token")):
            shares = np.nan_to_num([each[key] for each in numbers], nan=-1.0)
            if shares.max() >= 0:
                alt += f" Head {shares.argmax()} looks most at {words}, {100 * shares.max():.0f}% on average."
        values = {"probs": probs, "labels": self.labels, "seen": seen}
        self.add(ATTENTION, layer, f"block-{layer:03d}", title, alt, pictures.attention, **values)
        return pictures.shrunk(probs, seen)

    def hidden(self, layer: int | None, stream: Floats) -> None:
        """Draw a residual stream [S, D]."""
        title = "Stream after the embedding" if layer is None else f"Stream after block {layer}"
        alt = f"{title}: a heat map of {stream.shape[0]} tokens by {stream.shape[1]} features."
        name = "embed" if layer is None else f"block-{layer:03d}"
        self.add(HIDDEN, layer, name, title, alt, pictures.hidden, stream=stream, labels=self.labels)

    def norms(self) -> None:
        """Draw the norms of all streams."""
        rows = list(self.streams)
        values = np.stack([np.linalg.norm(stream.astype(np.float64), axis=1) for stream in self.streams.values()])
        self.found["norms"] = {"rows": rows, "values": values.tolist()}
        title, (low, high) = "Norm of the stream", (values.argmin(), values.argmax())
        where = [f"{rows[index // values.shape[1]]}, position {index % values.shape[1]}" for index in (low, high)]
        alt = f"{title} by layer and token: from {values.min():.3g} ({where[0]}) to {values.max():.3g} ({where[1]})."
        self.add(HIDDEN, None, "norms", title, alt, pictures.norms, values=values, layers=rows, labels=self.labels)

    def lens(self, logits: Floats | None) -> None:
        """Draw the logit lens over the streams."""
        rows, seen = list(self.streams), logit_lens(self.checkpoint, list(self.streams.values()))
        hits = np.zeros(seen.ids.shape, dtype=bool)
        hits[:, :-1] = seen.ids[:, :-1] == self.ids[1:]
        words = [[self.label(token) for token in row] for row in seen.ids.tolist()]
        last = [self._named(likeliest(probs, self.options.top)) for probs in seen.last]
        difference = None
        if logits is not None and self.options.layers[-1] == self.checkpoint.config.num_hidden_layers - 1:
            difference = float(np.abs(seen.last[-1] - softmax(logits[-1])).max())
        self.found["lens"] = {
            "rows": rows,
            "ids": seen.ids.tolist(),
            "labels": words,
            "probabilities": seen.probs.tolist(),
            "last": last,
            "difference": difference,
        }
        for first, end in _pieces(len(self.ids)):
            part = slice(first, end)
            title = f"Logit lens, positions {first} to {end - 1}"
            alt = f"{title}: the likeliest next token by layer. {rows[-1]}: {', '.join(words[-1][part])}."
            values = {"guesses": [row[part] for row in words], "probs": seen.probs[:, part], "hits": hits[:, part]}
            values |= {"layers": rows, "labels": self.labels[part]}
            self.add(LENS, None, f"positions-{first:03d}", title, alt, pictures.lens, **values)
        top = [[(each["label"], each["probability"]) for each in found] for found in last]
        own = [(self.label(token), seen.last[:, token]) for token, _ in likeliest(seen.last[-1], _FOLLOWED)]
        each = [f"{row}: {found[0][0]} {100 * found[0][1]:.0f}%" for row, found in zip(rows, top, strict=True) if found]
        title = "Logit lens at the last position"
        alt = f"The likeliest tokens at the last position by layer. {'; '.join(each)}."
        self.add(LENS, None, "last", title, alt, pictures.lens_last, top=top, layers=rows, follow=own)

    def _named(self, tokens: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
        return [{"id": token, "label": self.label(token), "probability": prob} for token, prob in tokens]

    def weights(self, max_texture_size: int) -> None:
        """Draw the weights, one picture per block."""
        textures = texture_sizes(self.checkpoint, max_texture_size)
        for layer in (None, *self.options.layers):
            names = [name for name in weight_shapes(self.checkpoint.config) if layer_of(name) == layer]
            found = [summarize_weight(self.checkpoint, name, textures[name]) for name in names]
            self.found["weights"] += [each.to_json() for each in found]
            where = "outside the blocks" if layer is None else f"of block {layer}"
            alt = f"Thumbnails and histograms of the {len(found)} weights {where}."
            name = "outside" if layer is None else f"block-{layer:03d}"
            self.add(WEIGHTS, layer, name, f"Weights {where}", alt, pictures.weights, looks=found)


def _pieces(length: int) -> list[tuple[int, int]]:
    """Split positions into (first, end) of lens pictures of nearly equal size."""
    count = -(-length // pictures.POSITIONS)
    return [(piece * length // count, (piece + 1) * length // count) for piece in range(count)]
