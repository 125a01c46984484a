"""Find a named model on the hub or in the cache, check its header, and fetch its files."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from glinfer.errors import GlinferError, GlinferWarning, HubError
from glinfer.formats import find_model as find_local
from glinfer.formats.files import AnyPath, check_path
from glinfer.formats.huggingface.files import INDEX, weight_map
from glinfer.hub.bar import download_bar
from glinfer.hub.cache import RepositoryCache, disk_errors, free_bytes
from glinfer.hub.choice import Chosen, choose, folder_of, with_shards
from glinfer.hub.client import Client, UnreachableError, is_offline, offline_line, require_hub
from glinfer.hub.download import check_disk, fetch, missing_bytes, seed
from glinfer.hub.header import header_copy, shards_of
from glinfer.hub.listing import Repository, read_listing
from glinfer.hub.names import COMMIT, HubName, hub_name

Check = Callable[[Path, int], str]
"""Called with a copy of a model without weights and the number of their bytes; returns the model's needs as a text for
the user, or raises a GlinferError to refuse it."""
Tell = Callable[[str], None]
"""Shows a line to the user."""


@dataclass(frozen=True)
class Found:
    """A model of a hub: its repository, and its files in it.

    Attributes:
        repository: the hub's list, or the cached files.
        chosen: the model's files.
        cache: the folder for these files.
        client: fetches them; None if the cache has them all.
    """

    repository: Repository
    chosen: Chosen
    cache: RepositoryCache
    client: Client | None

    @property
    def path(self) -> Path:
        """The file or folder in the cache to open."""
        return self.cache.place(self.repository.commit, self.chosen.opened)

    @property
    def missing(self) -> int:
        """The number of bytes that the cache lacks."""
        return 0 if self.client is None else missing_bytes(self.repository, self.cache, self.chosen.files)

    @property
    def is_whole(self) -> bool:
        """Whether the cache has every file."""
        return self.client is None or all(self.cache.has(self.repository.commit, each) for each in self.chosen.files)

    def remember(self) -> None:
        """Record the revision's commit, so that the same name finds the model offline."""
        if self.client is not None:
            with contextlib.suppress(OSError):  # a shared cache may be read-only
                self.cache.remember(self.repository.name.revision, self.repository.commit)


@dataclass(frozen=True)
class Pulled:
    """A model that the cache has.

    Attributes:
        repo: ``org/name``.
        commit: 40 hexadecimal digits.
        path: the file or folder to open.
        files: the paths of its files in the repository.
        bytes: total size of the files.
        fetched: number of bytes that this call fetched.
    """

    repo: str
    commit: str
    path: Path
    files: tuple[str, ...]
    bytes: int
    fetched: int


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


def find_model(name: AnyPath, *, check: Check | None = None, tell: Tell | None = None) -> AnyPath:
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
    return find_local(name) if wanted is None else pull(wanted, check=check, tell=tell).path


def pull(name: HubName, *, check: Check | None = None, tell: Tell | None = None) -> Pulled:
    """Fetch the files of a model that the cache lacks; see :func:`find_model`."""
    found = find(name)
    needed = found.missing
    if not found.is_whole:
        try:
            _fetch(found, needed, check, tell)
        except GlinferError:
            found.cache.tidy()
            raise
    found.remember()
    files = found.chosen.files
    return Pulled(
        name.repo,
        found.repository.commit,
        found.path,
        tuple(file.path for file in files),
        sum(file.size for file in files),
        needed,
    )


def _fetch(found: Found, needed: int, check: Check | None, tell: Tell | None) -> None:
    assert found.client is not None
    repository, chosen, cache, client = found.repository, found.chosen, found.cache, found.client
    if needed:
        check_disk(repository, needed)
        _check_header(found, needed, check, tell)
        needed = missing_bytes(repository, cache, chosen.files)
    total = sum({file.digest: file.size for file in chosen.files}.values())
    with download_bar(_title(found), total, total - needed) as arrived:
        fetch(client, repository, cache, chosen.files, arrived)


