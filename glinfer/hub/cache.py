"""The local cache of Hugging Face's hub, in the layout that all its tools share.

``$HF_HUB_CACHE/models--org--name`` has ``blobs``, files by their hashes; ``snapshots/<commit>/…``, links to them by
their names in the repository; and ``refs/<revision>``, each with a commit. An incomplete blob is named
``<hash>.incomplete``. Source: "Understand caching" in the documentation of huggingface_hub.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glinfer.errors import GlinferWarning, HubError
from glinfer.formats.files import AnyPath, reason, shown, words_of
from glinfer.hub.listing import RemoteFile, Repository
from glinfer.hub.names import COMMIT, HubName, is_plain_path

_PREFIX = "models--"
_INCOMPLETE = ".incomplete"


@dataclass(frozen=True)
class Origin:
    """The origin of a file in the cache.

    Attributes:
        repo: ``org/name``.
        commit: 40 hexadecimal digits.
        path: path in the repository; empty for its root.
    """

    repo: str
    commit: str
    path: str = ""


def origin_of(path: AnyPath) -> Origin | None:
    """The repository and the commit of a file or folder in a cache of the hub; None for any other path."""
    parts = Path(os.path.abspath(path)).parts  # noqa: PTH100 (links are not followed: they lead to the blobs)
    for place in range(len(parts) - 1, 1, -1):
        folder, inner, commit = parts[place - 2 : place + 1]
        if inner == "snapshots" and folder.startswith(_PREFIX) and COMMIT.fullmatch(commit):
            repo = folder.removeprefix(_PREFIX).replace("--", "/")
            return Origin(repo, commit, "/".join(parts[place + 1 :]))
    return None


def title_of(path: AnyPath) -> str:
    """A short name for a model's file or folder: its stem, or the repository's name for a commit's folder."""
    origin = origin_of(path)
    return origin.repo.rpartition("/")[2] if origin is not None and not origin.path else Path(path).stem


