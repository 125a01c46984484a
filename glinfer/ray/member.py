"""Actors of a Ray cluster as members of a pool, for ``run-batch --ray``."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from glinfer import __version__
from glinfer.errors import GlinferError, InputError, required
from glinfer.formats import find_model
from glinfer.formats.files import words_of
from glinfer.jobs.claims import RESTART_SECONDS, claim_device
from glinfer.jobs.lines import RequestLine
from glinfer.jobs.local import LocalServer, LocalSetup
from glinfer.jobs.manifest import file_digest
from glinfer.jobs.pool import Answered, Died, Events, Failed, Member, Pool, Ready

_REACH_SECONDS = 10
RESOURCE = "GL"
"""Ray's resource name for devices of glinfer; each node declares its number."""


def _ray() -> Any:
    return required("ray", "ray", "--ray needs")


class Answerer:
    """An actor: claims a device of its machine, loads the models, and answers lines."""

    async def start(self, result: Mapping[str, Any], version: str, digests: Mapping[str, str]) -> Ready | Failed:
        """Load the models; Failed if they cannot be loaded or differ from ``digests``."""
        try:
            if version != __version__:
                raise InputError(f"a node has glinfer {__version__}; expected {version}, as on this machine")
            setup = LocalSetup(**result)
            for name, path, _ in setup.models:
                if file_digest(find_model(path)) != digests[name]:
                    raise InputError(f"{path}: a node has another file there; expected the file of this machine")
            self.claim = claim_device(wait=RESTART_SECONDS) if setup.device is None else None
            device = setup.device if self.claim is None else self.claim.index
            self.server = LocalServer(replace(setup, device=device))
            await self.server.start()
        except GlinferError as error:
            return Failed(InputError(str(error)))
        return Ready(self.server.window, self.server.renderer)

    async def pid(self) -> int:
        """The process id of the actor."""
        return os.getpid()

    async def answer(self, number: int, line: RequestLine) -> Answered:
        """The result of a line."""
        return Answered.by(number, await self.server.answer(line), self.server.draws)


class RayMember(Member):
    """An actor, which the pool restarts instead of Ray."""

    def __init__(self, actor: Any, setup: LocalSetup, digests: Mapping[str, str], events: Events) -> None:
        """Start the actor; ``actor`` is Ray's remote class with its resources."""
        self._events = events
        self.actor = actor.remote()
        self._when_done(self.actor.start.remote(asdict(setup), __version__, dict(digests)))

    def _when_done(self, reference: Any) -> None:
        def done(future: Any) -> None:
            error = future.exception()
            self._events.put((self, future.result() if error is None else Died(words_of(error))))

        reference.future().add_done_callback(done)

    def send(self, number: int, line: RequestLine) -> None:
        """Send a line."""
        self._when_done(self.actor.answer.remote(number, line))

    def close(self) -> None:
        """Kill the actor."""
        _ray().kill(self.actor)


@contextmanager
def ray_pool(address: str, setup: LocalSetup, digests: Mapping[str, str]) -> Iterator[Pool]:
    """A pool with an actor for each device of the cluster at ``address``, which is that of ``ray.init``."""
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        try:
            _reach(address)
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError) as error:
            said = words_of(error)
            raise InputError(f"there is no Ray cluster at {address}: {said}; start one with: ray start") from None
    try:
        count, needs = _devices(ray.cluster_resources())
        actor = ray.remote(Answerer).options(max_restarts=0, max_task_retries=0, **needs)
        with Pool([partial(RayMember, actor, setup, digests)] * count) as pool:
            yield pool
    finally:
        if ours:
            ray.shutdown()


def _reach(address: str) -> None:
    """Check within seconds that the address answers, else OSError; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()


def _devices(resources: Mapping[str, float]) -> tuple[int, dict[str, Any]]:
    """The number of actors that a cluster has room for, and the resources of each."""
    if (count := int(resources.get(RESOURCE, 0))) > 0:
        return count, {"resources": {RESOURCE: 1}, "num_cpus": 0}
    if (count := int(resources.get("GPU", 0))) > 0:
        return count, {"num_gpus": 1, "num_cpus": 0}
    raise InputError(
        f"the cluster has neither {RESOURCE} nor GPU; start each node with its devices: "
        f"ray start --resources='{{\"{RESOURCE}\": 1}}' …"
    )
