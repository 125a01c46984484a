"""``python -m qa choices``: texts of many settings of the sampler, chosen by passes and by NumPy."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Iterator
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
from web.tests.browser.browsed import Browser

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


def texts(model: Model, wanted: list[dict[str, Any]], tokens: int, *, passes: bool) -> tuple[list[list[int]], int]:
    """The ids of a text by each setting, and the rows of logits that were read back for them."""
    prompts = np.random.default_rng(1).integers(0, model.config.vocab_size, (len(wanted), 5)).tolist()
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
    path: str, weights: str, wanted: list[dict[str, Any]], tokens: int, browser: Browser
) -> Iterator[tuple[str, list[int], list[int], int]]:
    """For each setting the ids that the page of an export chooses, those of NumPy from the same logits, and reads."""
    with TemporaryDirectory(prefix="glinfer-choices-") as folder:
        site = export_web(path, Path(folder) / "site", weights=weights)
        vocab = site.plan["model"]["config"]["vocab_size"]
        prompts = np.random.default_rng(1).integers(0, vocab, (len(wanted), 5)).tolist()
        jobs = [
            {"kind": "choices", "ids": prompt, "count": tokens,
             "options": {"seed": number, **{_PAGE_NAMES[name]: value for name, value in options.items()}}}
            for number, (prompt, options) in enumerate(zip(prompts, wanted, strict=True))
        ]  # fmt: skip
        with serving(site.folder) as url:
            for start in range(0, len(jobs), _AT_ONCE):
                asked = {"url": f"{url}?worker=0&cache=0&offline=0", "jobs": jobs[start : start + _AT_ONCE]}
                done = browser.do("drive", asked)["value"]
                for number, found in enumerate(done["results"], start):
                    rows = np.frombuffer(base64.b64decode(found["logits"]), np.float32).reshape(tokens, vocab)
                    sampler, ids = Sampler(SamplingOptions(**wanted[number], seed=number)), found["ids"]
                    before = [[*prompts[number], *ids[:place]] for place in range(tokens)]
                    expected = [sampler.sample(row, history) for row, history in zip(rows, before, strict=True)]
                    yield done["renderer"], ids, expected, found["reads"]


def _in_browser(model: str, weights: str, count: int, tokens: int) -> None:
    """Compare the page in Chromium on SwiftShader; prints a line, and exits with 1 if a token differs."""
    studio = Studio(Path())
    try:
        wanted = [{name: each[name] for name in _PAGE_NAMES} for each in settings(count)]
        total, reads, differing, renderer = 0, 0, [], ""
        texts_found = browser_texts(model, weights, wanted, tokens, studio.browser)
        for options, (named, chosen, expected, read) in zip(wanted, texts_found, strict=True):
            renderer, total, reads = named, total + len(chosen), reads + read
            pairs = enumerate(zip(chosen, expected, strict=True))
            differing += [(options, place, *pair) for place, pair in pairs if pair[0] != pair[1]]
    finally:
        studio.close()
    click.echo(f"{renderer}: {total} tokens, {count} settings, {len(differing)} tokens differ; {reads / total:.1%} of "
               "the choices read the whole row")  # fmt: skip
    for options, place, one, other in differing:
        click.echo(f"  token {place} by {options}: {one} in place of {other}")
    click.get_current_context().exit(1 if differing else 0)


@click.command("choices")
@click.argument("model", default="shakespeare")
@click.option("--settings", "count", type=click.IntRange(1), default=200, show_default=True, help="Number of settings.")
@click.option("--tokens", type=click.IntRange(1), default=100, show_default=True, help="Tokens of each text.")
@weights_option
@click.option("--browser", is_flag=True, help="Compare the exported page in Chromium, without penalties of counts.")
@json_option
def choices_command(model: str, count: int, tokens: int, weights: str, browser: bool, as_json: bool) -> None:
    """Sample tokens of MODEL (default: shakespeare) on the GPU and in NumPy, with many sampler settings.

    Both sample from the same logits. The exit status is 1 if a text differs.

    \b
    python -m qa choices
    python -m qa choices smollm2 --settings 20 --tokens 50
    python -m qa choices --browser --settings 50
    """
    if browser:
        _in_browser(model, weights, count, tokens)
    wanted, seconds = list(settings(count)), []
    with load_model(model, weights=weights) as loaded:
        runs = []
        for passes in (True, False):
            start = time.perf_counter()
            runs.append(texts(loaded, wanted, tokens, passes=passes))
            seconds.append(time.perf_counter() - start)
        renderer = loaded.device.renderer
    (chosen, unsure), (expected, _) = runs
    differing = [number for number in range(count) if chosen[number] != expected[number]]
    total = sum(map(len, expected))
    if as_json:
        print_json({"renderer": renderer, "tokens": total, "unsure": unsure, "seconds": seconds,
                    "differing": [{"setting": wanted[each], "passes": chosen[each], "numpy": expected[each]}
                                  for each in differing]})  # fmt: skip
    else:
        click.echo(f"{renderer}: {total} tokens, {count} settings, {len(differing)} texts differ; {unsure / total:.1%} "
                   "of the choices were left to the whole row")  # fmt: skip
        for each in differing:
            pairs = enumerate(zip(chosen[each], expected[each], strict=True))
            place, (one, other) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
            click.echo(f"  token {place} by {wanted[each]}: {one} in place of {other}")
    click.get_current_context().exit(1 if differing else 0)