def hub_folder() -> Path:
    """The folder of the cache, ``$HF_HUB_CACHE`` or ``$HF_HOME/hub``, which may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


class RepositoryCache:
    """The folder of one repository in the cache."""

    def __init__(self, repo: str, root: Path | None = None) -> None:
        """Set the folder without creating it; ``root`` replaces the folder of the cache."""
        self._root = hub_folder() if root is None else root
        self.folder = self._root / f"{_PREFIX}{repo.replace('/', '--')}"

    def snapshot(self, commit: str) -> Path:
        """The folder of the files at a commit."""
        return self.folder / "snapshots" / commit

    def place(self, commit: str, path: str) -> Path:
        """The path of a repository's file in the cache, which may not exist yet."""
        return self.snapshot(commit).joinpath(*path.split("/")) if path else self.snapshot(commit)

    def has(self, commit: str, file: RemoteFile) -> bool:
        """Whether a file exists with its expected size."""
        try:
            return self.place(commit, file.path).stat().st_size == file.size
        except OSError:
            return False

    def blob(self, file: RemoteFile) -> Path:
        """The path of a file's complete bytes."""
        return self.folder / "blobs" / file.digest

    def incomplete(self, file: RemoteFile) -> Path:
        """The path of a file's incomplete bytes."""
        return self.folder / "blobs" / f"{file.digest}{_INCOMPLETE}"

    def arrived(self, file: RemoteFile) -> int:
        """The number of bytes of a file that the cache has."""
        for path in (self.blob(file), self.incomplete(file)):
            with contextlib.suppress(OSError):
                return min(path.stat().st_size, file.size)
        return 0

    @contextlib.contextmanager
    def lock(self, file: RemoteFile) -> Iterator[None]:
        """Hold the lock that all tools take to fetch this file."""
        from huggingface_hub.utils._fixes import WeakFileLock

        folder = self._root / ".locks" / self.folder.name
        folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "blobs").mkdir(parents=True, exist_ok=True)
        with WeakFileLock(folder / f"{file.digest}.lock"):
            yield

    def link(self, commit: str, file: RemoteFile) -> None:
        """Link a file's name at a commit to its blob.

        Raises:
            OSError: the system refuses it.
        """
        place, blob = self.place(commit, file.path), self.blob(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            try:
                new.symlink_to(os.path.relpath(blob, place.parent))
            except (OSError, NotImplementedError):  # few users of Windows may create symbolic links
                try:
                    new.hardlink_to(blob)
                except (OSError, NotImplementedError):
                    shutil.copyfile(blob, new)
            new.replace(place)
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove empty folders after a refused download."""
        for folder, _, _ in os.walk(self.folder, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        if not self.folder.exists():
            shutil.rmtree(self._root / ".locks" / self.folder.name, ignore_errors=True)

    def commit_of(self, revision: str) -> str | None:
        """The commit of a revision when it was last fetched, or None."""
        if COMMIT.fullmatch(revision):
            return revision
        with contextlib.suppress(OSError, ValueError):
            found = (self.folder / "refs" / revision).read_bytes()[:41].decode("ascii").strip()
            return found if COMMIT.fullmatch(found) else None
        return None

    def remember(self, revision: str, commit: str) -> None:
        """Record the commit of a revision."""
        if COMMIT.fullmatch(revision) or self.commit_of(revision) == commit:
            return
        place = self.folder / "refs" / revision
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            new.write_text(commit, encoding="ascii")
            new.replace(place)
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)

    def repository(self, name: HubName) -> Repository | None:
        """The cached files of a name's repository, or None without any."""
        commit = self.commit_of(name.revision)
        if commit is None:
            return None
        files = {}
        snapshot = self.snapshot(commit)
        for folder, _, names in os.walk(snapshot):
            for each in names:
                path = Path(folder, each)
                inside = path.relative_to(snapshot).as_posix()
                with contextlib.suppress(OSError):
                    if is_plain_path(inside):
                        files[inside] = RemoteFile(inside, path.stat().st_size, "")
        return Repository(name, commit, files, is_cached=True) if files else None


def free_bytes(path: Path) -> int | None:
    """Free bytes on the disk of a path, or None if the system does not report them."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(folder).free
    return None


@contextlib.contextmanager
def disk_errors(name: object, folder: Path) -> Iterator[None]:
    """Turn errors of the operating system within the block into a one-line HubError.

    Raises:
        HubError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise HubError(
            f"{name}: cannot write into {shown(folder)}: {reason(error)}; check the folder, its permissions and the "
            "free space, or set HF_HOME to another one"
        ) from None


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache, at one commit.

    Attributes:
        repo: ``org/name``.
        commit: the commit of its files.
        revisions: the branches and tags that had this commit when they were fetched.
        files: the paths of its weights.
        bytes: total size of its files.
        path: the folder of its files.
    """

    repo: str
    commit: str
    revisions: tuple[str, ...]
    files: tuple[str, ...]
    bytes: int
    path: Path


_WEIGHTS = (".gguf", ".safetensors", ".gab")


def cached_models() -> list[CachedModel]:
    """All commits of repositories in the cache that have weights in a supported container, by name."""
    found = []
    scanned = _scan()
    for held in scanned.repos if scanned is not None else ():
        if held.repo_type != "model":
            continue
        for revision in held.revisions:
            snapshot = Path(revision.snapshot_path)
            files = sorted(Path(file.file_path).relative_to(snapshot).as_posix() for file in revision.files)
            weights = tuple(file for file in files if file.lower().endswith(_WEIGHTS))
            if weights:
                refs = tuple(sorted(revision.refs))
                found.append(
                    CachedModel(held.repo_id, revision.commit_hash, refs, weights, revision.size_on_disk, snapshot)
                )
    return sorted(found, key=lambda each: (each.repo.casefold(), each.commit))


def _scan() -> Any:
    """The client's list of the cache, or None if it does not exist or (with a warning) cannot be read."""
    from huggingface_hub import scan_cache_dir

    folder = hub_folder()
    try:
        return scan_cache_dir(folder) if folder.is_dir() else None
    except (OSError, ValueError) as error:  # for example a refs file that is not UTF-8
        line = f"{shown(folder)}: the models in this cache cannot be listed: {words_of(error)}; look for damaged files"
        warnings.warn(line, GlinferWarning, stacklevel=2)
        return None


@dataclass(frozen=True)
class Removed:
    """The result of :func:`remove`.

    Attributes:
        repo: ``org/name``.
        commits: the commits of the removed files.
        bytes: the number of freed bytes.
    """

    repo: str
    commits: tuple[str, ...]
    bytes: int


def remove(name: HubName, chosen: dict[str, list[str]] | None = None) -> Removed:
    """Remove a repository's files from the cache.

    Args:
        name: the repository; a revision other than ``main`` selects its commit, else all commits are removed.
        chosen: the paths of files to remove, by commit; all files by default.

    Raises:
        HubError: the cache has no such files, or they cannot be removed.
    """
    cache = RepositoryCache(name.repo)
    scanned = _scan()
    repos = scanned.repos if scanned is not None else ()
    held = next((each for each in repos if each.repo_type == "model" and each.repo_id == name.repo), None)
    revisions = {each.commit_hash: each for each in held.revisions} if held is not None else {}
    if name.revision != "main":
        commit = cache.commit_of(name.revision)
        revisions = {key: each for key, each in revisions.items() if key == commit}
    with disk_errors(name, cache.folder):
        leftover = _remove_incomplete(cache) if name.revision == "main" and chosen is None else 0
        if not revisions and not leftover:
            raise HubError(
                f"{name}: the cache in {shown(hub_folder())} does not have it; 'glinfer models' lists its models"
            )
        if chosen is None:
            strategy = scanned.delete_revisions(*revisions)
            strategy.execute()
            if not any(cache.folder.glob("snapshots/*")):
                shutil.rmtree(cache.folder, ignore_errors=True)  # only incomplete files are left
            return Removed(name.repo, tuple(sorted(revisions)), strategy.expected_freed_size + leftover)
        freed = sum(_unlink(cache, commit, path) for commit in revisions for path in chosen.get(commit, ()))
    return Removed(name.repo, tuple(sorted(set(revisions) & chosen.keys())), freed)


def _remove_incomplete(cache: RepositoryCache) -> int:
    freed = 0
    for path in cache.folder.glob(f"blobs/*{_INCOMPLETE}"):
        freed += path.stat().st_size
        path.unlink()
    return freed


def _unlink(cache: RepositoryCache, commit: str, path: str) -> int:
    """Remove a file's name, and its blob if no other name links to it; return the number of freed bytes."""
    place = cache.place(commit, path)
    blob, size = Path(os.path.realpath(place)), place.stat().st_size
    place.unlink()
    shared = any(os.path.realpath(other) == str(blob) for other in cache.folder.glob("snapshots/**/*"))
    if shared or blob == place:
        return 0 if shared else size
    blob.unlink(missing_ok=True)
    return size
