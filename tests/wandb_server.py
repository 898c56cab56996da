"""A stand-in for a W&B server: what the real client asks of one, over real HTTP on loopback.

GraphQL by the name of the operation, the stream of a run's files, uploads. `mood` changes how it answers, also while a
client is talking to it: "well", "401" for everything, "stream 401" where only figures are refused.
"""

import gzip
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "k" * 40


class WandbServer:
    """The requests so far, and how to answer them."""

    def __init__(self) -> None:
        self.mood = "well"
        self.operations: list[str] = []
        self.history: dict[str, list[dict]] = {}
        """Lines of the history by run id, in the order in which they came."""
        self.buckets: list[dict] = []
        """Variables of every UpsertBucket."""
        self.url = ""

    def streamed(self, run: str, body: dict) -> None:
        for name, part in body.get("files", {}).items():
            if name == "wandb-history.jsonl":
                self.history.setdefault(run, []).extend(map(json.loads, part["content"]))

    def answer(self, operation: str, variables: dict) -> dict:
        self.operations.append(operation)
        if operation == "UpsertBucket":
            self.buckets.append(variables)
            owner = {"id": "P", "name": variables["project"], "entity": {"id": "E", "name": "me"}}
            name = {"name": variables["name"], "displayName": variables.get("displayName") or variables["name"]}
            return {"upsertBucket": {"bucket": {"id": "B", **name, "project": owner}, "inserted": True}}
        if operation == "CreateArtifact":
            artifact = {"id": "A", "state": "COMMITTED", "artifactSequence": {"latestArtifact": {"id": "A"}}}
            return {"createArtifact": {"artifact": artifact}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "B", "uploadHeaders": [], "files": files}}
        return {"viewer": {"id": "V", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(content) if self.headers.get("Content-Encoding") == "gzip" else content

    def _respond(self, status: int, answer: dict) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _any(self) -> None:
        body, served = self._body(), self.server.served
        if served.mood == "401":
            self._respond(401, {"errors": [{"message": "no longer"}]})
        elif self.path == "/graphql":
            question = json.loads(body)
            answered = served.answer(question.get("operationName") or "", question.get("variables") or {})
            self._respond(200, {"data": answered})
        elif self.path.endswith("/file_stream"):
            if served.mood.startswith("stream"):
                self._respond(401, {"error": "no longer"})
                return
            served.streamed(self.path.split("/")[4], json.loads(body))
            self._respond(200, {"exitcode": None, "limits": {}})
        else:
            self._respond(200, {})

    do_GET = do_POST = do_PUT = _any


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    served: WandbServer

    def handle_error(self, *_: object) -> None:
        """A client that went away."""


@contextmanager
def wandb_server():
    """A server on a free loopback port, until the end of the block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    served = server.served = WandbServer()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()

    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
