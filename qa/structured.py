"""``python -m qa structured``: write texts of the corpus of schemas and expressions, and validate the finished ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from glinfer.cli.common import device_options, loaded, model_options, progress
from glinfer.engine.model import Model
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.requests import BatchRequest, BatchResult

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "structured" / "corpus"
PROMPT = "JULIET:\n"
TOKENS, TEMPERATURE = 200, 1.5


@dataclass(frozen=True)
class Case:
    """One schema or expression of the corpus."""

    name: str
    option: str
    value: Any

    def fault(self, text: str) -> str:
        """What is wrong with a finished text; empty if nothing is."""
        if self.option == "regex":
            return "" if re.fullmatch(self.value, text) else "does not match"
        import jsonschema  # type: ignore[import-untyped]

        try:
            jsonschema.Draft202012Validator(self.value).validate(json.loads(text))
        except ValueError as error:
            return f"is not JSON: {error}"
        except jsonschema.ValidationError as error:
            return f"has not the schema: {error.message}"
        return ""


@dataclass
class Found:
    """What came of the texts: how many there were, how many were finished, forced tokens, and faults by name."""

    texts: int = 0
    finished: int = 0
    tokens: int = 0
    forced: int = 0
    faults: list[tuple[str, str, str]] = field(default_factory=list)
    finished_names: set[str] = field(default_factory=set)


def cases() -> list[Case]:
    """The corpus."""
    lines = (CORPUS / "schemas.jsonl").read_text("utf-8").splitlines()
    found = [Case(each["name"], "json_schema", each["schema"]) for each in map(json.loads, lines)]
    expressions = json.loads((CORPUS / "regexes.json").read_text("utf-8"))
    return [*found, *(Case(f"regex {each}", "regex", each) for each in expressions)]


def check_texts(
    model: Model,
    chosen: Sequence[Case],
    seeds: Sequence[int],
    *,
    tokens: int = TOKENS,
    on_progress: Progress = no_progress,
) -> Found:
    """Write a text of each case with each seed, many together, and validate those that are finished."""
    found = Found()

    def requests() -> Iterator[BatchRequest]:
        for case in chosen:
            for seed in seeds:
                options = {"seed": seed, "temperature": TEMPERATURE, "max_tokens": tokens, case.option: case.value}
                yield BatchRequest(PROMPT, options, key=case)

    for result in model.batch(requests()):
        _count(found, result)
        on_progress(found.texts, len(chosen) * len(seeds))
    return found


def _count(found: Found, result: BatchResult) -> None:
    case = result.request.key
    assert isinstance(case, Case)
    assert result.text is not None
    found.texts += 1
    found.tokens += result.stats.tokens
    found.forced += result.stats.forced
    if not result.stats.complete:
        return
    found.finished += 1
    found.finished_names.add(case.name)
    if fault := case.fault(result.text):
        found.faults.append((case.name, result.text, fault))


@click.command("structured")
@click.argument("model", default="shakespeare")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Texts per case.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First seed.")
@click.option("--only", default="", help="Run only cases whose names contain this text.")
@model_options
@device_options
def structured_command(model: str, seeds: int, first: int, only: str, **options: Any) -> None:
    """Generate texts for every schema and expression of the corpus with MODEL at temperature 1.5.

    jsonschema and Python's re validate each finished text; the exit status is 1 if one is invalid.

    \b
    python -m qa structured --seeds 20
    """
    chosen = [case for case in cases() if only in case.name]
    with loaded(model, tokenizer=None, **options) as opened, progress("writing") as advance:
        found = check_texts(opened, chosen, range(first, first + seeds), on_progress=advance)
    for name, text, fault in found.faults:
        click.echo(f"{name}: {text!r} {fault}")
    never = len({case.name for case in chosen} - found.finished_names)
    click.echo(
        f"{len(chosen)} cases · {found.texts} texts · {found.finished} finished, {len(found.faults)} of them wrong · "
        f"{never} cases never finished · {found.tokens} tokens, {found.forced} of them forced"
    )
    if found.faults:
        raise click.exceptions.Exit(1)
