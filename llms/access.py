"""Asking a model: prompts with a cached reply cost no call, and every reply is cached as soon as it arrives."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Self

from .base import Backend, Costs, LlmResponse, Prompt, SamplingParams
from .cache import ReplyCache


class Llm:
    """One model; close it (`with`)."""

    def __init__(self, backend: Backend, cache: ReplyCache | None = None, json_answers: bool = True) -> None:
        """`json_answers`: structured answers are JSON, whose schema the backend enforces where it can. Otherwise they
        are labelled lines (llms/lines.py)."""
        self.backend, self.cache, self.json_answers = backend, cache, json_answers
        self.costs = Costs()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the cache."""
        if self.cache is not None:
            self.cache.close()

    @property
    def identity(self) -> dict[str, object]:
        """The model as plain data, for results that name it."""
        return dict(self.backend.identity)

    def ask(
        self,
        prompts: Sequence[Prompt],
        draw: SamplingParams,
        missing: Callable[[int, str], None] | None = None,
    ) -> list[LlmResponse | None]:
        """The reply to each prompt, in their order; None if it is missing.

        Equal prompts are asked once. `missing` is called with the index of each prompt without a reply and the reason.
        Raises ConfigError if the endpoint refuses everything, EngineUnavailableError if it does not answer at all,
        ModelError for an unusable local model.
        """
        keys = [self.key(prompt, draw) for prompt in prompts]
        replies = self.cache.get(list(dict.fromkeys(keys))) if self.cache is not None else {}
        uncached = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in replies}
        pending = list(uncached)
        reasons: dict[str, str] = {}
        self.costs.cached += len(prompts) - len(pending)

        def deliver(index: int, outcome: LlmResponse | str) -> None:
            if isinstance(outcome, str):
                reasons[pending[index]] = outcome
                self.costs.missing[outcome] += 1
                return
            replies[pending[index]] = outcome
            if self.cache is not None:
                self.cache.put(pending[index], outcome)
            self.costs.calls += 1
            self.costs.prompt_tokens += outcome.prompt_tokens or 0
            self.costs.tokens += outcome.tokens or 0

        if pending:
            self.backend.generate([uncached[key] for key in pending], draw, deliver, self.costs)
        if missing is not None:
            for index, key in enumerate(keys):
                if key not in replies:
                    missing(index, reasons.get(key, "no reply"))
        return [replies.get(key) for key in keys]

    def key(self, prompt: Prompt, draw: SamplingParams) -> str:
        """sha256 over the model and everything in the request: equal keys mean the same call."""
        payload = [self.identity, prompt.messages, prompt.opening, prompt.schema, astuple(draw)]
        text = json.dumps(payload, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
