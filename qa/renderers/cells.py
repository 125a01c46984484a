"""The checks of one renderer, in a process that its environment has started: ``python -m qa.renderers.cells``.

A JSON document of settings comes in, see :class:`Asked`; a line of JSON goes out for each check when it is done.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import glinfer
from glinfer.engine.model import Model
from glinfer.errors import GlinferError
from glinfer.formats import load_checkpoint
from glinfer.gl.context import Limits, open_device
from glinfer.inspect.settings import RunSetting
from glinfer.inspect.verify.suite import CheckOptions, verify_everywhere
from glinfer.tensors.device import Device
from qa.kernels.measure import all_cases, case_results, error_of
from qa.renderers.operations import OPERATIONS, digest, draw_all
from qa.renderers.table import Cell
from tests.goldens import gab_records, recorded, write_gab_model
from tests.goldens.figures import Figures
from tests.goldens.models import write_recorded

FAMILIES = ("llama", "gpt2")
"""Models with figures of transformers: rotary positions and RMSNorm, learned positions and LayerNorm."""
BARE = (*FAMILIES, "gemma3", "lfm2", "qwen3_5")
"""Models with figures of transformers that run without any extension."""
GAB = (("tiny", "reference", "driver"), ("odd", "fast", "webgl2"))
"""Models with probabilities of the original engine, by which plan, within which limits."""
OF_RANGE = 1e-4
"""Largest error of the families' logits, of their range."""
PROBABILITIES = {"webgl_probs": 5e-6, "cpu_probs": 1e-6}
"""Largest error of Gab's probabilities."""
GIVEN = 100
"""Tokens of a family's prompt; those after them are generated."""
SEED, TEMPERATURE = 1, 0.8
"""Of the drawn texts."""

_PROMPT = [82, 79, 77, 69, 79, 58]  # ROMEO:
_SHAPE = (31, 257)
_LIMITS = {"driver": None, "webgl2": Limits.webgl2_minimum()}


@dataclass(frozen=True)
class Asked:
    """What a renderer is asked for.

    Attributes:
        api: ``es`` or ``desktop``.
        expects: words that the description of the renderer has to have, or another one was opened.
        tokens: tokens of each text.
        texts: the texts of the first renderer by model; empty for that one itself.
    """

    api: str
    expects: tuple[str, ...] = ()
    tokens: int = 24
    texts: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)


@cache
def models_folder() -> Path:
    """The folder of the models of this process, which goes when it ends."""
    folder = tempfile.TemporaryDirectory(prefix="glinfer-renderers-")
    models_folder.kept = folder  # type: ignore[attr-defined]
    return Path(folder.name)


@cache
def golden_file(name: str) -> Path:
    """A model with recorded figures, written when it is first asked for: one of the families or of Gab's."""
    if name in BARE:
        return write_recorded(name, models_folder() / name)
    return write_gab_model(name, models_folder() / f"{name}.gab")


@cache
def figures_of(family: str) -> Figures:
    """The figures of a family."""
    return Figures.from_json(recorded("families")[family])


def prompt_of(model: str) -> list[int]:
    """What the texts of a model begin with."""
    return _PROMPT if model == "shakespeare" else figures_of(model).ids[:7]


def gab_record(name: str) -> dict[str, Any]:
    """The shortest record of one of Gab's models."""
    return min(gab_records(name), key=lambda record: len(record["tokens"]))


def gab_error(record: Mapping[str, Any], probs: np.ndarray[Any, Any]) -> float:
    """The largest error of probabilities, of what is allowed; infinite where another token is the likeliest."""
    if int(probs.argmax()) != record["argmax"]:
        return np.inf
    errors = [np.abs(probs - record[key]).max() / most for key, most in PROBABILITIES.items() if key in record]
    return float(max(errors))


def _families(names: Sequence[str], limits: Limits | None, tokens: int) -> tuple[float, list[str], dict[str, Any]]:
    """The largest error of the families' logits, of what is allowed; those with other tokens; and all logits."""
    worst, wrong, found = 0.0, list[str](), dict[str, Any]()
    for name in names:
        figures = figures_of(name)
        with glinfer.load(golden_file(name), limits=limits) as model, model.session() as session:
            session.prefill(figures.ids[:GIVEN])
            found[name] = session.logits()
            worst = max(worst, figures.error(GIVEN - 1, found[name]) / OF_RANGE)
            if model.generate(figures.ids[:GIVEN], max_tokens=tokens, temperature=0) != figures.ids[GIVEN:][:tokens]:
                wrong.append(name)
    return worst, wrong, found


def check_goldens(asked: Asked) -> Cell:
    """Recorded probabilities, logits and greedy tokens of four models."""
    worst, wrong, found = _families(FAMILIES, None, asked.tokens)
    for name, plan, limits in GAB:
        record = gab_record(name)
        with glinfer.load(golden_file(name), plan=plan, limits=_LIMITS[limits]) as model:
            found[name] = model.probs(record["tokens"])
        worst = max(worst, gab_error(record, found[name]))
    words = f"{len(found)} models, at {worst:.0%} of the tolerance"
    words += f"; other tokens: {', '.join(wrong)}" if wrong else ""
    bits = {f"model {name}": digest(numbers) for name, numbers in found.items()}
    return Cell("goldens", not wrong and worst <= 1, words, bits)


def check_bare(asked: Asked) -> Cell:
    """Recorded logits and greedy tokens of five families within WebGL2's limits, without extensions."""
    worst, wrong, found = _families(BARE, _LIMITS["webgl2"], asked.tokens)
    plain = _families(BARE, None, 1)[2]
    other = [name for name in BARE if not np.array_equal(plain[name], found[name])]
    words = f"{len(BARE)} families, at {worst:.0%} of the tolerance"
    words += f"; other bits than with float targets: {', '.join(other)}" if other else ""
    words += f"; other tokens: {', '.join(wrong)}" if wrong else ""
    return Cell("bare", not wrong and worst <= 1, words)


