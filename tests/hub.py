"""A Hugging Face Hub of models and data sets on loopback that real clients can write to and read from.

It knows what an upload and a download ask: repositories, branches, commits, large files by their sha256, and the check
of a card's metadata. A commit is taken whole or not at all. Nothing is on a disk.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest
import yaml

LICENCES = ("apache-2.0", "mit", "cc-by-4.0", "other", "unknown")
"""Some of those that the Hub knows."""


@dataclass
class Commit:
    """A state of a repository: path → content."""

    id: str
    title: str
    files: dict[str, bytes]
    parent: "Commit | None" = None


@dataclass
class Repository:
    """Branches of one repository."""

    private: bool
    branches: dict[str, Commit] = field(default_factory=dict)

    def commit(self, branch: str, title: str, files: dict[str, bytes]) -> Commit:
        """Put `files` at the tip of the branch."""
        parent = self.branches.get(branch)
        identity = repr((branch, title, sorted(files), parent.id if parent else "", len(self.branches)))
        self.branches[branch] = Commit(hashlib.sha1(identity.encode()).hexdigest(), title, files, parent)
        return self.branches[branch]

    def find(self, revision: str) -> Commit | None:
        """The commit of a branch or of an id."""
        tips = list(self.branches.values())
        chain = [commit for tip in tips for commit in history(tip)]
        return self.branches.get(revision) or next((ancestor for ancestor in chain if ancestor.id == revision), None)


def history(commit: Commit | None) -> Iterator[Commit]:
    """A commit and those before it, newest first."""
    while commit is not None:
        yield commit
        commit = commit.parent


@dataclass
class Hub:
    """What the stand-in holds, and the requests that it got."""

    token: str | None = "hf_writer"
    """The only one that it takes; None: everybody may read."""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by their sha256."""
    requests: list[str] = field(default_factory=list)
    """Method and path of every request."""
    stored: list[str] = field(default_factory=list)
    """sha256 of every large file that was sent."""
    refuse: Callable[[str, str], int | None] = lambda method, path: None
    """The status with which a request fails; 0 breaks the connection off; None answers it."""
    url: str = ""

    def at(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """The files of a revision."""
        return self.repositories[repo].branches[revision].files


def git_blob_id(content: bytes) -> str:
    """The hash by which git and the Hub know a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin")) or path == "tokenizer.json"


def _entry(path: str, content: bytes) -> dict:
    entry = {"type": "file", "path": path, "size": len(content), "oid": git_blob_id(content)}
    if _is_large(path):
        sha256 = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
    return entry


def use_endpoint(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the URL that of the Hub, as HF_ENDPOINT does before the Hub's client is imported."""
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(hf_api.api, "endpoint", url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """The hub on a free port; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def do_GET(self) -> None:
            method, path = self.command, unquote(self.path.partition("?")[0])
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = self.chunks()
            hub.requests.append(f"{method} {path}")
            status = hub.refuse(method, path)
            if status == 0:
                self.close_connection = True
                return
            if status is not None:
                self.respond(status, {"error": f"made to fail with {status}"})
                return
            self.route(method, path, body)

        do_HEAD = do_POST = do_PUT = do_GET

        def chunks(self) -> bytes:
            content = b""
            while size := int(self.rfile.readline().strip(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content

        def route(self, method: str, path: str, body: bytes) -> None:
            if path == "/api/validate-yaml":
                self.validate(json.loads(body)["content"])
            elif match := re.fullmatch(r"/objects/([0-9a-f]{64})", path):
                hub.stored.append(match[1])
                assert hashlib.sha256(body).hexdigest() == match[1], "the content is not what was announced"
                hub.objects[match[1]] = body
                self.respond(200, {})
            elif hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.respond(401, {"error": "Invalid username or password."})
            elif path == "/api/repos/create":
                self.create(json.loads(body))
            elif match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
                self.respond(200, {"objects": [self.upload_actions(entry) for entry in json.loads(body)["objects"]]})
            elif match := re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)(?:/([a-z]+)(?:/(.+))?)?", path):
                self.model(method, match[1], match[2] or "revision", match[3], body)
            elif match := re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self.give(match[1], match[2], match[3])
            else:
                self.respond(404, {"error": "no such place"})

        def create(self, request: dict) -> None:
            name = f"{request['organization']}/{request['name']}"
            if name in hub.repositories:
                self.respond(409, {"error": "You already created this model repo", "url": f"{hub.url}/{name}"})
                return
            hub.repositories[name] = Repository(
                private=request.get("visibility") == "private" or bool(request.get("private"))
            )
            hub.repositories[name].commit("main", "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})
            self.respond(200, {"url": f"{hub.url}/{name}", "name": name, "id": "1"})

        def upload_actions(self, entry: dict) -> dict:
            if entry["oid"] in hub.objects:
                return entry
            return {**entry, "actions": {"upload": {"href": f"{hub.url}/objects/{entry['oid']}"}}}

        def model(self, method: str, name: str, what: str, remainder: str | None, body: bytes) -> None:
            repository = hub.repositories.get(name)
            if repository is None:
                self.respond(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
                return
            revision, _, inside = (remainder or "main").partition("/")
            commit = repository.find(revision)
            if commit is None:
                self.respond(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
            elif what == "revision":
                siblings = [{"rfilename": path} for path in sorted(commit.files)]
                description = {"_id": "1", "id": name, "sha": commit.id, "private": repository.private, "tags": []}
                self.respond(200, {**description, "siblings": siblings})
            elif what == "tree" and inside:  # exports have no folders
                self.respond(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            elif what == "tree":
                self.respond(200, [_entry(path, content) for path, content in sorted(commit.files.items())])
            elif what == "preupload":
                self.respond(200, {"files": [self.mode(commit, file) for file in json.loads(body)["files"]]})
            elif what == "commit":
                self.commit(name, remainder, commit, body)
            else:
                self.respond(404, {"error": "no such place"})

        def mode(self, commit: Commit, file: dict) -> dict:
            path, large = file["path"], _is_large(file["path"])
            answer = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            if path in commit.files:
                content = commit.files[path]
                answer["oid"] = hashlib.sha256(content).hexdigest() if large else git_blob_id(content)
            return answer

        def commit(self, name: str, branch: str, parent: Commit, body: bytes) -> None:
            files, title = dict(parent.files), ""
            for line in filter(None, body.split(b"\n")):
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "header":
                    title = value["summary"]
                elif entry["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    if value["oid"] not in hub.objects:
                        self.respond(400, {"error": f"the content of {value['path']} was never sent"})
                        return
                    files[value["path"]] = hub.objects[value["oid"]]
                elif entry["key"] == "deletedFile":
                    del files[value["path"]]
            commit = hub.repositories[name].commit(branch, title, files)
            url = f"{hub.url}/{name}/commit/{commit.id}"
            self.respond(200, {"commitUrl": url, "commitOid": commit.id, "success": True})

        def give(self, name: str, revision: str, path: str) -> None:
            repository = hub.repositories.get(name)
            commit = repository.find(revision) if repository else None
            if repository is None:
                self.respond(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            elif commit is None:
                self.respond(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
            elif path not in commit.files:
                self.respond(
                    404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit.id}
                )
            else:
                content = commit.files[path]
                etag = hashlib.sha256(content).hexdigest() if _is_large(path) else git_blob_id(content)
                self.send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": commit.id})

        def validate(self, content: str) -> None:
            values = yaml.safe_load(content.split("---\n")[1])
            wrong = [f'"license" must be one of {LICENCES}'] if values.get("license") not in LICENCES else []
            base = values.get("base_model")
            if base is not None and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base):
                wrong.append('"base_model" must be the id of a model on the Hub')
            errors = [{"message": message} for message in wrong]
            self.respond(400 if wrong else 200, {"errors": errors, "warnings": []})

        def respond(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
            error = {"X-Error-Message": content["error"]} if isinstance(content, dict) and "error" in content else {}
            body = json.dumps(content).encode()
            self.send(status, body, {"Content-Type": "application/json", **error, **(headers or {})})

        def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
