"""``python -m qa same``: write one seed's texts on every renderer and by every plan, and compare tokens and logits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from glinfer.cli.common import LIMITS, json_option, print_json, read_text, show_table, stage_bars, tokenizer_option
from glinfer.config import ModelConfig
from glinfer.engine.engine import Engine
from glinfer.engine.ids import check_count, check_ids
from glinfer.engine.loading import prepare, read_model
from glinfer.engine.progress import Progress, StagedProgress, no_staged_progress
from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.engine.stream import TokenStream
from glinfer.errors import ContextError, GLError, InputError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.inspect.info import list_devices
from glinfer.inspect.settings import RunSetting
from glinfer.inspect.tables import Column, Table
from glinfer.lower.plain.gab import LOGITS, TOKENS, reference_plan
from glinfer.lower.plans import DEFAULT_PLAN, PLANS, check_choice, is_published, weights_for
from glinfer.program.oracle import final_tensors
from glinfer.text.tokenizer import Tokenizer, find_tokenizer

Wide = npt.NDArray[np.float64]
REFERENCE_TOKENS = 24
"""Tokens of each text of the reference plan, which runs the whole sequence for every token."""
REFERENCE_POSITIONS = 8
"""Positions at which logits of the reference plan are compared; each costs a whole run."""
_TEMPERATURE = 0.8
_NO_REPORT = "this is not a report to compare with; expected what 'python -m qa same --json' prints"


def label(setting: RunSetting) -> str:
    """A short name of a setting for a table."""
    parts = [setting.plan, setting.weights, setting.api or "es"]
    if setting.device is not None:
        parts.append(f"device {setting.device}")
    return " ".join([*parts, *(["WebGL2's limits"] if setting.limits is not None else [])])


@dataclass(frozen=True)
class Question:
    """The texts that every setting writes.

    Attributes:
        prompt: token ids before every text.
        tokens: tokens of each text.
        samplings: options of the sampler, one set for each text.
    """

    prompt: tuple[int, ...]
    tokens: int
    samplings: tuple[SamplingOptions, ...]


@dataclass(frozen=True)
class Divergence:
    """First position where two texts choose different tokens, and the gap between their scores.

    A score is a logit over the temperature plus the noise of the draw. A gap as small as the drift is a tie that
    rounding breaks.
    """

    text: int
    place: int
    token: int
    other: int
    gap: float


@dataclass(frozen=True)
class SameRow:
    """Texts and logits of one setting, compared with those of the first.

    Attributes:
        setting: its name.
        renderer: version and name of the renderer.
        texts: tokens of each text.
        equal: number of texts that agree with the expected ones, as far as both go.
        partings: first difference of each other text.
        drift: the largest difference of a logit along the first text, relative to the range of the logits: from
            float64 where there is an oracle for the whole sequence, else from the first setting.
        problem: why the setting could not be run; the rest is empty then.
    """

    setting: str
    renderer: str = ""
    texts: tuple[tuple[int, ...], ...] = ()
    equal: int = 0
    partings: tuple[Divergence, ...] = ()
    drift: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class SameReport:
    """Rows of all settings; the others are compared with the first that ran, or with recorded texts."""

    question: Question
    rows: tuple[SameRow, ...]

    @property
    def passed(self) -> bool:
        """Whether every setting that could be run wrote the same texts."""
        ran = [row for row in self.rows if not row.problem]
        return bool(ran) and all(row.equal == len(self.question.samplings) for row in ran)

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {"passed": self.passed, **dataclasses.asdict(self)}


def compare_everywhere(
    checkpoint: Checkpoint,
    settings: Sequence[RunSetting],
    question: Question,
    *,
    recorded: Sequence[Sequence[int]] | None = None,
    on_progress: StagedProgress = no_staged_progress,
) -> SameReport:
    """Write the same texts by every setting, and compare them.

    Args:
        checkpoint: the model, checked to be finite.
        settings: the ways to run it.
        question: the prompt and the sampling of each text.
        recorded: expected texts, written elsewhere; by default those of the first setting that runs.
        on_progress: receives (the setting and its number, tokens done with it, its tokens).

    Raises:
        InputError: there are no settings, or the prompt and the texts are more than the context.
    """
    if not settings:
        raise InputError("there are no settings to compare; name at least one plan")
    if len(question.prompt) + question.tokens > checkpoint.config.max_position_embeddings:
        raise InputError(
            f"{len(question.prompt)} tokens of prompt and {question.tokens} more are beyond the context of "
            f"{checkpoint.config.max_position_embeddings}"
        )
    texts = None if recorded is None else [tuple(text) for text in recorded]
    rows: list[SameRow] = []
    expected: Wide | None = None
    for number, setting in enumerate(settings, start=1):
        advance = partial(on_progress, f"{number} of {len(settings)}: {label(setting)}")
        advance(0, 0)
        try:
            device = setting.opened()
        except (ContextError, GLError) as error:
            rows.append(SameRow(label(setting), problem=str(error)))
            continue
        with device:
            engine = prepare(checkpoint, device, setting.plan, setting.weights).bind(device)
            try:
                found = _texts(engine, question, advance)
                texts = found if texts is None else texts
                sequence = [*question.prompt, *texts[0]]
                logits = _logits(engine, sequence, advance)
                if expected is None:
                    on_progress("one text in float64", 0, 0)
                    expected = _oracle(checkpoint, sequence, logits)
                rows.append(_row(setting, device, engine, question, found, texts, logits, expected))
            finally:
                engine.bound.release()
    return SameReport(question, tuple(rows))


def _texts(engine: Engine, question: Question, advance: Progress) -> list[tuple[int, ...]]:
    count = question.tokens if engine.plan.name == "fast" else min(question.tokens, REFERENCE_TOKENS)
    texts: list[tuple[int, ...]] = []
    for sampling in question.samplings:
        with engine.session() as session:
            prompt = question.prompt
            stream = TokenStream(session, Running(BatchRequest(prompt), list(prompt), sampling, count, frozenset()))
            for _ in stream:
                advance(len(texts) * count + len(stream.ids), len(question.samplings) * count)
            texts.append(tuple(stream.ids))
    return texts


def _logits(engine: Engine, sequence: Sequence[int], advance: Progress) -> dict[int, Wide]:
    """Logits after the tokens of a sequence, by position; of the reference plan at a few positions."""
    found = {}
    with engine.session() as session:
        if engine.plan.name == "fast":
            for place, token in enumerate(sequence):
                session.step(token)
                found[place] = session.logits().astype(np.float64)
                advance(place + 1, len(sequence))
            return found
        for place in np.linspace(0, len(sequence) - 1, min(len(sequence), REFERENCE_POSITIONS)).astype(int).tolist():
            session.hold(sequence[: place + 1])
            found[place] = session.logits().astype(np.float64)
            advance(place + 1, len(sequence))
    return found


def _oracle(checkpoint: Checkpoint, sequence: Sequence[int], logits: dict[int, Wide]) -> Wide:
    """Logits [tokens, vocab] in float64; those of the first setting if the family has no oracle."""
    config, rows = checkpoint.config, len(sequence)
    if not is_published(config, checkpoint.formats()):
        return np.stack([logits.get(place, np.full(config.vocab_size, np.nan)) for place in range(rows)])
    plan, arrays = reference_plan(config, all_rows=True), weights_for(checkpoint, "reference")
    found = final_tensors(plan, arrays, {TOKENS: np.asarray(sequence)[:, None]}, {"rows": rows})
    return np.asarray(found[LOGITS][:rows], dtype=np.float64)


def _row(
    setting: RunSetting,
    device: Device,
    engine: Engine,
    question: Question,
    found: Sequence[tuple[int, ...]],
    texts: Sequence[tuple[int, ...]],
    logits: dict[int, Wide],
    expected: Wide,
) -> SameRow:
    drifts = [np.abs(row - expected[place]).max() / np.ptp(expected[place]) for place, row in logits.items()]
    partings = []
    for number, (one, other) in enumerate(zip(found, texts, strict=True)):
        place = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        if place is not None:
            partings.append(_divergence(engine, question, number, place, one, other))
    equal = len(found) - len(partings)
    drift = float(np.nanmax(drifts)) if np.isfinite(drifts).any() else 0.0
    return SameRow(label(setting), device.description, tuple(found), equal, tuple(partings), drift)


def _divergence(
    engine: Engine, question: Question, number: int, place: int, one: Sequence[int], other: Sequence[int]
) -> Divergence:
    """The gap where two texts differ first, by this setting's logits."""
    with engine.session() as session:
        session.hold([*question.prompt, *one[:place]])
        logits = session.logits()
    sampler = Sampler(question.samplings[number])
    for _ in range(place):
        sampler.advance()
    scores = sampler.scores(logits)
    return Divergence(number, place, one[place], other[place], float(scores[one[place]] - scores[other[place]]))


