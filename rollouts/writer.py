"""Generated rewrites for the playground: a policy that is loaded when the first one is asked for, and then kept."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..configs.schema import RunConfig
from ..data.types import Question
from ..envs.page.router import Written
from ..errors import RequestError
from ..rewriters.base import Rewriter
from ..rewriters.card import RetrieverCard
from ..rewriters.registry import make_rewriter
from ..rewriters.stages import ask_first_stage
from .chat import Chat
from .checkpoints import find_checkpoint
from .engine import Engine, Sampling


class PolicyWriter:
    """First-turn greedy rewrites of the policy of a run folder, or of a config's untrained policy."""

    def __init__(self, config: RunConfig, run: Path | None, name: str) -> None:
        """Look for the checkpoint, but load nothing. Raises CheckpointError where the run folder holds none."""
        self.name = name
        self._config = config
        self._checkpoint = find_checkpoint(run) if run is not None else None
        self._engine: Engine | None = None
        self._lock = threading.Lock()

    def __call__(self, question: Question, card: Mapping[str, Any]) -> Written:
        """Generate and read one answer.

        Raises ModelError or CheckpointError where the policy cannot be loaded, RequestError where the prompt is too
        long, ConfigError where the retriever is of a kind that the rewriter does not know, or the rewriter's first
        stage gave nothing.
        """
        with self._lock:
            if self._engine is None:
                self._engine = self._load()
            rollout, engine = self._config.rollout, self._engine
            chat = Chat(engine.tokenizer, engine.stop_ids)
            rewriter: Rewriter = make_rewriter(
                self._config.rewriter, RetrieverCard.from_service(card), self._config.search_depth
            )
            ask_first_stage(rewriter, [question], self._config.policy)
            prompt = chat.first(rewriter.first(chat.plain_question(question)), rewriter.opening)
            if len(prompt) > rollout.max_prompt_tokens:
                raise RequestError(
                    f"the prompt has {len(prompt)} tokens and rollout.max_prompt_tokens of {self.name} is "
                    f"{rollout.max_prompt_tokens}. Shorten the question."
                )
            sampling = Sampling(temperature=0.0, max_new_tokens=rollout.new_tokens(1))
            text = chat.text(engine.generate([prompt], 1, sampling)[0][0].ids)
            rewrite = rewriter.parse(question, text, 1)
            return Written(text=text, plan=rewrite.plan, think=rewrite.think, failure=rewrite.failure)

    def _load(self) -> Engine:
        from .engines import load_engine

        return load_engine(self._config, self._checkpoint)
