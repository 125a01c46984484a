"""Options that commands share, each spelled out once, and what reads them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from glinfer.cli.common import print_json, read_text, show
from glinfer.engine.defaults import USUAL
from glinfer.engine.loading import DEFAULT_ADAPTER, USUAL_CONTEXT
from glinfer.engine.run.drafts import SPECULATE, check_speculation
from glinfer.engine.run.oracle import EXECUTORS
from glinfer.engine.sampler import SamplingOptions
from glinfer.errors import InputError, StructureError
from glinfer.formats.files import shown
from glinfer.gl.context import Limits
from glinfer.lower.plans import CACHES, DEFAULT_PLAN, DEFAULT_WEIGHTS, PLANS, WEIGHTS
from glinfer.quant.formats import DEFAULT_CACHE
from glinfer.structured.structure import OPTIONS, PARTIAL, Kind, Structure, structure_of

Command = TypeVar("Command", bound=Callable[..., Any])


def options(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Join options into one decorator; help lists them in this order."""

    def decorated(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorated


def params_of(*decorators: Callable[[Any], Any]) -> dict[str, click.Parameter]:
    """The parameters that decorators add to a command, by name, in the order of its help."""
    return {str(each.name): each for each in click.command()(options(*decorators)(lambda: None)).params}


class NamedPath(click.Path):
    """The path of a file that is read twice, resumed or replaced, so that ``-`` is refused."""

    def __init__(self, what: str = "file") -> None:
        """Name what the path is of in errors."""
        super().__init__()
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse ``-``, which would be a file of that name."""
        if value == "-" and param is not None:
            raise InputError(f"{param.opts[-1]} needs a {self._what}, not standard input or output")
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """A range of times, without infinity and NaN, which click would take."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a number that is not finite."""
        found = super().convert(value, param, ctx)
        return found if math.isfinite(found) else self.fail(f"found {found}; expected a finite number", param, ctx)


FILE = click.Path(readable=False)
"""A path of an option or argument; what reads it says why it cannot."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")

LIMITS = {"driver": None, "webgl2": Limits.webgl2_minimum()}
"""Values of ``--limits``."""


def _device_or_list(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
    if value != "list":
        return value
    from glinfer.inspect.info import list_devices

    devices = list_devices()
    # This eager option is processed before --json, so look for --json in the raw arguments.
    arguments = getattr(context.find_root().command, "arguments", ())
    if "--json" in arguments and any(each.name == "as_json" for each in context.command.params):
        print_json(devices)
        context.exit(0)
    kinds = {True: "software", False: "hardware"}
    rows = [(str(each.index), each.renderer or f"unusable: {each.problem}", kinds[each.software]) for each in devices]
    show(("device", "renderer", "kind"), rows, numbers=("device",))
    context.exit(0)
    return None


device_options = options(
    click.option(
        "--device",
        metavar="N|auto|list",
        is_eager=True,
        callback=_device_or_list,
        help="EGL device to render on; 'list' lists all devices. Default: $GLINFER_DEVICE, else auto.",
    ),
    click.option(
        "--api",
        "--gl",  # the older name
        "api",
        type=click.Choice(["es", "desktop"]),
        help="OpenGL ES 3.0 through EGL (default) or desktop OpenGL 3.3.",
    ),
    click.option(
        "--limits",
        type=click.Choice(list(LIMITS)),
        default="driver",
        callback=lambda _, __, name: LIMITS[name],
        help="Limits: the driver's (default) or WebGL2's guaranteed minimum, without extensions.",
    ),
)
"""``--device``, ``--api`` and ``--limits``, whose value is Limits, or None for the driver's."""

config_option = click.option(
    "--config",
    "config_text",
    help="Shape to use instead of a MODEL: gab, gift_of_gab, a config.json, or values such as blocks=6,heads=8. "
    "Further keys: dim, vocab, context, family, kv_heads, inner; defaults are Gab's.",
)

model_option = click.option(
    "-m", "--model", "named_model", type=FILE, metavar="MODEL", help="The model; replaces the argument MODEL."
)
"""``--model``; :func:`chosen_model` uses it instead of the first argument."""


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


tokenizer_option = click.option(
    "--tokenizer",
    type=FILE,
    help="Tokenizer: a .bpe file, a tokenizer.json or its directory, or a .gguf file, whose chat template is used too. "
    "Default: the one in or next to the model, if it matches.",
)

plan_option = click.option(
    "--plan",
    type=click.Choice(list(PLANS)),
    default=DEFAULT_PLAN,
    show_default=True,
    help="'fast' runs each token once; 'reference' runs the published passes over the whole sequence for every token.",
)

weights_option = click.option(
    "--weights",
    type=click.Choice(WEIGHTS),
    default=DEFAULT_WEIGHTS,
    show_default=True,
    help="Weight format: 'file' keeps the file's format; f32 and f16 are floats; formats with fewer bits are faster "
    "and less exact. 'auto' is q8 for GGUF blocks, else 'file'.",
)

cache_option = click.option(
    "--cache",
    type=click.Choice(CACHES),
    default=DEFAULT_CACHE,
    show_default=True,
    help="Format of the fast plan's key-value cache: floats, half floats (half the memory), or 8 bits with a scale per "
    "32 values (about a quarter).",
)

gelu_option = click.option(
    "--gelu", type=click.Choice(["tanh", "erf"]), help="Form of GELU. Default: the checkpoint's."
)

context_option = click.option(
    "--context",
    type=int,
    help="Maximum sequence length in tokens; each token takes memory. Default: the model's positions, at most "
    f"{USUAL_CONTEXT} if they are rotary.",
)

model_options = options(plan_option, weights_option, cache_option, gelu_option, context_option)
"""``--plan``, ``--weights``, ``--cache``, ``--gelu`` and ``--context``."""


def split_name(text: str) -> tuple[str, str]:
    """Split ``NAME=PATH`` into (name, path); the name is empty if missing, or if ``text`` itself is a path.

    A name may contain slashes, as in ``org/name``.
    """
    name, _, path = text.partition("=")
    is_path = os.path.lexists(text) or name.startswith((".", "~", "/")) or name.endswith("/") or "\\" in name
    return ("", text) if is_path or not name or not path else (name, path)


def _named_paths(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """Map the names of ``--lora`` to paths, for :func:`glinfer.engine.loading.load_model`."""
    found: dict[str, str] = {}
    for value in values:
        name, path = split_name(value)
        name = name or DEFAULT_ADAPTER
        if name in found:
            what = "without a name" if name == DEFAULT_ADAPTER else f"with the name {name}"
            raise InputError(f"found two adapters {what}; give each its own name: --lora NAME={shown(path)}")
        found[name] = path
    return found or None


lora_option = click.option(
    "--lora",
    multiple=True,
    metavar="[NAME=]DIR",
    callback=_named_paths,
    help="LoRA adapter: a PEFT directory or a GGUF file. Repeatable, with a NAME for each.",
)
"""``--lora``: adapters by name."""


def one_adapter(given: dict[str, Any]) -> None:
    """Apply the only adapter whatever its name, for commands that write one text; InputError if there are several."""
    if given["lora"] is not None:
        if len(given["lora"]) > 1:
            raise InputError(f"found {len(given['lora'])} adapters; expected one for the whole text; give --lora once")
        (given["lora"],) = given["lora"].values()


mmproj_option = click.option(
    "--mmproj",
    type=FILE,
    metavar="FILE",
    help="llama.cpp's image encoder of a .gguf model. Default: the only mmproj file next to it.",
)

image_options = options(
    click.option(
        "--image",
        "images",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="Image for the user's first message, if the model accepts images. Repeatable.",
    ),
    mmproj_option,
)


def user_message(images: Sequence[str], text: object) -> dict[str, Any]:
    """A user's message of a text about images."""
    parts = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


loading_options = options(
    lora_option,
    model_options,
    device_options,
    click.option(
        "--executor",
        type=click.Choice(EXECUTORS),
        default="gl",
        help="Backend for the plan's passes: OpenGL (default) or float64 NumPy, which is slow but needs no renderer.",
    ),
    click.option(
        "--strict",
        is_flag=True,
        help="Stop at NaN or infinite logits and name the pass that produced them. Default: warn once and never choose "
        "such tokens.",
    ),
)
"""How commands that write text load a model."""

SAMPLING: Mapping[str, tuple[type, str]] = {
    "temperature": (float, "Sampling temperature; 0 is greedy decoding."),
    "top_k": (int, "Sample from the K likeliest tokens; 0 for all."),
    "top_p": (float, "Sample from the likeliest tokens that together reach this probability; 1 for all."),
    "min_p": (float, "Minimum probability relative to the likeliest token; 0 for all."),
    "repetition_penalty": (float, "Penalty for repeated tokens; 1 is off."),
}
"""Options of the sampler with a default of the model: type and help."""


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


def take_sampling(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the sampler's options from ``given``; check and return those that are set."""
    taken = {field.name: given.pop(field.name) for field in dataclasses.fields(SamplingOptions)}
    chosen = {name: value for name, value in taken.items() if value is not None}
    SamplingOptions(**chosen)
    return chosen


structure_options = options(
    click.option(
        "--json-schema", type=FILE, metavar="FILE", help="Generate only JSON that matches the schema in FILE."
    ),
    click.option("--regex", metavar="R", help="Generate text that matches this whole regular expression."),
    click.option(
        "--grammar",
        type=FILE,
        metavar="FILE",
        help="Generate text that matches the grammar in FILE, in Lark's notation.",
    ),
    click.option(
        "--choices", multiple=True, metavar="TEXT", help="Generate one of these texts; repeat the option for each."
    ),
    click.option("--partial", is_flag=True, help="Return incomplete output instead of failing."),
)
"""The options of structured output, and ``--partial``."""


def take_structured(given: dict[str, Any]) -> dict[str, Any]:
    """Remove these options from ``given``; return them for :meth:`glinfer.engine.model.Model.stream`, files read.

    InputError if several are given, a file cannot be read, or a structure is invalid.
    """
    found: dict[str, Any] = {kind: given.pop(kind) for kind in OPTIONS}
    found["choices"] = list(found["choices"]) or None
    for kind in ("json_schema", "grammar"):
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


draft_options = options(
    click.option(
        "--speculate",
        type=click.Choice(SPECULATE),
        help="Draft tokens from earlier text and check several in one run. The text stays the same; text that copies "
        "from its prompt is generated faster.",
    ),
    click.option(
        "--draft",
        type=FILE,
        metavar="MODEL",
        help="Draft tokens with a smaller model that has the same tokenizer. The text stays the same.",
    ),
)
"""``--speculate`` and ``--draft``."""


def take_drafts(given: dict[str, Any]) -> dict[str, str]:
    """Remove these options from ``given``, and return those that are set; InputError if both are given."""
    taken = {name: given.pop(name) for name in ("speculate", "draft")}
    check_speculation(**taken)
    return {name: value for name, value in taken.items() if value is not None}


batch_options = options(
    click.option("--batch", type=NamedPath(), metavar="FILE", help="File of prompts, one JSON object per line."),
    click.option("--out", type=NamedPath(), help="With --batch: file for the results; a later run resumes."),
    click.option("--restart", is_flag=True, help="With --batch: discard the results in OUT and start over."),
    click.option("--slots", type=click.IntRange(min=1), help="With --batch: number of prompts to run at once."),
    click.option("--memory", type=click.IntRange(min=1), metavar="MB", help="With --batch: memory limit for caches."),
)
"""``--batch`` and its options."""


def take_batch(given_options: dict[str, Any], *, single: bool) -> dict[str, Any] | None:
    """Remove these options from ``given_options``; None without ``--batch``. ``single``: a prompt is given too.

    InputError if options are missing or contradict each other.
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


cache_limit_options = options(
    click.option("--memory", type=click.IntRange(1), metavar="MiB", help="Limit for a model's caches. Default: 1024."),
    click.option("--piece", type=click.IntRange(1), help="Prompt tokens processed between decode steps. Default: 512."),
)
"""``--memory`` and ``--piece`` of commands that answer requests."""


def take_scheduler(given: dict[str, Any]) -> dict[str, Any]:
    """Remove ``slots``, ``memory`` and ``piece`` from ``given``; return them for SchedulerOptions."""
    taken = {name: given.pop(name) for name in ("slots", "memory", "piece")}
    return taken | {"memory": None if taken["memory"] is None else taken["memory"] << 20}
