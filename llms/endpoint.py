"""An OpenAI-compatible endpoint, asked through the `openai` client.

The client retries transient failures (429, 5xx, a timeout, a broken connection) with growing pauses or after the
endpoint's Retry-After, until the deadline of the prompt. If the endpoint refuses a prompt (400, 413, 422) or answers
with something that is no completion, only that prompt fails. A wrong key, URL or model name, and an endpoint that does
not answer at all, end the run. An endpoint on this machine is never asked through a proxy.
"""

import asyncio
import ipaddress
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import httpx
import openai
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from ..configs.llm import LlmConfig
from ..envs.credentials import token_of
from ..errors import ConfigError, EngineUnavailableError, QuerylectError
from .base import (
    THINK_CLOSE,
    THINK_OPEN,
    Costs,
    Deliver,
    LlmResponse,
    Prompt,
    SamplingParams,
    Text,
    complete_sum,
    outside_loop,
)

log = logging.getLogger(__name__)

KEY = "QUERYLECT_LLM_KEY"
"""The environment variable with the API key; not OPENAI_API_KEY, which no other host should get."""
FIRST_RETRIES = 5
"""Retries at an endpoint that was never reached: about 20 seconds where nothing listens."""
RETRIES = 10**6
"""For an endpoint that was reached: the deadline of the prompt ends them."""
REFUSED, WRONG = (400, 413, 422), (401, 403, 404)


