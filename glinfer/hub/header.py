"""The headers of a model that is still on a hub, as files whose weights are holes.

A copy of a model's files is made in a folder of its own, of which only the small files and the headers are fetched, by
range requests. All that reads configuration, vocabulary and types of tensors then works as on the model itself; the
weights take no room on the disk and read as zeros.
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
from glinfer.hub.cache import RepositoryCache, told_of_the_disk
from glinfer.hub.choice import Chosen
from glinfer.hub.client import Client, DistrustError
from glinfer.hub.listing import RemoteFile, Repository
from glinfer.limits import MAX_HEADER_BYTES, MAX_REMOTE_HEADER_BYTES, MAX_SMALL_FILE_BYTES

_LENGTH = struct.Struct("<Q")
_FIRST = 1 << 20  # of a GGUF file; nearly all headers without a vocabulary are shorter
_GAB_HEADER = 28


@dataclass(frozen=True)
class HeaderCopy:
    """A copy of a model's files without its weights.

    Attributes:
        path: the file or folder to open.
        weight_bytes: of the weights that it lacks.
        fetched: by file, where its copy is and how many of its first bytes are true.
    """

    path: Path
    weight_bytes: int
    fetched: Mapping[RemoteFile, tuple[Path, int]]


@contextlib.contextmanager
def header_copy(client: Client, repository: Repository, chosen: Chosen) -> Iterator[HeaderCopy]:
    """Fetch small files and headers; the copy is gone after the block.

    Errors of glinfer within the block name the model in place of the copy.

    Raises:
        HubError: a file cannot be fetched, or its header is longer than any model's.
        FormatError: a header is damaged.
    """
    name = repository.name
    # A folder's name may not hold letters that an operating system's error would be shortened by.
    with told_of_the_disk(name, Path(tempfile.gettempdir())):
        folder = tempfile.TemporaryDirectory(prefix="glinfer-", ignore_cleanup_errors=True)
    with folder as root:
        copy = RepositoryCache(name.repo, Path(root))
        fetched = {}
        with told_of_the_disk(name, Path(root)):
            for file in chosen.small:
                fetched[file] = _write(copy, repository, file, _whole(client, repository, file))
            for file in chosen.weights:
                fetched[file] = _write(copy, repository, file, _header(client, repository, file))
        path = copy.place(repository.commit, chosen.opened)
        with _named(path, repository):
            yield HeaderCopy(path, sum(file.size for file in chosen.weights), fetched)


def shards_of(client: Client, repository: Repository, index: RemoteFile) -> set[str]:
    """The shards that an index names, which is read from a copy.

    Raises:
        HubError: the index cannot be fetched.
        FormatError: it is none, or names a file elsewhere.
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
    """Make the copy of a file: its first bytes, and a hole of the size of the others."""
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
            f"{file.digest}; try again, and if it stays so do not trust what sent it"
        )
    return data


def _header(client: Client, repository: Repository, file: RemoteFile) -> bytes:
    """The first bytes of a file of weights, its header among them."""
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
            f"{label}: it begins with a promise of {length} bytes of header; expected 1 to {most} in a safetensors file"
        )
    return start + client.piece(repository.commit, file.path, _LENGTH.size, _LENGTH.size + length)


def _gguf_header(client: Client, repository: Repository, file: RemoteFile, label: str) -> bytes:
    """Read on until the header is whole, in ever larger pieces."""
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