def _title(found: Found) -> str:
    return f"{found.repository.name.repo}{f' {found.chosen.quant}' if found.chosen.quant else ''}"


def _check_header(found: Found, needed: int, check: Check | None, tell: Tell | None) -> None:
    """Check a model by its header, and keep the bytes fetched for it."""
    assert found.client is not None
    repository, cache = found.repository, found.cache
    with header_copy(found.client, repository, found.chosen) as copy:
        needs = check(copy.path, copy.weight_bytes) if check is not None else ""
        with disk_errors(repository.name, cache.folder):
            for file, (place, count) in copy.fetched.items():
                if not cache.has(repository.commit, file):
                    seed(cache, file, place, count)
    if tell is not None:
        free = free_bytes(cache.folder)
        room = "" if free is None else f"{free / 1e9:,.1f} GB free on the disk"
        facts = filter(None, (f"{needed / 1e6:,.1f} MB", room, needs))
        tell(f"fetching {_title(found)} at {repository.commit[:7]}: {'; '.join(facts)}")


class Described(NamedTuple):
    """The path of a model to describe, and whether it is a copy without weights."""

    path: AnyPath
    is_copy: bool


@contextlib.contextmanager
def header_of(name: AnyPath, *, check: Check | None = None) -> Iterator[Described]:
    """A path with a model's configuration, vocabulary and tensor types, without fetching any weights.

    For a local model this is its own path; a copy of headers is deleted after the block.

    Raises:
        GlinferError: as for :func:`find_model`.
    """
    wanted = named_on_a_hub(name)
    if wanted is None:
        yield Described(find_local(name), is_copy=False)
        return
    found = find(wanted)
    if found.is_whole:
        found.remember()
        yield Described(found.path, is_copy=False)
        return
    assert found.client is not None
    with header_copy(found.client, found.repository, found.chosen) as copy:
        if check is not None:
            check(copy.path, copy.weight_bytes)
        yield Described(copy.path, is_copy=True)


def find(name: HubName) -> Found:
    """Find the files of a named model on the hub, or in the cache.

    Only the cache is used with ``HF_HUB_OFFLINE``, and for files of a full commit that it has. If the hub cannot be
    reached, a copy in the cache is used with a warning.

    Raises:
        HubError: the model does not exist, or the hub cannot be reached and the cache has no copy.
        InputError: the package huggingface_hub is not installed.
    """
    require_hub(name)
    cache = RepositoryCache(name.repo)
    if is_offline():
        try:
            held = cached(name, cache)
        except HubError as error:
            raise HubError(f"{error}; HF_HUB_OFFLINE prevents fetching") from None
        if held is None:
            raise HubError(offline_line(name))
        return held
    if COMMIT.fullmatch(name.revision) and (name.quant or name.path):
        with contextlib.suppress(HubError):
            if held := cached(name, cache):
                return held
    client = Client(name)
    try:
        repository = read_listing(name, client.listing())
    except UnreachableError as error:
        held = None
        with contextlib.suppress(HubError):
            held = cached(name, cache)
        if held is None:
            raise
        warnings.warn(
            f"{error}; using the cached copy of commit {held.repository.commit[:7]}",
            GlinferWarning,
            stacklevel=2,
        )
        return held
    chosen = choose(repository)
    if chosen is None:
        index = repository.files[f"{folder_of(repository)}{INDEX}"]
        chosen = with_shards(repository, shards_of(client, repository, index))
    return Found(repository, chosen, cache, client)


def cached(name: HubName, cache: RepositoryCache) -> Found | None:
    """The cached files of a named model; None without any.

    Raises:
        HubError: some of its files are missing.
    """
    repository = cache.repository(name)
    if repository is None:
        return None
    chosen = choose(repository)
    if chosen is None:
        index = cache.place(repository.commit, f"{folder_of(repository)}{INDEX}")
        chosen = with_shards(repository, weight_map(index).values())
    return Found(repository, chosen, cache, None)
