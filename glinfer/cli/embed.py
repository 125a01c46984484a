"""``glinfer embed``: embed the texts in a file."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import loaded, print_json, progress
from glinfer.cli.jobs import say_interrupted
from glinfer.engine.fetching import found_model
from glinfer.errors import InputError, counted
from glinfer.formats import unpacked
from glinfer.formats.files import shown
from glinfer.jobs.files import Target
from glinfer.jobs.manifest import file_digest
from glinfer.jobs.results import check_targets
from glinfer.jobs.texts import read_texts
from glinfer.jobs.vectors import VectorFile, check_out
from glinfer.terminal import emit

TOGETHER = 1024
"""Number of texts in memory at once, and the most that Ctrl-C loses."""


@click.command("embed")
@click.argument("model")
@click.option(
    "-i", "--in", "source", type=opt.NamedPath(), required=True, help="Texts: .txt, .jsonl, .csv or .parquet."
)
@click.option(
    "-o", "--out", type=opt.NamedPath(), required=True, help="Output: .npy, .safetensors, .jsonl or .parquet."
)
@click.option("--column", help="Key or column of the texts. Default: 'text', or the only one.")
@click.option("--prompt-name", help="Name of a model's prompt to put before each text, such as 'query'.")
@click.option("--prompt", help="Text of the prompt, instead of a name.")
@click.option("--dimensions", type=click.IntRange(min=1), metavar="N", help="Keep the first N numbers of each vector.")
@click.option(
    "--normalize/--no-normalize", default=None, help="Scale vectors to length 1. Default: from the model's files."
)
@click.option("--restart", is_flag=True, help="Discard the results of an earlier run and start over.")
@click.option("--context", type=int, help="Maximum tokens of a text. Default: from the model's files.")
@click.option("--lora", type=opt.FILE, metavar="NAME", help="Adapter: one of the model's tasks, or a directory.")
@opt.weights_option
@opt.gelu_option
@opt.tokenizer_option
@opt.device_options
@opt.json_option
def embed(model: str, source: str, out: str, column: str | None, restart: bool, as_json: bool, **options: Any) -> None:
    """Embed every text in a file.

    MODEL is an embedding model: a sentence-transformers directory, a zip file of one, or a name such as minilm. Rerun
    the same command to resume a stopped run. In a .txt file every line is a text, even an empty one.

    \b
    glinfer embed minilm --in lines.txt --out lines.npy
    """
    check_out(out)
    check_targets(source, Target(out))
    settings = {name: options.pop(name) for name in ("prompt_name", "prompt", "dimensions", "normalize")}
    next(iter(read_texts(source, column)), None)  # report a bad file at once
    about = {
        "model": file_digest(unpacked(found_model(model))),
        "texts": file_digest(source),
        "column": column,
        **settings,
        **{name: options[name] for name in ("weights", "gelu", "context", "tokenizer")},
        **({"lora": options["lora"]} if options["lora"] else {}),
    }
    with loaded(model, **options) as opened:
        embedder = opened.embedder
        if embedder.embedding.ranks:
            raise InputError("this model scores pairs of texts and has no vectors; expected an embedding model")
        width = embedder.request([], **settings).dimensions or embedder.encoder.width
        total = sum(1 for _ in read_texts(source, column))
        if not total:
            raise InputError(f"{shown(source)}: found no texts in the file; expected at least one")
        with VectorFile(out, about, width, restart=restart) as file, progress("embedding") as advance:
            before, started = file.done, time.perf_counter()
            digests: set[bytes] = set()
            texts = itertools.islice(_first(source, column, total, digests), before, None)

            def advance_part(done: int, _: int) -> None:  # of this part, which is not in the file yet
                advance(file.done + done, total)

            try:
                while part := list(itertools.islice(texts, TOGETHER)):
                    file.add(opened.embed(part, **settings, on_progress=advance_part))
            except KeyboardInterrupt:
                say_interrupted(file.part, file.done, total, restart=restart)
                raise
            seconds = time.perf_counter() - started
            file.finish(lambda: _first(source, column, total, digests))
        draws, renderer = opened.bound.draws_issued, opened.device.description
    rate = (total - before) / seconds if seconds else 0.0
    if as_json:
        print_json(
            {
                "texts": total,
                "finished_before": before,
                "width": width,
                "seconds": seconds,
                "texts_per_second": rate,
                "draws": draws,
                "renderer": renderer,
                "out": out,
            }
        )
        return
    kept = f", {before} earlier" if before else ""
    parts = [
        f"{counted(total - before, 'text')} embedded{kept}",
        f"{width} numbers each",
        f"{rate:.1f} texts/s",
        renderer,
    ]
    emit(" · ".join(parts), err=True)


def _first(source: str, column: str | None, total: int, digests: set[bytes]) -> Iterator[str]:
    """The first ``total`` texts, which must be the same each time; further ones were added during the run."""
    digest = hashlib.sha256()
    for text in itertools.islice(read_texts(source, column), total):
        digest.update(text.encode(errors="surrogatepass") + b"\0")
        yield text
    digests.add(digest.digest())
    if len(digests) > 1:
        raise InputError(f"{shown(source)}: it was changed while it was read; run the same command with --restart")
