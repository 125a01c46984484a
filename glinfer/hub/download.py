"""Fetch files into the cache: resume earlier downloads, and compare every hash before a file is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from glinfer.errors import HubError
from glinfer.formats.files import shown
from glinfer.hub.cache import RepositoryCache, disk_errors, free_bytes, hub_folder
from glinfer.hub.client import Client, CutOffError, DistrustError
from glinfer.hub.listing import RemoteFile, Repository

Arrived = Callable[[int], None]
"""Called with the number of new bytes since its last call; negative if bytes were discarded."""
_TRIES = 5
_CHUNK = 1 << 20
_LONGEST_PAUSE = 8.0
pause = time.sleep
"""Waits N seconds between two attempts; tests replace it."""


def missing_bytes(repository: Repository, cache: RepositoryCache, files: Sequence[RemoteFile]) -> int:
    """The number of bytes still to fetch."""
    return sum(
        file.size - cache.arrived(file)
        for file in {file.digest: file for file in files if not cache.has(repository.commit, file)}.values()
    )


def check_disk(repository: Repository, needed: int) -> None:
    """Refuse a download that does not fit on the disk.

    Raises:
        HubError: the disk has fewer than ``needed`` bytes free.
    """
    folder = hub_folder()
    free = free_bytes(folder)
    if free is not None and needed > free:
        raise HubError(
            f"{repository.name}: the download needs {needed / 1e9:.2f} GB, but the disk of {shown(folder)} has "
            f"{free / 1e9:.2f} GB free; make room, or set HF_HOME to another disk"
        )


def fetch(
    client: Client, repository: Repository, cache: RepositoryCache, files: Sequence[RemoteFile], arrived: Arrived
) -> None:
    """Fetch the files that the cache lacks, and link their names.

    Raises:
        HubError: a file cannot be fetched, or differs from the hub's list and is discarded.
        CutOffError: the connection broke repeatedly; the received bytes stay, and the next call resumes.
    """
    for file in files:
        if cache.has(repository.commit, file):
            continue
        with disk_errors(repository.name, cache.folder):
            with cache.lock(file):
                blob = cache.blob(file)
                if not blob.is_file() or blob.stat().st_size != file.size:
                    _fetch_blob(client, repository, cache, file, arrived)
            cache.link(repository.commit, file)


def seed(cache: RepositoryCache, file: RemoteFile, source: Path, count: int) -> None:
    """Copy the first ``count`` bytes of a file from ``source``, so that they are not fetched twice."""
    place = cache.incomplete(file)
    if not count or cache.arrived(file):
        return
    with cache.lock(file), source.open("rb") as copy, place.open("wb") as partial:
        while count and (chunk := copy.read(min(count, _CHUNK))):
            count -= partial.write(chunk)


def _fetch_blob(
    client: Client, repository: Repository, cache: RepositoryCache, file: RemoteFile, arrived: Arrived
) -> None:
    place = cache.incomplete(file)
    digest = ""
    for again in (False, True):
        with place.open("r+b" if place.exists() else "w+b") as partial:
            gathered = _Gathered(file, partial, arrived)
            begun = gathered.resume(fresh=again)
            try:
                _fill(client, repository.commit, gathered)
            except DistrustError:
                place.unlink()
                raise
        digest = gathered.digest
        if digest == file.digest:
            place.replace(cache.blob(file))
            return
        if not begun:
            break
    place.unlink()
    raise DistrustError(
        f"{repository.name}: {shown(file.path)} arrived with the hash {digest}; expected {file.digest}; the file was "
        "discarded; try again, and if this repeats, do not trust the sender"
    )


class _Gathered:
    """The received bytes of a file, and their hash."""

    def __init__(self, file: RemoteFile, partial: BinaryIO, arrived: Arrived) -> None:
        self.file, self._partial, self._arrived = file, partial, arrived
        self._hasher = file.hasher()
        self.count = 0

    @property
    def digest(self) -> str:
        return str(self._hasher.hexdigest())

    def resume(self, *, fresh: bool) -> int:
        """Keep the bytes of an earlier attempt, or discard them; return their number."""
        self._partial.seek(0)
        while chunk := self._partial.read(_CHUNK):
            self._hasher.update(chunk)
            self.count += len(chunk)
        if fresh or self.count > self.file.size:
            self.restart()
        return self.count

    def restart(self) -> None:
        """Discard all bytes."""
        self._arrived(-self.count)
        self._partial.seek(0)
        self._partial.truncate()
        self._hasher, self.count = self.file.hasher(), 0

    def add(self, chunk: bytes) -> None:
        """Append bytes."""
        self._partial.write(chunk)
        self._hasher.update(chunk)
        self.count += len(chunk)
        self._arrived(len(chunk))


def _fill(client: Client, commit: str, gathered: _Gathered) -> None:
    """Fetch the missing bytes, in several attempts if the connection breaks.

    Raises:
        CutOffError: several attempts in a row brought nearly nothing.
    """
    file, failed = gathered.file, 0
    while (at := gathered.count) < file.size:
        broke = None
        try:
            _receive(client, commit, gathered)
        except CutOffError as error:
            broke = error
        failed = 0 if gathered.count - at >= _CHUNK else failed + 1
        if gathered.count < file.size:
            if failed >= _TRIES:
                raise broke or CutOffError(
                    f"{client.name}: {shown(file.path)} ends after {gathered.count} of {file.size} bytes; "
                    "try again to resume"
                )
            pause(min(_LONGEST_PAUSE, 0.5 * 2**failed))


def _receive(client: Client, commit: str, gathered: _Gathered) -> None:
    """Append the bytes of one answer."""
    file = gathered.file
    with client.stream(commit, file.path, gathered.count, file.size) as (first, chunks):
        if first != gathered.count:
            gathered.restart()
        for chunk in chunks:
            gathered.add(chunk)
