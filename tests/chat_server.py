"""A real HTTP server that speaks the chat-completions protocol, and misbehaves when it is told to."""

import asyncio
import json
import threading
from collections import deque
from contextlib import contextmanager
from pathlib import Path

import pytest
from querylect.llms import endpoint
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .forked import Forked


class ChatServer:
    """`answer` makes a text of a request's body; `script` says for the next requests what to do instead.

    What can be scripted: "hang" (until the client leaves), "garbage", "empty" (no choices), "null" (no content), "form"
    (JSON of another form), "cut" (the answer, cut), a dictionary (fields of the message; with "cut": True it is cut),
    (status, headers), or None for an ordinary answer.
    """

    def __init__(self, answer=lambda body: "an answer", choices=None, usage=True):
        self.answer, self.choices, self.usage = answer, choices, usage
        self.script, self.bodies, self.keys = deque(), [], []
        self.always = None
        self.together = self.most_together = 0
        self.gather = 0
        """Hold requests back until so many are there."""
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.complete, methods=["POST"])])

    async def complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        try:
            while self.most_together < self.gather:
                await asyncio.sleep(0.002)
            deed = self.always(body) if self.always else (self.script.popleft() if self.script else None)
            if deed == "hang":
                while not await request.is_disconnected():
                    await asyncio.sleep(0.01)
            if isinstance(deed, tuple):
                return JSONResponse({"error": {"message": "as told"}}, status_code=deed[0], headers=deed[1])
            if deed == "garbage":
                return Response('{"choices": [{"mess', media_type="application/json")
            if deed == "form":
                return JSONResponse({"status": "fine"})
            return JSONResponse(self.completion(body, deed))
        finally:
            self.together -= 1

    def completion(self, body, deed):
        count = 0 if deed == "empty" else min(body.get("n", 1), self.choices or 1000)
        text = None if deed == "null" else self.answer(body)
        fields = dict(deed) if isinstance(deed, dict) else {}
        reason = "length" if deed == "cut" or fields.pop("cut", False) else "stop"
        message = {"role": "assistant", "content": text} | fields
        choice = {"index": 0, "message": message, "finish_reason": reason}
        if body.get("logprobs"):
            likely = [{"token": "Yes", "logprob": -0.1}, {"token": "No", "logprob": -2.4}][: body["top_logprobs"]]
            choice["logprobs"] = {"content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": likely}]}
        usage = {"prompt_tokens": 7, "completion_tokens": 3 * count, "total_tokens": 7 + 3 * count}
        return {"id": "1", "object": "chat.completion", "choices": [choice] * count} | (
            {"usage": usage} if self.usage else {}
        )


@pytest.fixture
def impatient(monkeypatch):
    """Nothing is retried: one failure is enough."""
    monkeypatch.setattr(endpoint, "retries_within", lambda seconds: 0)
    monkeypatch.setattr(endpoint, "UNLIMITED_RETRIES", 0)


@contextmanager
def serving(run_app, server: ChatServer):
    """The server's base URL."""
    with run_app(server.app) as url:
        yield f"{url}/v1"


def last_user(body) -> str:
    """The last message of a request."""
    return body["messages"][-1]["content"]


def killed_while_asking(server: ChatServer, replies: int, folder: Path, *arguments: str) -> list[str]:
    """What a command of querylect asked that got so many replies and was killed while it waited for the next. Its
    output goes to the folder."""
    stuck = threading.Event()

    def stall(body):
        if len(server.bodies) > replies:
            stuck.set()
            return "hang"

    server.always = stall
    process = Forked(arguments, folder / "stdout", folder / "stderr")
    assert stuck.wait(240), (folder / "stderr").read_text()
    process.kill()
    process.wait(60)
    server.always = None
    return [last_user(body) for body in server.bodies[:replies]]
