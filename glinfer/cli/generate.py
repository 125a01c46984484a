"""``glinfer generate``: continue a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import loaded, one_of, opened_drafts, parse_ids, print_json, progress, read_text
from glinfer.engine.chat import ChatStream
from glinfer.engine.model import Model
from glinfer.engine.run.stats import GenerationStats
from glinfer.engine.stream import TextStream, TokenStream
from glinfer.errors import GlinferError, InputError, counted
from glinfer.terminal import emit

_NO_PROMPT = "found no PROMPT, --file or --ids"


@click.command()
@click.argument("model", type=opt.FILE, required=False)
@click.argument("prompt", required=False)
@opt.model_option
@click.option("-p", "--prompt", "named_prompt", metavar="PROMPT", help="Replaces PROMPT; may begin with '-'.")
@click.option(
    "-f",
    "--file",
    type=opt.FILE,
    help="Read the prompt from this file, without one final newline; '-' is standard input.",
)
@opt.tokenizer_option
@opt.image_options
@click.option("--ids", help="Prompt as token ids, such as 13,132,251. Prints ids; needs no tokenizer.")
@opt.sampling_options(128)
@click.option("--stop", multiple=True, help="Stop at this text. Repeatable.")
@click.option("--keep", type=int, default=0, help="First tokens to keep when the context is full; -1: the prompt.")
@opt.structure_options
@opt.draft_options
@opt.batch_options
@opt.loading_options
@opt.json_option
@click.option("--echo/--no-echo", default=None, help="Print the prompt before the text. Default: only on a terminal.")
@click.option("--quiet", "-q", is_flag=True, help="Do not print the closing line.")
def generate(
    model: str | None,
    named_model: str | None,
    prompt: str | None,
    named_prompt: str | None,
    file: str | None,
    ids: str | None,
    as_json: bool,
    echo: bool | None,
    quiet: bool,
    images: tuple[str, ...],
    **options: Any,
) -> None:
    """Continue PROMPT with MODEL and stream the text.

    MODEL is a .gab, .safetensors or .gguf file, a Hugging Face model directory, a Gab manifest, or the name of a
    bundled model. Without PROMPT, or with '-', the prompt is read from standard input, without one final newline.
    The closing line on standard error reports draw calls, tokens and speed.

    --batch runs the prompts of a file together. Each line is a JSON object such as {"prompt": "Once"} or
    {"ids": [13, 132]}, optionally with an "id" and sampling options. Results are written to OUT as they finish;
    rerun the same command to resume. Line n uses the seed SEED + n - 1.

    With --image, PROMPT is a user's message about the images, and the text is the model's reply.

    \b
    glinfer generate model.gab "Once upon a time" --max-tokens 40 --seed 1
    glinfer generate -m model.gab -f story.txt -n 40 -t 0
    glinfer generate model.gab --ids 13,132,251 --temperature 0 --json
    glinfer generate model.gguf -f text.txt --speculate ngram
    glinfer generate model.gguf "A person:" --json-schema person.json
    glinfer generate model.gab --batch prompts.jsonl --out results.jsonl --seed 1
    """
    path, prompt = opt.chosen_model(named_model, model, prompt)
    text = prompt if named_prompt is None else named_prompt
    sources = {"a PROMPT": prompt, "--prompt": named_prompt, "--file": file, "--ids": ids}
    found = any(source is not None for source in sources.values())
    batch, drafts = opt.take_batch(options, single=found), opt.take_drafts(options)
    structured, sampling = opt.take_structured(options), opt.take_sampling(options)
    max_tokens, ends = options.pop("max_tokens"), {name: options.pop(name) for name in ("stop", "keep")}
    if batch is not None:
        from glinfer.cli.generate_batch import generate_batch  # late, for the packages of jobs

        alone: dict[str, object] = {"image": images or None, "echo": echo or None, **drafts}
        for name, value in alone.items():
            if value is not None:
                raise InputError(f"--{name} needs a single prompt; leave out --{name} or --batch")
        how = {"max_tokens": max_tokens, "structured": structured, "sampling": sampling, **ends}
        generate_batch(path, batch, as_json=as_json, quiet=quiet, **how, **options)
        return
    if not found and sys.stdin.isatty():
        raise InputError(f"{_NO_PROMPT}; give one of them")
    one_of(sources)
    given = _given(text, file, ids, found=found)
    opt.one_adapter(options)
    if images and (ids is not None or ends["keep"]):
        raise InputError(f"--image goes with a text; leave out {'--keep' if ids is None else '--ids'}")
    with loaded(path, **options) as opened, opened_drafts(opened, drafts) as drafting:
        how = {"max_tokens": max_tokens, **sampling, **structured, **drafting}
        stream: TextStream | TokenStream | ChatStream
        if images:
            stream = opened.stream_chat([opt.user_message(images, given)], stop=ends["stop"], **how)
        else:
            stream = opened.stream(given, **ends, **how)
        if as_json:
            print_json(_collected(opened, given, stream, max_tokens))
            return
        if isinstance(given, str) and (sys.stdout.isatty() if echo is None else echo):
            emit(given, nl=False)
        print_stream(stream)
        if not quiet:
            emit(closing_line(opened, stream.stats), err=True)


def _given(text: str | None, file: str | None, ids: str | None, *, found: bool) -> str | list[int]:
    """The prompt: ids, a text, or what a file or standard input has, which may be empty only if one was ``found``."""
    if ids is not None:
        return parse_ids(ids)
    if text is not None and text != "-":
        return text
    read = read_text("-" if file is None else file).removesuffix("\n")
    if not read and not found:
        raise InputError(f"{_NO_PROMPT}, and standard input is empty; give one of them")
    return read


def print_stream(stream: Iterable[str | int]) -> None:
    """Print pieces of text as they arrive, or ids separated by commas; an error begins on its own line."""
    try:
        for number, piece in enumerate(stream):
            emit(f"{',' if number else ''}{piece}" if isinstance(piece, int) else piece, nl=False)
    except GlinferError:
        emit()
        raise
    emit()


def closing_line(model: Model, stats: GenerationStats, *, renderer: bool = True) -> str:
    """The line after a text: ``39 draws/token · 40 tokens · 250 tok/s · OpenGL ES 3.2 Mesa 22.3.6 · llvmpipe (…)``."""
    parts = [
        f"{round(stats.draws_per_token, 1):g} draws/token",
        counted(stats.tokens, "token"),
        f"{stats.tokens_per_second:.2f} tok/s",
        *([model.device.description] if renderer else []),
    ]
    if stats.drafted:
        parts.insert(2, f"{stats.accepted} of {stats.drafted} drafts accepted")
    if stats.forced:
        parts.insert(2, f"{stats.forced} forced")
    if stats.dropped:
        context = model.config.max_position_embeddings
        parts.insert(0, f"context of {context} tokens full: dropped the oldest {stats.dropped}")
    return " · ".join(parts)


def _collected(
    model: Model, prompt: str | list[int], stream: TextStream | TokenStream | ChatStream, max_tokens: int
) -> dict[str, Any]:
    pieces: list[str] = []
    with progress("generating") as advance:
        for piece in stream:
            if isinstance(piece, str):
                pieces.append(piece)
            advance(stream.stats.tokens, max_tokens)
    names = ["finish_reason", "prompt_tokens", "prompt_seconds", "tokens", "dropped", "drafted", "accepted", "forced"]
    names += ["complete", "draws_per_token", "seconds", "tokens_per_second"]
    return {
        "prompt": prompt,
        "text": None if isinstance(stream, TokenStream) else "".join(pieces),
        "ids": stream.ids,
        **{name: getattr(stream.stats, name) for name in names},
        "plan": model.plan.name,
        "weights": model.weights,
        "cache": model.cache,
        "renderer": model.device.description,
    }