def read_report(text: str, config: ModelConfig) -> tuple[Question, list[list[int]]]:
    """Read a report that was printed as JSON: its question, and the texts of the first setting that ran.

    Raises:
        InputError: the document is not a report, or its prompt has ids outside the vocabulary.
    """
    try:
        found = json.loads(text)
        asked = found["question"]
        samplings = tuple(SamplingOptions(**options) for options in asked["samplings"])
        question = Question(
            tuple(check_ids(asked["prompt"], config)), check_count("max_tokens", asked["tokens"]), samplings
        )
        ran = [row["texts"] for row in found["rows"] if not row["problem"]]
        texts = [[int(token) for token in each] for each in ran[0]]
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError):
        raise InputError(_NO_REPORT) from None
    if len(texts) != len(samplings) or not texts:
        raise InputError(_NO_REPORT)
    return question, texts


@click.command("same")
@click.argument("model", type=click.Path(), default="shakespeare")
@click.option("--prompt", default="ROMEO:", show_default=True, help="Prompt of every text.")
@click.option("--tokens", type=click.IntRange(min=1), default=200, show_default=True, help="Tokens of each text.")
@click.option(
    "--seeds",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help=f"Number of texts sampled at temperature {_TEMPERATURE}, besides the greedy one.",
)
@click.option("--plans", default=",".join(PLANS), show_default=True, help="Plans, comma-separated.")
@click.option("--weights", default="f32", show_default=True, help="Weight formats of the fast plan, comma-separated.")
@click.option(
    "--against",
    type=click.Path(),
    help="A report printed by --json, here or elsewhere; generate its texts again and compare with them.",
)
@tokenizer_option
@json_option
def same_command(
    model: str,
    prompt: str,
    tokens: int,
    seeds: int,
    plans: str,
    weights: str,
    against: str | None,
    tokenizer: str | None,
    as_json: bool,
) -> None:
    """Generate the same texts on every renderer with every plan, and compare them token by token.

    MODEL defaults to the bundled model. Renderers are all EGL devices, and desktop OpenGL if it opens, with the
    driver's limits and with WebGL2's. The reference plan generates only the first tokens. 'drift' is the largest
    difference of a logit from float64, relative to the range of the logits. The exit status is 1 if a text differs.

    \b
    python -m qa same --tokens 100
    python -m qa same --json > llvmpipe.json         then on another machine:
    python -m qa same --against llvmpipe.json
    """
    path, checkpoint = read_model(model)
    checkpoint.check_finite()
    found, reason = find_tokenizer(path, tokenizer, checkpoint.config)
    recorded = None
    if against is not None:
        question, recorded = read_report(read_text(against), checkpoint.config)
    else:
        if found is None:
            raise InputError(reason)
        ids = check_ids(found.encode(prompt), checkpoint.config)
        drawn = [SamplingOptions(temperature=_TEMPERATURE, seed=seed) for seed in range(1, seeds + 1)]
        question = Question(tuple(ids), tokens, (SamplingOptions(temperature=0, seed=0), *drawn))
    with stage_bars() as advance:
        settings = _settings(plans, weights)
        result = compare_everywhere(checkpoint, settings, question, recorded=recorded, on_progress=advance)
    if as_json:
        print_json(result.to_json())
    else:
        _show(result, found)
    if not result.passed:
        raise click.exceptions.Exit(1)


