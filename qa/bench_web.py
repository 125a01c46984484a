"""``python -m qa bench-web``: prompts and tokens of exported models in Chromium, beside other engines of browsers."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import click

from glinfer.cli.common import print_json, show_table
from glinfer.cli.options import json_option
from glinfer.engine.loading import read_model
from glinfer.engine.random_model import write_demo
from glinfer.errors import InputError
from glinfer.export.site import export_web, web_root
from glinfer.formats import save_checkpoint
from glinfer.inspect.tables import Column, Table

PEERS: Mapping[str, tuple[str, ...]] = {
    "tfjs": ("@tensorflow/tfjs-core", "@tensorflow/tfjs-backend-webgl"),
    "transformers": ("@huggingface/transformers", "onnxruntime-web"),
    "wllama": ("@wllama/wllama",),
}
"""Other engines, and the packages of npm that each needs."""
_FORMATS: Mapping[str, Sequence[str]] = {"gab": ("f32", "q8"), "shakespeare": ("f32", "q8")}
_USUAL_FORMATS = ("q8",)  # of all other models
_CONTEXT = 512
_CHECKED = 8  # tokens chosen greedily by each engine before anything is timed
_AGREED = {"f32": 1e-2, "q8": 1.0}
"""What log probabilities of the likeliest tokens may differ by."""
_ROUNDED_INPUTS = 4.0
"""The same of ONNX Runtime's int8, which rounds the inputs of all tokens of a prompt with one scale."""
_TENSORFLOW: tuple[tuple[str, dict[str, bool]], ...] = (
    ("", {"uniforms": False, "grows": True}),
    (", WEBGL_USE_SHAPES_UNIFORMS", {"uniforms": True, "grows": True}),
    (", a cache that does not grow", {"uniforms": False, "grows": False, "prompts": False}),
)
"""Ways to run it, each with what the name says."""
_INSTALL = "npm ci --ignore-scripts --prefix web"


@click.command("bench-web")
@click.option("--models", default="gab,smollm2", show_default=True, help="Models; gab is its full shape, random.")
@click.option("--peers", default=",".join(PEERS), show_default=True, help="Other engines to time.")
@click.option("--tokens", type=click.IntRange(min=8, max=160), default=128, show_default=True, help="Prompt length.")
@click.option("--count", type=click.IntRange(min=1, max=32), default=8, show_default=True, help="Tokens to generate.")
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Timed rounds, for a median.")
@click.option("--threads", type=click.IntRange(min=2), help="WebAssembly threads, also timed. Default: all processors.")
@json_option
def bench_web_command(
    models: str, peers: str, tokens: int, count: int, rounds: int, threads: int | None, as_json: bool
) -> None:
    """Benchmark prefill and decoding in Chromium, interleaved with other browser engines, and compare their results.

    All engines have the same weights: TensorFlow.js (WebGL) as Gab's files, transformers.js (WebAssembly) as an ONNX
    file written by the package onnx, and wllama (WebAssembly) as a GGUF file. Each result is compared with glinfer's
    before timing. Engines that are not installed are skipped with a message.

    \b
    npm ci --ignore-scripts --prefix web
    python -m qa bench-web --models gab,smollm2
    """
    node = shutil.which("node")
    if node is None:
        raise InputError("there is no Node.js here; install 20.19 or newer")
    chosen, left_out = _installed([name for name in peers.split(",") if name])
    for line in left_out:
        click.echo(f"left out: {line}", err=True)
    settings = {"check": _CHECKED, "rounds": rounds, "count": count}
    timings = {}
    for name in models.split(","):
        with tempfile.TemporaryDirectory(prefix="glinfer-bench-web-") as made:
            folder = Path(made)
            path = write_demo(folder / "demo")[0] if name == "gab" else Path(read_model(name)[0])
            number = threads or max(os.cpu_count() or 2, 2)
            ways, ids = _written(name, path, folder, chosen, tokens=tokens, threads=number)
            asked = {"folder": made, "packages": str(_packages()), "ways": ways, "ids": ids, **settings}
            timings[name] = {**_compared(_driven(node, asked), ways, count), "left_out": left_out}
        if not as_json:
            _print(name, timings[name])
    if as_json:
        about = dict.fromkeys(way["about"] for found in timings.values() for way in found["ways"])
        chromium = next(iter(timings.values()))["chromium"]
        print_json({"renderer": " · ".join((f"Chromium {chromium}", *about)), "models": timings})


