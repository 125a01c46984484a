"""Fuzz one target in this process, which atheris instruments: ``python -m qa.fuzz.here NAME WORK FINDS SECONDS SEED``.

WORK is where libFuzzer keeps what reaches new code. Each find is printed once, by its place, and written to FINDS.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

# Templates are run by jinja2, so what they reach is there.
with atheris.instrument_imports(include=["glinfer", "safetensors", *["jinja2"] * ("template" in sys.argv)]):
    import jinja2.sandbox  # noqa: F401 (of the worker's late imports)

    from glinfer.quant import threads
    from qa.fuzz.targets import TARGETS
    from qa.fuzz.watch import watch

HANG = 20  # seconds by the clock after which libFuzzer ends a process
ADDRESS_SPACE = 3 << 30
RSS = 2048  # MiB


def main(name: str, work: str, finds: str, seconds: str, seed: str) -> None:
    """Fuzz until the time is up; never returns."""
    target, seen = TARGETS[name], set[str]()
    folder = Path(tempfile.mkdtemp(dir=Path(work).parent))
    threads.cores = lambda: 1  # arrays as small as these are done before a thread has started
    for case in target.seeds():  # imports and caches of the first time
        with contextlib.suppress(Exception):  # told when it is watched
            target.read(case, folder)

    def one(data: bytes) -> None:
        outcome = watch(target.read, data, folder, processes=target.processes, programs=target.programs)
        if outcome.is_find and outcome.place not in seen:
            seen.add(outcome.place)
            Path(finds, f"{name}-{outcome.kind}-{abs(hash(data)) % 10**8:08d}").write_bytes(data)
            print(f"FIND {json.dumps([outcome.kind, outcome.place, outcome.detail])}", file=sys.stderr, flush=True)

    def mutate(data: bytes, most: int, chosen: int) -> bytes:
        random = Random(chosen)
        if random.random() < 0.2:
            return bytes(atheris.Mutate(data, min(most, target.longest)))
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            data = target.mutate(data, random)
        return data[: min(most, target.longest)]

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    options = {
        "max_total_time": seconds, "max_len": target.longest, "timeout": HANG, "seed": seed, "rss_limit_mb": RSS,
        "artifact_prefix": f"{finds}/{name}-", "print_final_stats": 1, "len_control": 0,
    }  # fmt: skip
    arguments = [sys.argv[0], *(f"-{option}={value}" for option, value in options.items()), work]
    atheris.Setup(arguments, one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
