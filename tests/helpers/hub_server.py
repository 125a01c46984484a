"""A hub on the loopback address, with the routes of Hugging Face's that its client asks, and storage at another origin.

Files of more than :data:`LARGE` bytes, and all weights, lie in the storage: asking for one is answered with a redirect
there, as the real hub does it. What is asked is recorded. A test gives the server faults: functions that see a request
first, and answer it if they return True.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 4096
WEIGHTS = (".gguf", ".safetensors", ".gab", ".bin")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def git_hash(data: bytes) -> str:
    """Git's hash of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """A repository: the files of each commit, and what its branches are; ``answers`` replaces the hub's answer."""

    files: dict[str, bytes]
    commit: str = ""
    refs: dict[str, str] = field(default_factory=dict)
    token: str = ""
    gated: bool = False
    answer: Any = None

    def __post_init__(self) -> None:
        listed = json.dumps(sorted((path, git_hash(data)) for path, data in self.files.items()))
        self.commit = self.commit or hashlib.sha1(listed.encode()).hexdigest()
        self.refs = self.refs or {"main": self.commit}

    def is_large(self, path: str) -> bool:
        return path.endswith(WEIGHTS) or len(self.files[path]) > LARGE

    def listing(self, name: str) -> dict[str, Any]:
        files = []
        for path, data in self.files.items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git_hash(data)}
            if self.is_large(path):
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            files.append(entry)
        return {
            "id": name,
            "modelId": name,
            "sha": self.commit,
            "private": False,
            "gated": self.gated,
            "siblings": files,
        }


@dataclass(frozen=True)
class Asked:
    """A request that reached a server."""

    origin: str
    method: str
    path: str
    headers: dict[str, str]


class Hub:
    """Two servers, ``hub`` and ``storage``, each with a free port of its own, and what they have."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.faults: list[Callable[[Handler], bool]] = []
        self.asked: list[Asked] = []
        self._servers = {name: _Server(self, name) for name in ("hub", "storage")}

    def clear(self) -> None:
        """Forget repositories, faults and what was asked."""
        for each in (self.repos, self.blobs, self.faults, self.asked):
            each.clear()

    @property
    def url(self) -> str:
        return self.address("hub")

    def address(self, origin: str) -> str:
        return f"http://127.0.0.1:{self._servers[origin].server_address[1]}"

    def add(self, name: str, files: dict[str, bytes], **facts: Any) -> Repo:
        made = self.repos[name] = Repo(files, **facts)
        self.blobs.update((hashlib.sha256(data).hexdigest(), data) for data in files.values())
        return made

    def paths(self, origin: str = "", method: str = "GET") -> list[str]:
        return [each.path for each in self.asked if each.origin in (origin or each.origin) and each.method == method]

    def __enter__(self) -> Hub:
        for server in self._servers.values():
            server.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.shutdown()
            server.thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub, origin: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.origin = hub, origin
        self.thread = threading.Thread(target=lambda: self.serve_forever(poll_interval=0.02), daemon=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away in the midst of answers here, which is no error."""


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each body waits 40 ms for the acknowledgement of its header
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    @property
    def hub(self) -> Hub:
        return self.server.hub

    @property
    def origin(self) -> str:
        return self.server.origin

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.hub.asked.append(Asked(self.origin, self.command, self.path, dict(self.headers)))
        if any(fault(self) for fault in self.hub.faults):
            return
        path = unquote(urlsplit(self.path).path)
        if self.origin == "storage":
            self.file(self.hub.blobs[path.rpartition("/")[2]], {"ETag": f'"{path.rpartition("/")[2][:32]}"'})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._listing(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/((?:refs/[^/]+/)?[^/]+)/(.+)", path):
            self._resolve(*found.groups())
        else:
            self.reply(404, {}, b"")

    def _repo(self, name: str, revision: str, *, resolves: bool) -> Repo | None:
        """The repository, if this request may read it; else it is answered."""
        repo, token = self.hub.repos.get(name), self.headers.get("Authorization", "")
        if token == "Bearer hf_wrong":
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif repo is None or (repo.token and not repo.gated and token != f"Bearer {repo.token}"):
            self.refuse(401, "RepoNotFound", "Repository not found")
        elif repo.gated and resolves and token != f"Bearer {repo.token}":
            self.refuse(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted.")
        elif revision not in (*repo.refs, *repo.refs.values(), repo.commit):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repo
        return None

    def _listing(self, name: str, revision: str) -> None:
        if repo := self._repo(name, revision, resolves=False):
            answer = repo.listing(name) if repo.answer is None else repo.answer
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.reply(200, {"Content-Type": "application/json"}, body)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repo = self._repo(name, revision, resolves=True)
        if repo is None:
            return
        data = repo.files.get(path)
        headers = {"X-Repo-Commit": repo.commit}
        if data is None:
            self.refuse(404, "EntryNotFound", "Entry not found", headers)
        elif repo.is_large(path):
            digest = hashlib.sha256(data).hexdigest()
            location = f"{self.hub.address('storage')}/blobs/{digest}"
            linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data)), "Location": location}
            self.reply(302, {**headers, **linked, "ETag": f'"{git_hash(data)}"'}, b"Found")
        else:
            self.file(data, {**headers, "ETag": f'"{git_hash(data)}"'})

    def refuse(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> bool:
        values = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}
        self.reply(status, values, json.dumps({"error": message}).encode())
        return True

    def file(self, data: bytes, headers: dict[str, str]) -> None:
        """Answer with a file, or with the part of it that is asked for."""
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if wanted is None:
            self.reply(200, {"Accept-Ranges": "bytes", **headers}, data)
            return
        first, last = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
        if first >= len(data):
            self.reply(416, {"Content-Range": f"bytes */{len(data)}", **headers}, b"")
            return
        self.reply(206, {"Content-Range": f"bytes {first}-{last}/{len(data)}", **headers}, data[first : last + 1])

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> bool:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(body)
        return True

    def cut(self, data: bytes, after: int, *, promised: int | None = None, status: int = 200, **headers: str) -> bool:
        """Promise a body and end the connection after so many bytes of it."""
        self.reply(
            status, {"Content-Length": str(len(data) if promised is None else promised), **headers}, data[:after]
        )
        self.close_connection = True
        return True


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that is gone after the block."""
    with Hub() as hub:
        yield hub
