"""Names of models on a hub: ``org/name``, ``org/name:QUANT@revision``, ``hf://…``, ``hf.co/…``, and URLs of files.

Reading a name needs neither the network nor a package.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from glinfer.errors import InputError
from glinfer.formats.files import is_plain_path as is_plain_path
from glinfer.formats.files import shown

HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co")
"""Hosts of the public hub; ``$HF_ENDPOINT`` adds another."""
MAIN = "main"
"""The default revision."""
COMMIT = re.compile(r"[0-9a-f]{40}")
"""A full commit hash, a revision that never changes."""

_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}[\w])?"
_REPO = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_REVISION = re.compile(r"[\w][\w./+-]{0,199}", re.ASCII)
_QUANT = re.compile(r"[\w][\w. -]{0,199}", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_VIEWS = ("resolve", "blob", "raw", "tree")
"""The parts of a URL between a repository and a revision."""
FILE_SUFFIXES = (".gguf", ".safetensors", ".safetensors.index.json", ".gab")
"""Endings of the files that a name may select."""
_PATH_SUFFIXES = (*FILE_SUFFIXES, ".json", ".bin", ".bpe", ".pt", ".pth")
_EXPECTED = "expected org/name, org/name:QUANT@revision, or the address of a file on the hub"


@dataclass(frozen=True)
class HubName:
    """The name of a model on a hub.

    Attributes:
        repo: ``org/name``.
        revision: a branch, a tag or a commit.
        quant: the quantisation, such as ``Q8_0``, or a file's name without its ending; empty for the default.
        path: a file or folder of the repository; empty for its root.
    """

    repo: str
    revision: str = MAIN
    quant: str = ""
    path: str = ""

    def __str__(self) -> str:
        """The name for error messages."""
        quant, revision = f":{self.quant}" if self.quant else "", f"@{self.revision}" if self.revision != MAIN else ""
        return f"{self.repo}{f'/{self.path}' if self.path else ''}{quant}{revision}"


def hub_name(text: str | os.PathLike[str]) -> HubName | None:
    """Read the name of a model on a hub; None for other texts, such as a path.

    A text that looks like a path is one, even if the file does not exist: it begins with a dot, a slash or ``~``, ends
    like a model's file, or its first part is an existing folder.

    Raises:
        InputError: it is a URL of another host, or a malformed name that begins like one on a hub.
    """
    if not isinstance(text, str):
        return None
    if text.startswith("hf://"):
        return _of_parts(text, text.removeprefix("hf://").removeprefix("models/"))
    if _SCHEME.match(text):
        return _of_address(text, text)
    if text.partition("/")[0].lower() in HOSTS:
        return _of_address(text, f"https://{text}")
    return None if _looks_like_a_path(text) else _plain(text)


def _looks_like_a_path(text: str) -> bool:
    return (
        text.startswith((".", "/", "~"))
        or "\\" in text
        or "\0" in text
        or text.lower().endswith(_PATH_SUFFIXES)
        or os.path.lexists(text.partition("/")[0])
    )


def _plain(text: str) -> HubName | None:
    """Read ``org/name`` with an optional quantisation and revision in either order; None for other texts."""
    repo, quant, revision = _split(text)
    if not _REPO.fullmatch(repo) or not _is_repo(repo):
        return None
    return _checked(text, HubName(repo, revision or MAIN, quant))


def _split(text: str) -> tuple[str, str, str]:
    """The parts before both marks, after ``:`` and after ``@``."""
    marks = sorted(place for place in (text.find(":"), text.find("@")) if place >= 0)
    found = {":": "", "@": ""}
    for place, end in zip(marks, [*marks, len(text)][1:], strict=True):
        found[text[place]] = text[place + 1 : end]
    return text[: marks[0]] if marks else text, found[":"], found["@"]


def _is_repo(repo: str) -> bool:
    return _REPO.fullmatch(repo) is not None and ".." not in repo and "--" not in repo and not repo.endswith(".git")


def _of_parts(text: str, rest: str) -> HubName:
    """Read ``org/name[@revision][/path][:QUANT]`` after ``hf://``; the revision writes a slash as ``%2F``."""
    rest, _, quant = rest.partition(":")
    org, _, rest = rest.partition("/")
    head, _, path = rest.partition("/")
    name, _, revision = head.partition("@")
    path, _, later = path.partition("@")
    return _checked(text, HubName(f"{org}/{name}", unquote(revision or later) or MAIN, quant, path.strip("/")))


def _of_address(text: str, address: str) -> HubName:
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").lower()
        found = f"{host}:{parts.port}" if parts.port else host
    except ValueError:
        raise InputError(f"{shown(text)}: this is not a valid address; {_EXPECTED}") from None
    own = urlsplit(os.environ.get("HF_ENDPOINT", ""))
    base = own.path.rstrip("/") if own.netloc and own.netloc.lower() == found else ""
    if parts.scheme not in ("http", "https") or (host not in HOSTS and found != own.netloc.lower()) or not host:
        raise InputError(
            f"{shown(text)}: only addresses on the hub ({HOSTS[0]}) are fetched; download the file and give its path"
        )
    path = unquote(parts.path).removeprefix(base).strip("/")
    org, _, rest = path.removeprefix("models/").partition("/")
    head, _, behind = rest.partition("/")
    view, _, behind = behind.partition("/")
    if view in _VIEWS:
        revision, _, path = behind.partition("/")
        if revision == "refs":  # refs/pr/1 and refs/convert/parquet have slashes
            kind, _, path = path.partition("/")
            name, _, path = path.partition("/")
            revision = f"refs/{kind}/{name}"
        return _checked(text, HubName(f"{org}/{head}", revision or MAIN, "", path))
    if view:
        raise InputError(f"{shown(text)}: found {shown(view)} after the repository's name; {_EXPECTED}")
    head, quant, revision = _split(head)
    return _checked(text, HubName(f"{org}/{head}", revision or MAIN, quant))


def _checked(text: str, name: HubName) -> HubName:
    """Return the name if all its parts are valid on a hub."""
    what = ""
    if not _is_repo(name.repo):
        what = f"{shown(name.repo)} is not a name of a repository"
    elif not _REVISION.fullmatch(name.revision) or ".." in name.revision or "//" in name.revision:
        what = f"{shown(name.revision)} is not a revision"
    elif name.quant and not _QUANT.fullmatch(name.quant):
        what = f"{shown(name.quant)} is not a quantisation"
    elif name.path and not is_plain_path(name.path):
        what = f"{shown(name.path)} is not a path in a repository"
    elif name.path and name.quant:
        what = f"found both {shown(name.path)} and :{name.quant}"
    if what or text.rstrip().endswith((":", "@")):
        raise InputError(f"{shown(text)}: {what or 'nothing follows its last : or @'}; {_EXPECTED}")
    return name
