"""Record what a version of glinfer writes for its own later use, to see whether later versions can go on with it.

    cd CHECKOUT_OF_THAT_VERSION && python -I …/tests/upgrade/record.py FOLDER

It imports the glinfer of the current directory, and writes: a small model, a cache of tuned kernels, two batches that
were stopped in the middle, a conversation, a profile, an exported site, and in ``said.json`` what that version made of
them. `tests/upgrade/recorded` was written so; its files are never edited after a release. Record the next release
beside them, and let test_upgrade.py read both.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

SHAPE = "vocab=300,dim=16,heads=2,blocks=1,context=64"
COUNT, DONE = 6, 3
"""Lines of each batch, and how many of them were done when it was stopped."""
SITE = ("plan.json", "weights.safetensors", "tokenizer.json", "shaders")
"""What of an exported site depends on the model, and is read by the runtime."""
PROMPT, TOKENS = [97, 98], 12


def glinfer_command(folder: Path, *words: str, typed: str = "") -> str:
    """Run a command of that version in the folder; returns its standard output."""
    variables = {**os.environ, "PYTHONPATH": str(Path.cwd()), "GLINFER_CACHE": ""}
    command = [sys.executable, "-m", "glinfer", *words]
    done = subprocess.run(
        command, cwd=folder, env=variables, check=True, input=typed, text=True, stdout=subprocess.PIPE
    )
    return done.stdout


def stop(path: Path) -> list[str]:
    """Leave the first lines of a finished batch, as if it had been stopped; returns all of them."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:DONE]), "utf-8")
    return [line.rstrip("\n") for line in lines]


def pack(site: Path, target: Path) -> None:
    """Pack a site; the same files give the same bytes."""
    with tarfile.open(target, "w:xz") as archive:
        for top in SITE:
            for path in sorted([site / top, *(site / top).rglob("*")]):
                if path.is_file():
                    entry = tarfile.TarInfo(path.relative_to(site).as_posix())
                    entry.size = path.stat().st_size
                    archive.addfile(entry, io.BytesIO(path.read_bytes()))


def record(folder: Path) -> None:
    """Write everything."""
    os.environ["GLINFER_CACHE"] = str(folder / "cache")
    import glinfer
    from glinfer.config import ModelConfig
    from glinfer.engine.random_model import demo_tokenizer
    from glinfer.formats import random_checkpoint, save_checkpoint, write_bpe
    from glinfer.kernels.options import KernelOptions
    from glinfer.program.tuning import Tuned, TuningKey, save_kernels

    folder.mkdir(parents=True)
    model = folder / "model.gab"
    save_checkpoint(random_checkpoint(ModelConfig.from_options(SHAPE), seed=11, scale=0.2), model)
    write_bpe(demo_tokenizer(300), model.with_suffix(".bpe"))
    with glinfer.load(model, weights="q8") as opened:
        key = TuningKey.of(opened.device, opened.config, opened.weights)
    kernels = dataclasses.replace(KernelOptions(), unroll=2)
    save_kernels(key, Tuned(kernels, 1.0, 2.0))
    with glinfer.load(model, weights="q8") as opened:
        ids = opened.generate(PROMPT, max_tokens=TOKENS, temperature=0, stop_ids=())
    prompts = [{"id": str(n), "prompt": "ab" * (n + 1), "max_tokens": 6, "seed": n} for n in range(COUNT)]
    bodies = [{"model": "model", "prompt": "ab" * (n + 1), "max_tokens": 6, "seed": n} for n in range(COUNT)]
    requests = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body} for n, body in enumerate(bodies)
    ]
    for name, lines in (("prompts", prompts), ("requests", requests)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    glinfer_command(folder, "generate", "model.gab", "--batch", "prompts.jsonl", "--out", "prompts.out.jsonl")
    glinfer_command(folder, "run-batch", "-i", "requests.jsonl", "-o", "requests.out.jsonl", "model.gab")
    talk = ("chat", "model.gab", "--max-tokens", "6", "--temperature", "0")
    glinfer_command(folder, *talk, typed="abab\n/save talk.json\n")
    profile = glinfer_command(folder, "profile", "model.gab", "--json")
    (folder / "profile.json").write_text(json.dumps(json.loads(profile)) + "\n", "utf-8")
    glinfer_command(folder, "export-web", "model.gab", str(folder / "site"), "--weights", "q8")
    pack(folder / "site", folder / "site.tar.xz")
    said = {
        "version": glinfer.__version__,
        "key": dataclasses.asdict(key),
        "kernels": dataclasses.asdict(kernels),
        "ids": ids,
        "prompts": stop(folder / "prompts.out.jsonl"),
        "requests": stop(folder / "requests.out.jsonl"),
    }
    (folder / "said.json").write_text(json.dumps(said, indent=1) + "\n", "utf-8")
    subprocess.run(["rm", "-r", str(folder / "site")], check=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    record(Path(sys.argv[1]).resolve())
