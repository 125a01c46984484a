"""``glinfer generate``: continue a prompt."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from glinfer.cli.common import (
    Command,
    NamedPath,
    device_options,
    executor_option,
    image_option,
    json_option,
    loaded,
    lora_option,
    mmproj_option,
    model_options,
    one_adapter,
    one_of,
    options,
    params_of,
    parse_ids,
    print_json,
    progress,
    read_text,
    strict_option,
    tokenizer_option,
    user_message,
)
from glinfer.cli.drafts import draft_options, opened_drafts, take_drafts
from glinfer.engine.chat import ChatStream
from glinfer.engine.defaults import USUAL
from glinfer.engine.model import Model
from glinfer.engine.run.stats import GenerationStats
from glinfer.engine.sampler import SamplingOptions
from glinfer.engine.stream import TextStream, TokenStream
from glinfer.errors import GlinferError, InputError, StructureError, counted
from glinfer.formats.files import shown
from glinfer.structured.structure import OPTIONS, PARTIAL, Kind, Structure, structure_of
from glinfer.terminal import emit

SAMPLING: Mapping[str, tuple[type, str]] = {
    "temperature": (float, "Sampling temperature; 0 is greedy decoding."),
    "top_k": (int, "Sample from the K likeliest tokens; 0 for all."),
    "top_p": (float, "Sample from the likeliest tokens that together reach this probability; 1 for all."),
    "min_p": (float, "Minimum probability relative to the likeliest token; 0 for all."),
    "repetition_penalty": (float, "Penalty for repeated tokens; 1 is off."),
}
"""Options of the sampler with a default of the model: type and help."""
_IN_FILES: tuple[Kind, ...] = ("json_schema", "grammar")
_NO_PROMPT = "found no PROMPT, --file or --ids"
model_option = click.option(
    "-m",
    "--model",
    "named_model",
    type=click.Path(),
    metavar="MODEL",
    help="The model; replaces the argument MODEL.",
)
"""``--model``; :func:`chosen_model` uses it instead of the first argument."""


def sampling_options(max_tokens: int) -> Callable[[Command], Command]:
    """Make ``--max-tokens`` with this default, and the sampler's options."""
    sampling = [
        click.option(
            *(("-t",) if name == "temperature" else ()),
            f"--{name.replace('_', '-')}",
            type=kind,
            help=f"{text} Default: from the model, else {getattr(USUAL, name):g}.",
        )
        for name, (kind, text) in SAMPLING.items()
    ]
    return options(
        click.option(
            "-n",
            "--max-tokens",
            type=click.IntRange(min=1),
            default=max_tokens,
            help=f"Maximum number of tokens to generate. Default: {max_tokens}.",
        ),
        *sampling,
        click.option("--seed", type=int, help="Random seed; the same seed gives the same text."),
    )


structure_options = options(
    click.option(
        "--json-schema", type=click.Path(), metavar="FILE", help="Generate only JSON that matches the schema in FILE."
    ),
    click.option("--regex", metavar="R", help="Generate text that matches this whole regular expression."),
    click.option(
        "--grammar",
        type=click.Path(),
        metavar="FILE",
        help="Generate text that matches the grammar in FILE, in Lark's notation.",
    ),
    click.option(
        "--choices", multiple=True, metavar="TEXT", help="Generate one of these texts; repeat the option for each."
    ),
    click.option("--partial", is_flag=True, help="Return incomplete output instead of failing."),
)
"""The options of structured output, and ``--partial``."""


batch_options = options(
    click.option("--batch", type=NamedPath(), metavar="FILE", help="File of prompts, one JSON object a line."),
    click.option("--out", type=NamedPath(), help="With --batch: file for the results; a later run resumes."),
    click.option("--restart", is_flag=True, help="With --batch: discard the results in OUT and start over."),
    click.option("--slots", type=click.IntRange(min=1), help="With --batch: number of prompts to run at once."),
    click.option("--memory", type=click.IntRange(min=1), metavar="MB", help="With --batch: memory limit for caches."),
)
"""``--batch`` and its options."""


def take_structured(given: dict[str, Any]) -> dict[str, Any]:
    """Remove these options from ``given``; return them for :meth:`glinfer.engine.model.Model.stream`, files read.

    InputError if several are given, a file cannot be read, or a structure is invalid.
    """
    found: dict[str, Any] = {kind: given.pop(kind) for kind in OPTIONS}
    found["choices"] = list(found["choices"]) or None
    for kind in _IN_FILES:
        if found[kind] is not None:
            found[kind] = read_structure(kind, found[kind])
    structure_of(found)
    found["incomplete"] = PARTIAL if given.pop("partial") else None
    return {kind: value for kind, value in found.items() if value is not None}


