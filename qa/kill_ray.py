"""Run a batch on a Ray cluster of three nodes on this machine, and kill its actors and nodes at random moments."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from glinfer.cli.common import json_option, print_json
from glinfer.config import ModelConfig
from glinfer.engine.random_model import write_demo
from glinfer.errors import InputError
from glinfer.jobs.job import BatchFiles, BatchJob
from glinfer.jobs.lines import LineResult, RequestLine
from glinfer.jobs.local import LocalSetup
from glinfer.jobs.manifest import file_digest
from glinfer.jobs.pool import Pool
from glinfer.jobs.requests import RequestForm
from glinfer.ray.member import RESOURCE, RayMember, ray_pool
from qa.kill_batch import REQUESTS, ROOT, SHAPE, BatchCommand, BrokenPromiseError, KillReport, check_same

_STORE = 80_000_000
_NODES = 3
_STARTS = 5


@dataclass
class RayReport:
    """Counts of one run on a cluster."""

    prompts: int
    actors: int = 0
    nodes: int = 0
    deaths: int = 0
    single_seconds: float = 0.0
    cluster_seconds: float = 0.0


class _Killing:
    """A pool whose actors and nodes die after some results, at random."""

    def __init__(
        self, pool: Pool, cluster: Any, moments: dict[int, str], rng: random.Random, report: RayReport
    ) -> None:
        self.pool, self.cluster, self.moments, self.rng, self.report = pool, cluster, moments, rng, report

    def run(self, lines: Iterator[RequestLine]) -> Iterator[LineResult]:
        for count, result in enumerate(self.pool.run(lines), start=1):
            yield result
            kind = self.moments.get(count)
            if kind == "actor":
                self._kill_actor()
            elif kind == "node":
                self._replace_node()

    def _kill_actor(self) -> None:
        """Kill the process of an actor that is ready."""
        ray = import_module("ray")
        ready = [place.member for place in self.pool._places if place.window]
        if not ready:
            return
        member = self.rng.choice(ready)
        assert isinstance(member, RayMember)
        with contextlib.suppress(ray.exceptions.RayError, ProcessLookupError):
            os.kill(ray.get(member.actor.pid.remote(), timeout=60), signal.SIGKILL)
            self.report.actors += 1

    def _replace_node(self) -> None:
        """Take a node away without a word, and add another one; the head has to stay."""
        node = self.rng.choice(sorted(self.cluster.worker_nodes, key=lambda each: each.unique_id))
        self.cluster.remove_node(node, allow_graceful=False)
        self.cluster.add_node(**_node())
        self.report.nodes += 1


def _node() -> dict[str, Any]:
    return {"num_cpus": 1, "resources": {RESOURCE: 1}, "object_store_memory": _STORE}


@contextlib.contextmanager
def cluster_of(nodes: int) -> Iterator[Any]:
    """A Ray cluster on this machine within the block, with one device in each node; actors find this checkout."""
    make, ray = import_module("ray.cluster_utils").Cluster, import_module("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before)))
    try:
        for left in reversed(range(_STARTS)):
            cluster = make(initialize_head=False)
            try:
                for _ in range(nodes):
                    cluster.add_node(**_node())
                break
            except Exception:  # Ray gives a node half a minute, which a busy machine may need longer for
                cluster.shutdown()
                if not left:
                    raise
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def torment_cluster(
    folder: Path, *, prompts: int, kills: int, nodes: int, seed: int, say: Callable[[str], None]
) -> RayReport:
    """Run a batch on a cluster while it is killed, and compare with a single process.

    Args:
        folder: an empty folder; everything stays in it.
        prompts: requests of the batch.
        kills: actors to kill.
        nodes: nodes to take away.
        seed: seed of requests and moments.
        say: called with a line now and then.

    Raises:
        BrokenPromiseError: a result was lost, doubled or changed.
    """
    rng, report = random.Random(seed), RayReport(prompts)
    model, _ = write_demo(folder / "model", ModelConfig.from_options(SHAPE))
    source, expected, out = (folder / name for name in ("prompts.jsonl", "expected.jsonl", "results.jsonl"))
    REQUESTS.write(source, prompts, seed)
    started = time.monotonic()
    BatchCommand(model, source, expected, KillReport(0), REQUESTS).run()
    report.single_seconds = time.monotonic() - started
    say(f"one process: {report.single_seconds:.1f} s")
    places = rng.sample(range(1, max(kills + nodes + 1, prompts * 9 // 10)), kills + nodes)
    moments = dict(zip(places, ["actor"] * kills + ["node"] * nodes, strict=True))
    setup, digests = LocalSetup([("m", str(model), {})]), {"m": file_digest(model)}
    with cluster_of(_NODES) as cluster:
        started = time.monotonic()
        with (
            BatchJob(RequestForm(), BatchFiles(source, out), {}) as job,
            ray_pool(cluster.address, setup, digests) as pool,
        ):
            job.run(_Killing(pool, cluster, moments, rng, report))
            report.deaths = pool.deaths
        report.cluster_seconds = time.monotonic() - started
    check_same(out, expected, source, REQUESTS)
    return report


@click.command("kill-ray")
@click.option("--prompts", type=click.IntRange(min=1), default=10_000, show_default=True, help="Number of requests.")
@click.option("--kills", type=click.IntRange(min=0), default=20, show_default=True, help="Number of actors to kill.")
@click.option("--nodes", type=click.IntRange(min=0), default=4, show_default=True, help="Number of nodes to remove.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of requests and times.")
@json_option
def kill_ray(prompts: int, kills: int, nodes: int, seed: int, as_json: bool) -> None:
    """Run a batch on a Ray cluster of three nodes on this machine, and kill actors and nodes at random times.

    Every result must exist exactly once and equal that of a single process. Needs ray.

    \b
    python -m qa kill-ray
    python -m qa kill-ray --prompts 300 --kills 2 --nodes 1

    \b
    Exit status:
      0  every result equals that of a single process
      1  a result was lost, duplicated or changed
      2  bad input, or Ray is missing
    """
    try:
        import_module("ray.cluster_utils")
    except ImportError:
        raise InputError("kill-ray needs the package ray, which is not installed; pip install 'ray[data]'") from None
    place = Path(tempfile.mkdtemp(prefix="kill-ray-"))
    try:
        report = torment_cluster(
            place,
            prompts=prompts,
            kills=kills,
            nodes=nodes,
            seed=seed,
            say=lambda line: None if as_json else click.echo(line),
        )
    except BrokenPromiseError as error:
        click.echo(f"WRONG (seed {seed}, files in {place}): {error}", err=True)
        raise click.exceptions.Exit(1) from None
    shutil.rmtree(place)
    if as_json:
        print_json(vars(report))
        return
    click.echo(
        f"{prompts} requests on {_NODES} nodes, each with the result of one process: {report.actors} actors killed, "
        f"{report.nodes} nodes taken away, {report.deaths} deaths seen; "
        f"{report.single_seconds:.0f} s in one process, {report.cluster_seconds:.0f} s on the cluster"
    )
