"""``python -m qa embed-speed``: sentences a second, beside sentence-transformers on PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from glinfer.cli.common import loaded, print_json, show_table
from glinfer.cli.options import device_options, json_option
from glinfer.errors import InputError
from glinfer.inspect.tables import Column, Table
from glinfer.inspect.timing import Work, interleaved
from glinfer.jobs.texts import read_texts

_STRIP = 500  # vectors that are compared with all others at a time
_TEXT = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an which they"
)


@click.command("embed-speed")
@click.argument("model")
@click.option("--texts", "path", type=click.Path(), help="File of texts. Default: 3 to 40 random words each.")
@click.option("--count", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of sentences.")
@click.option("--runs", type=click.IntRange(min=0), default=3, show_default=True, help="Timed runs, 0 for none.")
@click.option("--peer", type=click.Path(exists=True), help="The model's directory for sentence-transformers.")
@click.option("--weights", default="file", show_default=True, help="glinfer's weight format.")
@device_options
@json_option
def embed_speed_command(
    model: str, path: str | None, count: int, runs: int, peer: str | None, as_json: bool, **options: Any
) -> None:
    """Benchmark MODEL on sentences, interleaved with sentence-transformers, and compare the vectors.

    \b
    python -m qa embed-speed all-MiniLM-L6-v2 --peer all-MiniLM-L6-v2
    python -m qa embed-speed model/ --peer model/ --texts lines.txt --runs 0
    """
    texts = sentences(path, count)
    with loaded(model, **options) as opened:
        ways: dict[str, Callable[[], Any]] = {"glinfer": lambda: opened.embed(texts)}
        if peer is not None:
            ways["sentence-transformers"] = _peer(peer, texts)
        found = dict[str, Any]()

        def embed(name: str) -> None:
            found[name] = ways[name]()

        works = [Work(partial(embed, name)) for name in ways]
        times = interleaved(works, max(1, runs), warm_ups=min(1, runs))
        best = {name: min(each) / 1000.0 for name, each in zip(ways, times, strict=True)}
        tokens = opened.embedder.request(texts).tokens
        renderer = opened.device.description
    report: dict[str, Any] = {"texts": len(texts), "tokens": tokens, "renderer": renderer, "seconds": best}
    report["texts_per_second"] = {name: len(texts) / seconds for name, seconds in best.items()}
    if peer is not None:
        own, other = (np.asarray(each, np.float64) for each in found.values())
        unit = own / np.linalg.norm(own, axis=1, keepdims=True)
        cosines = (unit * other).sum(axis=1) / np.linalg.norm(other, axis=1)
        ours, theirs = nearest(own), nearest(other)
        report |= {
            "ratio": best["glinfer"] / best["sentence-transformers"],
            "largest_difference": float(np.abs(own - other).max()),
            "smallest_cosine": float(cosines.min()),
            "same_neighbours": int((ours == theirs).sum()),
            "largest_lead": float((unit * (unit[ours] - unit[theirs])).sum(axis=1).max()),
        }
    if as_json:
        print_json(report)
        return
    columns = (
        *(Column("engine", itemgetter(0)), Column("seconds", itemgetter(1), ".2f")),
        Column("texts/s", lambda each: len(texts) / each[1], ".0f"),
        Column("tokens/s", lambda each: tokens / each[1], ".0f"),
    )
    show_table(Table("Embedding", columns, list(best.items())))
    click.echo(f"{len(texts)} texts, {tokens} tokens; {renderer}")
    if peer is not None:
        click.echo(
            f"ratio {report['ratio']:.2f}; largest difference {report['largest_difference']:.2e}, smallest cosine "
            f"{report['smallest_cosine']:.9f}; {report['same_neighbours']} of {len(texts)} nearest neighbours are the "
            f"same, others lead by {report['largest_lead']:.2e} at most"
        )


def nearest(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """The index of the vector that each of several [n, D] has the largest cosine with, itself left out."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = np.zeros(len(unit), np.intp)
    for start in range(0, len(unit), _STRIP):
        scores = unit[start : start + _STRIP] @ unit.T
        scores[np.arange(len(scores)), np.arange(start, start + len(scores))] = -np.inf
        found[start : start + _STRIP] = scores.argmax(axis=1)
    return found


def sentences(path: str | None, count: int) -> list[str]:
    """The first texts of a file, or random words."""
    if path is None:
        random = np.random.default_rng(0)
        lengths = random.integers(3, 41, count)
        return [" ".join(random.choice(_TEXT.split(), length)) for length in lengths]
    texts = list(dict.fromkeys(text for text in read_texts(path) if text.strip()))[:count]
    if not texts:
        raise InputError(f"{path}: found no text in it; expected some")
    return texts


def _peer(path: str, texts: Sequence[str]) -> Callable[[], Any]:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise InputError("sentence-transformers is not installed; leave --peer out, or install it") from None
    other = SentenceTransformer(str(Path(path)), device="cpu")
    return lambda: other.encode(list(texts), batch_size=32, show_progress_bar=False)
