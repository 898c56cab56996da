"""An OpenAI-compatible endpoint, asked through the `openai` client.

What fails in passing (429, 5xx, a timeout, a connection that breaks, an answer that is no completion) is asked again
with growing pauses, and never sooner than the endpoint's Retry-After says, until the deadline of the prompt. What the
endpoint refuses for one prompt alone (400, 413, 422) is that prompt's failure. A wrong key, URL or model name, and an
endpoint that does not answer at all, end the run.
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
from .base import THINK_CLOSE, THINK_OPEN, Costs, Deliver, Draw, Failure, Prompt, Reply, Text

log = logging.getLogger(__name__)

FIRST_CONTACT_SECONDS = 20.0
"""How long an endpoint that was never reached is tried, at most."""
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


class _Said(BaseModel):
    """A message. Servers that part thoughts from the answer call them `reasoning`, or `reasoning_content`."""

    content: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not self._thoughts:
            raise ValueError("no content")
        return self

    @property
    def _thoughts(self) -> str:
        return next((said for said in (self.reasoning, self.reasoning_content) if said and isinstance(said, str)), "")

    def text(self, finished: bool) -> str:
        """Thoughts and answer as a model writes them whose server does not part them."""
        content = self.content or ""
        if not self._thoughts or content.lstrip().startswith(THINK_OPEN):
            return content
        begun = THINK_OPEN + self._thoughts.replace(THINK_CLOSE, "")
        return f"{begun}{THINK_CLOSE}{content}" if content or finished else begun


class _Choice(BaseModel):
    message: _Said
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None

    def text(self) -> Text:
        tokens = (self.logprobs.content if self.logprobs is not None else None) or []
        first = {one.token: one.logprob for one in tokens[0].top_logprobs} if tokens else {}
        finished = self.finish_reason != "length"
        return Text(self.message.text(finished), finished, first)


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int


class _Completion(BaseModel):
    """What is read of an answer; other fields are passed over."""

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
        self._lost = 0
        self._trouble = ""

    @property
    def identity(self) -> Mapping[str, Any]:
        """URL, model and the fields that are sent besides."""
        config = self._config
        return {"endpoint": config.base_url, "model": config.model, "extra": config.extra}

    def generate(self, prompts: Sequence[Prompt], draw: Draw, deliver: Deliver, costs: Costs) -> None:
        """Ask all prompts, `concurrency` at a time; deliver each as it comes.

        Raises ConfigError for a wrong key, URL or model, EngineUnavailableError where the endpoint cannot be reached,
        or has answered none of `concurrency` prompts in a row.
        """
        self._lost = 0
        asyncio.run(self._all(prompts, draw, deliver, costs))

    async def _all(self, prompts: Sequence[Prompt], draw: Draw, deliver: Deliver, costs: Costs) -> None:
        config = self._config
        work = iter(enumerate(prompts))
        key = os.environ.get(config.api_key_env) or "none"
        async with openai.AsyncOpenAI(base_url=config.base_url, api_key=key, max_retries=0) as client:
            complete = client.chat.completions.with_raw_response.create  # imported here, in no request's time

            async def worker() -> None:
                for place, prompt in work:
                    outcome = await self._one(complete, prompt, draw, costs)
                    deliver(place, outcome)
                    self._lost = self._lost + 1 if isinstance(outcome, Failure) else 0
                    if isinstance(outcome, Failure) and self._lost >= max(config.concurrency, 8):
                        raise self._unavailable(f"{self._lost} prompts in a row had no reply")

            tasks = [asyncio.create_task(worker()) for _ in range(min(config.concurrency, len(prompts)))]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, complete: Complete, prompt: Prompt, draw: Draw, costs: Costs) -> Reply | Failure:
        """Ask until there are n texts: some endpoints give one at a time, whatever n says."""
        began = time.monotonic()
        until = began + self._config.deadline
        texts: list[Text] = []
        read: list[int | None] = []
        written: list[int | None] = []
        reason, failed, pause = "timeout", 0, 0.0
        while len(texts) < draw.n:
            wait = max(pause, self._not_before - time.monotonic())
            if time.monotonic() + wait >= until:
                if reason == "no connection" and not self._reached:
                    raise self._unavailable("it cannot be reached")
                return Failure(reason)
            if wait > 0:
                await self._pause(wait)
            costs.retries += pause > 0
            left = until - time.monotonic()
            try:
                async with asyncio.timeout(min(self._config.timeout, max(0.0, left))):
                    answer = await self._attempt(complete, self._body(prompt, draw, len(texts)))
            except openai.APIStatusError as error:
                self._reached = True
                if error.status_code in WRONG:
                    raise self._wrong(error) from error
                reason, self._trouble = f"HTTP {error.status_code}", error.message
                if error.status_code in REFUSED:
                    log.log(
                        logging.DEBUG if self._refused else logging.WARNING,
                        "%s refused a prompt: %s",
                        self._config.base_url,
                        error.message,
                    )
                    self._refused = True
                    return Failure(reason)
                self._hold(error.response.headers)
            except (TimeoutError, openai.APITimeoutError):
                reason = self._trouble = "timeout"
            except openai.APIConnectionError as error:
                reason, self._trouble = "no connection", str(error.__cause__ or error)
                if not self._reached and time.monotonic() - began >= min(FIRST_CONTACT_SECONDS, self._config.deadline):
                    raise self._unavailable("it cannot be reached") from error
            except (ValidationError, ValueError, openai.APIError) as error:
                self._reached = True
                reason, self._trouble = "no completion", f"no chat completion: {error}"
            else:
                self._reached = True
                texts += [choice.text() for choice in answer.choices]
                read.append(answer.usage.prompt_tokens if answer.usage else None)
                written.append(answer.usage.completion_tokens if answer.usage else None)
                pause = 0.0
                continue
            failed += 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failed - 1)) * self._random.uniform(0.5, 1.0)
        return Reply(tuple(texts[: draw.n]), _sum(read), _sum(written))

    async def _attempt(self, complete: Complete, body: Mapping[str, Any]) -> _Completion:
        rest = {name: value for name, value in body.items() if name not in ("model", "messages")}
        raw = await complete(model=body["model"], messages=body["messages"], extra_body=rest)
        return _Completion.model_validate_json(raw.content)

    def _body(self, prompt: Prompt, draw: Draw, have: int) -> dict[str, Any]:
        """The fields of a request; `extra` adds to them, replaces them, and takes out those that it says are null."""
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": list(prompt.messages),
            "n": draw.n - have,
            "temperature": draw.temperature,
            "top_p": draw.top_p,
            "max_tokens": draw.max_tokens,
            "seed": draw.seed + have,
        }
        if draw.first_logprobs:
            body |= {"logprobs": True, "top_logprobs": draw.first_logprobs}
        return {name: value for name, value in (body | self._config.extra).items() if value is not None}

    def _hold(self, headers: Mapping[str, str]) -> None:
        """Let no prompt ask before the endpoint's Retry-After (seconds or a date)."""
        said = headers.get("retry-after", "")
        try:
            seconds = (
                float(said)
                if said.replace(".", "", 1).isdecimal()
                else parsedate_to_datetime(said).timestamp() - time.time()
            )
        except (ValueError, TypeError):
            return
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    def _wrong(self, error: openai.APIStatusError) -> ConfigError:
        key = "is set" if os.environ.get(self._config.api_key_env) else "is not set"
        return ConfigError(
            f"{self._config.base_url} answers HTTP {error.status_code} for the model {self._config.model!r}: "
            f"{error.message}. Check base_url, model and the key ({self._config.api_key_env} {key})."
        )

    def _unavailable(self, seen: str) -> EngineUnavailableError:
        return EngineUnavailableError(
            f"the endpoint {self._config.base_url}: {seen} (last: {self._trouble}). Replies that came before are kept. "
            "Start it, mend base_url, or raise the deadline, and run the same command again."
        )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
