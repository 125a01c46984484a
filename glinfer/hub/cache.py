"""The local cache of Hugging Face's hub, in the layout that all its tools share.

``$HF_HUB_CACHE/models--org--name`` has ``blobs``, files by their hashes; ``snapshots/<commit>/…``, links to them by
their names in the repository; and ``refs/<revision>``, each with a commit. An incomplete blob is named
``<hash>.incomplete``. Source: "Understand caching" in the documentation of huggingface_hub.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glinfer.errors import GlinferError, GlinferWarning, HubError
from glinfer.formats.files import AnyPath, is_plain_path, reason, replacing, shown, words_of
from glinfer.hub.choice import RemoteFile, Repository
from glinfer.hub.client import download, require_hub
from glinfer.hub.names import COMMIT, MAIN, HubName

_PREFIX = "models--"
WEIGHTS = (".gguf", ".safetensors", ".gab")
"""Endings of files with weights."""


@dataclass(frozen=True)
class Origin:
    """The origin of a file in the cache: ``org/name``, a commit, and a path in it, empty for its root."""

    repo: str
    commit: str
    path: str = ""


def origin_of(path: AnyPath) -> Origin | None:
    """The repository and the commit of a file or folder in a cache of the hub; None for any other path."""
    parts = Path(os.path.abspath(path)).parts  # noqa: PTH100 (links are not followed: they lead to the blobs)
    for index in range(len(parts) - 1, 1, -1):
        folder, inner, commit = parts[index - 2 : index + 1]
        if inner == "snapshots" and folder.startswith(_PREFIX) and COMMIT.fullmatch(commit):
            repo = folder.removeprefix(_PREFIX).replace("--", "/")
            return Origin(repo, commit, "/".join(parts[index + 1 :]))
    return None


def title_of(path: AnyPath) -> str:
    """A short name for a model's file or folder: its stem, or the repository's name for a commit's folder."""
    origin = origin_of(path)
    return origin.repo.rpartition("/")[2] if origin is not None and not origin.path else Path(path).stem


def hub_folder() -> Path:
    """The folder of the cache, ``$HF_HUB_CACHE`` or ``$HF_HOME/hub``, which may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def free_bytes(path: Path) -> int | None:
    """Free bytes on the disk of a path, or None if the system does not report them."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(folder).free
    return None


class RepositoryCache:
    """The folder of one repository in the cache."""

    def __init__(self, repo: str, root: Path | None = None) -> None:
        """Set the folder without creating it; ``root`` replaces the folder of the cache."""
        self._root = hub_folder() if root is None else root
        self.folder = self._root / f"{_PREFIX}{repo.replace('/', '--')}"

    def path(self, commit: str, path: str = "") -> Path:
        """The path of a repository's file or folder in the cache, which may not exist yet."""
        return self.folder / "snapshots" / commit / path

    def has(self, commit: str, file: RemoteFile) -> bool:
        """Whether a file exists with its expected size."""
        with contextlib.suppress(OSError):
            return self.path(commit, file.path).stat().st_size == file.size
        return False

    def blob(self, file: RemoteFile, ending: str = "") -> Path:
        """The path of a file's bytes: complete ones, or with the ending ``.incomplete``."""
        return self.folder / "blobs" / f"{file.digest}{ending}"

    def missing_bytes(self, commit: str, files: Sequence[RemoteFile]) -> int:
        """The number of bytes still to fetch."""
        lacking = {file.digest: file for file in files if not self.has(commit, file)}.values()
        return sum(file.size - self.arrived(file) for file in lacking)

    def arrived(self, file: RemoteFile) -> int:
        """The number of bytes of a file that the cache has, under any name."""
        for path in (self.blob(file), self.blob(file, ".incomplete")):
            with contextlib.suppress(OSError):
                return min(path.stat().st_size, file.size)
        return 0

    def fetch(self, repository: Repository, file: RemoteFile, start: Path | None = None, count: int = 0) -> None:
        """Fetch a file that the cache lacks, compare its hash, and link its name; an earlier download is resumed.

        ``start`` is a file with the first ``count`` bytes, which are then not fetched again.
        """
        lock = self._root / ".locks" / self.folder.name / f"{file.digest}.lock"
        path, blob, partial = self.path(repository.commit, file.path), self.blob(file), self.blob(file, ".incomplete")
        with disk_errors(repository.name, self.folder):
            for each in (lock, blob, path):
                each.parent.mkdir(parents=True, exist_ok=True)
            with require_hub(repository.name).utils.WeakFileLock(lock):
                if not blob.is_file() or blob.stat().st_size != file.size:
                    if start is not None and not partial.exists():
                        with start.open("rb") as source:
                            partial.write_bytes(source.read(count))
                    self._complete(repository, file, partial)
                    partial.replace(blob)
                path.unlink(missing_ok=True)
                try:
                    path.symlink_to(os.path.relpath(blob, path.parent))
                except (OSError, NotImplementedError):  # few users of Windows may create symbolic links
                    path.hardlink_to(blob)

    def _complete(self, repository: Repository, file: RemoteFile, partial: Path) -> None:
        """Fetch the missing bytes, and once all bytes if those of an earlier download are wrong."""
        for _ in range(1 + partial.exists()):
            download(repository, file, partial)
            hasher = file.hasher()
            with partial.open("rb") as whole:
                while chunk := whole.read(1 << 20):
                    hasher.update(chunk)
            if hasher.hexdigest() == file.digest:
                return
            partial.unlink()
        found = f"{shown(file.path)} arrived with the hash {hasher.hexdigest()}; expected {file.digest}"
        advice = "the file was discarded; try again, and if this repeats, do not trust the sender"
        raise HubError(f"{repository.name}: {found}; {advice}")

    def commit_of(self, revision: str) -> str | None:
        """The commit of a revision when it was last fetched, or None."""
        if COMMIT.fullmatch(revision):
            return revision
        with contextlib.suppress(OSError, ValueError):
            found = (self.folder / "refs" / revision).read_bytes()[:41].decode("ascii").strip()
            return found if COMMIT.fullmatch(found) else None
        return None

    def remember(self, revision: str, commit: str) -> None:
        """Record the commit of a revision, so that the same name finds the model offline."""
        if self.commit_of(revision) != commit:
            path = self.folder / "refs" / revision
            with contextlib.suppress(OSError, GlinferError):  # a shared cache may be read-only
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as new:
                    new.write_text(commit, encoding="ascii")

    def repository(self, name: HubName) -> Repository | None:
        """The cached files of a name's repository, or None without any."""
        commit = self.commit_of(name.revision)
        if commit is None:
            return None
        snapshot, files = self.path(commit), {}
        for path in snapshot.glob("**/*"):
            inside = path.relative_to(snapshot).as_posix()
            if is_plain_path(inside) and path.is_file():
                files[inside] = RemoteFile(inside, path.stat().st_size)
        return Repository(name, commit, files, is_cached=True) if files else None


