"""Find a named model on the hub or in the cache, check its header, and fetch its files."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from glinfer.errors import GlinferError, GlinferWarning, HubError
from glinfer.formats import find_model as find_local
from glinfer.formats.files import AnyPath, check_path, shown
from glinfer.formats.gguf.file import header_end
from glinfer.formats.huggingface.files import weight_map
from glinfer.hub.cache import WEIGHTS, RepositoryCache, disk_errors, free_bytes, hub_folder
from glinfer.hub.choice import Chosen, RemoteFile, Repository, choose
from glinfer.hub.client import UnreachableError, list_files, offline_line, piece, require_hub
from glinfer.hub.names import COMMIT, HubName, hub_name
from glinfer.limits import MAX_HEADER_BYTES, MAX_REMOTE_HEADER_BYTES, MAX_SMALL_FILE_BYTES

Check = Callable[[Path, int], str]
"""Called with a copy of a model without weights and the number of their bytes; returns the model's needs as a text for
the user, or raises a GlinferError to refuse it."""

_LENGTH = struct.Struct("<Q")
_FIRST = 1 << 20  # bytes of a GGUF file; nearly all headers without a vocabulary are shorter
_GAB_HEADER = 28


class Described(NamedTuple):
    """The path of a model to describe, and whether it is a copy without weights."""

    path: AnyPath
    is_copy: bool


class Found(NamedTuple):
    """The files of a model, and the cache for them."""

    repository: Repository
    chosen: Chosen
    cache: RepositoryCache

    @property
    def path(self) -> Path:
        """The file or folder in the cache to open."""
        return self.cache.path(self.repository.commit, self.chosen.opened)

    @property
    def is_whole(self) -> bool:
        """Whether the cache has every file; its revision is then recorded."""
        if not all(self.cache.has(self.repository.commit, file) for file in self.chosen.files):
            return False
        self.cache.remember(self.repository.name.revision, self.repository.commit)
        return True


def named_on_a_hub(name: AnyPath) -> HubName | None:
    """Read the name of a model on a hub; None for a path or a local model's name.

    Raises:
        InputError: ``name`` is not a path or text, is empty, or cannot be a name on a hub.
    """
    check_path("the model", name)
    try:
        return None if os.path.lexists(name) else hub_name(name)
    except ValueError:  # a NUL, which opening the file reports
        return None


def find_model(name: AnyPath, *, check: Check | None = None, tell: Callable[[str], None] | None = None) -> AnyPath:
    """The path of a named model, which is fetched from a hub if the cache lacks it.

    Args:
        name: a path, which takes precedence; the name of a bundled model or of one in an installed package, see
            :func:`glinfer.formats.find_model`; or a name on a hub, see :func:`glinfer.hub.names.hub_name`.
        check: checks the model before its weights are fetched.
        tell: shows a line about the download before it starts.

    Raises:
        InputError: ``name`` is not a path or a valid name, or a package is missing.
        FormatError: no local model has this name.
        HubError: the hub does not have the model, or it cannot be fetched.
        GlinferError: ``check`` refuses the model.
    """
    wanted = named_on_a_hub(name)
    if wanted is None:
        return find_local(name)
    found = find(wanted)
    repository, chosen, cache = found
    if needed := cache.missing_bytes(repository.commit, chosen.files):
        _check_and_fetch(found, needed, check, tell)
    elif not found.is_whole:  # only names are missing
        for file in chosen.files:
            cache.fetch(repository, file)
    assert found.is_whole
    return found.path


def _check_and_fetch(found: Found, needed: int, check: Check | None, tell: Callable[[str], None] | None) -> None:
    repository, chosen, cache = found
    free = free_bytes(hub_folder())
    if free is not None and needed > free:
        what = f"needs {needed / 1e9:.2f} GB, but the disk of {shown(hub_folder())} has {free / 1e9:.2f} GB free"
        raise HubError(f"{repository.name}: the download {what}; make room, or set HF_HOME to another disk")
    with header_copy(repository, chosen.files) as (copy, counts):
        needs = check(copy.path(repository.commit, chosen.opened), _weight_bytes(chosen)) if check is not None else ""
        if tell is not None:
            room = "" if free is None else f"{free / 1e9:,.1f} GB free on the disk"
            title = " ".join(filter(None, (repository.name.repo, chosen.quant)))
            facts = filter(None, (f"{needed / 1e6:,.1f} MB", room, needs))
            tell(f"fetching {title} at {repository.commit[:7]}: {'; '.join(facts)}")
        for file in chosen.files:
            if not cache.has(repository.commit, file):
                cache.fetch(repository, file, copy.path(repository.commit, file.path), counts[file])


def _weight_bytes(chosen: Chosen) -> int:
    return sum(file.size for file in chosen.files if file.path.lower().endswith(WEIGHTS))


@contextlib.contextmanager
def header_of(name: AnyPath, *, check: Check | None = None) -> Iterator[Described]:
    """A path with a model's configuration, vocabulary and tensor types, without fetching any weights.

    For a local model this is its own path; a copy of headers is deleted after the block.
    """
    wanted = named_on_a_hub(name)
    found = None if wanted is None else find(wanted)
    if found is None or found.is_whole:
        yield Described(find_local(name) if found is None else found.path, is_copy=False)
        return
    with header_copy(found.repository, found.chosen.files) as (copy, _):
        path = copy.path(found.repository.commit, found.chosen.opened)
        if check is not None:
            check(path, _weight_bytes(found.chosen))
        yield Described(path, is_copy=True)


def find(name: HubName) -> Found:
    """Find the files of a named model on the hub, or in the cache.

    Only the cache is used with ``HF_HUB_OFFLINE``, and for files of a full commit that it has. If the hub cannot be
    reached, a copy in the cache is used with a warning.
    """
    hub, cache = require_hub(name), RepositoryCache(name.repo)
    if hub.constants.HF_HUB_OFFLINE:
        try:
            held = cached(name, cache)
        except HubError as error:
            raise HubError(f"{error}; HF_HUB_OFFLINE prevents fetching") from None
        if held is None:
            raise HubError(offline_line(name))
        return held
    held = None
    with contextlib.suppress(GlinferError):
        held = cached(name, cache)
    if held is not None and COMMIT.fullmatch(name.revision) and (name.quant or name.path):
        return held
    try:
        repository = list_files(name)
    except UnreachableError as error:
        if held is None:
            raise
        line = f"{error}; using the cached copy of commit {held.repository.commit[:7]}"
        warnings.warn(line, GlinferWarning, stacklevel=2)
        return held

    def shards_of(index: RemoteFile) -> Iterable[str]:
        with header_copy(repository, [index]) as (copy, _):
            return weight_map(copy.path(repository.commit, index.path)).values()

    return Found(repository, choose(repository, shards_of), cache)


def cached(name: HubName, cache: RepositoryCache) -> Found | None:
    """The cached files of a named model; None without any."""
    held = cache.repository(name)
    if held is None:
        return None
    return Found(held, choose(held, lambda file: weight_map(cache.path(held.commit, file.path)).values()), cache)


@contextlib.contextmanager
def header_copy(
    repository: Repository, files: Sequence[RemoteFile]
) -> Iterator[tuple[RepositoryCache, dict[RemoteFile, int]]]:
    """A temporary copy of files without their weights, which are holes that read as zeros and take no disk space.

    Yields the copy, and the number of leading bytes that were fetched of each file. Errors of glinfer within the block
    name the model instead of the copy.
    """
    name = repository.name
    # The folder's name avoids characters at which an operating system's error would be cut.
    with disk_errors(name, Path(tempfile.gettempdir())):
        folder = tempfile.TemporaryDirectory(prefix="glinfer-", ignore_cleanup_errors=True)
    with folder as root:
        copy, counts = RepositoryCache(name.repo, Path(root)), {}
        for file in files:
            start, path = _start(repository, file), copy.path(repository.commit, file.path)
            counts[file] = len(start)
            with disk_errors(name, Path(root)):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as made:
                    made.write(start)
                    made.truncate(file.size)
        try:
            yield copy, counts
        except GlinferError as error:
            line = str(error)
            for path in (*(copy.path(repository.commit, file.path) for file in files), copy.path(repository.commit)):
                line = line.replace(str(path), str(name))
            raise type(error)(line) from None


def _start(repository: Repository, file: RemoteFile) -> bytes:
    """A file besides the weights, or the first bytes of a weight file with its header."""
    label, ending = f"{repository.name}: {shown(file.path)}", Path(file.path).suffix.lower()
    if ending == ".gguf":
        held, ends = b"", None
        while ends is None:
            if len(held) >= MAX_REMOTE_HEADER_BYTES:
                raise HubError(
                    f"{label}: its header has more than {MAX_REMOTE_HEADER_BYTES} bytes, which exceeds the limit"
                )
            end = min(file.size, max(_FIRST, 4 * len(held)))
            held += piece(repository, file, len(held), end) if end > len(held) else b""
            ends = header_end(held, file.size, label)
        return held[: max(ends, 1)]
    if ending == ".gab":
        return piece(repository, file, 0, min(file.size, _GAB_HEADER))
    if ending == ".safetensors":
        start = piece(repository, file, 0, min(file.size, _LENGTH.size))
        length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
        most = min(MAX_HEADER_BYTES, file.size - _LENGTH.size)
        if not 0 < length <= most:
            found = f"its header has {length} bytes by its first 8"
            raise HubError(f"{label}: {found}; expected 1 to {most} in a safetensors file")
        return start + piece(repository, file, _LENGTH.size, _LENGTH.size + length)
    if file.size > MAX_SMALL_FILE_BYTES:
        what = f"{shown(file.path)} has {file.size} bytes, which exceeds the limit of {MAX_SMALL_FILE_BYTES}"
        raise HubError(f"{repository.name}: {what} for such a file")
    return piece(repository, file, 0, file.size) if file.size else b""
