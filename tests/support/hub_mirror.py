"""A Hugging Face hub on loopback, with the layout of the real one: what a revision is, the tree of a commit, and files
with their ETags. It counts what it sends, and can ask for a token, damage a file, or be away.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LARGE = (".safetensors", ".arrow", ".parquet")


@dataclass
class HubMirror:
    """`repositories` are folders by `models/org/name` or `datasets/org/name`."""

    url: str
    repositories: dict[str, Path] = field(default_factory=dict)
    token: str | None = None
    damaged: set[str] = field(default_factory=set)
    """Names of files that arrive with a wrong byte, once each."""
    sent: Counter[str] = field(default_factory=Counter)
    """Bodies of files, by name."""
    asked: int = 0

    def commit(self, repository: str) -> str:
        files = self.repositories[repository]
        text = json.dumps([(entry["path"], entry["oid"]) for entry in tree(files)])
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def tree(folder: Path) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = []
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        content = file.read_bytes()
        entry: dict[str, object] = {
            "type": "file",
            "path": file.relative_to(folder).as_posix(),
            "size": len(content),
            "oid": hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest(),
        }
        if file.suffix in _LARGE:
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        entries.append(entry)
    return entries


@contextmanager
def hub_mirror() -> Iterator[HubMirror]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    mirror = HubMirror(url=f"http://127.0.0.1:{server.server_port}")
    server.mirror = mirror  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def mirror(self) -> HubMirror:
        found = self.server.mirror  # type: ignore[attr-defined]
        assert isinstance(found, HubMirror)
        return found

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self.mirror.asked += 1
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if self.mirror.token is not None and self.headers.get("Authorization") != f"Bearer {self.mirror.token}":
            self._send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask its owners"}, body=body)
        elif parts[0] == "api":
            self._about("/".join(parts[1:4]), parts[4:], body=body)
        else:
            kind = ["models"] if parts[0] != "datasets" else []
            named = [*kind, *parts]
            self._file("/".join(named[:3]), named[3:], body=body)

    def _about(self, repository: str, rest: list[str], *, body: bool) -> None:
        folder = self.mirror.repositories.get(repository)
        if folder is None:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, body=body)
            return
        commit = self.mirror.commit(repository)
        if rest and rest[1] not in (commit, "main", "v1"):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"}, body=body)
            return
        entries = tree(folder)
        if rest and rest[0] == "tree":
            self._send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"}, body=body)
            return
        siblings = [{"rfilename": entry["path"]} for entry in entries]
        info = {"id": repository.partition("/")[2], "sha": commit, "siblings": siblings, "private": False}
        self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, body=body)

    def _file(self, repository: str, rest: list[str], *, body: bool) -> None:
        folder = self.mirror.repositories.get(repository)
        path = "/".join(rest[2:])
        found = {str(entry["path"]): entry for entry in ([] if folder is None else tree(folder))}
        if folder is None or path not in found:
            code = "RepoNotFound" if folder is None else "EntryNotFound"
            self._send(404, b"", {"X-Error-Code": code}, body=body)
            return
        content, entry = (folder / path).read_bytes(), found[path]
        lfs = entry.get("lfs")
        etag = lfs["oid"] if isinstance(lfs, dict) else entry["oid"]
        if body:
            self.mirror.sent[path] += 1
            if path in self.mirror.damaged:
                self.mirror.damaged.discard(path)
                content = content[:-1] + bytes([content[-1] ^ 1])
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": self.mirror.commit(repository)}
        self._send(200, content, headers, body=body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)
