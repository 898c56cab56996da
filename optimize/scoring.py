"""What a prompt is worth on questions: the model answers greedily, as in evaluation, and the environment scores it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property

from ..configs.evaluation import SystemConfig
from ..configs.schema import RunConfig
from ..data.history import cut_history
from ..data.types import Document, Question
from ..envs.client.base import EnvironmentApi, StepClient
from ..envs.plan import SearchPlan
from ..envs.schemas import Step, StepResult
from ..errors import EngineUnavailableError, EnvironmentUnavailableError
from ..eval.answering import Asking, batches
from ..eval.prompted import model_answers
from ..eval.records import EvalRecord
from ..llms.access import Llm
from ..rewards.reward import node_reward, trajectory_value
from ..rewriters.few_shot import FewShotPrompt, FewShotRewriter
from ..rollouts.build import rewriter_for
from ..rollouts.chat import Chat
from ..rollouts.checkpoints import metric_key
from ..rollouts.engines.base import Engine
from ..rollouts.llms import open_llm
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE
from ..train.questions import grade
from .prompts import digest_of

RAW = "raw"
"""Stands for the question as it is, where otherwise the digest of a prompt stands."""


_TITLES = 3
"""Titles of retrieved documents that the reflection model is shown for each question."""


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """One question answered with one prompt, a line of evaluations.jsonl."""

    key: str
    """`evaluation_key` of the next three."""
    candidate: str
    """Digest of the prompt, or RAW."""
    split: str
    question_id: str
    rewrites: tuple[str, ...]
    """By turn; several rewrites of a turn are joined."""
    format_ok: bool
    """Of every turn."""
    reward: float
    """Mean of the turns' rewards, weighted by `reward.turn_weights`."""
    means: Mapping[str, float]
    """Reward, metric and format by turn, named as in validation.jsonl."""
    titles: tuple[str, ...]
    """First documents of the last ranking."""
    searches: int
    tokens: int | None
    """Sampled tokens; None where an endpoint does not report them."""
    seconds: float


def evaluation_key(candidate: str, split: str, question_id: str) -> str:
    """The key of an evaluation."""
    return f"{candidate} {split} {question_id}"


