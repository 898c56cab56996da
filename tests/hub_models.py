"""A Hugging Face Hub of model repositories on loopback that real clients can write to and read from.

It knows what an upload and a download ask: repositories, branches, commits, large files by their sha256, and the check
of a card's metadata. A commit is taken whole or not at all. Nothing is on a disk.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

import pytest
import yaml

from .hub import Handler, answered_by, git_blob_id

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
        said = repr((branch, title, sorted(files), parent.id if parent else "", len(self.branches)))
        self.branches[branch] = Commit(hashlib.sha1(said.encode()).hexdigest(), title, files, parent)
        return self.branches[branch]

    def find(self, revision: str) -> Commit | None:
        """The commit of a branch or of an id."""
        tips = list(self.branches.values())
        chain = [commit for tip in tips for commit in history(tip)]
        return self.branches.get(revision) or next((one for one in chain if one.id == revision), None)


def history(commit: Commit | None) -> Iterator[Commit]:
    """A commit and those before it, newest first."""
    while commit is not None:
        yield commit
        commit = commit.parent


@dataclass
class Hub:
    """What the stand-in holds, and what it was asked."""

    token: str = "hf_writer"
    """The only one that it takes."""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by their sha256."""
    asked: list[str] = field(default_factory=list)
    """Method and path of every request."""
    stored: list[str] = field(default_factory=list)
    """sha256 of every large file that was sent."""
    refuse: Callable[[str, str], int | None] = lambda method, path: None
    """The status with which a request fails; 0 breaks the connection off; None answers it."""
    url: str = ""

    def at(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """The files of a revision."""
        return self.repositories[repo].branches[revision].files


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin")) or path == "tokenizer.json"


def _entry(path: str, content: bytes) -> dict:
    entry = {"type": "file", "path": path, "size": len(content), "oid": git_blob_id(content)}
    if _is_large(path):
        sha256 = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
    return entry


def ask_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the URL that of the Hub, as HF_ENDPOINT does before the Hub's client is imported."""
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(hf_api.api, "endpoint", url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """The hub on a free port; gives its URL."""

    class OfModels(Handler):
        def answer(self) -> None:
            method, path = self.command, unquote(self.path.partition("?")[0])
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = self.chunks()
            hub.asked.append(f"{method} {path}")
            status = hub.refuse(method, path)
            if status == 0:
                self.close_connection = True
                return
            if status is not None:
                self.say(status, {"error": f"made to fail with {status}"})
                return
            self.route(method, path, body)

        def chunks(self) -> bytes:
            found = b""
            while size := int(self.rfile.readline().strip(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def route(self, method: str, path: str, body: bytes) -> None:
            if path == "/api/validate-yaml":
                self.validate(json.loads(body)["content"])
            elif match := re.fullmatch(r"/objects/([0-9a-f]{64})", path):
                hub.stored.append(match[1])
                assert hashlib.sha256(body).hexdigest() == match[1], "the content is not what was announced"
                hub.objects[match[1]] = body
                self.say(200, {})
            elif self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.say(401, {"error": "Invalid username or password."})
            elif path == "/api/repos/create":
                self.create(json.loads(body))
            elif match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
                self.say(200, {"objects": [self.wanted(one) for one in json.loads(body)["objects"]]})
            elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/([a-z]+)(?:/(.+))?)?", path):
                self.model(method, match[1], match[2] or "revision", match[3], body)
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self.give(match[1], match[2], match[3])
            else:
                self.say(404, {"error": "no such place"})

        def create(self, said: dict) -> None:
            name = f"{said['organization']}/{said['name']}"
            if name in hub.repositories:
                self.say(409, {"error": "You already created this model repo", "url": f"{hub.url}/{name}"})
                return
            hub.repositories[name] = Repository(
                private=said.get("visibility") == "private" or bool(said.get("private"))
            )
            hub.repositories[name].commit("main", "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})
            self.say(200, {"url": f"{hub.url}/{name}", "name": name, "id": "1"})

        def wanted(self, one: dict) -> dict:
            if one["oid"] in hub.objects:
                return one
            return {**one, "actions": {"upload": {"href": f"{hub.url}/objects/{one['oid']}"}}}

        def model(self, method: str, name: str, what: str, rest: str | None, body: bytes) -> None:
            repository = hub.repositories.get(name)
            if repository is None:
                self.say(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
                return
            if what == "branch":
                self.branch(repository, rest, json.loads(body or b"{}"))
                return
            revision, _, inside = (rest or "main").partition("/")
            found = repository.find(revision)
            if found is None:
                self.say(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
            elif what == "revision":
                siblings = [{"rfilename": path} for path in sorted(found.files)]
                about = {"_id": "1", "id": name, "sha": found.id, "private": repository.private, "tags": []}
                self.say(200, {**about, "siblings": siblings})
            elif what == "tree" and inside:  # exports have no folders
                self.say(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            elif what == "tree":
                self.say(200, [_entry(path, content) for path, content in sorted(found.files.items())])
            elif what == "commits":
                date = "2026-01-01T00:00:00.000Z"
                said = [
                    {"id": one.id, "title": one.title, "message": "", "authors": [], "date": date}
                    for one in history(found)
                ]
                self.say(200, said)
            elif what == "preupload":
                self.say(200, {"files": [self.mode(found, one) for one in json.loads(body)["files"]]})
            elif what == "commit":
                self.commit(name, rest, found, body)
            else:
                self.say(404, {"error": "no such place"})

        def branch(self, repository: Repository, name: str, said: dict) -> None:
            start = repository.find(said.get("startingPoint", "main"))
            if name in repository.branches:
                self.say(409, {"error": "Reference already exists"})
            elif start is None:
                self.say(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
            else:
                repository.branches[name] = start
                self.say(200, {})

        def mode(self, found: Commit, one: dict) -> dict:
            path, large = one["path"], _is_large(one["path"])
            said = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            if path in found.files:
                content = found.files[path]
                said["oid"] = hashlib.sha256(content).hexdigest() if large else git_blob_id(content)
            return said

        def commit(self, name: str, branch: str, found: Commit, body: bytes) -> None:
            files, title = dict(found.files), ""
            for line in filter(None, body.split(b"\n")):
                said = json.loads(line)
                value = said["value"]
                if said["key"] == "header":
                    title = value["summary"]
                elif said["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif said["key"] == "lfsFile":
                    if value["oid"] not in hub.objects:
                        self.say(400, {"error": f"the content of {value['path']} was never sent"})
                        return
                    files[value["path"]] = hub.objects[value["oid"]]
                elif said["key"] == "deletedFile":
                    del files[value["path"]]
            made = hub.repositories[name].commit(branch, title, files)
            self.say(200, {"commitUrl": f"{hub.url}/{name}/commit/{made.id}", "commitOid": made.id, "success": True})

        def give(self, name: str, revision: str, path: str) -> None:
            repository = hub.repositories.get(name)
            found = repository.find(revision) if repository else None
            if repository is None:
                self.say(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            elif found is None:
                self.say(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
            elif path not in found.files:
                self.say(
                    404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": found.id}
                )
            else:
                content = found.files[path]
                etag = hashlib.sha256(content).hexdigest() if _is_large(path) else git_blob_id(content)
                self.send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": found.id})

        def validate(self, content: str) -> None:
            values = yaml.safe_load(content.split("---\n")[1])
            wrong = [f'"license" must be one of {LICENCES}'] if values.get("license") not in LICENCES else []
            base = values.get("base_model")
            if base is not None and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base):
                wrong.append('"base_model" must be the id of a model on the Hub')
            errors = [{"message": message} for message in wrong]
            self.say(400 if wrong else 200, {"errors": errors, "warnings": []})

        def say(self, status: int, said: object, headers: dict[str, str] | None = None) -> None:
            error = {"X-Error-Message": said["error"]} if isinstance(said, dict) and "error" in said else {}
            body = json.dumps(said).encode()
            self.send(status, body, {"Content-Type": "application/json", **error, **(headers or {})})

    with answered_by(OfModels) as hub.url:
        yield hub.url
