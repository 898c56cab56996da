"""An OpenAI-compatible endpoint, asked through the `openai` client.

The client retries transient failures (429, 5xx, a timeout, a broken connection) with growing pauses or after the
endpoint's Retry-After, until the deadline of the prompt. If the endpoint refuses a prompt (400, 413, 422) or answers
with something that is no completion, only that prompt fails. A wrong key, URL or model name, and an endpoint that does
not answer at all, end the run. An endpoint on this machine is never asked through a proxy.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import httpx
import openai
from pydantic import AliasPath, BaseModel, BeforeValidator, Field, ValidationError

from ..configs.llm import LlmConfig
from ..envs.client.base import is_loopback, token_of
from ..errors import ConfigError, EngineUnavailableError, QuerylectError
from .base import (
    THINK_CLOSE,
    THINK_OPEN,
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
"""Retries of a prompt while nothing has answered at the URL: about 20 seconds where nothing listens."""
RETRIES = 10**6
"""Retries of a prompt at an endpoint that was reached: its deadline ends them."""
REFUSED, WRONG = (400, 413, 422), (401, 403, 404)


def _texts(content: object) -> object:
    """The text of a message: a string, or a list of parts, of which those of other types (thinking) are left out."""
    if not isinstance(content, list):
        return content
    parts = [part for part in content if isinstance(part, dict) and part.get("type", "text") == "text"]
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


Content = Annotated[str | None, BeforeValidator(_texts)]
Thoughts = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else "")]
Tokens = Annotated[int | None, BeforeValidator(lambda value: int(value) if isinstance(value, int | float) else None)]


class _Alternative(BaseModel):
    token: str
    logprob: float


class _Choice(BaseModel):
    """Servers that separate thoughts from the answer call them `reasoning`, or `reasoning_content`."""

    content: Content = Field(None, validation_alias=AliasPath("message", "content"))
    reasoning: Thoughts = Field("", validation_alias=AliasPath("message", "reasoning"))
    reasoning_content: Thoughts = Field("", validation_alias=AliasPath("message", "reasoning_content"))
    finish_reason: str | None = None
    first: list[_Alternative] | None = Field(None, validation_alias=AliasPath("logprobs", "content", 0, "top_logprobs"))

    def text(self) -> Text:
        """Thoughts and answer in one text, as from a server that does not separate them."""
        thoughts = self.reasoning or self.reasoning_content
        if self.content is None and not thoughts:
            raise ValueError("choices.message.content is null")
        text, finished = self.content or "", self.finish_reason != "length"
        if thoughts and not text.lstrip().startswith(THINK_OPEN):
            thinking = THINK_OPEN + thoughts.replace(THINK_CLOSE, "")
            text = f"{thinking}{THINK_CLOSE}{text}" if text or finished else thinking
        return Text(text, finished, {likely.token: likely.logprob for likely in self.first or ()})


class _Completion(BaseModel):
    """The fields that are read of an answer; others are ignored."""

    choices: list[_Choice] = Field(min_length=1)
    prompt_tokens: Tokens = Field(None, validation_alias=AliasPath("usage", "prompt_tokens"))
    tokens: Tokens = Field(None, validation_alias=AliasPath("usage", "completion_tokens"))


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
        self._last_error = ""

    @property
    def identity(self) -> Mapping[str, object]:
        """URL, model, and the extra fields of every request."""
        return {"endpoint": self._url, "model": self._config.model, "extra": self._config.extra}

    def generate(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver) -> None:
        """Ask all prompts, `concurrency` at a time; deliver each outcome as it comes.

        Raises ConfigError for a wrong key, URL or model, EngineUnavailableError if the endpoint cannot be reached, or
        has answered none of max(`concurrency`, 8) prompts in a row.
        """
        outside_loop(lambda: asyncio.run(self._ask_all(prompts, draw, deliver)))

    async def _ask_all(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver) -> None:
        config, queue, failures = self._config, iter(enumerate(prompts)), 0

        async def note(response: httpx.Response) -> None:
            self._reached = True
            self._last_error = "" if response.is_success else f"HTTP {response.status_code}"

        async def worker(client: openai.AsyncOpenAI) -> None:
            nonlocal failures
            for index, prompt in queue:
                outcome = await self._ask_prompt(client, prompt, draw)
                deliver(index, outcome)
                failures = failures + 1 if isinstance(outcome, str) else 0
                if failures >= max(config.concurrency, 8):
                    raise self._unavailable_error(f"{failures} prompts in a row had no reply")

        local = is_loopback(self._url)
        try:
            http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [note]}, trust_env=not local)
        except ImportError as error:  # a SOCKS proxy in the environment, which needs a package of its own
            raise ConfigError(f"the proxy for {self._url} cannot be used: {error}") from error
        key, seconds = token_of(KEY) or "none", config.deadline
        async with openai.AsyncOpenAI(
            base_url=self._url, api_key=key, timeout=seconds, max_retries=RETRIES, http_client=http
        ) as client:
            _ = client.chat.completions  # openai imports it lazily: here, not during a request
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(config.concurrency, len(prompts))):
                        group.create_task(worker(client))
            except* QuerylectError as errors:
                raise errors.exceptions[0] from None

    async def _ask_prompt(self, client: openai.AsyncOpenAI, prompt: Prompt, draw: SamplingParams) -> LlmResponse | str:
        """Ask until there are n texts: some endpoints return one per request, whatever n is. Returns the reply, or why
        there is none."""
        completions, texts = list[_Completion](), list[Text]()
        try:
            async with asyncio.timeout(self._config.deadline):
                while len(texts) < draw.n:
                    completions.append(await self._complete(client, prompt, draw, len(texts)))
                    texts += [choice.text() for choice in completions[-1].choices]
        except openai.APIStatusError as error:
            if error.status_code in WRONG:
                raise ConfigError(
                    f"{self._url} answers HTTP {error.status_code} for the model {self._config.model!r}: "
                    f"{error.message}. Check base_url, model and the key ({KEY} is {'' if token_of(KEY) else 'not '}"
                    "set)."
                ) from error
            self._last_error = error.message
            return f"HTTP {error.status_code}"
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
            complete_sum([completion.prompt_tokens for completion in completions]),
            complete_sum([completion.tokens for completion in completions]),
        )

    async def _complete(
        self, client: openai.AsyncOpenAI, prompt: Prompt, draw: SamplingParams, received: int
    ) -> _Completion:
        """One request; `extra` adds fields, replaces them, and removes those that it sets to null."""
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
        fields = {name: value for name, value in (fields | self._config.extra).items() if value is not None}
        try:
            raw = await self._create(client, prompt, fields)
        except openai.APIStatusError as error:
            if error.status_code not in REFUSED or not fields.pop("response_format", None):
                raise
            # Either the prompt or the schema was refused: ask without the schema.
            raw = await self._create(client, prompt, fields)
            if not self._without_schema:
                log.warning("%s has no structured outputs; it is asked without", self._url)
            self._without_schema = True
        # Models write escapes of half a character, which pydantic does not read.
        text = json.dumps(json.loads(raw.content), ensure_ascii=False)
        return _Completion.model_validate_json(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    async def _create(self, client: openai.AsyncOpenAI, prompt: Prompt, fields: dict[str, Any]) -> Any:
        """The raw response. A request that began before anything had answered is repeated with all retries."""
        reached, messages = self._reached, list[Any](prompt.messages)
        client = client if reached else client.with_options(max_retries=FIRST_RETRIES)
        create = client.chat.completions.with_raw_response.create
        try:
            return await create(model=self._config.model, messages=messages, extra_body=fields)
        except openai.APIError as error:
            if reached or not self._reached or getattr(error, "status_code", None) in (*REFUSED, *WRONG):
                raise
        return await self._create(client, prompt, fields)

    def _unavailable_error(self, reason: str) -> EngineUnavailableError:
        return EngineUnavailableError(
            f"the endpoint {self._url}: {reason} (last: {self._last_error}). Replies that came before are kept. Start "
            "it, correct base_url, or raise the deadline, and run the same command again."
        )


def _problem(error: ValueError) -> str:
    """What does not fit in an answer, with the field."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return "not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
