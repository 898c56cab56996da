"""A rewriter's model behind an OpenAI-compatible endpoint: no weights and no PyTorch on this machine."""

from contextlib import ExitStack
from dataclasses import dataclass, field

from ..configs.llm import LlmConfig
from ..configs.schema import RolloutConfig
from ..errors import ConfigError
from ..rewriters.base import RewritingStrategy
from ..rollouts.conversation import PromptedConversation
from ..rollouts.llms import open_llm

_PREFILLED = {"continue_final_message": True, "add_generation_prompt": False}
"""Fields of a request with which vLLM and SGLang continue the last message instead of answering it."""


@dataclass(slots=True)
class EndpointModel:
    """A model at an endpoint.

    A trained policy, served as its export (`vllm serve exports/demo`), gets the messages of training and the prefilled
    beginning of its answer, and its answers are parsed as strictly as in training. Any other model is prompted.
    """

    config: LlmConfig
    trained: bool
    _llms: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def at(cls, endpoint: str | LlmConfig, model: str | None, trained: bool) -> "EndpointModel":
        """`endpoint` is a URL that serves `model` under that name, or all settings. ConfigError without a name."""
        config = endpoint if isinstance(endpoint, LlmConfig) else LlmConfig(model="", base_url=endpoint, cache=None)
        config = config if model is None else config.model_copy(update={"model": model})
        if config.base_url is None or not config.model:
            raise ConfigError(
                "an endpoint needs its URL (http://HOST:PORT/v1) and the name of a model, as `GET URL/models` lists it."
            )
        return cls(config, trained)

    def conversation(self, rewriter: RewritingStrategy, rollout: RolloutConfig) -> PromptedConversation:
        """The model with the prompts of one rewriter. Raises ConfigError for a URL that is none."""
        config = self.config
        if self.trained and rewriter.opening:
            config = config.model_copy(update={"extra": {**_PREFILLED, **config.extra}})
        llm = self._llms.enter_context(open_llm(config))
        return PromptedConversation(llm, rewriter, rollout, trained=self.trained)

    def close(self) -> None:
        """Close the connections."""
        self._llms.close()
