"""An OpenAI-compatible endpoint, asked through the `openai` client.

Transient failures (429, 5xx, a timeout, a broken connection, an answer that is no completion) are retried with growing
pauses, never sooner than the endpoint's Retry-After says, until the deadline of the prompt. If the endpoint refuses a
prompt (400, 413, 422), only that prompt fails. A wrong key, URL or model name, and an endpoint that does not answer at
all, end the run.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any, Self

import openai
from pydantic import BaseModel, Field, ValidationError, model_validator

from ..configs.llm import LlmConfig
from ..errors import ConfigError, EngineUnavailableError
from .base import THINK_CLOSE, THINK_OPEN, Costs, Deliver, LlmResponse, MissingResponse, Prompt, SamplingParams, Text

log = logging.getLogger(__name__)

FIRST_CONTACT_SECONDS = 20.0
"""How long to try an endpoint that was never reached."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
REFUSED = (400, 413, 422)
WRONG = (401, 403, 404)

Pause = Callable[[float], Awaitable[Any]]
Complete = Callable[..., Awaitable[Any]]


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
    reasoning: Any = None
    reasoning_content: Any = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and not self._thoughts:
            raise ValueError("no content")
        return self

    @property
    def _thoughts(self) -> str:
        return next((text for text in (self.reasoning, self.reasoning_content) if text and isinstance(text, str)), "")

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

    def __init__(self, config: LlmConfig, pause: Pause = asyncio.sleep, random: Random | None = None) -> None:
        """`pause` waits and `random` draws the jitter. Raises ConfigError for a URL that is none."""
        if config.base_url is None or not config.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"base_url is {config.base_url!r}; expected http://… or https://…, such as http://host:8000/v1."
            )
        self._config, self._pause, self._random = config, pause, random or Random()
        self._reached = self._refused = False
        self._not_before = 0.0
        self._consecutive_failures = 0
        self._last_error = ""

    @property
    def identity(self) -> Mapping[str, Any]:
        """URL, model and the extra fields of every request."""
        config = self._config
        return {"endpoint": config.base_url, "model": config.model, "extra": config.extra}

    def generate(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver, costs: Costs) -> None:
        """Ask all prompts, `concurrency` at a time; deliver each outcome as it comes.

        Raises ConfigError for a wrong key, URL or model, EngineUnavailableError if the endpoint cannot be reached, or
        has answered none of max(`concurrency`, 8) prompts in a row.
        """
        self._consecutive_failures = 0
        asyncio.run(self._ask_all(prompts, draw, deliver, costs))

    async def _ask_all(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver, costs: Costs) -> None:
        config = self._config
        queue = iter(enumerate(prompts))
        key = os.environ.get(config.api_key_env) or "none"
        async with openai.AsyncOpenAI(base_url=config.base_url, api_key=key, max_retries=0) as client:
            # This triggers openai's lazy imports here, not during a request.
            complete = client.chat.completions.with_raw_response.create

            async def worker() -> None:
                for index, prompt in queue:
                    outcome = await self._ask_prompt(complete, prompt, draw, costs)
                    deliver(index, outcome)
                    self._consecutive_failures = (
                        self._consecutive_failures + 1 if isinstance(outcome, MissingResponse) else 0
                    )
                    if isinstance(outcome, MissingResponse) and self._consecutive_failures >= max(
                        config.concurrency, 8
                    ):
                        raise self._unavailable_error(f"{self._consecutive_failures} prompts in a row had no reply")

            tasks = [asyncio.create_task(worker()) for _ in range(min(config.concurrency, len(prompts)))]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_prompt(
        self, complete: Complete, prompt: Prompt, draw: SamplingParams, costs: Costs
    ) -> LlmResponse | MissingResponse:
        """Ask until there are n texts: some endpoints return one per request, whatever n is."""
        start = time.monotonic()
        deadline = start + self._config.deadline
        texts: list[Text] = []
        prompt_tokens: list[int | None] = []
        completion_tokens: list[int | None] = []
        reason, failed, pause = "timeout", 0, 0.0
        while len(texts) < draw.n:
            wait = max(pause, self._not_before - time.monotonic())
            if time.monotonic() + wait >= deadline:
                if reason == "no connection" and not self._reached:
                    raise self._unavailable_error("it cannot be reached")
                return MissingResponse(reason)
            if wait > 0:
                await self._pause(wait)
            costs.retries += pause > 0
            remaining = deadline - time.monotonic()
            try:
                async with asyncio.timeout(min(self._config.timeout, max(0.0, remaining))):
                    answer = await self._complete(complete, self._request_body(prompt, draw, len(texts)))
            except openai.APIStatusError as error:
                self._reached = True
                if error.status_code in WRONG:
                    raise self._config_error(error) from error
                reason, self._last_error = f"HTTP {error.status_code}", error.message
                if error.status_code in REFUSED:
                    log.log(
                        logging.DEBUG if self._refused else logging.WARNING,
                        "%s refused a prompt: %s",
                        self._config.base_url,
                        error.message,
                    )
                    self._refused = True
                    return MissingResponse(reason)
                self._delay_requests(error.response.headers)
            except (TimeoutError, openai.APITimeoutError):
                reason = self._last_error = "timeout"
            except openai.APIConnectionError as error:
                reason, self._last_error = "no connection", str(error.__cause__ or error)
                if not self._reached and time.monotonic() - start >= min(FIRST_CONTACT_SECONDS, self._config.deadline):
                    raise self._unavailable_error("it cannot be reached") from error
            except (ValidationError, ValueError, openai.APIError) as error:
                self._reached = True
                reason, self._last_error = "no completion", f"no chat completion: {error}"
            else:
                self._reached = True
                texts += [choice.text() for choice in answer.choices]
                prompt_tokens.append(answer.usage.prompt_tokens if answer.usage else None)
                completion_tokens.append(answer.usage.completion_tokens if answer.usage else None)
                pause = 0.0
                continue
            failed += 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failed - 1)) * self._random.uniform(0.5, 1.0)
        return LlmResponse(tuple(texts[: draw.n]), _sum(prompt_tokens), _sum(completion_tokens))

    async def _complete(self, complete: Complete, body: Mapping[str, Any]) -> _Completion:
        extra_body = {name: value for name, value in body.items() if name not in ("model", "messages")}
        raw = await complete(model=body["model"], messages=body["messages"], extra_body=extra_body)
        return _Completion.model_validate_json(raw.content)

    def _request_body(self, prompt: Prompt, draw: SamplingParams, received: int) -> dict[str, Any]:
        """The fields of a request; `extra` adds fields, replaces them, and removes those that it sets to null."""
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": list(prompt.messages),
            "n": draw.n - received,
            "temperature": draw.temperature,
            "top_p": draw.top_p,
            "max_tokens": draw.max_tokens,
            "seed": draw.seed + received,
        }
        if draw.first_logprobs:
            body |= {"logprobs": True, "top_logprobs": draw.first_logprobs}
        return {name: value for name, value in (body | self._config.extra).items() if value is not None}

    def _delay_requests(self, headers: Mapping[str, str]) -> None:
        """Hold back all requests until the endpoint's Retry-After (seconds or a date)."""
        retry_after = headers.get("retry-after", "")
        try:
            seconds = (
                float(retry_after)
                if retry_after.replace(".", "", 1).isdecimal()
                else parsedate_to_datetime(retry_after).timestamp() - time.time()
            )
        except (ValueError, TypeError):
            return
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    def _config_error(self, error: openai.APIStatusError) -> ConfigError:
        key = "is set" if os.environ.get(self._config.api_key_env) else "is not set"
        return ConfigError(
            f"{self._config.base_url} answers HTTP {error.status_code} for the model {self._config.model!r}: "
            f"{error.message}. Check base_url, model and the key ({self._config.api_key_env} {key})."
        )

    def _unavailable_error(self, reason: str) -> EngineUnavailableError:
        return EngineUnavailableError(
            f"the endpoint {self._config.base_url}: {reason} (last: {self._last_error}). Replies that came before are "
            "kept. Start it, mend base_url, or raise the deadline, and run the same command again."
        )


def _sum(counts: Sequence[int | None]) -> int | None:
    reported = [count for count in counts if count is not None]
    return sum(reported) if len(reported) == len(counts) else None
