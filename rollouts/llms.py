"""Frozen language models: behind an endpoint, or a transformers model in this process; and the first stage of rewriters
that have two, in which one is asked about a question before its first turn.

A text that a local model samples depends on its prompt, the seed and its number alone, not on the prompts beside it.
The model is loaded when it is first asked; a run whose replies are all cached loads none.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..configs.llm import LlmConfig
from ..configs.schema import PolicyConfig
from ..data.history import cut_history
from ..data.types import Question
from ..errors import ConfigError
from ..llms.access import Llm, ReplyCache
from ..llms.base import Deliver, LlmResponse, Message, Prompt, SamplingParams, Text
from ..llms.structured import ask_structured
from ..rewriters.base import FirstStage, RewritingStrategy, StagedQuestion
from ..sources import resolve_model

if TYPE_CHECKING:
    from .chat import Chat
    from .engines.transformers import TransformersEngine

log = logging.getLogger(__name__)

BATCH_TOKENS = 16_384
"""Tokens of a generation batch: prompts and answers, padding included."""
MAX_PROMPT_TOKENS = 8192
Outcome = Question | str
"""A question with the answer of its first stage, if it has one; or the reason why there is none."""
_WEIGHTS = (".safetensors", ".gguf", ".json", ".jinja", ".model", ".txt")


def open_llm(config: LlmConfig) -> Llm:
    """The model of `config`, behind its cache.

    Raises ModelError for a local model that does not exist, ConfigError for an unusable URL, StorageError for an
    unusable cache.
    """
    if config.base_url is None:
        return Llm(LocalModel(config), ReplyCache.of(config.cache), json_answers=False)
    from ..llms.endpoint import Endpoint

    return Llm(Endpoint(config), ReplyCache.of(config.cache))


def policy_llm(policy: PolicyConfig) -> LlmConfig:
    """The policy's base model as a frozen one."""
    return LlmConfig(model=policy.model, dtype=policy.dtype)


def resolved_dtype(dtype: str) -> str:
    """The dtype of a policy or local model by name; `auto` is what this device computes in."""
    if dtype != "auto":
        return dtype
    from .policy import torch_dtype  # the device has to be asked: the one import that a known reply costs

    return str(torch_dtype(PolicyConfig())).removeprefix("torch.")


