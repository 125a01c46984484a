"""The headers of a model that is still on a hub, as sparse files.

A temporary copy of the model's files has the small files and the headers, fetched by range requests. Functions that
read configuration, vocabulary and tensor types work on it as on the model itself. The weights are holes, which take no
space on the disk and read as zeros.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from glinfer.errors import GlinferError, HubError
from glinfer.formats.files import shown
from glinfer.formats.gguf.file import header_end
from glinfer.formats.huggingface.files import weight_map
from glinfer.hub.cache import RepositoryCache, disk_errors
from glinfer.hub.choice import Chosen
from glinfer.hub.client import Client, DistrustError
from glinfer.hub.listing import RemoteFile, Repository
from glinfer.limits import MAX_HEADER_BYTES, MAX_REMOTE_HEADER_BYTES, MAX_SMALL_FILE_BYTES

_LENGTH = struct.Struct("<Q")
_FIRST = 1 << 20  # bytes of a GGUF file; nearly all headers without a vocabulary are shorter
_GAB_HEADER = 28


@dataclass(frozen=True)
class HeaderCopy:
    """A copy of a model's files without its weights.

    Attributes:
        path: the file or folder to open.
        weight_bytes: number of bytes of the missing weights.
        fetched: for each file, its copy's path and the number of leading bytes that were fetched.
    """

    path: Path
    weight_bytes: int
    fetched: Mapping[RemoteFile, tuple[Path, int]]


@contextlib.contextmanager
def header_copy(client: Client, repository: Repository, chosen: Chosen) -> Iterator[HeaderCopy]:
    """Fetch small files and headers; the copy is deleted after the block.

    Errors of glinfer within the block name the model instead of the copy.

    Raises:
        HubError: a file cannot be fetched, or its header is too long.
        FormatError: a header is damaged.
    """
    name = repository.name
    # The folder's name avoids characters at which an operating system's error would be cut.
    with disk_errors(name, Path(tempfile.gettempdir())):
        folder = tempfile.TemporaryDirectory(prefix="glinfer-", ignore_cleanup_errors=True)
    with folder as root:
        copy = RepositoryCache(name.repo, Path(root))
        fetched = {}
        with disk_errors(name, Path(root)):
            for file in chosen.small:
                fetched[file] = _write(copy, repository, file, _whole(client, repository, file))
            for file in chosen.weights:
                fetched[file] = _write(copy, repository, file, _header(client, repository, file))
        path = copy.place(repository.commit, chosen.opened)
        with _named(path, repository):
            yield HeaderCopy(path, sum(file.size for file in chosen.weights), fetched)


def shards_of(client: Client, repository: Repository, index: RemoteFile) -> set[str]:
    """The shards that an index names; it is fetched into a temporary copy.

    Raises:
        HubError: the index cannot be fetched.
        FormatError: it is invalid, or names a file outside the model's folder.
    """
    data = _whole(client, repository, index)
    with tempfile.TemporaryDirectory(prefix="glinfer-") as root:
        copy = RepositoryCache(repository.name.repo, Path(root))
        place, _ = _write(copy, repository, index, data)
        with _named(place, repository):
            return set(weight_map(place).values())


@contextlib.contextmanager
def _named(path: Path, repository: Repository) -> Iterator[None]:
    try:
        yield
    except GlinferError as error:
        raise type(error)(str(error).replace(str(path), str(repository.name))) from None


def _write(copy: RepositoryCache, repository: Repository, file: RemoteFile, start: bytes) -> tuple[Path, int]:
    """Write the copy of a file: its first bytes, and a hole for the others."""
    place = copy.place(repository.commit, file.path)
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") as made:
        made.write(start)
        made.truncate(file.size)
    return place, len(start)


def _whole(client: Client, repository: Repository, file: RemoteFile) -> bytes:
    if file.size > MAX_SMALL_FILE_BYTES:
        raise HubError(
            f"{repository.name}: {shown(file.path)} has {file.size} bytes, which exceeds the limit of "
            f"{MAX_SMALL_FILE_BYTES} for such a file"
        )
    data = client.piece(repository.commit, file.path, 0, file.size) if file.size else b""
    hasher = file.hasher()
    hasher.update(data)
    if hasher.hexdigest() != file.digest:
        raise DistrustError(
            f"{repository.name}: {shown(file.path)} arrived with the hash {hasher.hexdigest()}; expected "
            f"{file.digest}; try again, and if this repeats, do not trust the sender"
        )
    return data


def _header(client: Client, repository: Repository, file: RemoteFile) -> bytes:
    """The first bytes of a weight file, including its header."""
    label = f"{repository.name}: {shown(file.path)}"
    if file.path.lower().endswith(".gguf"):
        return _gguf_header(client, repository, file, label)
    if not file.path.lower().endswith(".safetensors"):
        return client.piece(repository.commit, file.path, 0, min(file.size, _GAB_HEADER))
    start = client.piece(repository.commit, file.path, 0, min(file.size, _LENGTH.size))
    length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
    most = min(MAX_HEADER_BYTES, file.size - _LENGTH.size)
    if not 0 < length <= most:
        raise HubError(
            f"{label}: its header has {length} bytes by its first 8; expected 1 to {most} in a safetensors file"
        )
    return start + client.piece(repository.commit, file.path, _LENGTH.size, _LENGTH.size + length)


def _gguf_header(client: Client, repository: Repository, file: RemoteFile, label: str) -> bytes:
    """Fetch pieces of growing size until the header is complete."""
    held = b""
    while True:
        end = min(file.size, max(_FIRST, 4 * len(held)))
        if len(held) >= MAX_REMOTE_HEADER_BYTES:
            raise HubError(
                f"{label}: its header has more than {MAX_REMOTE_HEADER_BYTES} bytes, which exceeds the limit"
            )
        held += client.piece(repository.commit, file.path, len(held), end) if end > len(held) else b""
        if (ends := header_end(held, file.size, label)) is not None:
            return held[: max(ends, 1)]