@contextlib.contextmanager
def disk_errors(name: object, folder: Path) -> Iterator[None]:
    """Turn errors of the operating system within the block into a one-line HubError."""
    try:
        yield
    except OSError as error:
        advice = "check the folder, its permissions and the free space, or set HF_HOME to another one"
        raise HubError(f"{name}: cannot write into {shown(folder)}: {reason(error)}; {advice}") from None


def cached_models() -> Iterator[tuple[HubName, Any, list[str]]]:
    """All commits in the cache that have weights in a supported container, by name.

    Yields the name, the commit's :class:`huggingface_hub.CachedRevisionInfo`, and the paths of its weights.
    """
    scanned = _scan()
    repos = [repo for repo in (scanned.repos if scanned else ()) if repo.repo_type == "model"]
    for repo in sorted(repos, key=lambda repo: str(repo.repo_id).casefold()):
        for revision in sorted(repo.revisions, key=lambda revision: str(revision.commit_hash)):
            paths = [Path(file.file_path).relative_to(revision.snapshot_path).as_posix() for file in revision.files]
            if weights := sorted(path for path in paths if path.lower().endswith(WEIGHTS)):
                named = MAIN if MAIN in revision.refs else min(revision.refs, default=revision.commit_hash)
                yield HubName(repo.repo_id, named), revision, weights


def _scan() -> Any:
    """The package's list of the cache; None if it does not exist or (with a warning) cannot be read."""
    from huggingface_hub import scan_cache_dir

    folder = hub_folder()
    try:
        return scan_cache_dir(folder) if folder.is_dir() else None
    except (OSError, ValueError) as error:  # for example a refs file that is not UTF-8
        line = f"{shown(folder)}: the models in this cache cannot be listed: {words_of(error)}; look for damaged files"
        warnings.warn(line, GlinferWarning, stacklevel=2)
        return None


def remove(name: HubName, chosen: dict[str, list[str]] | None = None) -> tuple[list[str], int]:
    """Remove files of a repository from the cache, and return their commits and the number of freed bytes.

    Files are those of the name's revision, or of all commits for ``main``; ``chosen`` has their paths by commit, else
    all files are removed.
    """
    cache, scanned, freed = RepositoryCache(name.repo), _scan(), 0
    repos = [repo for repo in (scanned.repos if scanned else ()) if repo.repo_path == cache.folder]
    commits = {revision.commit_hash for repo in repos for revision in repo.revisions}
    if name.revision != MAIN:
        commits &= {cache.commit_of(name.revision)}
    with disk_errors(name, cache.folder):
        if name.revision == MAIN and chosen is None:
            for path in cache.folder.glob("blobs/*.incomplete"):
                freed += path.stat().st_size
                path.unlink()
        if not commits and not freed:
            advice = "'glinfer models' lists its models"
            raise HubError(f"{name}: the cache in {shown(hub_folder())} does not have it; {advice}")
        if chosen is None:
            strategy = scanned.delete_revisions(*commits)
            strategy.execute()
            if not any(cache.folder.glob("snapshots/*")):
                shutil.rmtree(cache.folder, ignore_errors=True)  # only incomplete files were left
            return sorted(commits), strategy.expected_freed_size + freed
        commits &= chosen.keys()
        return sorted(commits), sum(_unlink(cache, commit, path) for commit in commits for path in chosen[commit])


def _unlink(cache: RepositoryCache, commit: str, path: str) -> int:
    """Remove a file's name, and its blob if no other name links to it; return the number of freed bytes."""
    name = cache.path(commit, path)
    blob, size = Path(os.path.realpath(name)), name.stat().st_size
    name.unlink()
    shared = any(os.path.realpath(other) == str(blob) for other in cache.folder.glob("snapshots/**/*"))
    if shared or blob == name:
        return 0 if shared else size
    blob.unlink(missing_ok=True)
    return size
