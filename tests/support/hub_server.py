"""A stand-in for the Hugging Face hub on loopback, for huggingface_hub's requests, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

TOKEN = "hf_secret"


@dataclass
class Repo:
    """Files of a model; a changed file makes another commit."""

    files: dict[str, bytes]
    gated: bool = False
    """Whether a client without a token sees the list of files, but gets none of them."""
    private: bool = False

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


@dataclass
class HubServer:
    """Serves `repos`; `with` starts and stops it."""

    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Range of each request."""
    n_bytes_max: int | None = None
    """Bytes of a file after which the connection is cut."""
    cut: threading.Event = field(default_factory=threading.Event)
    """Set when the connection was cut. It is left hanging if `hangs`."""
    hangs: bool = False
    is_closed: bool = False

    def __enter__(self) -> HubServer:
        server = self

        class Handler(_Handler):
            hub = server

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._httpd.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._httpd.server_address[1]}"
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop: from now on nothing is answered, neither on open connections nor on new ones."""
        self.is_closed = True
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join()

    def fetched(self) -> list[str]:
        """Return the files that were sent, in order, whole or in part."""
        return [path.split("/resolve/")[1].split("/", 1)[1] for method, path, _ in self.requests if method == "GET"
                and "/resolve/" in path]  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[HubServer]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        if self.hub.is_closed:
            self.close_connection = True
            return
        self.hub.requests.append((self.command, self.path, self.headers.get("Range", "")))
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            repo = self._repo(found[1])
            if repo is not None:
                siblings = [{"rfilename": name} for name in ["README.md", *repo.files]]
                about = {"_id": "0", "id": found[1], "modelId": found[1], "sha": repo.commit, "siblings": siblings}
                about |= {"private": repo.private, "tags": [], "downloads": 0, "likes": 0}
                self._send(200, json.dumps(about).encode())
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repo = self._repo(found[1])
            if repo is None:
                return
            if repo.gated and not self._has_token():
                self._send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
            elif found[3] not in repo.files or found[2] not in ("main", repo.commit):
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            else:
                self._send_file(repo, repo.files[found[3]])
        else:
            self._send(404, b"")

    def _has_token(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repo(self, name: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not self._has_token()):
            self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return None
        return repo

    def _send_file(self, repo: Repo, data: bytes) -> None:
        etag = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repo.commit, "Accept-Ranges": "bytes"}
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if found is None:
            self._send(200, data, headers)
        else:
            begin = int(found[1])
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            self._send(206, data[begin:], headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        n_max = self.hub.n_bytes_max if "/resolve/" in self.path else None
        if n_max is None or n_max >= len(body):
            self.wfile.write(body)
            return
        self.wfile.write(body[:n_max])
        self.wfile.flush()
        self.hub.cut.set()
        while self.hub.hangs:
            threading.Event().wait(0.05)
        self.close_connection = True