class LocalModel:
    """One model folder, package or Hub id."""

    def __init__(self, config: LlmConfig) -> None:
        """Raises ModelError where the name leads nowhere."""
        self._config = config
        self._folder = resolve_model(config.model)

    @cached_property
    def identity(self) -> Mapping[str, str]:
        """The name, the type that the weights have on this device, the files of the folder by size and time of change.

        A Hub id stands for itself.
        """
        folder = Path(self._folder)
        files = sorted(path for path in folder.glob("*") if path.suffix in _WEIGHTS) if folder.is_dir() else []
        states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        content = hashlib.sha256(json.dumps(states).encode()).hexdigest()[:16]
        dtype = resolved_dtype(self._config.dtype)
        return {"local": self._config.model, "dtype": dtype, "files": content if states else ""}

    @cached_property
    def fingerprint(self) -> str:
        """That of the weights (policy.py), which are loaded for it."""
        from .policy import fingerprint

        return fingerprint(self._engine.model)

    def generate(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver) -> None:
        """Answer all prompts, those of like length side by side; deliver a batch at a time.

        A prompt of more than MAX_PROMPT_TOKENS fails. Raises ModelError for an unusable model.
        """
        from .engines.base import Sampling, stream
        from .engines.transformers import refuse_special_attention

        engine, chat = self._engine, self._chat
        starts = []
        for prompt in prompts:
            messages = [Message(role=m["role"], content=chat.plain(m["content"])) for m in prompt.messages]
            starts.append(chat.first_of_prompted(messages, prompt.opening))
        ids = [prompt_ids for prompt_ids, _ in starts]
        fitting = [index for index, prompt_ids in enumerate(ids) if len(prompt_ids) <= MAX_PROMPT_TOKENS]
        for index in sorted(set(range(len(prompts))) - set(fitting)):
            deliver(index, "prompt too long")
        if fitting:
            refuse_special_attention(engine.model, max(len(ids[index]) for index in fitting) + draw.max_tokens)
        for batch in self._batches(fitting, ids, draw):
            sampling = Sampling(
                temperature=draw.temperature,
                top_p=draw.top_p,
                max_new_tokens=draw.max_tokens,
                streams=tuple(stream(draw.seed, *ids[index]) for index in batch),
                first=draw.first_logprobs,
            )
            sampled = engine.generate([ids[index] for index in batch], draw.n, sampling)
            for index, samples in zip(batch, sampled, strict=True):
                opening = starts[index][1]
                texts = [Text(opening + chat.text(s.ids), s.finished, self._first(s.first)) for s in samples]
                deliver(index, LlmResponse(tuple(texts), len(ids[index]), sum(len(s.ids) for s in samples)))

    def _batches(
        self, indices: Sequence[int], ids: Sequence[Sequence[int]], draw: SamplingParams
    ) -> Iterator[list[int]]:
        """Batches of prompt indices that, with padding and answers, fit BATCH_TOKENS; each has at least one."""
        batch: list[int] = []
        for index in sorted(indices, key=lambda i: len(ids[i])):
            longest = len(ids[index]) + draw.n * draw.max_tokens
            if batch and (len(batch) + 1) * longest > BATCH_TOKENS:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _first(self, likeliest: Mapping[int, float]) -> dict[str, float]:
        """Log-probabilities by token text instead of id; of ids with equal text the likeliest is kept."""
        by_token: dict[str, float] = {}
        for token_id, logprob in likeliest.items():
            by_token.setdefault(self._engine.tokenizer.decode([token_id]), logprob)
        return by_token

    @cached_property
    def _engine(self) -> "TransformersEngine":
        import torch

        from .engines.transformers import TransformersEngine
        from .policy import load_policy, move_to

        model, tokenizer = load_policy(PolicyConfig(model=self._config.model, dtype=self._config.dtype))
        move_to(model, "cuda" if torch.cuda.is_available() else "cpu")
        # A batch is bounded by its tokens here, and what a prompt may reach is checked with its length.
        return TransformersEngine(model, tokenizer, micro_batch=2**30, longest=16)

    @cached_property
    def _chat(self) -> "Chat":
        from .chat import Chat

        return Chat(self._engine.tokenizer, self._engine.stop_ids)


class FirstStages(ExitStack):
    """Asks about the questions of a rewriter. A question whose answer is missing, or is not of the form that was asked
    for even after one repair, falls out: nothing is made up for it. Questions of other rewriters pass unchanged. Models
    are kept until the end of the context."""

    def __init__(self, rewriter: RewritingStrategy, base: LlmConfig, history_words: int) -> None:
        """`base` is asked where a stage names no model. Prompts show the newest `history_words` of a history."""
        super().__init__()
        self._rewriter, self._base, self._history_words = rewriter, base, history_words
        self._models: dict[str, Llm] = {}

    def ask(self, questions: Sequence[Question]) -> list[Outcome]:
        """The outcome of each question. Raises as `Llm.ask`."""
        outcomes: list[Outcome] = list(questions)
        groups: dict[tuple[str, str], dict[int, FirstStage]] = {}
        for index, question in enumerate(questions):
            stage = self._rewriter.first_stage(cut_history(question, self._history_words))
            if stage is not None and not isinstance(question, StagedQuestion):
                model = (stage.llm or self._base).model_dump_json()
                groups.setdefault((model, stage.form.__name__), {})[index] = stage
        for (model, _), stages in groups.items():
            if model not in self._models:
                self._models[model] = self.enter_context(open_llm(LlmConfig.model_validate_json(model)))
            first, prompts = next(iter(stages.values())), [stage.prompt for stage in stages.values()]
            answers = ask_structured(self._models[model], prompts, first.form, first.draw)
            for index, answer in zip(stages, answers, strict=True):
                if answer.value is not None:
                    outcomes[index] = StagedQuestion.of(questions[index], answer.value, answer.replies)
                else:
                    outcomes[index] = "no reply" if answer.missing else "not of the form that was asked for"
        return outcomes


def answered(outcomes: Sequence[Outcome]) -> list[Question]:
    """The questions that did not fall out. Raises ConfigError where none is left."""
    remaining = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if failures:
        reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(failures).items())
        summary = f"{len(failures)} of {len(outcomes)} questions fall out; their first stage gave: {reasons}"
        if not remaining:
            raise ConfigError(f"{summary}. Ask a stronger model (rewriter.llm), or use another rewriter.")
        log.warning("%s", summary)
    return remaining
