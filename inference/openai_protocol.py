"""OpenAI's chat protocol over a served rewriter: a chat goes in, the rewrite of its last question comes out.

`POST /v1/chat/completions` takes the last message of the user as the question and the messages before it as its
history, and answers with the text to search. `GET /v1/models` names the rewriter. Answers are greedy, whatever the
request says of sampling. Errors have OpenAI's shape; token, limits and log are those of the service.
"""

import json
import time
from collections.abc import Sequence
from typing import Literal

from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..data.types import Question
from ..envs.schemas import MAX_HISTORY, MAX_QUESTION, AskedHistory, Problem, RequestBody
from ..envs.schemas import utterances as history_of
from ..envs.server.problems import MEDIA_TYPE, REQUEST_ID
from ..errors import RequestError
from .adapters.common import utterances
from .results import Continuation, RewriteResult
from .served import ServedRewriter

CHAT_PATH, MODELS_PATH = "/v1/chat/completions", "/v1/models"


class _Lenient(BaseModel):
    """Clients send many fields besides those that matter here."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class TextPart(_Lenient):
    """A part of a message; images and sounds are refused."""

    type: Literal["text"]
    text: str


class AskedMessage(_Lenient):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(_Lenient):
    """What a stream ends with."""

    include_usage: bool = False


class ChatRequest(_Lenient):
    """Body of `POST /v1/chat/completions`."""

    model: str
    messages: list[AskedMessage] = Field(min_length=1)
    n: Literal[1] | None = None
    """Answers are greedy, so there is one."""
    stream: StrictBool | None = None
    """The whole answer then comes as one chunk."""
    stream_options: StreamOptions | None = None


class _AskedQuestion(RequestBody):
    question: str = Field(min_length=1, max_length=MAX_QUESTION)
    history: AskedHistory


def add_openai_routes(app: FastAPI, served: ServedRewriter) -> None:
    """Add the protocol to a service (envs/server/app.py); OpenAI describes it, so the service's OpenAPI does not."""
    rewriter, card = served.rewriter, served.service.environment.card
    model = {"id": rewriter.name, "object": "model", "created": int(time.time()), "owned_by": "querylect"}
    app.add_middleware(_ErrorTranslator)

    @app.get(MODELS_PATH, include_in_schema=False)
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [model]}

    @app.get(MODELS_PATH + "/{name:path}", include_in_schema=False)
    async def described(name: str) -> dict[str, object]:
        _check_model(name, rewriter.name)
        return model

    @app.post(CHAT_PATH, include_in_schema=False)
    async def complete(body: ChatRequest, request: Request) -> Response:
        _check_model(body.model, rewriter.name)
        question = question_of(body.messages)
        served.admit()
        result = await served.finish(rewriter.arewrite(question, retriever=card, client=served))
        head = {
            "id": f"chatcmpl-{request.scope[REQUEST_ID]}",
            "created": int(time.time()),
            "model": rewriter.name,
            "rewrite": result.record(),
        }
        return _stream(head, result, body.stream_options) if body.stream else _whole(head, result)


def question_of(messages: Sequence[AskedMessage]) -> Question:
    """The last message of the user, with the newest messages before it as its history.

    Raises RequestError if the chat has no such message or ends with one of the assistant, and for texts that are too
    long.
    """
    last = next((at for at, message in reversed(list(enumerate(messages))) if message.role == "user"), None)
    if last is None or any(message.role == "assistant" for message in messages[last:]):
        ending = "has no message of the user" if last is None else "ends with a message of the assistant"
        raise RequestError(f"the chat {ending}; end it with the user's question.")
    earlier = utterances((message.role, message.text) for message in messages[:last])[-MAX_HISTORY:]
    try:
        body = _AskedQuestion.model_validate(
            {
                "question": messages[last].text,
                "history": [{"role": utterance.role, "text": utterance.text} for utterance in earlier],
            }
        )
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:3])
        raise RequestError(f"the chat cannot be rewritten ({problems}); shorten it.") from error
    return Question("", body.question, history=history_of(body.history))


def usage_of(result: RewriteResult) -> dict[str, int]:
    """Tokens of all turns that the model was called for; 0 where the prompt was too long for a call."""
    nodes = list(result.continuation.branch.tree.walk()) if isinstance(result.continuation, Continuation) else []
    prompt, completion = sum(len(node.prompt_ids) for node in nodes), sum(len(node.completion_ids) for node in nodes)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _finish_reason(result: RewriteResult) -> str:
    cut = isinstance(result.continuation, Continuation) and not result.continuation.node.finished
    return "length" if cut else "stop"


def _whole(head: dict[str, object], result: RewriteResult) -> Response:
    message = {"role": "assistant", "content": result.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(result)}
    answer = {**head, "object": "chat.completion", "choices": [choice], "usage": usage_of(result)}
    return Response(json.dumps(answer, ensure_ascii=False), media_type="application/json")


def _stream(head: dict[str, object], result: RewriteResult, options: StreamOptions | None) -> Response:
    head = {**head, "object": "chat.completion.chunk"}
    delta = {"role": "assistant", "content": result.text}
    chunks: list[dict[str, object]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": _finish_reason(result)}]}
    ]
    if options is not None and options.include_usage:
        chunks.append({**head, "choices": [], "usage": usage_of(result)})
    events = [*(json.dumps(chunk, ensure_ascii=False) for chunk in chunks), "[DONE]"]
    return Response("".join(f"data: {event}\n\n" for event in events), media_type="text/event-stream")


def _check_model(requested: str, name: str) -> None:
    if requested != name:
        raise HTTPException(404, f"the model {requested!r} is not served here; ask for {name!r}.")


class _ErrorTranslator:
    """Plain ASGI in front of a service: errors of the protocol's calls in OpenAI's shape instead of problem+json."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith((CHAT_PATH, MODELS_PATH)):
            await self.app(scope, receive, send)
            return
        start: Message | None = None
        content = b""

        async def translate(message: Message) -> None:
            nonlocal start, content
            if message["type"] == "http.response.start" and _is_problem(message):
                start = message
            elif start is None:
                await send(message)
            else:
                content += message.get("body", b"")
                if not message.get("more_body", False):
                    error = json.dumps(
                        {"error": _openai_error(Problem.model_validate_json(content))}, ensure_ascii=False
                    ).encode()
                    headers = MutableHeaders(raw=list(start["headers"]))
                    headers["content-type"], headers["content-length"] = "application/json", str(len(error))
                    status = 400 if start["status"] == 422 else start["status"]
                    await send({**start, "status": status, "headers": headers.raw})
                    await send({"type": "http.response.body", "body": error})

        await self.app(scope, receive, translate)


def _is_problem(message: Message) -> bool:
    return Headers(raw=message["headers"]).get("content-type", "").startswith(MEDIA_TYPE)


def _openai_error(problem: Problem) -> dict[str, object]:
    """The error of OpenAI's protocol that says what a problem (RFC 9457) says."""
    fields = [(where.removeprefix("body."), what) for where, what in problem.invalid.items()]
    codes = {401: "invalid_api_key", 404: "model_not_found", 503: "overloaded"}
    return {
        "message": problem.detail + "".join(f" {name}: {what}." for name, what in fields),
        "type": "server_error" if problem.status >= 500 else "invalid_request_error",
        "param": fields[0][0] if fields else None,
        "code": codes.get(problem.status),
    }
