"""Ray: a cluster of three nodes on this machine, of which an actor and a node die."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import refused
from json_lines import results_in, write_lines

pytest.importorskip("ray", reason="ray is not installed")

from glinfer.cli.app import run
from glinfer.errors import InputError
from glinfer.jobs.lines import RequestLine
from glinfer.jobs.local import LocalRunner, LocalSetup
from glinfer.jobs.manifest import file_digest
from glinfer.ray.member import RESOURCE, RayMember, _devices, ray_pool
from qa.kill_batch import ROOT, comparable

COUNT = 60
NODE: dict[str, Any] = {"num_cpus": 1, "resources": {RESOURCE: 1}, "object_store_memory": 80_000_000}


def test_devices_are_counted_by_their_own_name_or_as_gpus() -> None:
    assert _devices({"CPU": 8, "GL": 3, "GPU": 4}) == (3, {"resources": {"GL": 1}, "num_cpus": 0})
    assert _devices({"CPU": 8, "GPU": 4}) == (4, {"num_gpus": 1, "num_cpus": 0})
    with pytest.raises(InputError, match="the cluster has neither GL nor GPU; start each node with its devices"):
        _devices({"CPU": 8})


def requests() -> list[RequestLine]:
    bodies = [{"model": "m", "prompt": "Once"[: 1 + number % 4], "max_tokens": 6} for number in range(1, COUNT + 1)]
    return [RequestLine(number, f"r{number}", "/v1/completions", body) for number, body in enumerate(bodies, start=1)]


def rows() -> list[dict[str, Any]]:
    return [{"custom_id": each.key, "method": "POST", "url": each.url, "body": each.body} for each in requests()]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes, each with one device, whose actors find this checkout."""
    import ray
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    for left in reversed(range(5)):
        made = Cluster(initialize_head=False)
        try:
            for _ in range(3):
                made.add_node(**NODE)
            break
        except Exception:  # Ray gives a node half a minute, which a busy machine may need longer for
            made.shutdown()
            if not left:
                raise
    yield made
    ray.shutdown()
    made.shutdown()
    patch.undo()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, small: Path) -> dict[str, Any]:
    """What one process gives."""
    with LocalRunner(LocalSetup([("m", str(small), {})])) as runner:
        return {each.line.key: comparable(each.data) for each in runner.run(iter(requests()))}


def results(path: Path) -> dict[str, Any]:
    return {key: comparable(line) for key, line in results_in(path).items()}


@pytest.mark.slow
@pytest.mark.gl
class TestCluster:
    def test_a_dataset(self, cluster: Any, expected: dict[str, Any], small: Path) -> None:
        import ray.data

        from glinfer.ray import Generator

        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = [{"id": each.key, "prompt": each.body["prompt"]} for each in requests()]
        try:
            made = ray.data.from_items(rows).map_batches(
                Generator,
                fn_constructor_args=(str(small),),
                fn_constructor_kwargs={"key": "id", "body": {"max_tokens": 6}},
                compute=ray.data.ActorPoolStrategy(size=1),
                batch_size=20,
                num_cpus=0,
                resources={"GL": 1},
            )
            found = made.take_all()
        finally:
            ray.shutdown()
        assert len(found) == COUNT
        texts = {key: each["response"]["body"]["choices"][0]["text"] for key, each in expected.items()}
        assert {row["id"]: row["generated_text"] for row in found} == texts
        assert {row["error"] for row in found} == {None}

    def test_the_command(
        self, cluster: Any, expected: dict[str, Any], small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source, out = write_lines(tmp_path / "in.jsonl", *rows()), tmp_path / "out.jsonl"
        arguments = ["run-batch", "-i", str(source), "-o", str(out), "--ray", cluster.address]
        assert run([*arguments, f"m={small}"]) == 0
        assert capsys.readouterr().err.startswith(f"{COUNT} lines done · ")
        assert results(out) == expected
        assert run([*arguments, "--restart", f"m={tmp_path / 'none.gab'}"]) == 2
        assert results(out) == expected

    def test_an_actor_and_a_node_that_die_lose_no_result(
        self, cluster: Any, expected: dict[str, Any], small: Path
    ) -> None:
        import ray

        def lines() -> Iterator[RequestLine]:
            for line in requests():
                if line.number == 6:  # the rest of this member's lines goes to an actor that is dead
                    filled = next(each for each in pool._workers if len(each.held) < each.window)
                    assert isinstance(filled.member, RayMember)
                    os.kill(ray.get(filled.member.actor.pid.remote(), timeout=60), signal.SIGKILL)
                yield line

        found = {}
        with ray_pool(cluster.address, LocalSetup([("m", str(small), {})]), {"m": file_digest(small)}) as pool:
            for result in pool.run(lines()):
                found[result.line.key] = comparable(result.data)
                if len(found) == 25:  # the head has to stay
                    cluster.remove_node(sorted(cluster.worker_nodes, key=lambda node: node.unique_id)[0])
                    cluster.add_node(**NODE)
            assert pool.deaths >= 1
        assert found == expected

    def test_a_node_with_another_file_is_refused(self, cluster: Any, small: Path) -> None:
        setup = LocalSetup([("m", str(small), {})])
        with (
            pytest.raises(InputError, match="a node has another file there"),
            ray_pool(cluster.address, setup, {"m": "0" * 16}),
        ):
            pass


def test_no_cluster(small: Path) -> None:
    with (
        pytest.raises(InputError, match=r"no Ray cluster at 127\.0\.0\.1:1: .*refused; start one with: ray start"),
        ray_pool("127.0.0.1:1", LocalSetup([("m", str(small), {})]), {}),
    ):
        pass


def test_a_missing_package_is_named(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    source = write_lines(tmp_path / "in.jsonl", rows()[0])
    err = refused(capsys, "run-batch", "-i", source, "-o", tmp_path / "o", "--ray", "auto", f"m={small}")
    assert re.search("--ray needs the package ray, which is not installed; .*pip install", err)