def read_structure(kind: Kind, path: str) -> str:
    """Read a schema or a grammar; a StructureError begins with its ``path``."""
    text = read_text(path)
    try:
        return Structure.checked(kind, text).text
    except StructureError as error:
        raise StructureError(f"{shown(path)}: {error}") from None


def take_batch(given_options: dict[str, Any], *, single: bool) -> dict[str, Any] | None:
    """Remove these options from ``given_options``; None without ``--batch``. ``single``: a prompt is given too.

    Raises:
        InputError: options are missing or contradict each other.
    """
    given = {name: given_options.pop(name) for name in params_of(batch_options)}
    if given["batch"] is None:
        for name, value in given.items():
            if value not in (None, False):
                raise InputError(f"--{name} needs --batch FILE; give both or neither")
        return None
    if single:
        raise InputError("--batch reads its prompts from a file; leave out PROMPT, --file and --ids")
    if given["out"] is None:
        raise InputError("--batch needs --out FILE for the results")
    return given


def chosen_model(named: str | None, *arguments: str | None) -> tuple[str, str | None]:
    """Return the model and the argument after it, from ``--model`` and the arguments.

    UsageError without a model, InputError for one argument too many.
    """
    given = [each for each in (named, *arguments) if each is not None]
    if not given:
        raise click.UsageError("Missing argument 'MODEL'.")
    if len(given) > max(1, len(arguments)):
        raise InputError(f"found --model and the argument {shown(given[1])}; expected one MODEL; leave one out")
    return given[0], given[1] if len(given) > 1 else None


def take_sampling(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the sampler's options from ``given``; check and return those that are set."""
    taken = {field.name: given.pop(field.name) for field in dataclasses.fields(SamplingOptions)}
    chosen = {name: value for name, value in taken.items() if value is not None}
    SamplingOptions(**chosen)
    return chosen


@click.command()
@click.argument("model", type=click.Path(), required=False)
@click.argument("prompt", required=False)
@model_option
@click.option("-p", "--prompt", "named_prompt", metavar="PROMPT", help="Replaces PROMPT; may begin with '-'.")
@click.option(
    "-f",
    "--file",
    type=click.Path(),
    help="Read the prompt from this file, without one final newline; '-' is standard input.",
)
@tokenizer_option
@image_option
@mmproj_option
@click.option("--ids", help="Prompt as token ids, such as 13,132,251. Prints ids; needs no tokenizer.")
@sampling_options(128)
@click.option("--stop", multiple=True, help="Stop at this text. Repeatable.")
@click.option("--keep", type=int, default=0, help="First tokens to keep when the context is full; -1: the prompt.")
@structure_options
@draft_options
@batch_options
@lora_option
@model_options
@device_options
@executor_option
@strict_option
@json_option
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
    path, prompt = chosen_model(named_model, model, prompt)
    text = prompt if named_prompt is None else named_prompt
    sources = {"a PROMPT": prompt, "--prompt": named_prompt, "--file": file, "--ids": ids}
    found = any(source is not None for source in sources.values())
    batch, drafts = take_batch(options, single=found), take_drafts(options)
    structured = take_structured(options)
    if batch is not None:
        from glinfer.cli.batch import generate_batch  # late, for the packages of jobs

        if images:
            raise InputError("--image needs a single prompt; leave out --image or --batch")
        for name in drafts:
            raise InputError(f"--{name} needs a single prompt; leave out --{name} or --batch")
        chosen = {name: options.pop(name) for name in ("max_tokens", "stop", "keep")}
        sampling = take_sampling(options)
        chosen["structured"] = structured
        generate_batch(path, batch, sampling=sampling, as_json=as_json, quiet=quiet, **chosen, **options)
        return
    if not found and sys.stdin.isatty():
        raise InputError(f"{_NO_PROMPT}; give one of them")
    one_of(sources)
    given = _given(text, file, ids, found=found)
    one_adapter(options)
    max_tokens, sampling = options.pop("max_tokens"), take_sampling(options)
    ends = {name: options.pop(name) for name in ("stop", "keep")}
    if images and (ids is not None or ends["keep"]):
        raise InputError(f"--image goes with a text; leave out {'--keep' if ids is None else '--ids'}")
    with loaded(path, **options) as opened, opened_drafts(opened, drafts) as guesses:
        how = {"max_tokens": max_tokens, **sampling, **structured, **guesses}
        stream: TextStream | TokenStream | ChatStream
        if images:
            stream = opened.stream_chat([user_message(images, given)], stop=ends["stop"], **how)
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
