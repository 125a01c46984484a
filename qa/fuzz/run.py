"""Coverage-guided fuzzing of every reader: ``python -m qa.fuzz.run [TARGET …] --seconds N``, or ``make fuzz``.

Each target runs in a process of its own under atheris (libFuzzer), which keeps what reaches new code. A find does not
end it: each is printed once, by its place, and written to ``--finds``. Inputs that crash or hang are written there by
libFuzzer, and the target continues in a new process. At the end a table shows the runs and the finds.

Needs the package of the extra ``fuzz``, atheris.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

CORPUS = Path(__file__).resolve().parent / "corpus"
ROOT = Path(__file__).resolve().parents[2]
HANG = 20  # seconds by the clock after which libFuzzer ends a process
ADDRESS_SPACE = 3 << 30
RSS = 2048  # MiB
MEMORY = Path("/dev/shm")  # files there are written in a hundredth of the time that a disk takes
_STATUS = re.compile(r"cov: (\d+) ft: (\d+)")


@dataclass
class Result:
    """What came of fuzzing one target.

    Attributes:
        executions: how many files were read.
        seconds: by the clock, starting of processes included.
        coverage: edges of glinfer's code that were reached, as libFuzzer counts them.
        features: the same with how often.
        finds: kinds and places.
    """

    target: str
    executions: int = 0
    seconds: float = 0.0
    coverage: int = 0
    features: int = 0
    finds: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Executions a second."""
        return self.executions / self.seconds if self.seconds else 0.0


# In a process of its own


def fuzz_here(name: str, work: Path, finds: Path, seconds: float, seed: int) -> None:
    """Fuzz one target in this process until the time is up; never returns.

    ``work`` is where libFuzzer keeps what reaches new code; beside it is the folder that the target writes into.
    """
    import atheris

    # Templates are run by jinja2, so what they reach is there.
    with atheris.instrument_imports(include=["glinfer", "safetensors", *(["jinja2"] if name == "template" else [])]):
        import jinja2.sandbox  # noqa: F401 (of the worker's late imports)

        from qa.fuzz.targets import TARGETS
    target = TARGETS[name]
    watched = _watched(name, work, finds)

    def one(data: bytes) -> None:  # libFuzzer has a meaning for what it returns
        watched(data)

    def mutate(data: bytes, most: int, chosen: int) -> bytes:
        random = Random(chosen)
        if random.random() < 0.2:
            return bytes(atheris.Mutate(data, min(most, target.longest)))
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            data = target.mutate(data, random)
        return data[: min(most, target.longest)]

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    options = [
        f"-max_total_time={max(1, round(seconds))}", f"-max_len={target.longest}", f"-timeout={HANG}", f"-seed={seed}",
        f"-rss_limit_mb={RSS}", f"-artifact_prefix={finds}/{name}-", "-print_final_stats=1", "-len_control=0",
        str(work),
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options], one, custom_mutator=mutate)
    atheris.Fuzz()


def _watched(name: str, work: Path, finds: Path) -> Callable[[bytes], bool]:
    """What reads one file of a target, tells and keeps each find once, and says whether the file was accepted."""
    from glinfer.quant import threads
    from qa.fuzz.targets import TARGETS
    from qa.fuzz.watch import watch

    threads.cores = lambda: 1  # arrays as small as these are done before a thread has started
    target = TARGETS[name]
    folder = work.parent / "files"
    folder.mkdir(exist_ok=True)
    target.prepare(folder)
    for data in target.seeds():  # imports and caches of the first time
        with contextlib.suppress(Exception):  # told when it is watched
            target.read(data, folder)
    seen: set[str] = set()

    def one(data: bytes) -> bool:
        outcome = watch(target.read, data, folder, processes=target.processes, programs=target.programs)
        if outcome.is_find and outcome.place not in seen:
            seen.add(outcome.place)
            number = abs(hash(data)) % 10**8
            (finds / f"{name}-{outcome.kind}-{number:08d}").write_bytes(data)
            print(f"FIND {json.dumps([outcome.kind, outcome.place, outcome.detail])}", file=sys.stderr, flush=True)
        return outcome.kind == "accepted"

    return one


# Around it


