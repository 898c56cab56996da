"""An OpenAI-compatible endpoint, asked through the `openai` client.

The client retries transient failures (429, 5xx, a timeout, a broken connection, an answer that is no completion) with
growing pauses or after the endpoint's Retry-After, until the deadline of the prompt; it does not wait for a Retry-After
above two minutes. If the endpoint refuses a prompt (400, 413, 422), only that prompt fails. A wrong key, URL or model
name, and an endpoint that does not answer at all, end the run.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Self

import httpx
import openai
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from ..configs.llm import LlmConfig
from ..envs.credentials import token_of
from ..errors import ConfigError, EngineUnavailableError
from .base import (
    THINK_CLOSE,
    THINK_OPEN,
    Costs,
    Deliver,
    LlmResponse,
    MissingResponse,
    Prompt,
    SamplingParams,
    Text,
    complete_sum,
)

log = logging.getLogger(__name__)

KEY = "QUERYLECT_LLM_KEY"
"""The environment variable with the API key; not OPENAI_API_KEY, which no other host should get."""
FIRST_CONTACT_SECONDS = 20.0
"""How long to try an endpoint that was never reached."""
LONGEST_PAUSE = 8.0
"""Seconds between two attempts at most, that of the openai client; it begins with half a second and doubles."""
UNLIMITED_RETRIES = 10**6
"""For an endpoint that was reached: the deadline of the prompt ends them."""
REFUSED = (400, 413, 422)
WRONG = (401, 403, 404)

_last_failure: ContextVar[str] = ContextVar("_last_failure", default="timeout")
"""The reason for the last failed attempt at the prompt of the current task."""


def retries_within(seconds: float) -> int:
    """Number of retries that take these seconds if nothing listens at the URL, so that each attempt fails at once."""
    return 3 + int(seconds / LONGEST_PAUSE)


class _Alternative(BaseModel):
    token: str
    logprob: float


class _Token(BaseModel):
    top_logprobs: list[_Alternative] = []


class _Logprobs(BaseModel):
    content: list[_Token] | None = None


class _ChatMessage(BaseModel):
    """A message. Servers that separate thoughts from the answer call them `reasoning`, or `reasoning_content`."""

    content: str | None = None
    reasoning: str = ""
    reasoning_content: str = ""

    @field_validator("reasoning", "reasoning_content", mode="before")
    @classmethod
    def _ignore_other_forms(cls, thoughts: object) -> str:
        return thoughts if isinstance(thoughts, str) else ""

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and not self._thoughts:
            raise ValueError("no content")
        return self

    @property
    def _thoughts(self) -> str:
        return self.reasoning or self.reasoning_content

    def text(self, finished: bool) -> str:
        """Thoughts and answer in one text, as from a server that does not separate them."""
        content = self.content or ""
        if not self._thoughts or content.lstrip().startswith(THINK_OPEN):
            return content
        thinking = THINK_OPEN + self._thoughts.replace(THINK_CLOSE, "")
        return f"{thinking}{THINK_CLOSE}{content}" if content or finished else thinking


class _Choice(BaseModel):
    message: _ChatMessage
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None

    def text(self) -> Text:
        tokens = (self.logprobs.content if self.logprobs is not None else None) or []
        first = {alternative.token: alternative.logprob for alternative in tokens[0].top_logprobs} if tokens else {}
        finished = self.finish_reason != "length"
        return Text(self.message.text(finished), finished, first)


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int


class _Completion(BaseModel):
    """The fields that are read of an answer; others are ignored."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class Endpoint:
    """One model behind one URL."""

    def __init__(self, config: LlmConfig) -> None:
        """Raises ConfigError for a URL that is none."""
        if config.base_url is None or not config.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"base_url is {config.base_url!r}; expected http://… or https://…, such as http://host:8000/v1."
            )
        self._config = config
        self._reached = self._refused = self._without_schema = False
        self._consecutive_failures = 0
        self._last_error = ""

    @property
    def identity(self) -> Mapping[str, object]:
        """URL, model, and the extra fields of every request."""
        config = self._config
        return {"endpoint": config.base_url, "model": config.model, "extra": config.extra}

    def generate(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver, costs: Costs) -> None:
        """Ask all prompts, `concurrency` at a time; deliver each outcome as it comes.

        Raises ConfigError for a wrong key, URL or model, EngineUnavailableError if the endpoint cannot be reached, or
        has answered none of max(`concurrency`, 8) prompts in a row.
        """
        self._consecutive_failures = 0
        asking = self._ask_all(prompts, draw, deliver, costs)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(asking)
        else:  # called in a notebook's event loop, which cannot run another one
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, asking).result()

    async def _ask_all(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver, costs: Costs) -> None:
        config = self._config
        queue = iter(enumerate(prompts))

        async def count_retry(request: httpx.Request) -> None:
            costs.retries += request.headers.get("x-stainless-retry-count", "0") != "0"

        async def check(response: httpx.Response) -> None:
            self._reached = True
            if response.is_success:
                body = await response.aread()
                _last_failure.set("no completion")
                _Completion.model_validate_json(body)  # the client retries after any exception
            _last_failure.set("timeout" if response.is_success else f"HTTP {response.status_code}")

        async def worker(client: openai.AsyncOpenAI) -> None:
            for index, prompt in queue:
                outcome = await self._ask_prompt(client, prompt, draw, costs)
                deliver(index, outcome)
                missing = isinstance(outcome, MissingResponse)
                self._consecutive_failures = self._consecutive_failures + 1 if missing else 0
                if self._consecutive_failures >= max(config.concurrency, 8):
                    reason = f"{self._consecutive_failures} prompts in a row had no reply"
                    raise self._unavailable_error(reason)

        http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [count_retry], "response": [check]})
        key = token_of(KEY) or "none"
        async with openai.AsyncOpenAI(
            base_url=config.base_url, api_key=key, timeout=config.deadline, http_client=http
        ) as client:
            _ = client.chat.completions  # openai imports it lazily: here, not during a request
            tasks = [asyncio.create_task(worker(client)) for _ in range(min(config.concurrency, len(prompts)))]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_prompt(
        self, client: openai.AsyncOpenAI, prompt: Prompt, draw: SamplingParams, costs: Costs
    ) -> LlmResponse | MissingResponse:
        """Ask until there are n texts: some endpoints return one per request, whatever n is."""
        deadline = self._config.deadline
        texts: list[Text] = []
        usages: list[_Usage | None] = []
        _last_failure.set("timeout")
        refused_schema = False
        if self._without_schema:
            prompt = replace(prompt, schema="")
        try:
            async with asyncio.timeout(deadline):
                while len(texts) < draw.n:
                    reached = self._reached
                    first_retries = retries_within(min(deadline, FIRST_CONTACT_SECONDS))
                    retries = UNLIMITED_RETRIES if reached else first_retries
                    create = client.with_options(max_retries=retries).chat.completions.with_raw_response.create
                    try:
                        raw = await create(**self._request(prompt, draw, len(texts)))
                    except openai.APIError as error:
                        status = getattr(error, "status_code", None)
                        if status in REFUSED and prompt.schema:
                            # Either the prompt or the schema is refused: ask without the schema.
                            prompt, refused_schema = replace(prompt, schema=""), True
                            costs.retries += 1
                            continue
                        if reached or not self._reached or status in (*WRONG, *REFUSED):
                            raise
                        costs.retries += 1
                        continue  # the endpoint was reached: retry until the deadline
                    if refused_schema and not self._without_schema:
                        self._without_schema = True
                        log.warning("%s has no structured outputs; it is asked without", self._config.base_url)
                    answer = _Completion.model_validate_json(raw.content)
                    texts += [choice.text() for choice in answer.choices]
                    usages.append(answer.usage)
        except openai.APIStatusError as error:
            if error.status_code in WRONG:
                raise self._config_error(error) from error
            self._last_error = error.message
            if error.status_code in REFUSED:
                level = logging.DEBUG if self._refused else logging.WARNING
                log.log(level, "%s refused a prompt: %s", self._config.base_url, error.message)
                self._refused = True
            return MissingResponse(f"HTTP {error.status_code}")
        except (TimeoutError, openai.APITimeoutError):
            self._last_error = reason = _last_failure.get()
            return MissingResponse(reason)
        except openai.APIConnectionError as error:
            self._last_error = str(error.__cause__ or error)
            if not self._reached:
                raise self._unavailable_error("it cannot be reached") from error
            return MissingResponse("no completion" if isinstance(error.__cause__, ValidationError) else "no connection")
        return LlmResponse(
            tuple(texts[: draw.n]),
            complete_sum([usage.prompt_tokens if usage else None for usage in usages]),
            complete_sum([usage.completion_tokens if usage else None for usage in usages]),
        )

    def _request(self, prompt: Prompt, draw: SamplingParams, received: int) -> dict[str, Any]:
        """Arguments of a request; `extra` adds fields, replaces them, and removes those that it sets to null."""
        fields = {
            "model": self._config.model,
            "messages": list(prompt.messages),
            "n": draw.n - received,
            "temperature": draw.temperature,
            "top_p": draw.top_p,
            "max_tokens": draw.max_tokens,
            "seed": draw.seed + received,
            **({"logprobs": True, "top_logprobs": draw.first_logprobs} if draw.first_logprobs else {}),
            **({"response_format": _response_format(prompt.schema)} if prompt.schema else {}),
            **self._config.extra,
        }
        sent = {name: value for name, value in fields.items() if value is not None}
        return {"model": sent.pop("model"), "messages": sent.pop("messages"), "extra_body": sent}

    def _config_error(self, error: openai.APIStatusError) -> ConfigError:
        key = "is set" if token_of(KEY) else "is not set"
        return ConfigError(
            f"{self._config.base_url} answers HTTP {error.status_code} for the model {self._config.model!r}: "
            f"{error.message}. Check base_url, model and the key ({KEY} {key})."
        )

    def _unavailable_error(self, reason: str) -> EngineUnavailableError:
        return EngineUnavailableError(
            f"the endpoint {self._config.base_url}: {reason} (last: {self._last_error}). Replies that came before are "
            "kept. Start it, correct base_url, or raise the deadline, and run the same command again."
        )


def _response_format(schema: str) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": json.loads(schema)}}
