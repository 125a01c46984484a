"""A repository's contents: its commit, and its files with their sizes and hashes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glinfer.errors import HubError
from glinfer.formats.json_files import is_whole, quoted
from glinfer.hub.names import COMMIT, HubName, is_plain_path
from glinfer.limits import MAX_HUB_FILE_BYTES, MAX_LISTED_FILES

_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        path: plain path in the repository, see :func:`glinfer.hub.names.is_plain_path`.
        size: in bytes.
        digest: SHA-256 of a large file's bytes (64 digits), or Git's hash of a blob (40 digits): SHA-1 of a line with
            the size, then the bytes. It names the file's blob in the cache. Empty for files of the cache.
    """

    path: str
    size: int
    digest: str

    def hasher(self) -> Any:
        """A hash object that gives :attr:`digest` after all bytes were added."""
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


@dataclass(frozen=True)
class Repository:
    """A repository at a commit.

    Attributes:
        name: the requested name.
        commit: 40 hexadecimal digits.
        files: the files by path, without unsafe names.
        passed_over: the number of files left out.
        is_cached: whether these are only the cached files.
    """

    name: HubName
    commit: str
    files: Mapping[str, RemoteFile]
    passed_over: int = 0
    is_cached: bool = False


def read_listing(name: HubName, told: Mapping[str, Any]) -> Repository:
    """The repository in a hub's answer.

    Raises:
        HubError: the answer lacks a commit or a list of files, or lists too many.
    """
    commit, entries = told.get("sha"), told.get("siblings")
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise HubError(f"{name}: the hub answered with commit {quoted(commit)}; expected 40 hexadecimal digits")
    if name.revision != commit and COMMIT.fullmatch(name.revision):
        raise HubError(f"{name}: the hub answered with commit {commit}; expected the requested one")
    if not isinstance(entries, list) or len(entries) > MAX_LISTED_FILES:
        found = f"{len(entries)} files" if isinstance(entries, list) else "no list of files"
        raise HubError(f"{name}: found {found}; expected a list of at most {MAX_LISTED_FILES}")
    files = [each for each in map(_file, entries) if each is not None]
    return Repository(name, commit, {each.path: each for each in files}, len(entries) - len(files))


def _file(entry: object) -> RemoteFile | None:
    """A file of the list; None if it cannot belong to a model or has no hash."""
    if not isinstance(entry, dict):
        return None
    path, size, digest = entry.get("rfilename"), entry.get("size"), entry.get("blobId")
    large = entry.get("lfs")
    if isinstance(large, dict):
        size, digest = large.get("size"), large.get("sha256")
    form = _SHA256 if isinstance(large, dict) else _SHA1
    if not isinstance(path, str) or not is_plain_path(path):
        return None
    if not isinstance(digest, str) or not form.fullmatch(digest):
        return None
    if not isinstance(size, int) or not is_whole(size, 0) or size > MAX_HUB_FILE_BYTES:
        return None
    return RemoteFile(path, size, digest)
