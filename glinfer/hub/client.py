"""Requests to a hub through the session of the package ``huggingface_hub``; every failure is one line.

The session applies the user's settings: ``HF_ENDPOINT``, ``HF_TOKEN``, proxies, certificates, ``HF_HUB_OFFLINE``. The
headers are our own: the package's describe the machine and cost a request. What is kept in memory is bounded.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from glinfer.errors import HubError, InputError, install_command, required
from glinfer.formats.files import shown, words_of
from glinfer.hub.choice import RemoteFile, Repository, read_listing
from glinfer.hub.names import HubName
from glinfer.limits import MAX_LISTING_BYTES


class UnreachableError(HubError):
    """The hub cannot be reached or is overloaded; a copy in the cache may be used instead."""


def require_hub(name: object) -> Any:
    """The package ``huggingface_hub``."""
    hub = required("huggingface_hub", "hub", f"{shown(str(name))}: fetching models of a hub needs")
    version = hub.__version__
    if tuple(map(int, version.split(".")[:2])) < (1, 20):
        found = f"found huggingface_hub {version}; expected 1.20 or later"
        raise InputError(f"{shown(str(name))}: {found}; {install_command('hub')}")
    importlib.import_module("huggingface_hub.constants")  # the package imports its parts on demand
    importlib.import_module("huggingface_hub.errors")
    importlib.import_module("huggingface_hub.utils")
    return hub


def list_files(name: HubName) -> Repository:
    """The repository at the requested revision; an UnreachableError if the hub does not answer or is overloaded."""
    endpoint = require_hub(name).constants.ENDPOINT
    url = f"{endpoint}/api/models/{name.repo}/revision/{quote(name.revision, safe='')}?blobs=true"
    label = f"{name}: the answer of {_host(name)}"
    text = _read(name, url, MAX_LISTING_BYTES + 1, _headers(name))
    if len(text) > MAX_LISTING_BYTES:
        raise HubError(f"{label} has more than {MAX_LISTING_BYTES} bytes; check HF_ENDPOINT")
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), dict):
            return read_listing(name, found)
    raise HubError(f"{label} is not a JSON object; check HF_ENDPOINT and the proxy")


def piece(repository: Repository, file: RemoteFile, start: int, end: int) -> bytes:
    """Bytes [start, end) of a file, in one request."""
    name = repository.name
    headers = {**_headers(name), "Range": f"bytes={start}-{end - 1}"}
    data = _read(name, _url(repository, file), end - start, headers, file.path)
    if len(data) != end - start:
        what = f"sent {len(data)} of {end - start} bytes of {shown(file.path)}"
        raise UnreachableError(f"{name}: {_host(name)} {what}; try again")
    return data


def download(repository: Repository, file: RemoteFile, partial: Path) -> None:
    """Append a file's missing bytes to ``partial``; a progress bar is on a terminal's standard error."""
    from huggingface_hub.file_download import http_get

    name = repository.name
    # A bar moves the cursor; standard error may be closed.
    terminal = getattr(sys.stderr, "rich_proxied_file", sys.stderr) or io.StringIO()
    with _Partial(partial, "ab") as target, one_line(name, file.path), contextlib.redirect_stderr(terminal):
        target.most = file.size
        target.refusal = f"{name}: {_host(name)} sends more than the {file.size} bytes of {shown(file.path)}"
        if target.tell() > file.size:
            target.seek(0)
            target.truncate()
        http_get(
            _url(repository, file),
            target,
            resume_size=target.tell(),
            headers=_headers(name),
            expected_size=file.size,
            displayed_filename=shown(file.path),
        )


class _Partial(io.FileIO):
    """An incomplete file; more than ``most`` bytes are discarded with an error."""

    most: int
    refusal: str

    def write(self, data: Any) -> int:
        """Append bytes."""
        if self.tell() + len(data) > self.most:
            self.truncate(0)
            raise HubError(f"{self.refusal}; do not trust it")
        return super().write(data)


def _read(name: HubName, url: str, most: int, headers: dict[str, str], path: str = "") -> bytes:
    """The first ``most`` bytes of an answer."""
    hub, found = require_hub(name), bytearray()
    timeout = hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
    with one_line(name, path), hub.get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
        hub.utils.hf_raise_for_status(response)
        if response.status_code != 206 and not headers.get("Range", "bytes=0-").startswith("bytes=0-"):
            raise HubError(f"{name}: {_host(name)} ignores byte ranges of {shown(path)}; check the proxy")
        for chunk in response.iter_raw():
            found += chunk[: most - len(found)]
            if len(found) == most:
                break
    return bytes(found)


def _headers(name: HubName) -> dict[str, str]:
    hub = require_hub(name)
    # A compressed answer could unpack to any size.
    headers = {"User-Agent": f"glinfer; hf_hub/{hub.__version__}", "Accept-Encoding": "identity"}
    if not hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := hub.get_token()):
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _url(repository: Repository, file: RemoteFile) -> str:
    endpoint = require_hub(repository.name).constants.ENDPOINT
    return f"{endpoint}/{repository.name.repo}/resolve/{repository.commit}/{quote(file.path)}"


def _host(name: HubName) -> str:
    endpoint = str(require_hub(name).constants.ENDPOINT)
    return words_of(endpoint.partition("://")[2].rpartition("@")[2] or endpoint, 80)


@contextlib.contextmanager
def one_line(name: HubName, path: str = "") -> Iterator[None]:
    """Turn errors of requests within the block into one line, and keep the package's warnings of retries to itself."""
    hub = require_hub(name)
    errors, host, logger = hub.errors, _host(name), logging.getLogger("huggingface_hub")
    # Of httpx, or httpx2.
    library: Any = sys.modules[errors.HfHubHTTPError.__bases__[0].__module__.partition(".")[0]]
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise UnreachableError(offline_line(name)) from None
    except errors.HfHubHTTPError as error:
        raise _refused(name, path, error.response) from None
    except (library.ConnectError, library.ConnectTimeout, library.ProxyError) as error:
        advice = "check the connection, or HF_ENDPOINT and HTTPS_PROXY"
        raise UnreachableError(f"{name}: {host} cannot be reached ({_words(error)}); {advice}") from None
    except (library.TransportError, library.StreamError) as error:
        what = f" while it sent {shown(path)}" if path else ""
        line = f"{name}: the connection to {host} broke off{what} ({_words(error)}); try again to resume"
        raise UnreachableError(line) from None
    except (library.HTTPError, library.InvalidURL, ValueError) as error:
        raise HubError(f"{name}: the request is invalid: {_words(error)}; check HF_ENDPOINT") from None
    except OSError as error:
        if error.errno is not None:
            raise
        what = f"{host} did not send all bytes of {shown(path)}"  # as http_get reports it
        raise UnreachableError(f"{name}: {what}; try again to resume") from None
    finally:
        logger.setLevel(level)


