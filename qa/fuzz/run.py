"""Coverage-guided fuzzing of every reader: ``python -m qa.fuzz.run [TARGET …] --seconds N``, or ``make fuzz``.

Each target runs in a process of its own under atheris (libFuzzer), see :mod:`qa.fuzz.here`. A find does not end it.
Inputs that crash or hang are written by libFuzzer, and the target continues in a new process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import click

from glinfer.cli.common import show_table
from glinfer.errors import install_command
from glinfer.inspect.tables import Column, Table
from qa.fuzz.targets import TARGETS
from qa.steps import ROOT

CORPUS = Path(__file__).resolve().parent / "corpus"
_MEMORY = Path("/dev/shm")  # files there are written in a hundredth of the time that a disk takes


@dataclass
class Result:
    """What came of fuzzing one target.

    Attributes:
        executions: how many files were read.
        seconds: by the clock, starting of processes included.
        edges: of glinfer's code that were reached, as libFuzzer counts them.
        finds: kinds and places, with details.
    """

    target: str
    executions: int = 0
    seconds: float = 0.0
    edges: int = 0
    finds: dict[str, str] = field(default_factory=dict)

    def add(self, said: str) -> None:
        """What a process has printed."""
        runs = re.findall(r"^#(\d+)\s|^stat::number_of_executed_units: (\d+)", said, re.MULTILINE)
        self.executions += max((int(one or other) for one, other in runs), default=0)
        self.edges = max([self.edges, *map(int, re.findall(r" cov: (\d+) ft: ", said))])
        for found in re.findall(r"^FIND (.*)$", said, re.MULTILINE):
            kind, place, detail = json.loads(found)
            self.finds.setdefault(f"{kind}: {place}", detail)
        reasons = re.findall(r"ERROR: libFuzzer: .*|Fatal Python.*", said)
        for file in re.findall(r"Test unit written to (\S+)", said):
            self.finds[f"died: {file}"] = " ".join(reasons[-1:])[:150]


def cases(name: str) -> list[Path]:
    """The kept cases of a target."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())


def fuzz(name: str, seconds: float, finds: Path) -> Result:
    """Fuzz one target for so long, in as many processes as it takes."""
    result, started, seed = Result(name), time.monotonic(), 0
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory(prefix="glinfer-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None) as scratch:
        work = Path(scratch, "reached")
        work.mkdir()
        for index, data in enumerate(TARGETS[name].seeds()):
            (work / f"seed-{index}").write_bytes(data)
        for file in cases(name):
            shutil.copy(file, work)
        while (left := seconds - result.seconds) > 1:
            seed, known = seed + 1, len(result.finds)
            command = [sys.executable, "-m", "qa.fuzz.here", name, str(work), str(finds), str(round(left)), str(seed)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, cwd=ROOT)
            result.add(done.stderr)
            result.seconds = time.monotonic() - started
            if done.returncode < 0 and len(result.finds) == known:
                result.finds[f"died: signal {-done.returncode}"] = "without a file"
            elif done.returncode and not result.executions:
                raise click.ClickException(f"{name}: fuzzing ended at once: {done.stderr.strip()[-300:]}")
    click.echo(f"{name}: {result.executions:,} executions, {len(result.finds)} finds", err=True)
    return result


@click.command()
@click.argument("targets", nargs=-1, type=click.Choice(list(TARGETS)), metavar="[TARGET]...")
@click.option("--seconds", type=click.FloatRange(2), default=60.0, show_default=True, help="For each target.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Targets at once.")
@click.option("--finds", type=click.Path(path_type=Path), default=Path(".cache/fuzz/finds"), show_default=True,
              help="Folder for the files that found something.")  # fmt: skip
def main(targets: tuple[str, ...], seconds: float, jobs: int, finds: Path) -> None:
    """Fuzz every reader of files, or some. The exit status is 1 if something was found."""
    if importlib.util.find_spec("atheris") is None:
        raise click.UsageError(f"fuzzing needs the package atheris; {install_command('fuzz')}")
    finds.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda name: fuzz(name, seconds, finds.resolve()), targets or TARGETS))
    columns = (
        *(Column("target", "target"), Column("executions", "executions", ",")),
        Column("a second", lambda result: result.executions / result.seconds, ",.0f"),
        *(Column("edges", "edges", ""), Column("finds", lambda result: len(result.finds), "")),
    )
    show_table(Table("Targets", columns, results))
    for result in results:
        for find, detail in result.finds.items():
            click.echo(f"  {result.target}: {find}: {detail}")
    sys.exit(any(result.finds for result in results))


if __name__ == "__main__":
    main()
