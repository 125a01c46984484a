"""``glinfer verify``: compare bound textures with the model's file, and draws with float64."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import click
from click.core import ParameterSource

from glinfer.cli import options as opt
from glinfer.cli.common import megabytes, model_or_shape, one_of, parse_ids, print_json, stage_bars
from glinfer.engine.fetching import origin_report
from glinfer.engine.ids import check_ids
from glinfer.engine.textures import TextureCheck
from glinfer.errors import ContextError, InputError, counted
from glinfer.formats import Checkpoint
from glinfer.inspect.draws import example_ids
from glinfer.inspect.settings import RunSetting, every_renderer, named
from glinfer.inspect.verify.suite import SCHEMA, CheckOptions, VerifyReport, VerifyRun, every_format, verify_everywhere
from glinfer.terminal import emit

_FINDINGS_SHOWN, _TEXELS_SHOWN = 12, 3


def _show_schema(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        emit(SCHEMA.read_text("utf-8").rstrip("\n"))
        context.exit(0)


def _settings(
    checkpoint: Checkpoint, options: Mapping[str, Any], all_weights: bool, all_devices: bool
) -> list[RunSetting]:
    plan, api = options["plan"], options["api"]
    renderers = every_renderer(api) if all_devices else [(options["device"], api)]
    formats = every_format(checkpoint, plan) if all_weights else [options["weights"]]
    common = {"plan": plan, "cache": options["cache"], "limits": options["limits"]}
    pairs = itertools.product(renderers, formats)
    return [RunSetting(device=device, api=flavour, weights=weights, **common) for (device, flavour), weights in pairs]


@click.command()
@click.argument("model", type=opt.FILE, required=False)
@opt.config_option
@click.option(
    "--draws",
    "with_draws",
    is_flag=True,
    help="Also run the model, compare every draw with float64, and check OpenGL's errors and state after each.",
)
@click.option("--tokens", type=int, help="Length of the sequence to run. Default: 8.")
@click.option("--ids", help="Token ids to run, such as 13,132,251.")
@click.option(
    "--after",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compare the textures after N tokens, generated in a sequence and, with the fast plan, also in a batch.",
)
@click.option(
    "--greedy",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also generate N greedy tokens and compare them with float64.",
)
@click.option(
    "--allow-nan",
    is_flag=True,
    help="Accept NaN and infinite weights: compare their bits without running the model.",
)
@click.option("--all-weights", is_flag=True, help="Check every weight format that the model supports.")
@click.option(
    "--all-devices",
    is_flag=True,
    help="Check every renderer of this machine with OpenGL ES and desktop OpenGL, or only with --api.",
)
@opt.model_options
@opt.device_options
@opt.json_option
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_schema,
    help="Print the JSON schema of the output of --json.",
)
@click.pass_context
def verify(
    context: click.Context,
    /,
    model: str | None,
    config_text: str | None,
    with_draws: bool,
    after: int | None,
    greedy: int | None,
    allow_nan: bool,
    all_weights: bool,
    all_devices: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare every weight of MODEL in the bound textures with the file, bit for bit.

    The fast plan's weights are compared in their packed form and, where packing keeps the file's bits, with the file;
    the reference plan's with the file. Stored NaN payloads, infinities, −0 and denormals are checked too. --draws
    compares every pass of the last token with float64, and checks OpenGL's errors and state after it; --after generates
    tokens first. The weights are compared again at the end. --all-weights and --all-devices check each format on each
    renderer.

    \b
    glinfer verify model.gab --plan reference
    glinfer verify model.gab --weights q8 --draws --tokens 16 --json
    glinfer verify model.gguf --greedy 20 --after 200
    glinfer verify model.gab --all-weights --all-devices --draws

    \b
    Exit status:
      0  all checks passed
      1  something differs, OpenGL reported an error, or a weight is NaN or
         infinite (no other command loads such a model; see --allow-nan)
      2  bad input, or nothing could be run; with --all-devices and --all-weights
         unusable configurations are reported, not failed
    """
    if all_weights and context.get_parameter_source("weights") is not ParameterSource.DEFAULT:
        raise InputError("--all-weights checks every format; leave out --weights")
    if all_devices and options["device"] is not None:
        raise InputError("--all-devices checks every renderer; leave out --device")
    runs = with_draws or greedy is not None or after is not None
    tokens, ids = options.pop("tokens"), options.pop("ids")
    if not runs and (tokens is not None or ids is not None):
        raise InputError("--tokens and --ids need --draws, --greedy or --after; add one of them")
    one_of({"--tokens": tokens, "--ids": ids})
    checkpoint = model_or_shape(model, config_text, options)
    sequence: list[int] = []
    if runs:
        sequence = check_ids(_sequence(ids, 8 if tokens is None else tokens, checkpoint), checkpoint.config)
    checks = CheckOptions(with_draws, sequence, greedy, after)
    settings = _settings(checkpoint, options, all_weights, all_devices)
    with stage_bars() as advance:
        report = verify_everywhere(checkpoint, settings, checks, allow_nan=allow_nan, on_progress=advance)
    report = dataclasses.replace(report, origin=origin_report(checkpoint))
    if as_json and (report.runs or all_devices or all_weights):
        print_json(report.to_json())
    if not report.runs:
        refused = f"load refuses this model: {report.load_refuses}; " if report.load_refuses else ""
        problems = [each.problem for each in report.unusable]
        if len(problems) > 1:
            problems = [f"{each.where}: {each.problem}" for each in report.unusable]
            refused += "nothing could be run: "
        raise ContextError(refused + "; ".join(problems))
    if not as_json:
        _show(report)
        if report.load_refuses is not None:
            emit(f"load refuses this model: {report.load_refuses}")
    if not report.passed:
        raise click.exceptions.Exit(1)


