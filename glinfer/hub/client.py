"""Requests to a hub, through the session of the package ``huggingface_hub``.

The session applies the user's settings: ``HF_ENDPOINT``, ``HF_TOKEN``, proxies, certificates, ``HF_HUB_OFFLINE``. The
package's own download functions hold a whole answer in memory, decompress it, do not resume another process's download,
and do not compare hashes. Here every read is bounded.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote, urlsplit

from glinfer.errors import HubError, InputError, install_command
from glinfer.formats.files import shown, words_of
from glinfer.formats.json_files import check_values
from glinfer.hub.addresses import guard, leads_inside
from glinfer.hub.names import HubName
from glinfer.limits import MAX_LISTING_BYTES

_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
_RESUMED, _WHOLE = 206, 200
_MOST_REDIRECTS = 20


class UnreachableError(HubError):
    """The hub cannot be reached or is overloaded; a copy in the cache may be used instead."""


class DistrustError(HubError):
    """The received bytes differ from the hub's list."""


class CutOffError(UnreachableError):
    """An answer ended too early; the bytes received so far are valid."""


def require_hub(name: object) -> Any:
    """The package ``huggingface_hub``.

    Raises:
        InputError: it is not installed, or too old; the error says how to install it.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(
            f"{shown(str(name))}: fetching models of a hub needs the package huggingface_hub, which is not "
            f"installed; {install_command('hub')}"
        ) from None
    if not hasattr(huggingface_hub, "get_session") or int(huggingface_hub.__version__.partition(".")[0]) < 1:
        raise InputError(
            f"{shown(str(name))}: found huggingface_hub {huggingface_hub.__version__}; expected 1.0 or later; "
            f"{install_command('hub')}"
        )
    return huggingface_hub


def is_offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` is set."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


class Client:
    """Reads a repository's list of files and ranges of their bytes.

    Args:
        name: the model's name, with which error messages begin.
        clock: a monotonic clock in seconds; a small answer may take :attr:`patience` seconds.
    """

    patience = 120.0

    def __init__(self, name: HubName, clock: Any = time.monotonic) -> None:
        """Make a client without opening a connection."""
        self.name, self._clock = name, clock
        self._hub = require_hub(name)
        self._leads_inside = cache(leads_inside)  # behind a proxy, looking up a name here can be slow
        self._constants = self._hub.constants

    def listing(self) -> dict[str, Any]:
        """The hub's description of the repository at the revision: its commit and its files, with sizes and hashes.

        Raises:
            HubError: the repository or revision does not exist or may not be read, or the answer is invalid.
            UnreachableError: the hub does not answer or is overloaded.
        """
        revision = quote(self.name.revision, safe="")
        url = f"{self._endpoint}/api/models/{self.name.repo}/revision/{revision}?blobs=true"
        with self._answer(url, {}) as response:
            text = self._small(response, MAX_LISTING_BYTES)
        label = f"{self.name}: the answer of {self._host}"
        try:
            check_values(text, label)
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise HubError(f"{label} is not JSON; check HF_ENDPOINT and the proxy") from None
        if not isinstance(found, dict):
            raise HubError(f"{label} is a JSON {type(found).__name__}; expected an object; check HF_ENDPOINT")
        return found

    def piece(self, commit: str, path: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of a file, in one request.

        Raises:
            HubError: as for :meth:`listing`; or the hub does not support ranges, or sends fewer bytes.
        """
        found, begun = bytearray(), self._clock()
        with self.stream(commit, path, start, end, exact=False) as (first, chunks):
            if first != start:
                raise HubError(f"{self.name}: {self._host} ignores byte ranges of {shown(path)}; check the proxy")
            for chunk in chunks:
                found += chunk
                self._check_patience(begun)
        if len(found) != end - start:
            raise CutOffError(
                f"{self.name}: {self._host} sent {len(found)} of {end - start} bytes of {shown(path)}; try again"
            )
        return bytes(found)

    @contextlib.contextmanager
    def stream(
        self, commit: str, path: str, start: int, end: int, *, exact: bool = True
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield the offset of the first byte (``start``, or 0 if the hub ignores it), and the chunks up to ``end``.

        Raises:
            HubError: as for :meth:`listing`.
            DistrustError: with ``exact``, more bytes arrive than requested; otherwise the excess is ignored.
            CutOffError: the connection broke, before or while the bytes are read.
        """
        url = f"{self._endpoint}/{self.name.repo}/resolve/{commit}/{quote(path)}"
        with self._answer(url, {"Range": f"bytes={start}-{end - 1}"}, path) as response:
            first = self._first(response, path, start)
            yield first, self._bounded(response, path, end - first, exact=exact)

    def _first(self, response: Any, path: str, start: int) -> int:
        """The offset of an answer's first byte."""
        if response.status_code == _WHOLE:
            return 0
        told = response.headers.get("Content-Range", "")
        unit, _, place = told.strip().partition(" ")
        if unit != "bytes" or place.partition("-")[0] != str(start):
            raise HubError(
                f"{self.name}: {self._host} answered with {words_of(told, 60)!r} of {shown(path)}; expected bytes "
                f"from {start}; check the proxy"
            )
        return start

    def _bounded(self, response: Any, path: str, most: int, *, exact: bool) -> Iterator[bytes]:
        left = most
        with self._library_errors(path):
            for chunk in response.iter_raw():
                if len(chunk) > left and exact:
                    raise DistrustError(
                        f"{self.name}: {self._host} sends more than the {most} bytes of {shown(path)}; do not trust it"
                    )
                yield chunk[:left]
                left -= min(left, len(chunk))
                if not left and not exact:
                    return

    def _small(self, response: Any, most: int) -> bytes:
        """The body of an answer, at most ``most`` bytes."""
        found, begun = bytearray(), self._clock()
        with self._library_errors(""):
            for chunk in response.iter_raw():
                found += chunk
                self._check_patience(begun)
                if len(found) > most:
                    raise HubError(f"{self.name}: {self._host} answered with more than {most} bytes; check HF_ENDPOINT")
        return bytes(found)

    def _check_patience(self, begun: float) -> None:
        if self._clock() - begun > self.patience:
            raise UnreachableError(
                f"{self.name}: {self._host} has not finished an answer in {self.patience:.0f} s; try again later"
            )

    @contextlib.contextmanager
    def _answer(self, url: str, headers: Mapping[str, str], path: str = "") -> Iterator[Any]:
        """The answer to a GET request, with its body unread."""
        # A compressed answer could unpack to any size.
        sent = {"Accept-Encoding": "identity", **headers, **self._headers()}
        with self._library_errors(path):
            opened, response = self._sent(url, sent)
        try:
            self._check(response, path)
            yield response
        finally:
            opened.__exit__(None, None, None)

    def _sent(self, url: Any, headers: Any) -> tuple[Any, Any]:
        """Follow redirects of a GET request; return the context manager to close, and the answer."""
        how: dict[str, Any] = {"timeout": self._constants.HF_HUB_DOWNLOAD_TIMEOUT, "follow_redirects": False}
        for _ in range(_MOST_REDIRECTS):
            opened = self._hub.get_session().stream("GET", url, headers=headers, **how)
            response = opened.__enter__()
            if response.next_request is None:
                return opened, response
            opened.__exit__(None, None, None)
            # For another origin, its headers lack the user's token.
            url, headers = response.next_request.url, response.next_request.headers
            how["extensions"] = {"trace": self._guarded(url.raw_host.decode("ascii"))}
        raise HubError(f"{self.name}: {self._host} redirects more than {_MOST_REDIRECTS} times; check HF_ENDPOINT")

    def _guarded(self, host: str) -> Callable[[str, Any], None]:
        """Refuse a redirect into a private network without the hub; return a trace that also checks on connecting.

        Raises:
            HubError: the redirect leads there.
        """
        own = urlsplit(self._endpoint).hostname or ""

        def refuse() -> None:
            if host != own and not self._leads_inside(own):
                raise HubError(
                    f"{self.name}: {self._host} redirects to {words_of(host, 80)}, which is in a private network; do "
                    "not trust it, or set HF_ENDPOINT to a hub in that network"
                )

        if self._leads_inside(host):
            refuse()
        return guard(host, refuse)

    def _headers(self) -> dict[str, str]:
        """The user's token and agent; huggingface_hub's own headers send more, and query the hub for some of it."""
        headers = {"User-Agent": f"glinfer; hf_hub/{self._hub.__version__}"}
        implicit = not self._constants.HF_HUB_DISABLE_IMPLICIT_TOKEN
        if implicit and (token := self._hub.get_token()):
            headers["Authorization"] = f"Bearer {token}"
        return headers

    @property
    def _endpoint(self) -> str:
        return str(self._constants.ENDPOINT)

    @property
    def _host(self) -> str:
        return words_of(self._endpoint.partition("://")[2].rpartition("@")[2] or self._endpoint, 80)

    @contextlib.contextmanager
    def _library_errors(self, path: str) -> Iterator[None]:
        """Turn the HTTP library's errors within the block into one line."""
        library: Any = sys.modules[type(self._hub.get_session()).__module__.partition(".")[0]]  # httpx, or httpx2
        try:
            yield
        except self._hub.errors.OfflineModeIsEnabled:
            raise UnreachableError(offline_line(self.name)) from None
        except (library.ConnectError, library.ConnectTimeout, library.ProxyError) as error:
            raise UnreachableError(self._unreachable(error)) from None
        except (library.TransportError, library.StreamError) as error:
            what = f" while it sent {shown(path)}" if path else ""
            raise CutOffError(
                f"{self.name}: the connection to {self._host} broke off{what} ({_words(error)}); try again to resume"
            ) from None
        except (library.HTTPError, library.InvalidURL, library.CookieConflict, ValueError) as error:
            raise HubError(f"{self.name}: the request is invalid: {words_of(error, 120)}; check HF_ENDPOINT") from None

    def _unreachable(self, error: Exception) -> str:
        proxy = next((name for name in _PROXIES if os.environ.get(name)), None)
        through = f" through the proxy of ${proxy}" if proxy else ""
        advice = (
            f"check ${proxy} and the connection" if proxy else "check the connection, or HF_ENDPOINT and HTTPS_PROXY"
        )
        return f"{self.name}: {self._host} cannot be reached{through} ({_words(error)}); {advice}"

    def _check(self, response: Any, path: str) -> None:
        """Refuse an answer without the requested content.

        Raises:
            DistrustError: the file is shorter than the list says.
            HubError: the content does not exist or may not be read.
            UnreachableError: the hub is overloaded or has an internal error.
        """
        status, headers = response.status_code, response.headers
        packed = headers.get("Content-Encoding", "identity").strip().lower()
        if status in (_WHOLE, _RESUMED) and packed in ("identity", ""):
            return
        code, repo = headers.get("X-Error-Code", ""), self.name.repo
        page = f"{self._endpoint}/{repo}"
        told = words_of(headers.get("X-Error-Message", ""), 120)
        if status in (_WHOLE, _RESUMED):
            raise HubError(
                f"{self.name}: {self._host} sent it compressed as {words_of(packed, 40)!r}; expected it uncompressed; "
                "check the proxy"
            )
        if code == "GatedRepo":
            line = f"this model is gated: accept its terms at {page}, then set HF_TOKEN to your token"
        elif code == "RevisionNotFound":
            line = f"{repo} has no revision {self.name.revision}; {page} lists its branches and tags"
        elif code == "EntryNotFound":
            line = f"{repo} has no file {shown(path)} at this revision; {page} lists its files"
        elif status == 401 and told.startswith("Invalid credentials"):
            line = f"{self._host} rejects the token in HF_TOKEN or from 'hf auth login'; renew it, or unset HF_TOKEN"
        elif code == "RepoNotFound" or status in (401, 404):
            line = f"{self._host} has no such repository, or a private one; check the name, or set HF_TOKEN for it"
        elif status == 403:
            line = f"{self._host} forbids it{f' ({told})' if told else ''}; see {page}, and check HF_TOKEN"
        elif status == 407:
            raise UnreachableError(f"{self.name}: the proxy requires a name and a password; put them into HTTPS_PROXY")
        elif status == 429:
            wait = headers.get("Retry-After", "")
            when = f"in {int(wait)} seconds" if wait.isdecimal() and len(wait) < 7 else "later"
            raise UnreachableError(
                f"{self.name}: {self._host} received too many requests (429); try again {when}, or with HF_TOKEN set"
            )
        elif status >= 500:
            raise UnreachableError(f"{self.name}: {self._host} has an internal error ({status}); try again later")
        elif status == 416:
            raise DistrustError(
                f"{self.name}: {self._host} has fewer bytes of {shown(path)} than its list says; do not trust it"
            )
        else:
            line = f"{self._host} answered with status {status}{f' ({told})' if told else ''}; check HF_ENDPOINT"
        raise HubError(f"{self.name}: {line}")


def _words(error: Exception) -> str:
    return words_of(error, 80) or type(error).__name__


def offline_line(name: HubName) -> str:
    """The error message for a model that is not in the cache while ``HF_HUB_OFFLINE`` is set."""
    return (
        f"{name}: HF_HUB_OFFLINE is set, and the cache does not have the whole model; unset it, or fetch the model "
        f"with 'glinfer pull {name}' first"
    )
