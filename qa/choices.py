"""``python -m qa choices``: texts of many settings of the sampler, chosen by passes and by NumPy."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import click
import numpy as np

from glinfer.cli.common import print_json
from glinfer.cli.options import json_option, weights_option
from glinfer.engine import batch
from glinfer.engine.loading import load_model
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.export.site import export_web
from qa.pictures.command import Studio
from qa.renderers.browsers import serving

_GRID: dict[str, list[Any]] = {
    "temperature": [0.7, 0.2, 1.0, 1.5, 0],
    "top_k": [40, 0, 1, 5, 200],
    "top_p": [0.95, 1.0, 0.5, 0.9, 0.1],
    "min_p": [0.0, 0.05, 0.3],
    "repetition_penalty": [1.0, 1.1, 0.8],
    "presence_penalty": [0.0, 0.6, -0.5],
    "frequency_penalty": [0.0, 0.4],
    "logit_bias": [{}, {5: 3.0, 11: -4.0}],
}
_PAGE_NAMES = {
    **{"temperature": "temperature", "top_k": "topK", "top_p": "topP", "min_p": "minP"},
    "repetition_penalty": "repetitionPenalty",
}
"""The options that a page has, and its names for them."""
_AT_ONCE = 5  # texts of one visit to the page, whose logits come back together
_OFTEN = 0.5  # how often an option has its first value, the usual one


def settings(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Options of the sampler: first each value beside the usual ones, then values at random."""
    usual = {name: values[0] for name, values in _GRID.items()}
    single = ({**usual, name: value} for name, values in _GRID.items() for value in values[1:])
    random = np.random.default_rng(seed)

    def drawn() -> dict[str, Any]:
        return {
            name: values[0 if random.random() < _OFTEN else random.integers(len(values))]
            for name, values in _GRID.items()
        }

    return itertools.islice(itertools.chain([usual], single, iter(drawn, None)), count)


def _prompts(vocab: int, count: int) -> list[list[int]]:
    found: list[list[int]] = np.random.default_rng(1).integers(0, vocab, (count, 5)).tolist()
    return found


def texts(model: Model, wanted: list[dict[str, Any]], tokens: int, *, passes: bool) -> tuple[list[list[int]], int]:
    """The ids of a text by each setting, and the rows of logits that were read back for them."""
    prompts = _prompts(model.config.vocab_size, len(wanted))
    requests = [
        BatchRequest(prompt, {**options, "max_tokens": tokens, "seed": number, "stop_ids": []}, number)
        for number, (prompt, options) in enumerate(zip(prompts, wanted, strict=True))
    ]
    found: dict[int, list[int]] = {}
    with mock.patch.object(batch, "filters_by_passes", return_value=passes), model.scheduler() as scheduler:
        for request in requests:
            scheduler.insert(request)
        while len(scheduler):
            for event in scheduler.next():
                if event.result is not None:
                    found[int(str(event.result.request.key))] = event.result.ids
        assert isinstance(scheduler.batch, batch.Batch)
        return [found[number] for number in range(len(requests))], scheduler.batch.logit_reads


def browser_texts(
    path: str, weights: str, wanted: Sequence[dict[str, Any]], tokens: int
) -> tuple[str, list[list[int]], list[list[int]], int]:
    """Chromium's renderer, ids that the page of an export chooses, those of NumPy by the same logits, and reads."""
    with TemporaryDirectory(prefix="glinfer-choices-") as folder, closing(Studio(Path(folder))) as studio:
        site = export_web(path, Path(folder) / "site", weights=weights)
        vocab = site.plan["model"]["config"]["vocab_size"]
        prompts = _prompts(vocab, len(wanted))
        jobs = [
            {"kind": "choices", "ids": prompt, "count": tokens,
             "options": {"seed": number, **{_PAGE_NAMES[name]: value for name, value in options.items()}}}
            for number, (prompt, options) in enumerate(zip(prompts, wanted, strict=True))
        ]  # fmt: skip
        chosen, expected, reads = list[list[int]](), list[list[int]](), 0
        with serving(site.folder) as url:
            for start in range(0, len(jobs), _AT_ONCE):
                asked = {"url": f"{url}?worker=0&cache=0&offline=0", "jobs": jobs[start : start + _AT_ONCE]}
                done = studio.browser.do("drive", asked)["value"]
                for number, found in enumerate(done["results"], start):
                    rows = np.frombuffer(base64.b64decode(found["logits"]), np.float32).reshape(tokens, vocab)
                    sampler, ids = Sampler(SamplingOptions(**wanted[number], seed=number)), found["ids"]
                    before = [[*prompts[number], *ids[:place]] for place in range(tokens)]
                    expected.append([sampler.sample(row, history) for row, history in zip(rows, before, strict=True)])
                    chosen.append(ids)
                    reads += found["reads"]
    return done["renderer"], chosen, expected, reads


@click.command("choices")
@click.argument("model", default="shakespeare")
@click.option("--settings", "count", type=click.IntRange(1), default=200, show_default=True, help="Number of settings.")
@click.option("--tokens", type=click.IntRange(1), default=100, show_default=True, help="Tokens of each text.")
@weights_option
@click.option("--browser", is_flag=True, help="Compare the exported page in Chromium, without penalties of counts.")
@json_option
def choices_command(model: str, count: int, tokens: int, weights: str, browser: bool, as_json: bool) -> int:
    """Sample tokens of MODEL (default: shakespeare) on the GPU and in NumPy, with many sampler settings.

    Both sample from the same logits. The exit status is 1 if a text differs.

    \b
    python -m qa choices
    python -m qa choices smollm2 --settings 20 --tokens 50
    python -m qa choices --browser --settings 50
    """
    wanted, seconds = list(settings(count)), list[float]()
    if browser:
        wanted = [{name: each[name] for name in _PAGE_NAMES} for each in wanted]
        renderer, chosen, expected, reads = browser_texts(model, weights, wanted, tokens)
    else:
        with load_model(model, weights=weights) as loaded:
            start = time.perf_counter()
            chosen, reads = texts(loaded, wanted, tokens, passes=True)
            between = time.perf_counter()
            expected, _ = texts(loaded, wanted, tokens, passes=False)
            seconds = [between - start, time.perf_counter() - between]
            renderer = loaded.device.renderer
    pairs = zip(wanted, chosen, expected, strict=True)
    differing = [{"setting": each, "passes": one, "numpy": other} for each, one, other in pairs if one != other]
    total = sum(map(len, expected))
    if as_json:
        report = {"renderer": renderer, "tokens": total, "unsure": reads, "seconds": seconds, "differing": differing}
        print_json(report)
    else:
        click.echo(f"{renderer}: {total} tokens, {count} settings, {len(differing)} texts differ; {reads / total:.1%} "
                   "of the choices read the whole row")  # fmt: skip
        for text in differing:
            both = enumerate(zip(text["passes"], text["numpy"], strict=True))
            place, (one, other) = next((place, each) for place, each in both if each[0] != each[1])
            click.echo(f"  token {place} by {text['setting']}: {one} in place of {other}")
    return int(bool(differing))
