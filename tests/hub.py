"""A small Hugging Face Hub on loopback: dataset repositories with files, which real clients of the Hub can read."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """`repositories`: name → path → content. `cut`: paths whose next answers break off after so many bytes."""

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        self.large: set[str] = set()
        """Paths in large file storage, known by their sha256."""
        self.cut: dict[str, list[int]] = {}
        self.refused: set[str] = set()
        """Paths whose content is not given (HTTP 403)."""
        self.ranges: list[tuple[str, str | None]] = []
        """Path and Range header of every download."""
        self.url = ""


def git_blob_id(content: bytes) -> str:
    """The hash by which git and the Hub know a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def answered_by(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on a free port of loopback; gives its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


class Handler(BaseHTTPRequestHandler):
    """Answers every request by `answer`, without a log."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def answer(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        """An answer, without its body to HEAD; with `cut` it breaks off after so many bytes."""
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """The hub on a free port; gives its URL."""

    class OfDatasets(Handler):
        def answer(self) -> None:
            path = self.path.partition("?")[0]
            dataset = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/revision/([^/]+))?", path)
            tree = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/tree/[^/]+", path)
            file = re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            if dataset and dataset[1] in hub.repositories:
                self.send(200, json.dumps(self.describe(dataset[1])).encode(), {"Content-Type": "application/json"})
            elif tree and tree[1] in hub.repositories:
                self.send(200, json.dumps(self.list(tree[1])).encode(), {"Content-Type": "application/json"})
            elif file and file[3] in hub.repositories.get(file[1], {}):
                self.give(file[3], hub.repositories[file[1]][file[3]])
            else:
                error = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
                self.send(404, b'{"error": "Repository not found"}', error)

        def describe(self, repo: str) -> dict:
            siblings = []
            for name, content in hub.repositories[repo].items():
                entry = {"rfilename": name, "size": len(content), "blobId": git_blob_id(content)}
                if name in hub.large:
                    sha256 = hashlib.sha256(content).hexdigest()
                    entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
                siblings.append(entry)
            return {"_id": "1", "id": repo, "sha": COMMIT, "private": False, "tags": [], "siblings": siblings}

        def list(self, repo: str) -> list[dict]:
            entries = self.describe(repo)["siblings"]
            return [
                {"type": "file", "path": entry["rfilename"], "size": entry["size"], "oid": entry["blobId"]}
                | ({"lfs": {**entry["lfs"], "oid": entry["lfs"]["sha256"]}} if "lfs" in entry else {})
                for entry in entries
            ]

        def give(self, name: str, content: bytes) -> None:
            head = self.command == "HEAD"
            requested_range = self.headers.get("Range")
            begin = re.fullmatch(r"bytes=(\d+)-", requested_range or "")
            start = int(begin[1]) if begin else 0
            etag = hashlib.sha256(content).hexdigest() if name in hub.large else git_blob_id(content)
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            if not head:
                hub.ranges.append((name, requested_range))
                if name in hub.refused:
                    self.send(403, b'{"error": "not now"}', {})
                    return
            cut = hub.cut[name].pop(0) if not head and hub.cut.get(name) else None
            self.send(206 if start else 200, content[start:], headers, cut)

    with answered_by(OfDatasets) as hub.url:
        yield hub.url
