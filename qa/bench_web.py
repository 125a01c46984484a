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
from pathlib import Path
from typing import Any

import click

from glinfer.cli.common import json_option, out, print_json, table
from glinfer.engine.loading import read_model
from glinfer.engine.random_model import write_demo
from glinfer.errors import InputError
from glinfer.export.site import export_web, web_root
from glinfer.formats import save_checkpoint
from qa.onnx_decoder import write_onnx_decoder

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
_AGREED = {"f32": 1e-2, "q8": 1.0}  # log probabilities of the likeliest tokens may differ by so much
_INSTALL = "npm ci --ignore-scripts --prefix web"


@click.command("bench-web")
@click.option("--models", default="gab,smollm2", show_default=True, help="With commas; gab: its full shape, of noise.")
@click.option("--peers", default=",".join(PEERS), show_default=True, help="Engines beside it, with commas.")
@click.option("--tokens", type=click.IntRange(min=8, max=160), default=128, show_default=True, help="Of the prompt.")
@click.option("--count", type=click.IntRange(min=1, max=32), default=8, show_default=True, help="Tokens behind it.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Turns; the median counts.")
@click.option("--threads", type=click.IntRange(min=2), help="Of WebAssembly, beside one. Default: all processors.")
@json_option
def bench_web_command(
    models: str, peers: str, tokens: int, count: int, rounds: int, threads: int | None, as_json: bool
) -> None:
    """Time prompts and tokens in one Chromium, in turns with other engines of browsers, and compare what they compute.

    All have the same weights: TensorFlow.js (WebGL) Gab's files, transformers.js (WebAssembly) an ONNX file, which the
    Python package onnx writes, and wllama (WebAssembly) a GGUF file. Each is compared with glinfer before it is timed.
    Engines that are not installed are left out with a line.

    \b
    npm ci --ignore-scripts --prefix web
    python -m qa bench-web --models gab,smollm2
    """
    node = shutil.which("node")
    if node is None:
        raise InputError("there is no Node.js here; install 20.19 or newer")
    chosen = _installed([name for name in peers.split(",") if name])
    settings = {"check": _CHECKED, "rounds": rounds, "count": count}
    told = {}
    for name in models.split(","):
        with tempfile.TemporaryDirectory(prefix="glinfer-bench-web-") as made:
            folder = Path(made)
            path = write_demo(folder / "demo")[0] if name == "gab" else Path(read_model(name)[0])
            number = threads or max(os.cpu_count() or 2, 2)
            ways, ids = _written(name, path, folder, chosen, tokens=tokens, threads=number)
            asked = {"folder": made, "packages": str(_packages()), "ways": ways, "ids": ids, **settings}
            told[name] = _compared(_driven(node, asked), ways, count)
    if as_json:
        print_json(told)
        return
    for name, each in told.items():
        _print(name, each, tokens, count)


def _packages() -> Path:
    return web_root() / "node_modules"


def _installed(names: Sequence[str]) -> list[str]:
    """Those of some peers that can be run; a line for each of the others."""
    found = []
    for name in names:
        if name not in PEERS:
            raise InputError(f"there is no peer {name!r}; expected some of {', '.join(PEERS)}")
        missing = [package for package in PEERS[name] if not (_packages() / package).is_dir()]
        if missing:
            click.echo(f"left out: {name}, without {missing[0]}; run: {_INSTALL}", err=True)
        elif name == "transformers" and importlib.util.find_spec("onnx") is None:
            click.echo(f"left out: {name}, without the package onnx; run: {sys.executable} -m pip install onnx", err=True)
        else:
            found.append(name)
    return found


def _written(
    name: str, path: Path, folder: Path, peers: Sequence[str], *, tokens: int, threads: int
) -> tuple[list[dict[str, Any]], list[int]]:
    """Write a model for all engines; returns the ways to run it, and the ids of the prompt."""
    checkpoint = read_model(path)[1]
    config = checkpoint.config
    ids = [(place * 7919 + 11) % config.vocab_size for place in range(tokens)]
    context = min(_CONTEXT, config.max_position_embeddings)
    ways: list[dict[str, Any]] = []
    for weights in _FORMATS.get(name, _USUAL_FORMATS):
        export_web(path, folder / f"site-{weights}", weights=weights, context=context)
        ways.append(_way(f"glinfer, {weights}", "glinfer", f"site-{weights}", weights))
        if "tfjs" in peers and weights == "f32" and config.model_type == "gab":
            save_checkpoint(checkpoint, folder / "model.gab")
            ways += _tensorflow_ways()
        if "transformers" in peers:
            write_onnx_decoder(checkpoint, folder / f"transformers-{weights}", weights=weights)
            ways += _wasm_ways("transformers", weights, threads)
        if "wllama" in peers:
            dtype = {"f32": "float32", "q8": "q8_0"}[weights]
            spelt = _spelt_ids(ids, config.vocab_size)
            save_checkpoint(checkpoint, folder / f"wllama-{weights}.gguf", dtype=dtype, tokenizer=spelt)
            ways += _wasm_ways("wllama", weights, threads)
    return ways, ids