def _sequence(ids: str | None, tokens: int, checkpoint: Checkpoint) -> list[int]:
    if ids is not None:
        return parse_ids(ids)
    longest = checkpoint.config.max_position_embeddings
    if not 1 <= tokens <= longest:
        raise InputError(f"--tokens is {tokens}; expected 1 to {longest}, the context")
    return [int(token) for token in example_ids(checkpoint.config, tokens)]


def _show(report: VerifyReport) -> None:
    """Print a line for each run, with its faults, and each unusable renderer or format."""
    for run in report.runs:
        where, checks = f"{named(run.device, run.api)}, weights {run.weights}", " · ".join(_checked(run))
        emit(f"{where}: {checks} · {run.renderer}" if run.passed else f"{where}:")
        if not run.passed:
            _show_faults(run)
            emit(f"{checks} · {run.renderer}")
    for each in report.unusable:
        emit(f"{each.where}, unusable: {each.problem}")
    failed, runs = sum(not run.passed for run in report.runs), len(report.runs)
    parts = [f"{counted(runs, 'run')}: {f'{failed} FAILED' if failed else 'all passed'}"]
    emit(" · ".join([*parts, *([f"{len(report.unusable)} unusable"] if report.unusable else [])]))


def _checked(run: VerifyRun) -> Iterator[str]:
    bad, wrong, count = len(run.bad_textures), len(run.wrong_textures), len(run.textures)
    held = f"{bad} DIFFER" if bad else f"{wrong} SAMPLED INSTEAD OF OTHERS" if wrong else "all identical"
    used = "" if run.after is None else f" after {counted(run.after, 'token')}"
    size = megabytes(sum(check.bytes for check in run.textures))
    yield f"{counted(count, 'texture')}, {size}: {held}{used}"
    if run.draws:
        differ = sum(not check.exact for check in run.draws)
        error = max(check.max_relative_error for check in run.draws)
        exact = f"{len(run.bad_draws)} IN A WRONG STATE" if run.bad_draws else "all within tolerance"
        result = f"{differ} DIFFER" if differ else exact
        yield f"{counted(len(run.draws), 'draw')}: {result}, largest relative error {error:.1e}"
    if run.greedy is not None:
        count = len(run.greedy.chosen)
        yield f"{counted(count, 'token')}: {run.greedy.agreeing} agree with float64"


def _show_faults(run: VerifyRun) -> None:
    for texture in run.bad_textures:
        emit(f"texture {texture.name} {_difference(texture)}")
    for wrong in run.wrong_textures:
        emit(f"plan {wrong.plan}, draw {wrong.draw}: {wrong.sampler} samples {wrong.found}; expected {wrong.expected}")
    for special in run.special:
        if not special.stored:
            emit(f"special values, {special.name}: changed when they were stored")
    first = run.first_bad_draw
    if first is not None:
        what = "differs" if not first.exact else "was made in a wrong state"
        number = f"{first.index + 1} of {len(run.draws)}"
        emit(f"the first draw that {what} is {number}, {first.name} (shaders/{first.shader}.frag)")
    lines = [
        f"  draw {check.index + 1}, {check.name} (shaders/{check.shader}.frag): {finding.text}"
        for check in run.draws
        for finding in check.findings
    ]
    for line in lines[:_FINDINGS_SHOWN]:
        emit(line)
    if len(lines) > _FINDINGS_SHOWN:
        emit(f"  and {len(lines) - _FINDINGS_SHOWN} more findings; --json lists them all")
    if run.problem:
        emit(f"the run ended with an error: {run.problem}")


def _difference(check: TextureCheck) -> str:
    """Describe how a texture differs, with the first of its numbers."""
    if check.identical:
        return "holds the packed words, which decode to other weights than the file has"
    lines = []
    for texel in check.texels[:_TEXELS_SHOWN]:
        element = "padding" if texel.row is None else f"element [{texel.row}, {texel.col}]"
        digits = 4 if check.format == "rgba16f" else 8
        bits = f"found 0x{texel.found:0{digits}X}, expected 0x{texel.expected:0{digits}X}"
        lines.append(f"\n  texel ({texel.x}, {texel.y}) {'RGBA'[texel.channel]}, {element}: {bits}")
    rest = check.differing - len(lines)
    more = f"\n  and {rest:,} more; --json has the first {len(check.texels)}" if rest else ""
    count = f"{check.differing:,} number{'s' if check.differing != 1 else ''}"
    return f"differs in {count}, by up to {check.max_difference:g}:{''.join(lines)}{more}"