def _words(error: Exception) -> str:
    return words_of(error, 80) or type(error).__name__


def _refused(name: HubName, path: str, response: Any) -> HubError:
    status, headers, host = response.status_code, response.headers, _host(name)
    code, words = headers.get("X-Error-Code", ""), words_of(headers.get("X-Error-Message", ""), 120)
    page = f"{require_hub(name).constants.ENDPOINT}/{name.repo}"
    if code == "GatedRepo":
        line = f"this model is gated: accept its terms at {page}, then set HF_TOKEN to your token"
    elif code == "RevisionNotFound":
        line = f"{name.repo} has no revision {name.revision}; {page} lists its branches and tags"
    elif code == "EntryNotFound":
        line = f"{name.repo} has no file {shown(path)} at this revision; {page} lists its files"
    elif status == 401 and words.startswith("Invalid credentials"):
        line = f"{host} rejects the token in HF_TOKEN or from 'hf auth login'; renew it, or unset HF_TOKEN"
    elif code == "RepoNotFound" or status in (401, 404):
        line = f"{host} has no such repository, or a private one; check the name, or set HF_TOKEN for it"
    elif status == 403:
        line = f"{host} forbids it{f' ({words})' if words else ''}; see {page}, and check HF_TOKEN"
    elif status == 407:
        return UnreachableError(f"{name}: the proxy requires a name and a password; put them into HTTPS_PROXY")
    elif status == 429:
        wait = headers.get("Retry-After", "")
        when = f"in {wait} seconds" if wait.isdecimal() and len(wait) < 7 else "later"
        what = f"received too many requests (429); try again {when}, or with HF_TOKEN set"
        return UnreachableError(f"{name}: {host} {what}")
    elif status >= 500:
        return UnreachableError(f"{name}: {host} has an internal error ({status}); try again later")
    else:
        line = f"{host} answered with status {status}{f' ({words})' if words else ''}; check HF_ENDPOINT"
    return HubError(f"{name}: {line}")


def offline_line(name: HubName) -> str:
    """The error message for a model that is not in the cache while ``HF_HUB_OFFLINE`` is set."""
    advice = f"unset it, or fetch the model with 'glinfer pull {name}' first"
    return f"{name}: HF_HUB_OFFLINE is set, and the cache does not have the whole model; {advice}"
