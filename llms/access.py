"""Asking a model: what is known is not asked again, and every reply is kept the moment it comes."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Self

from ..configs.llm import LlmConfig
from .base import Backend, Costs, Draw, Failure, Prompt, Reply
from .cache import ReplyCache, cache_file

log = logging.getLogger(__name__)

_KEY_FORM = 2
"""Part of every key: to be raised where a reply gets another meaning."""


def open_llm(config: LlmConfig) -> "Llm":
    """The model of `config`, behind its cache. A local model is loaded when it is first asked something new.

    Raises ModelError for a local model that does not exist, ConfigError for an unusable URL, StorageError for an
    unusable cache.
    """
    backend: Backend
    if config.base_url is None:
        from .local import LocalModel

        backend = LocalModel(config)
    else:
        from .endpoint import Endpoint

        backend = Endpoint(config)
    file = cache_file(config.cache)
    return Llm(backend, ReplyCache(file) if file is not None else None)


class Llm:
    """One model; close it (`with`)."""

    def __init__(self, backend: Backend, cache: ReplyCache | None = None) -> None:
        self.backend, self.cache = backend, cache
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
    def identity(self) -> dict[str, Any]:
        """The model as plain data, for results that name it."""
        return dict(self.backend.identity)

    def ask(
        self,
        prompts: Sequence[Prompt],
        draw: Draw,
        advance: Callable[[int, int], None] | None = None,
        missing: Callable[[int, str], None] | None = None,
    ) -> list[Reply | None]:
        """The reply to each prompt, in their order; None where it is missing.

        Equal prompts are asked once. `advance` is told how many of how many prompts are done, `missing` the place
        of each prompt without a reply and the reason. Raises ConfigError where the endpoint refuses everything,
        EngineUnavailableError where it does not answer at all, ModelError for an unusable local model.
        """
        keys = [self.key(prompt, draw) for prompt in prompts]
        replies = self.cache.get(list(dict.fromkeys(keys))) if self.cache is not None else {}
        asked = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in replies}
        waiting = list(asked)
        reasons: dict[str, str] = {}
        done = len(prompts) - len(waiting)
        self.costs.cached += done
        if advance is not None:
            advance(done, len(prompts))

        def deliver(place: int, outcome: Reply | Failure) -> None:
            nonlocal done
            self.costs.count(outcome)
            if isinstance(outcome, Reply):
                replies[waiting[place]] = outcome
                if self.cache is not None:
                    self.cache.put(waiting[place], outcome)
            else:
                reasons[waiting[place]] = outcome.reason
                log.debug("no reply: %s", outcome.reason)
            done += 1
            if advance is not None:
                advance(done, len(prompts))

        if waiting:
            self.backend.generate([asked[key] for key in waiting], draw, deliver, self.costs)
        if missing is not None:
            for place, key in enumerate(keys):
                if key not in replies:
                    missing(place, reasons.get(key, "no reply"))
        return [replies.get(key) for key in keys]

    def key(self, prompt: Prompt, draw: Draw) -> str:
        """sha256 over the model and everything that it is asked: equal keys mean the same call."""
        asked = {
            "form": _KEY_FORM,
            "model": self.identity,
            "messages": [[message["role"], message["content"]] for message in prompt.messages],
            "version": prompt.version,
            "draw": [draw.n, draw.temperature, draw.top_p, draw.max_tokens, draw.seed, draw.first_logprobs],
        } | ({"opening": prompt.opening} if prompt.opening else {})
        return hashlib.sha256(
            json.dumps(asked, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
        ).hexdigest()
