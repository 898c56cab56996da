"""A stand-in for a W&B server: what the real client asks of one, over real HTTP on loopback."""

import gzip
import json

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

KEY = "k" * 40


class WandbServer:
    """GraphQL by the name of the operation, the stream of a run's files, uploads; the requests so far."""

    def __init__(self) -> None:
        self.mood = "well"
        """Changes answers, also while a client is connected: "401" for everything, "stream 401" for figures alone."""
        self.operations: list[str] = []
        self.history: dict[str, list[dict]] = {}
        """Lines of the history by run id, in the order in which they came."""
        self.buckets: list[dict] = []
        """Variables of every UpsertBucket."""
        self.url = ""
        self.app = Starlette(routes=[Route("/{path:path}", self.respond, methods=["GET", "POST", "PUT"])])

    async def respond(self, request: Request) -> Response:
        content = await request.body()
        body = gzip.decompress(content) if request.headers.get("content-encoding") == "gzip" else content
        path = request.url.path
        if self.mood == "401" or (self.mood == "stream 401" and path.endswith("/file_stream")):
            return JSONResponse({"errors": [{"message": "no longer"}], "error": "no longer"}, status_code=401)
        if path == "/graphql":
            question = json.loads(body)
            return JSONResponse({"data": self.answer(question.get("operationName"), question.get("variables") or {})})
        if path.endswith("/file_stream"):
            lines = json.loads(body).get("files", {}).get("wandb-history.jsonl", {"content": []})["content"]
            self.history.setdefault(path.split("/")[4], []).extend(map(json.loads, lines))
            return JSONResponse({"exitcode": None, "limits": {}})
        return JSONResponse({})

    def answer(self, operation: str | None, variables: dict) -> dict:
        self.operations.append(operation or "")
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