def fuzz(name: str, seconds: float, finds: Path, work: Path) -> Result:
    """Fuzz one target for so long, in as many processes as it takes."""
    result = Result(name)
    _fill(name, work)
    started = time.monotonic()
    seed = 1
    while (left := seconds - (time.monotonic() - started)) > 1:
        here = ("--here", name, work, finds, left, seed)
        command = [sys.executable, "-m", f"{__package__}.run", *map(str, here)]
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0", "PYTHONPATH": str(ROOT)}
        done = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, cwd=ROOT)
        before = len(result.finds)
        _follow(done, result)
        if done.returncode and len(result.finds) == before and time.monotonic() - started < 5:
            raise SystemExit(f"{name}: fuzzing ended with status {done.returncode} at once")
        seed += 1
    result.seconds = time.monotonic() - started
    return result


def _fill(name: str, work: Path) -> None:
    """Seeds and kept cases, as files to begin with."""
    from qa.fuzz.targets import TARGETS

    for index, data in enumerate(TARGETS[name].seeds()):
        (work / f"seed-{index}").write_bytes(data)
    for file in cases(name):
        shutil.copy(file, work / file.name)


def cases(name: str) -> list[Path]:
    """The kept cases of a target."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())


def _follow(done: subprocess.Popen[bytes], result: Result) -> None:
    """Read what libFuzzer says, to its end."""
    assert done.stderr is not None
    runs = 0
    last = ""
    for line in done.stderr:
        text = line.decode(errors="replace")
        if text.startswith("FIND "):
            kind, place, detail = json.loads(text[5:])
            if not any(found.startswith(f"{kind}: {place}") for found in result.finds):
                result.finds.append(f"{kind}: {place}: {detail}")
        elif match := re.match(r"#(\d+)\s", text):
            runs = int(match[1])
            if status := _STATUS.search(text):
                result.coverage = max(result.coverage, int(status[1]))
                result.features = max(result.features, int(status[2]))
        elif text.startswith("stat::number_of_executed_units"):
            runs = int(text.split()[1])
        elif "ERROR: libFuzzer" in text or "Fatal Python" in text:
            last = " ".join(text.split())[:150]
        elif "Test unit written to" in text:
            result.finds.append(f"died: {last}: {text.split()[-1]}")
    done.wait()
    if done.returncode and done.returncode < 0 and not last:
        result.finds.append(f"died: {signal.Signals(-done.returncode).name}")
    result.executions += runs


def show(results: list[Result]) -> None:
    """Print the results and the finds."""
    from glinfer.cli.common import show_table  # late: what a fuzzing process imports has to be instrumented
    from glinfer.inspect.tables import Column, Table
    from glinfer.terminal import emit

    columns = (
        *(Column("target", "target"), Column("executions", "executions", ","), Column("a second", "rate", ",.0f")),
        *(Column("edges", "coverage", ""), Column("features", "features", "")),
        Column("finds", lambda result: len(result.finds), ""),
    )
    show_table(Table("Targets", columns, results))
    for result in results:
        for find in result.finds:
            emit(f"  {result.target}: {find}")


def _arguments(given: list[str] | None) -> argparse.Namespace:
    from qa.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m qa.fuzz.run", description="Fuzz every reader of files.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)}; all without any")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (60)")
    parser.add_argument("--jobs", type=int, default=2, help="targets at once (2)")
    finds = Path(".cache/fuzz/finds")
    parser.add_argument("--finds", type=Path, default=finds, help="where files go that found something")
    parser.add_argument("--keep", type=Path, help="where files go that reached new code, a folder for each target")
    found = parser.parse_args(given)
    unknown = [name for name in found.targets if name not in TARGETS]
    if unknown:
        parser.error(f"there is no target {unknown[0]!r}; expected one of {', '.join(TARGETS)}")
    if importlib.util.find_spec("atheris") is None:
        from glinfer.errors import install_command

        parser.error(f"fuzzing needs the package atheris; {install_command('fuzz')}")
    found.targets = found.targets or list(TARGETS)
    return found


def main(given: list[str] | None = None) -> int:
    """Fuzz; 1 where something was found."""
    options = _arguments(given)
    options.finds.mkdir(parents=True, exist_ok=True)

    def one(name: str) -> Result:
        with tempfile.TemporaryDirectory(prefix="glinfer-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as scratch:
            work = Path(scratch, "reached")
            work.mkdir()
            result = fuzz(name, options.seconds, options.finds.resolve(), work)
            if options.keep:
                kept = options.keep / name
                kept.mkdir(parents=True, exist_ok=True)
                for file in work.iterdir():
                    shutil.copy(file, kept / file.name)
        print(f"{name}: {result.executions:,} executions, {len(result.finds)} finds", file=sys.stderr, flush=True)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(one, options.targets))
    show(results)
    return int(any(result.finds for result in results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        fuzz_here(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6]))
    sys.exit(main())