def check_texts(asked: Asked) -> Cell:
    """A greedy text and a drawn one of three families, token by token those of the first renderer."""
    texts, parted = dict[str, list[list[int]]](), list[str]()
    drawn: dict[str, Any] = {"seed": SEED, "top_k": 0, "top_p": 1.0, "stop_ids": (), "max_tokens": asked.tokens}
    for name in ("shakespeare", *FAMILIES):
        with glinfer.load(name if name == "shakespeare" else golden_file(name), weights="f32") as model:
            texts[name] = [model.generate(prompt_of(name), temperature=each, **drawn) for each in (0, TEMPERATURE)]
        for text, expected in zip(texts[name], asked.texts.get(name, texts[name]), strict=True):
            pairs = enumerate(zip(text, expected, strict=False))
            parted += [f"{name} at token {place}" for place, (one, other) in pairs if one != other][:1]
    count = 2 * len(texts)
    return Cell("texts", not parted, "; ".join([f"{count - len(parted)} of {count}", *parted]), texts=texts)


def check_batch(asked: Asked) -> Cell:
    """Texts of a batch and scores of several texts, each as it is alone: the scores bit for bit."""
    different = []
    for name in FAMILIES:
        ids = figures_of(name).ids
        prompts = [ids[start : start + length] for start, length in ((0, 1), (3, 5), (9, 17), (30, 40), (2, 5))]
        options: dict[str, Any] = {"max_tokens": min(asked.tokens, 12), "temperature": TEMPERATURE, "seed": SEED}
        with glinfer.load(golden_file(name)) as model:
            if model.generate(prompts, **options) != [model.generate(prompt, **options) for prompt in prompts]:
                different.append(f"texts of {name}")
            if not _scores_agree(model, prompts[1:]):
                different.append(f"scores of {name}")
    return Cell("batch", not different, f"differ: {', '.join(different)}" if different else "equals alone")


def _scores_agree(model: Model, texts: Sequence[Sequence[int]]) -> bool:
    alone = [model.score([text])[0].logprobs for text in texts]
    return all(np.array_equal(one.logprobs, other) for one, other in zip(model.score(texts), alone, strict=True))


def check_draws(asked: Asked) -> Cell:
    """Every draw of a token in float64, textures, and greedy tokens: ``glinfer verify --draws --greedy``."""
    count, worst = 0, 0.0
    for name, plan in (*((family, "fast") for family in FAMILIES), ("tiny", "reference")):
        ids = figures_of(FAMILIES[0]).ids[:6]
        setting = RunSetting(plan=plan, weights="f32", api=asked.api)
        options = CheckOptions(draws=True, ids=ids, greedy=3)
        report = verify_everywhere(load_checkpoint(golden_file(name)), [setting], options)
        if not report.passed:
            (run,) = report.runs or (None,)
            first = None if run is None else run.first_bad_draw
            why = report.unusable[0].problem if run is None else run.problem or (first and first.name) or "textures"
            return Cell("draws", False, f"{name}: {why}")
        count += len(report.runs[0].draws)
        worst = max(worst, *(draw.max_relative_error for draw in report.runs[0].draws))
    return Cell("draws", True, f"{count} draws, within {worst:.1e}")


def check_kernels(_: Asked) -> Cell:
    """Every kernel of ``device.ops`` at one shape in some of its forms, in float64; see qa/kernels."""
    bits, wrong, worst = {}, list[str](), 0.0
    cases = all_cases()
    with Device() as device:
        for case in cases:
            results, error = list[Any](), 0.0
            for form in (case.forms[0], *case.forms[2::9]):
                found = case_results(case, device, form, _SHAPE)
                results += [digest(one) for one, _ in found]
                error = max(error, error_of(found))
            bits[f"kernel {case.kernel}"] = digest(np.array(results))
            worst = max(worst, error)
            if error > case.tolerance:
                wrong.append(f"{case.kernel} {error:.1e}")
    words = f"wrong: {', '.join(wrong)}" if wrong else f"{len(cases)} kernels, within {worst:.1e}"
    return Cell("kernels", not wrong, words, bits)


def check_operations(_: Asked) -> Cell:
    """The bits of single operations of GLSL; how far they are from float64 is only told."""
    with open_device() as device:
        found = draw_all(device)
    words = ", ".join(f"{name} {OPERATIONS[name].error(numbers):.1f}" for name, numbers in found.items())
    return Cell("operations", True, words, {name: digest(numbers) for name, numbers in found.items()})


CHECKS: tuple[Callable[[Asked], Cell], ...] = (
    *(check_operations, check_goldens, check_bare, check_texts, check_batch, check_draws, check_kernels),
)


def main() -> None:
    """Run the checks that standard input asks for, and print what each finds."""
    given = json.load(sys.stdin)
    asked = Asked(**{**given, "expects": tuple(given["expects"])})
    with open_device() as device:
        description = device.description
    print(json.dumps({"renderer": description}), flush=True)
    if not all(words in description for words in asked.expects):
        return
    for check in CHECKS:
        began = time.process_time()
        try:
            found = check(asked)
        except GlinferError as error:
            found = Cell(check.__name__.removeprefix("check_"), False, str(error))
        print(json.dumps({**asdict(found), "seconds": round(time.process_time() - began, 1)}), flush=True)


if __name__ == "__main__":
    main()