def _spelt_ids(ids: Sequence[int], vocabulary: int) -> dict[str, Any]:
    """A tokenizer of a GGUF file for which the text ``<|7|><|11|>`` is the ids 7 and 11: wllama takes no ids.

    Only tokens of ``ids`` are added tokens, which are looked for one by one in every text.
    """
    tokens = "tokenizer.ggml"
    normal, user_defined = 1, 4
    return {
        f"{tokens}.model": "gpt2",
        f"{tokens}.pre": "gpt-2",
        f"{tokens}.tokens": [f"<|{token}|>" for token in range(vocabulary)],
        f"{tokens}.token_type": [user_defined if token in set(ids) else normal for token in range(vocabulary)],
        f"{tokens}.merges": ["< |"],
        f"{tokens}.add_bos_token": False,
    }


def _way(name: str, peer: str, model: str, weights: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "peer": peer, "model": f"/{model}", "weights": weights, **more}


def _tensorflow_ways() -> Iterator[dict[str, Any]]:
    name = "TensorFlow.js, f32"
    for words, more in (
        ("", {"uniforms": False, "grows": True}),
        (", WEBGL_USE_SHAPES_UNIFORMS", {"uniforms": True, "grows": True}),
        (", a cache that does not grow", {"uniforms": False, "grows": False, "prompts": False}),
    ):
        yield _way(f"{name}{words}", "tfjs", "model", "f32", **more)


def _wasm_ways(peer: str, weights: str, threads: int) -> Iterator[dict[str, Any]]:
    title, script = {"transformers": ("transformers.js", "transformers_tokens"), "wllama": ("wllama", "wllama")}[peer]
    for number in (1, threads):
        words = "1 thread" if number == 1 else f"{number} threads"
        yield _way(f"{title}, {weights}, {words}", script, f"{peer}-{weights}", weights, threads=number)


def _driven(node: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    driver = web_root() / "tools" / "bench.mjs"
    done = subprocess.run([node, str(driver)], input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.startswith("{"):
        raise InputError(f"the browser could not be driven: {(done.stderr or done.stdout).strip()[-6000:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _compared(told: dict[str, Any], ways: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
    """Add medians, and what each engine differs by from glinfer with weights of the same format.

    Raises:
        InputError: an engine computes something else.
    """
    ours: dict[str, Mapping[str, Any]] = {}
    for way, found in zip(ways, told["ways"], strict=True):
        judge = ours.setdefault(way["weights"], found)
        expected, top = dict(judge["top"]), dict(found["top"])
        both = expected.keys() & top.keys()
        difference = max((abs(expected[token] - top[token]) for token in both), default=float("inf"))
        if difference > _AGREED[way["weights"]]:
            raise InputError(f"{way['name']} computes something else: log probabilities differ by {difference:.3g}")
        alike = sum(one == other for one, other in zip(judge["ids"], found["ids"], strict=False))
        found |= {"difference": difference, "same_tokens": alike}
        for part, each in (("prompt", 1), ("decode", count)):
            for key in ("seconds", "processors"):
                numbers = [sample[key] / each for sample in found[part] if sample[key] is not None]
                found[f"{part}_{key}"] = statistics.median(numbers) if numbers else None
    return told


def _print(name: str, told: Mapping[str, Any], tokens: int, count: int) -> None:
    columns = ("tokens/s", "ms a token", "of processors", f"prompt of {tokens}, s", "of processors ")
    rows = table(name, *columns, "log p differ by", "same tokens", numbers=(*columns, "log p differ by", "same tokens"))
    for way in told["ways"]:
        token, prompt = way["decode_seconds"], way["prompt_seconds"]
        rows.add_row(
            way["name"],
            "" if token is None else f"{1 / token:.1f}",
            *(_shown(way[key], 1000, 1) for key in ("decode_seconds", "decode_processors")),
            *(_shown(way[key], 1, 2) for key in ("prompt_seconds", "prompt_processors"))
            if prompt is not None
            else ("", ""),
            f"{way['difference']:.1e}",
            f"{way['same_tokens']} of {len(way['ids'])}",
        )
    out().print(rows)
    for about in dict.fromkeys(way["about"] for way in told["ways"]):
        click.echo(about)
    rounds = len(told["ways"][0]["decode"])
    click.echo(
        f"Chromium {told['chromium']}; medians of {rounds} turns of {count} tokens; load {os.getloadavg()[0]:.1f}\n"
    )


def _shown(seconds: float | None, factor: float, digits: int) -> str:
    return "" if seconds is None else f"{seconds * factor:.{digits}f}"
