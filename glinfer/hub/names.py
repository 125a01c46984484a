"""Names of models on a hub: ``org/name``, ``org/name:QUANT@revision``, ``hf://…``, ``hf.co/…``, and URLs of files.

Reading a name needs neither the network nor a package.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from glinfer.errors import InputError
from glinfer.formats.files import is_plain_path, shown

HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co")
"""Hosts of the public hub; ``$HF_ENDPOINT`` adds another."""
MAIN = "main"
"""The default revision."""
COMMIT = re.compile(r"[0-9a-f]{40}")
"""A full commit hash, a revision that never changes."""

_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}[\w])?"
_REPO = re.compile(rf"(?!.*(?:\.\.|--|\.git$)){_PART}/{_PART}", re.ASCII)
_REVISION = re.compile(r"(?!.*(?:\.\.|//))\w[\w./+-]{0,199}", re.ASCII)
_QUANT = re.compile(r"\w[\w. -]{0,199}", re.ASCII)
_MARKED = re.compile(r"([^:@]*)(?::([^@]*)(?:@(.*))?|@([^:]*)(?::(.*))?)?", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_VIEWS = ("resolve", "blob", "raw", "tree")  # the parts of a URL between a repository and a revision
_PATH_SUFFIXES = (".gguf", ".safetensors", ".gab", ".json", ".bin", ".bpe", ".pt", ".pth")
_EXPECTED = "expected org/name, org/name:QUANT@revision, or the address of a file on the hub"


@dataclass(frozen=True)
class HubName:
    """The name of a model on a hub: ``org/name``, and a branch, tag or commit.

    ``quant`` is the quantisation, such as ``Q8_0``, or a file's name without its ending; empty for the default.
    ``path`` is a file or folder of the repository; empty for its root.
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
    first = text.partition("/")[0]
    if text.startswith("hf://"):
        return _of_parts(text, text.removeprefix("hf://").removeprefix("models/"))
    if _SCHEME.match(text) or first.lower() in HOSTS:
        return _of_address(text, text if _SCHEME.match(text) else f"https://{text}")
    looks_like_a_path = text.startswith((".", "/", "~")) or text.lower().endswith(_PATH_SUFFIXES)
    if looks_like_a_path or "\\" in text or "\0" in text or os.path.lexists(first):
        return None
    repo, quant, revision = _split(text)
    return _checked(text, HubName(repo, revision or MAIN, quant)) if _REPO.fullmatch(repo) else None


def _split(text: str) -> tuple[str, str, str]:
    """The part before ``:`` and ``@``, and what follows each of them, in either order."""
    found = _MARKED.fullmatch(text)
    assert found is not None
    return found[1], found[2] or found[5] or "", found[3] or found[4] or ""


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
        parts, own = urlsplit(address), urlsplit(os.environ.get("HF_ENDPOINT", ""))
        host = (parts.hostname or "").lower()
        is_own = bool(own.hostname) and (host, parts.port) == (own.hostname, own.port)
    except ValueError:
        raise InputError(f"{shown(text)}: this is not a valid address; {_EXPECTED}") from None
    if parts.scheme not in ("http", "https") or not (host in HOSTS or is_own):
        raise InputError(
            f"{shown(text)}: only addresses on the hub ({HOSTS[0]}) are fetched; download the file and give its path"
        )
    path = unquote(parts.path).removeprefix(own.path.rstrip("/") if is_own else "").strip("/")
    org, _, rest = path.removeprefix("models/").partition("/")
    head, _, rest = rest.partition("/")
    view, _, rest = rest.partition("/")
    if view in _VIEWS:
        found = re.match(r"(refs/[^/]*/[^/]*|[^/]*)/?(.*)", rest, re.DOTALL)  # refs/pr/1 has slashes
        assert found is not None
        return _checked(text, HubName(f"{org}/{head}", found[1] or MAIN, "", found[2]))
    if view:
        raise InputError(f"{shown(text)}: found {shown(view)} after the repository's name; {_EXPECTED}")
    head, quant, revision = _split(head)
    return _checked(text, HubName(f"{org}/{head}", revision or MAIN, quant))


def _checked(text: str, name: HubName) -> HubName:
    """Return the name if all its parts are valid on a hub."""
    what = "nothing follows its last : or @" if text.rstrip().endswith((":", "@")) else ""
    if not _REPO.fullmatch(name.repo):
        what = f"{shown(name.repo)} is not a name of a repository"
    elif not _REVISION.fullmatch(name.revision):
        what = f"{shown(name.revision)} is not a revision"
    elif name.quant and not _QUANT.fullmatch(name.quant):
        what = f"{shown(name.quant)} is not a quantisation"
    elif name.path and not is_plain_path(name.path):
        what = f"{shown(name.path)} is not a path in a repository"
    elif name.path and name.quant:
        what = f"found both {shown(name.path)} and :{name.quant}"
    if what:
        raise InputError(f"{shown(text)}: {what}; {_EXPECTED}")
    return name
