"""From a name to files: what it asks for is found on the hub or in the cache, checked by its header, and fetched."""

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
from glinfer.hub.cache import RepositoryCache, free_bytes, told_of_the_disk
from glinfer.hub.choice import Chosen, choose, folder_of, with_shards
from glinfer.hub.client import Client, UnreachableError, is_offline, offline_line, require_hub
from glinfer.hub.download import check_disk, fetch, missing_bytes, seed
from glinfer.hub.header import header_copy, shards_of
from glinfer.hub.listing import Repository, read_listing
from glinfer.hub.names import COMMIT, HubName, hub_name

Check = Callable[[Path, int], str]
"""Looks at a copy of a model without its weights, and at their bytes; returns what the model needs, in words for the
user, and refuses it by raising a GlinferError."""
Tell = Callable[[str], None]
"""Takes a line for the user."""


@dataclass(frozen=True)
class Found:
    """A model of a hub: its repository, and those of its files that make it up.

    Attributes:
        repository: as the hub lists it, or as the cache has it.
        chosen: the files.
        cache: the folder that they are in, or are to be in.
        client: fetches them; None where the cache has them all.
    """

    repository: Repository
    chosen: Chosen
    cache: RepositoryCache
    client: Client | None

    @property
    def path(self) -> Path:
        """The file or folder in the cache that is opened."""
        return self.cache.place(self.repository.commit, self.chosen.opened)

    @property
    def missing(self) -> int:
        """Bytes that the cache lacks."""
        return 0 if self.client is None else missing_bytes(self.repository, self.cache, self.chosen.files)

    @property
    def is_whole(self) -> bool:
        """Whether the cache has every file."""
        return self.client is None or all(self.cache.has(self.repository.commit, each) for each in self.chosen.files)

    def remember(self) -> None:
        """Note the commit of the revision, so that the model is found offline by the same name."""
        if self.client is not None:
            with contextlib.suppress(OSError):  # a cache that others filled and that is read alone
                self.cache.remember(self.repository.name.revision, self.repository.commit)


@dataclass(frozen=True)
class Pulled:
    """A model that the cache has.

    Attributes:
        repo: ``org/name``.
        commit: 40 hexadecimal digits.
        path: the file or folder to open.
        files: the paths of its files in the repository.
        bytes: of all files.
        fetched: bytes that were fetched just now.
    """

    repo: str
    commit: str
    path: Path
    files: tuple[str, ...]
    bytes: int
    fetched: int


def named_on_a_hub(name: AnyPath) -> HubName | None:
    """What a name asks of a hub; None for a path, and for the name of a model that is on this machine.

    Raises:
        InputError: it is no path, empty, or a name that no hub can have.
    """
    check_path("the model", name)
    try:
        return None if os.path.lexists(name) else hub_name(name)
    except ValueError:  # a NUL, which opening the file tells of
        return None


def find_model(name: AnyPath, *, check: Check | None = None, tell: Tell | None = None) -> AnyPath:
    """The path of a model by its name, which is fetched first where a hub has it and the cache does not.

    Args:
        name: a path, which always wins; the name of a bundled model or of one in an installed package, see
            :func:`glinfer.formats.find_model`; or a name on a hub, see :func:`glinfer.hub.names.hub_name`.
        check: looks at the model before its weights are fetched.
        tell: takes a line on what is fetched, before it is.

    Raises:
        InputError: it is no path, or a name that cannot be; or a package is missing.
        FormatError: there is no such model on this machine.
        HubError: there is none on the hub, or it cannot be fetched.
        GlinferError: ``check`` refuses it.
    """
    wanted = named_on_a_hub(name)
    return find_local(name) if wanted is None else pull(wanted, check=check, tell=tell).path


def pull(name: HubName, *, check: Check | None = None, tell: Tell | None = None) -> Pulled:
    """Fetch what the cache lacks of a model; see :func:`find_model`."""
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
    """Refuse a model that cannot run, by its header, and keep what was fetched for that."""
    assert found.client is not None
    repository, cache = found.repository, found.cache
    with header_copy(found.client, repository, found.chosen) as copy:
        needs = check(copy.path, copy.weight_bytes) if check is not None else ""
        with told_of_the_disk(repository.name, cache.folder):
            for file, (place, count) in copy.fetched.items():
                if not cache.has(repository.commit, file):
                    seed(cache, file, place, count)
    if tell is not None:
        free = free_bytes(cache.folder)
        room = "" if free is None else f"{free / 1e9:,.1f} GB free on the disk"
        facts = filter(None, (f"{needed / 1e6:,.1f} MB", room, needs))
        tell(f"fetching {_title(found)} at {repository.commit[:7]}: {'; '.join(facts)}")


class Described(NamedTuple):
    """A path that a model can be described from, and whether it is a copy whose weights are holes."""

    path: AnyPath
    is_copy: bool


@contextlib.contextmanager
def header_of(name: AnyPath, *, check: Check | None = None) -> Iterator[Described]:
    """A path that configuration, vocabulary and types of tensors can be read from, without fetching any weights.

    Of a model on this machine it is the model itself. After the block a copy of headers is gone.

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
    """Find the files that a name asks for: as the hub lists them, or as the cache has them where the hub is not asked.

    The hub is not asked with ``HF_HUB_OFFLINE``, nor for files of a whole commit that the cache has. Where it cannot be
    reached, a copy in the cache is taken, with a warning.

    Raises:
        HubError: there is no such model, or no copy in the cache where the hub cannot be asked.
        InputError: the package huggingface_hub is not installed.
    """
    require_hub(name)
    cache = RepositoryCache(name.repo)
    if is_offline():
        try:
            held = cached(name, cache)
        except HubError as error:
            raise HubError(f"{error}; nothing is fetched, because HF_HUB_OFFLINE is set") from None
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
            f"{error}; the copy in the cache is used, of commit {held.repository.commit[:7]}",
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
    """What the cache has of a name; None where it has nothing.

    Raises:
        HubError: it has files, and not all that make up one model.
    """
    repository = cache.repository(name)
    if repository is None:
        return None
    chosen = choose(repository)
    if chosen is None:
        index = cache.place(repository.commit, f"{folder_of(repository)}{INDEX}")
        chosen = with_shards(repository, weight_map(index).values())
    return Found(repository, chosen, cache, None)
