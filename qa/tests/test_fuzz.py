"""Whatever the bytes are: one clear error or a valid result, by few calls, in little memory, and nothing else touched.

The seeds must be read, kept cases must not hurt (qa/fuzz/corpus), and neither must some hundred files that are
damaged anew. `make fuzz` searches for longer, and by coverage.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_process import finished
from tiers import tiered

from qa.fuzz.run import ROOT, Result, cases
from qa.fuzz.targets import TARGETS, Target
from qa.fuzz.watch import Outcome, watch

pytestmark = pytest.mark.fuzz

EXAMPLES, WITH_PROCESS = 30, 4
NAMES = list(TARGETS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lru_cache]:  # type: ignore[type-arg]
    """A folder for each target, in which everything was read once: imports open files too."""

    @cache
    def folder_of(name: str) -> Path:
        target, folder = TARGETS[name], tmp_path_factory.mktemp(name)
        for data in target.seeds():
            target.read(data, folder)
        return folder

    return folder_of


READS = re.compile(
    r"(?<!def )\b(opened|open_source|read_(json|json_list|text|bytes|header|gguf_file)|memmap|fromfile|FileIO|"
    r"safe_open)\("
)
NO_READERS = {
    **dict.fromkeys(("errors", "formats/bundled", "export/drop", "export/page", "gl/self_test"), "files of packages"),
    **dict.fromkeys(("inspect/pages", "server/page"), "files of packages"),
    **dict.fromkeys(("gl/memory", "gl/own", "gl/program", "tensors/own"), "the system's files, or shaders"),
    "inspect/verify/suite": "files of packages",
    **dict.fromkeys(("cli/common", "cli/diff", "cli/evaluate", "cli/options"), "text that is taken as it is"),
    **dict.fromkeys(("cli/generate", "export/convert"), "text that is taken as it is"),
    **dict.fromkeys(("cli/bench", "cli/draws", "cli/info", "cli/profile", "cli/tune", "cli/verify"), "open devices"),
    **dict.fromkeys(("inspect/diff/compare", "inspect/settings"), "open devices"),
    **dict.fromkeys(("engine/tour", "export/tour"), "files that they have just written"),
    "formats/files": "opens for all others",
    "program/texels": "checksums that find any change, tested one by one",
    "llm_plugin": "searches the start of a file for a name",
}
"""Modules whose calls look as if they read files that need a target, and why they do not."""


def test_every_reader_of_files_has_a_target() -> None:
    targeted = {module.removesuffix(".py") for target in TARGETS.values() for module in target.modules}
    root = ROOT / "glinfer"
    found = [path for path in root.rglob("*.py") if READS.search(path.read_text("utf-8"))]
    reading = {path.relative_to(root).with_suffix("").as_posix() for path in found}
    assert not reading - targeted - set(NO_READERS)
    assert not targeted & set(NO_READERS)
    assert not [module for module in targeted if not (root / f"{module}.py").is_file()]


def outcome_of(target: Target, data: bytes, folder: Path, *, memory: bool = False) -> Outcome:
    return watch(
        target.read, data, folder, processes=target.processes, programs=target.programs, memory=memory, counted=True
    )


def test_the_command_starts_outside_of_tests() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = finished([sys.executable, "-m", "qa.fuzz.run", "nothing"], env=environment)
    assert done.returncode == 2
    assert "'nothing' is not one of 'gab', " in done.stderr


def test_what_processes_say_is_added() -> None:
    result = Result("gab")
    for runs, edges in ((12, 30), (5, 20)):
        result.add(
            f'#2 INITED cov: 9 ft: 9\n#{runs} NEW cov: {edges} ft: 9\nFIND ["error", "at a.py:1", "no"]\n'
            "==1== ERROR: libFuzzer: timeout\nTest unit written to /f/gab-timeout-1\n"
        )
    died = {"died: /f/gab-timeout-1": "ERROR: libFuzzer: timeout"}
    assert (result.executions, result.edges, result.finds) == (17, 30, {"error: at a.py:1": "no", **died})


@tiered("name", NAMES, keep=[place for place, name in enumerate(NAMES) if not TARGETS[name].processes])
def test_seeds_and_kept_cases_do_not_hurt(name: str, folders: lru_cache) -> None:  # type: ignore[type-arg]
    target, folder = TARGETS[name], folders(name)
    seeds = list(target.seeds())
    assert seeds
    for data in seeds:
        assert outcome_of(target, data, folder).kind == "accepted"
    for file in cases(name):
        outcome = outcome_of(target, file.read_bytes(), folder)
        assert not outcome.is_find, f"{file}: {outcome}"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_do_not_hurt(name: str, folders: lru_cache) -> None:  # type: ignore[type-arg]
    target, folder = TARGETS[name], folders(name)
    seeds = list(target.seeds())
    for data in seeds:
        assert outcome_of(target, data, folder, memory=True).kind == "accepted"
        made = {target.mutate(data, Random(chosen)) for chosen in range(60)} - {data}
        assert len(made) > (20 if len(data) > 40 else 5), "a mutator that gives its seeds back lets everything pass"

    @settings(max_examples=WITH_PROCESS if target.processes else EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, len(seeds) - 1), st.integers(0, 2**32 - 1), st.integers(1, 4))
    def damaged(seed: int, chosen: int, damages: int) -> None:
        data, random = seeds[seed], Random(chosen)
        for _ in range(damages):
            data = target.mutate(data, random)
        outcome = outcome_of(target, data[: target.longest], folder, memory=True)
        assert not outcome.is_find, f"{outcome} for {data[: target.longest]!r}"

    damaged()