def _texts(content: object) -> object:
    """The text of a message: a string, or a list of parts, of which those of other types (thinking) are left out."""
    if not isinstance(content, list):
        return content
    parts = [part for part in content if isinstance(part, dict) and part.get("type", "text") == "text"]
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _thoughts(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None


Thoughts = Annotated[str, BeforeValidator(_thoughts)]
Tokens = Annotated[int | None, BeforeValidator(_count)]


class _Alternative(BaseModel):
    token: str
    logprob: float


class _Token(BaseModel):
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(BaseModel):
    content: list[_Token] | None = None


class _ChatMessage(BaseModel):
    """A message. Servers that separate thoughts from the answer call them `reasoning`, or `reasoning_content`."""

    content: Annotated[str | None, BeforeValidator(_texts)] = None
    reasoning: Thoughts = ""
    reasoning_content: Thoughts = ""


class _Choice(BaseModel):
    message: _ChatMessage
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None

    def text(self) -> Text:
        """Thoughts and answer in one text, as from a server that does not separate them."""
        thoughts = self.message.reasoning or self.message.reasoning_content
        if self.message.content is None and not thoughts:
            raise ValueError("choices.message.content is null")
        text, finished = self.message.content or "", self.finish_reason != "length"
        if thoughts and not text.lstrip().startswith(THINK_OPEN):
            thinking = THINK_OPEN + thoughts.replace(THINK_CLOSE, "")
            text = f"{thinking}{THINK_CLOSE}{text}" if text or finished else thinking
        tokens = (self.logprobs.content if self.logprobs else None) or [_Token()]
        return Text(text, finished, {likely.token: likely.logprob for likely in tokens[0].top_logprobs or ()})


class _Usage(BaseModel):
    prompt_tokens: Tokens = None
    completion_tokens: Tokens = None


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
        self._config, self._url = config, config.base_url
        self._reached = self._without_schema = False
        self._failures = 0
        """Prompts in a row without a reply."""
        self._last_error = ""

    @property
    def identity(self) -> Mapping[str, object]:
        """URL, model, and the extra fields of every request."""
        return {"endpoint": self._url, "model": self._config.model, "extra": self._config.extra}

    def generate(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver, costs: Costs) -> None:
        """Ask all prompts, `concurrency` at a time; deliver each outcome as it comes.

        Raises ConfigError for a wrong key, URL or model, EngineUnavailableError if the endpoint cannot be reached, or
        has answered none of max(`concurrency`, 8) prompts in a row.
        """
        self._failures = 0
        outside_loop(lambda: asyncio.run(self._ask_all(prompts, draw, deliver, costs)))

    async def _ask_all(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver, costs: Costs) -> None:
        config, queue = self._config, iter(enumerate(prompts))

        async def sent(request: httpx.Request) -> None:
            costs.retries += request.headers.get("x-stainless-retry-count", "0") != "0"

        async def received(response: httpx.Response) -> None:
            self._reached = True
            self._last_error = "" if response.is_success else f"HTTP {response.status_code}"

        async def worker(client: openai.AsyncOpenAI) -> None:
            for index, prompt in queue:
                outcome = await self._ask_prompt(client, prompt, draw, costs)
                deliver(index, outcome)
                self._failures = self._failures + 1 if isinstance(outcome, str) else 0
                if self._failures >= max(config.concurrency, 8):
                    raise self._unavailable_error(f"{self._failures} prompts in a row had no reply")

        try:
            http = openai.DefaultAsyncHttpxClient(
                event_hooks={"request": [sent], "response": [received]}, trust_env=not is_loopback(self._url)
            )
        except ImportError as error:  # a SOCKS proxy in the environment, which needs a package of its own
            raise ConfigError(f"the proxy for {self._url} cannot be used: {error}") from error
        async with openai.AsyncOpenAI(
            base_url=self._url, api_key=token_of(KEY) or "none", timeout=config.deadline, http_client=http
        ) as client:
            _ = client.chat.completions  # openai imports it lazily: here, not during a request
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(config.concurrency, len(prompts))):
                        group.create_task(worker(client))
            except* QuerylectError as errors:
                raise errors.exceptions[0] from None

    async def _ask_prompt(
        self, client: openai.AsyncOpenAI, prompt: Prompt, draw: SamplingParams, costs: Costs
    ) -> LlmResponse | str:
        """Ask until there are n texts: some endpoints return one per request, whatever n is."""
        texts, usages, refused_schema = list[Text](), list[_Usage](), False
        try:
            async with asyncio.timeout(self._config.deadline):
                while len(texts) < draw.n:
                    reached = self._reached
                    retries = RETRIES if reached else FIRST_RETRIES
                    create = client.with_options(max_retries=retries).chat.completions.with_raw_response.create
                    try:
                        raw = await create(**self._request(prompt, draw, len(texts)))
                    except openai.APIError as error:
                        status = getattr(error, "status_code", None)
                        if status in REFUSED and prompt.schema and not self._without_schema:
                            # Either the prompt or the schema is refused: ask without the schema.
                            prompt, refused_schema = replace(prompt, schema=""), True
                        elif reached or not self._reached or status in (*WRONG, *REFUSED):
                            raise
                        costs.retries += 1
                        continue
                    if refused_schema and not self._without_schema:
                        self._without_schema = True
                        log.warning("%s has no structured outputs; it is asked without", self._url)
                    completion = _Completion.model_validate_json(_whole_characters(raw.content))
                    texts += [choice.text() for choice in completion.choices]
                    usages.append(completion.usage or _Usage())
        except openai.APIStatusError as error:
            return self._failed(error)
        except (TimeoutError, openai.APITimeoutError):
            self._last_error = self._last_error or "timeout"
            return self._last_error
        except openai.APIConnectionError as error:
            self._last_error = str(error.__cause__ or error)
            if not self._reached:
                raise self._unavailable_error("it cannot be reached") from error
            return "no connection"
        except ValueError as error:
            self._last_error = f"no completion: {_problem(error)}"
            return self._last_error
        return LlmResponse(
            tuple(texts[: draw.n]),
            complete_sum([usage.prompt_tokens for usage in usages]),
            complete_sum([usage.completion_tokens for usage in usages]),
        )

    def _failed(self, error: openai.APIStatusError) -> str:
        """A prompt that was refused; raises ConfigError if every prompt would be."""
        if error.status_code in WRONG:
            raise ConfigError(
                f"{self._url} answers HTTP {error.status_code} for the model {self._config.model!r}: {error.message}. "
                f"Check base_url, model and the key ({KEY} is {'' if token_of(KEY) else 'not '}set)."
            ) from error
        self._last_error = error.message
        log.debug("%s refused a prompt: %s", self._url, error.message)
        return f"HTTP {error.status_code}"

    def _request(self, prompt: Prompt, draw: SamplingParams, received: int) -> dict[str, Any]:
        """Arguments of a request; `extra` adds fields, replaces them, and removes those that it sets to null."""
        fields: dict[str, Any] = {
            "n": draw.n - received,
            "temperature": draw.temperature,
            "top_p": draw.top_p,
            "max_tokens": draw.max_tokens,
            "seed": draw.seed + received,
        }
        if draw.first_logprobs:
            fields |= {"logprobs": True, "top_logprobs": draw.first_logprobs}
        if prompt.schema and not self._without_schema:
            schema = {"name": "answer", "strict": True, "schema": json.loads(prompt.schema)}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        sent = {name: value for name, value in (fields | self._config.extra).items() if value is not None}
        return {"model": self._config.model, "messages": list(prompt.messages), "extra_body": sent}

    def _unavailable_error(self, reason: str) -> EngineUnavailableError:
        return EngineUnavailableError(
            f"the endpoint {self._url}: {reason} (last: {self._last_error}). Replies that came before are kept. Start "
            "it, correct base_url, or raise the deadline, and run the same command again."
        )


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine."""
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _whole_characters(body: bytes) -> str:
    """JSON without escapes of half a character, which models write and pydantic does not read."""
    text = json.dumps(json.loads(body), ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _problem(error: ValueError) -> str:
    """What does not fit in an answer, with the field."""
    if not isinstance(error, ValidationError):
        return "not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