def _settings(plans: str, weights: str) -> list[RunSetting]:
    named, formats = ([name.strip() for name in text.split(",") if name.strip()] for text in (plans, weights))
    for plan in named:
        for kept in formats:
            check_choice(plan, kept if plan == DEFAULT_PLAN else "f32")
    renderers: list[tuple[int | None, str]] = [
        (entry.index, "es") for entry in list_devices() if entry.renderer is not None
    ]
    found = []
    for device, api in [*renderers, (None, "desktop")]:
        for plan in named:
            for kept in formats if plan == DEFAULT_PLAN else ["f32"]:
                setting = RunSetting(plan=plan, weights=kept, device=device, api=api)
                found.append(setting)
                if plan == DEFAULT_PLAN:
                    found.append(dataclasses.replace(setting, limits=LIMITS["webgl2"]))
    return found


def _show(report: SameReport, tokenizer: Tokenizer | None) -> None:
    count = len(report.question.samplings)

    def partings(row: SameRow) -> str:
        return "; ".join(
            f"text {each.text}, token {each.place}: {_word(each.token, tokenizer)} won by {each.gap:.2g} over "
            f"{_word(each.other, tokenizer)}"
            for each in row.partings
        )

    columns = (
        *(Column("setting", "setting"), Column("renderer", lambda row: row.problem or row.renderer)),
        Column("texts", lambda row: None if row.problem else f"{row.equal}/{count}", str),
        Column("drift", lambda row: None if row.problem else row.drift, ".1e"),
        Column("where it parts", partings),
    )
    show_table(Table("Settings", columns, report.rows))
    click.echo(
        f"\n{count} texts of {report.question.tokens} tokens: " + ("all the same" if report.passed else "DIFFER")
    )


def _word(token: int, tokenizer: Tokenizer | None) -> str:
    return str(token) if tokenizer is None else repr(tokenizer.decode([token]))
