"""A real HTTP server with the chat-completions protocol and scripted faults."""

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
    """`answer` maps a request's body to a text; `script` holds faults for the next requests.

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
        """Answer only once this many requests have arrived."""
        self.arrival = asyncio.Condition()
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.complete, methods=["POST"])])

    async def complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        try:
            async with self.arrival:
                self.arrival.notify_all()
                await self.arrival.wait_for(lambda: self.most_together >= self.gather)
            fault = self.always(body) if self.always else (self.script.popleft() if self.script else None)
            if fault == "hang":
                while (await request.receive())["type"] != "http.disconnect":
                    pass
            if isinstance(fault, tuple):
                return JSONResponse({"error": {"message": "scripted failure"}}, status_code=fault[0], headers=fault[1])
            if fault == "garbage":
                return Response('{"choices": [{"mess', media_type="application/json")
            if fault == "form":
                return JSONResponse({"status": "fine"})
            return JSONResponse(self.completion(body, fault))
        finally:
            self.together -= 1

    def completion(self, body, fault):
        count = 0 if fault == "empty" else min(body.get("n", 1), self.choices or 1000)
        text = None if fault == "null" else self.answer(body)
        fields = dict(fault) if isinstance(fault, dict) else {}
        reason = "length" if fault == "cut" or fields.pop("cut", False) else "stop"
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
    monkeypatch.setattr(endpoint, "FIRST_RETRIES", 0)
    monkeypatch.setattr(endpoint, "RETRIES", 0)


@contextmanager
def serving(run_app, server: ChatServer):
    """The server's base URL."""
    with run_app(server.app) as url:
        yield f"{url}/v1"


def last_user(body) -> str:
    """The last message of a request."""
    return body["messages"][-1]["content"]


def killed_while_asking(server: ChatServer, replies: int, folder: Path, *arguments: str) -> list[str]:
    """Run a command of querylect and kill it while it waits for the reply after `replies` others; returns the last
    message of each answered request. The folder gets its stdout and stderr."""
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