class Scorer:
    """Answers questions with a prompt. The model is loaded when it is first needed."""

    def __init__(self, config: RunConfig, client: EnvironmentApi, models: ExitStack) -> None:
        """`models` closes the model of `optimize.task`; the rewriter is `few_shot` (`refuse_unsupported`)."""
        rewriter = rewriter_for(config.rewriter, config.mix, client, config.search_depth)
        assert isinstance(rewriter, FewShotRewriter), "refuse_unsupported"
        self._config, self._client, self._models, self._rewriter = config, client, models, rewriter
        self.turns, self.metric = len(config.rollout.branching), config.reward.metric

    @property
    def start(self) -> FewShotPrompt:
        """The prompt of the config."""
        return self._rewriter.prompt

    @property
    def base(self) -> str:
        """Fingerprint of the policy's weights; "" for a model that another process holds."""
        model = getattr(self._model, "model", None)
        if model is None:
            return ""
        from ..rollouts.policy import fingerprint

        return fingerprint(model)

    @cached_property
    def _model(self) -> Engine | Llm:
        if self._config.optimize.task is not None:
            return self._models.enter_context(open_llm(self._config.optimize.task))
        from ..rollouts.engines.open import load_engine

        return load_engine(self._config.policy, self._config.rollout, self._config.seed, None)

    def refusal(self, prompt: FewShotPrompt, questions: Sequence[Question]) -> str:
        """Why the policy cannot be asked with this prompt, in one sentence; "" if it can."""
        if isinstance(self._model, Llm):
            return ""
        chat = Chat(self._model.tokenizer, set(self._model.stop_ids))
        messages = prompt.messages()
        if any(chat.plain(message["content"]) != message["content"] for message in messages):
            return "it holds control tokens of the chat template"
        rewriter = replace(self._rewriter, prompt=prompt)
        rollout = self._config.rollout
        shown = [chat.plain_question(question, rollout.history_tokens) for question in questions]
        longest = max(shown, key=lambda question: len(question.in_context))
        tokens = len(chat.first(rewriter.first(longest), rewriter.opening)) + rollout.earlier_tokens(self.turns)
        if tokens > rollout.max_prompt_tokens:
            return (
                f"with the longest question it takes {tokens} tokens, at most {rollout.max_prompt_tokens} are allowed"
            )
        return ""

    def with_cut_history(self, question: Question) -> Question:
        """The question with as much of its history as prompts show."""
        return cut_history(question, self._config.rollout.history_tokens)

    def score(self, prompt: FewShotPrompt, split: str, questions: Sequence[Question]) -> Iterator[list[ScoredAnswer]]:
        """Yield the evaluations of one batch of questions after another.

        Raises EnvironmentUnavailableError for a search without an answer, EngineUnavailableError for a missing answer
        of the model: neither is a reward.
        """
        rewriter, candidate = replace(self._rewriter, prompt=prompt), digest_of(prompt)
        asking = Asking(self.turns, [self.metric])
        for part in batches(questions, ANSWERED_AT_ONCE):
            titles = _Titles(self._client)
            records = self._answers(part, asking, rewriter, titles)
            by_question: dict[str, list[EvalRecord]] = {}
            for record in records:
                by_question.setdefault(record.question_id, []).append(record)
            yield [
                self._evaluation(candidate, split, by_question[question.id], titles.by_question.get(question.id, ()))
                for question in part
            ]

    def score_raw(self, split: str, questions: Sequence[Question]) -> list[ScoredAnswer]:
        """The questions as they stand. Raises EnvironmentUnavailableError."""
        steps = [Step(question_id=question.id, plan=SearchPlan.of(question.text)) for question in questions]
        results = grade(self._config, self._client, steps, "training questions as they stand")
        evaluations = []
        for question, result in zip(questions, results, strict=True):
            reward = node_reward(result.metrics[self.metric], True, self._config.reward.format_weight) or 0.0
            key = evaluation_key(RAW, split, question.id)
            evaluations.append(
                ScoredAnswer(key, RAW, split, question.id, (question.text,), True, reward, {}, (), 1, 0, 0.0)
            )
        return evaluations

    def _answers(
        self, part: Sequence[Question], asking: Asking, rewriter: FewShotRewriter, client: StepClient
    ) -> list[EvalRecord]:
        settings, rollout = SystemConfig(llm=self._config.optimize.task, turns=self.turns), self._config.rollout
        (answered,) = model_answers([part], "task", asking, settings, self._model, client, rewriter, rollout)
        if answered.missing:
            raise EngineUnavailableError(
                f"optimize.task gave no answer to {len(answered.missing)} of {len(part)} questions "
                f"({next(iter(answered.missing.values()))}). Check the endpoint and continue with --resume."
            )
        return answered.records

    def _evaluation(
        self, candidate: str, split: str, records: Sequence[EvalRecord], titles: Sequence[str]
    ) -> ScoredAnswer:
        metric, settings = self.metric, self._config.reward
        records = sorted(records, key=lambda record: record.turn)
        means: dict[str, float] = {}
        rewards: list[float] = []
        for record in records:
            value = record.metrics[metric]
            reward = node_reward(value, record.format_ok, settings.format_weight)
            if reward is None or value is None:
                failure = getattr(self._client, "last_failure", None)
                raise EnvironmentUnavailableError(
                    f"a search for question {record.question_id!r} got no answer before client.deadline "
                    f"({self._config.client.deadline:g} s){f'; last failure: {failure}' if failure else ''}. Check the "
                    "service and continue with --resume."
                )
            rewards.append(reward)
            means[f"reward/turn{record.turn}"] = rewards[-1]
            means[metric_key(metric, record.turn)] = value
            means[f"format/turn{record.turn}"] = float(record.format_ok)
        total = sum(settings.turn_weights[: len(rewards)]) or 1.0
        last = records[-1]
        return ScoredAnswer(
            key=evaluation_key(candidate, split, last.question_id),
            candidate=candidate,
            split=split,
            question_id=last.question_id,
            rewrites=tuple(" · ".join(record.rewrites) for record in records),
            format_ok=all(record.format_ok for record in records),
            reward=trajectory_value(rewards, settings.turn_weights) / total,
            means=means,
            titles=tuple(titles),
            searches=last.searches,
            tokens=last.tokens,
            seconds=last.seconds,
        )


class _Titles:
    """A client that keeps the first titles of each question's last ranking."""

    def __init__(self, client: StepClient) -> None:
        self._client = client
        self.by_question: dict[str, tuple[str, ...]] = {}

    def step(
        self, steps: Sequence[Step], *, with_text: bool = False, metrics: Sequence[str] = ()
    ) -> Sequence[StepResult | None]:
        """As the client's `step`, always with texts."""
        results = self._client.step(steps, with_text=True, metrics=metrics)
        for step, result in zip(steps, results, strict=True):
            hits = result.ranking[:_TITLES] if result is not None else []
            self.by_question[step.question_id] = tuple(_title(hit.document) for hit in hits)
        return results


def _title(document: Document) -> str:
    """The title, or the beginning of the text, on one line."""
    return " ".join((document.title or document.text).split())[:100]
