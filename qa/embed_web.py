"""``python -m qa embed-web``: texts a second of an exported model in Chromium, beside transformers.js."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np

from glinfer.cli.common import json_option, out, print_json, table
from glinfer.engine.loading import read_model
from glinfer.errors import InputError
from glinfer.export.site import export_web, web_root
from qa.embed_speed import sentences

_NAMES = ("input_ids", "attention_mask", "token_type_ids")


@click.command("embed-web")
@click.argument("model")
@click.option("--texts", "path", type=click.Path(), help="File of texts. Default: sentences of 3 to 40 random words.")
@click.option("--count", type=click.IntRange(min=1), default=100, show_default=True, help="Number of sentences.")
@click.option("--runs", type=click.IntRange(min=1), default=2, show_default=True, help="Timed runs; the best counts.")
@click.option("--peer", type=click.Path(), help="Folder in which npm has installed @huggingface/transformers.")
@click.option("--weights", default="file", show_default=True, help="glinfer's weight format.")
@json_option
def embed_web_command(
    model: str, path: str | None, count: int, runs: int, peer: str | None, weights: str, as_json: bool
) -> None:
    """Export MODEL, benchmark it on sentences in Chromium against transformers.js, and compare the vectors.

    transformers.js runs a float32 ONNX file, which PyTorch writes with the packages transformers and onnx.

    \b
    npm install --prefix /tmp/peer --ignore-scripts @huggingface/transformers
    python -m qa embed-web all-MiniLM-L6-v2 --peer /tmp/peer
    """
    node = shutil.which("node")
    if node is None:
        raise InputError("there is no Node.js here; install 20.19 or newer")
    texts = sentences(path, count)
    packages = None if peer is None else _packages(peer)
    with tempfile.TemporaryDirectory(prefix="glinfer-embed-web-") as made:
        folder = Path(made)
        export_web(model, folder / "site", weights=weights)
        if packages is not None:
            _write_peer(read_model(model)[0], folder / "peer" / "model")
        asked = {"folder": made, "packages": packages and str(packages), "texts": texts, "runs": runs}
        driver = web_root() / "tools" / "embed_bench.mjs"
        done = subprocess.run([node, str(driver)], input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.startswith("{"):
        raise InputError(f"the browser could not be driven: {(done.stderr or done.stdout).strip()[-400:]}")
    told = json.loads(done.stdout)
    vectors = {name: np.asarray(each, np.float64) for name, each in told.pop("vectors").items()}
    best = {name: min(each) for name, each in told["seconds"].items()}
    processor = {name: min(each) for name, each in told["processor"].items()}
    told |= {"texts": len(texts), "texts_per_second": {name: len(texts) / seconds for name, seconds in best.items()}}
    if packages is not None:
        told["ratio"] = best["glinfer"] / best["transformers"]
        told["largest_difference"] = float(np.abs(vectors["glinfer"] - vectors["transformers"]).max())
    if as_json:
        print_json(told)
        return
    columns = "seconds", "processor s", "texts/s"
    rows = table("engine", *columns, numbers=columns)
    for name, seconds in best.items():
        engine = told["peer"] if name == "transformers" else name
        rows.add_row(engine, f"{seconds:.2f}", f"{processor[name]:.2f}", f"{len(texts) / seconds:.1f}")
    out().print(rows)
    click.echo(f"{len(texts)} texts; Chromium {told['chromium']}, {told['renderer']}")
    if packages is not None:
        click.echo(f"ratio {told['ratio']:.2f}; largest difference {told['largest_difference']:.2e}")


def _packages(peer: str) -> Path:
    packages = Path(peer).resolve() / "node_modules"
    for name in ("@huggingface/transformers", "onnxruntime-web"):
        if not (packages / name).is_dir():
            raise InputError(
                f"found no {name} in {packages}; run 'npm install --prefix {peer} @huggingface/transformers'"
            )
    return packages


def _write_peer(model: Any, folder: Path) -> None:
    """Write a model of Hugging Face's as transformers.js takes it."""
    try:
        import torch
        from transformers import AutoModel
    except ImportError as error:
        raise InputError(f"{error.name} is not installed; run '{sys.executable} -m pip install {error.name}'") from None
    if importlib.util.find_spec("onnx") is None:
        raise InputError(f"onnx is not installed, which PyTorch needs; run '{sys.executable} -m pip install onnx'")
    (folder / "onnx").mkdir(parents=True)
    for file in Path(model).glob("*.json"):
        shutil.copy(file, folder)
    encoder = AutoModel.from_pretrained(str(model), attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, *inputs: Any) -> Any:
            return self.encoder(**dict(zip(_NAMES, inputs, strict=True))).last_hidden_state

    ids = torch.ones(2, 7, dtype=torch.long)
    axes = {name: {0: "texts", 1: "tokens"} for name in (*_NAMES, "last_hidden_state")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Hidden(),
            (ids, ids, ids * 0),
            str(folder / "onnx" / "model.onnx"),
            input_names=list(_NAMES),
            output_names=["last_hidden_state"],
            dynamic_axes=axes,
            dynamo=False,
            opset_version=17,
        )