def _packages() -> Path:
    return web_root() / "node_modules"


def _installed(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of some peers that can be run, and a line for each of the others."""
    found, left_out = list[str](), list[str]()
    for name in names:
        if name not in PEERS:
            raise InputError(f"there is no peer {name!r}; expected some of {', '.join(PEERS)}")
        missing = [package for package in PEERS[name] if not (_packages() / package).is_dir()]
        if missing:
            left_out.append(f"{name}, without {missing[0]}; run: {_INSTALL}")
        elif name == "transformers" and importlib.util.find_spec("onnx") is None:
            left_out.append(f"{name}, without the Python package onnx; run: {sys.executable} -m pip install onnx")
        else:
            found.append(name)
    return found, left_out


def _written(
    name: str, path: Path, folder: Path, peers: Sequence[str], *, tokens: int, threads: int
) -> tuple[list[dict[str, Any]], list[int]]:
    """Write a model for all engines; returns the ways to run it, and the ids of the prompt."""
    checkpoint = read_model(path)[1]
    config = checkpoint.config
    ids = [(place * 7919 + 11) % config.vocab_size for place in range(tokens)]
    context = min(_CONTEXT, config.max_position_embeddings)
    ways: list[dict[str, Any]] = []
    formats = _FORMATS.get(name, _USUAL_FORMATS)
    for weights in formats:
        export_web(path, folder / f"site-{weights}", weights=weights, context=context)
        ways.append(_way(f"glinfer, {weights}", "glinfer", f"site-{weights}", weights))
        if "tfjs" in peers and weights == "f32" and config.model_type == "gab":
            save_checkpoint(checkpoint, folder / "model.gab")
            ways += [_way(f"TensorFlow.js, f32{name}", "tfjs", "model", "f32", **more) for name, more in _TENSORFLOW]
        if "transformers" in peers:
            from qa.onnx_decoder import write_onnx_decoder

            # Its int8 may be far off: float32 tells that the graph is right.
            for kind in (weights,) if "f32" in formats else ("f32", weights):
                write_onnx_decoder(checkpoint, folder / f"transformers-{kind}", weights=kind)
                ways += _wasm_ways("transformers", kind, threads)
        if "wllama" in peers:
            dtype = {"f32": "float32", "q8": "q8_0"}[weights]
            spelt = _spelt_ids(ids, config.vocab_size)
            save_checkpoint(checkpoint, folder / f"wllama-{weights}.gguf", dtype=dtype, tokenizer=spelt)
            ways += _wasm_ways("wllama", weights, threads)
    return ways, ids


def _spelt_ids(ids: Sequence[int], vocabulary: int) -> dict[str, Any]:
    """A tokenizer of a GGUF file for which the text ``<|7|><|11|>`` is the ids 7 and 11: wllama takes no ids.

    Only tokens of ``ids`` are added tokens, which are looked for one by one in every text. Three others make up a
    merge, since there has to be one.
    """
    kind, normal, user_defined = "tokenizer.ggml", 1, 4
    spelt = set(ids)
    others = (token for token in range(vocabulary) if token not in spelt)
    merge = dict(zip(others, ("a", "b", "ab"), strict=False))
    return {
        f"{kind}.model": "gpt2",
        f"{kind}.pre": "gpt-2",
        f"{kind}.tokens": [merge.get(token, f"<|{token}|>") for token in range(vocabulary)],
        f"{kind}.token_type": [user_defined if token in spelt else normal for token in range(vocabulary)],
        f"{kind}.merges": ["a b"],
        f"{kind}.add_bos_token": False,
    }


def _way(name: str, peer: str, model: str, weights: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "peer": peer, "model": f"/{model}", "weights": weights, **more}


def _wasm_ways(peer: str, weights: str, threads: int) -> Iterator[dict[str, Any]]:
    title, script = {"transformers": ("transformers.js", "transformers_tokens"), "wllama": ("wllama", "wllama")}[peer]
    for number in (1, threads):
        name = f"{title}, {weights}, {number} thread{'s' * (number > 1)}"
        yield _way(name, script, f"{peer}-{weights}", weights, threads=number)


def _driven(node: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    driver = web_root() / "tools" / "bench.mjs"
    done = subprocess.run([node, str(driver)], input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.startswith("{"):
        raise InputError(f"the browser could not be driven: {(done.stderr or done.stdout).strip()[-400:]}")
    timings: dict[str, Any] = json.loads(done.stdout)
    return timings


def _compared(timings: dict[str, Any], ways: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
    """Add medians, and what each engine differs by from glinfer with weights of the same format."""
    ours = {way["weights"]: found for way, found in zip(ways, timings["ways"], strict=True) if way["peer"] == "glinfer"}
    for way, found in zip(ways, timings["ways"], strict=True):
        judge = ours.get(way["weights"], ours[min(ours)])
        expected, top = dict(judge["top"]), dict(found["top"])
        both = expected.keys() & top.keys()
        difference = max((abs(expected[token] - top[token]) for token in both), default=float("inf"))
        if difference > _allowed(way, ours):
            raise InputError(f"{way['name']} computes something else: log probabilities differ by {difference:.3g}")
        alike = sum(one == other for one, other in zip(judge["ids"], found["ids"], strict=False))
        found |= {"difference": difference, "same_tokens": alike}
        for part, each in (("prompt", 1), ("decode", count)):
            for key in ("seconds", "processors"):
                numbers = [sample[key] / each for sample in found[part] if sample[key] is not None]
                ends = {"fastest": min(numbers), "slowest": max(numbers)} if numbers else {}
                found[f"{part}_{key}"] = {"median": statistics.median(numbers), **ends} if numbers else None
        found["peer"] = way["peer"]
    return timings


def _allowed(way: Mapping[str, Any], ours: Mapping[str, Any]) -> float:
    if way["weights"] not in ours:
        return max(_AGREED.values())
    return _ROUNDED_INPUTS if way["model"].startswith("/transformers-q8") else _AGREED[way["weights"]]


_COLUMNS = (
    Column("engine", itemgetter("name")),
    Column("ms a token", lambda way: _both(way, "decode", 1000, 1)),
    Column("prompt, s", lambda way: _both(way, "prompt", 1, 2)),
    Column("log p", itemgetter("difference"), ".0e"),
    Column("greedy", lambda way: f"{way['same_tokens']} of {len(way['ids'])}"),
)


def _print(name: str, timings: Mapping[str, Any]) -> None:
    """Seconds by the clock, and in brackets those of processors."""
    show_table(Table(name, _COLUMNS, timings["ways"]))
    for about in dict.fromkeys(way["about"] for way in timings["ways"]):
        click.echo(about)
    rounds = len(timings["ways"][0]["decode"])
    click.echo(f"Chromium {timings['chromium']}; medians of {rounds} turns; load {os.getloadavg()[0]:.1f}\n")


def _both(way: Mapping[str, Any], part: str, factor: float, digits: int) -> str:
    clock, processors = (way[f"{part}_{key}"] and way[f"{part}_{key}"]["median"] for key in ("seconds", "processors"))
    if clock is None:
        return ""
    return f"{clock * factor:.{digits}f}" + ("" if processors is None else f" ({processors * factor:.{digits}f})")
