"""GEPA's view of a run: a candidate is the system message of a few-shot prompt, its score the reward of training.

The model answers greedily, as in evaluation, and the environment scores. Answers are kept in gepa/store.jsonl of the
run, so one that is needed again, also after a resume, costs nothing.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from gepa.core.adapter import EvaluationBatch
from ruamel.yaml.error import YAMLError

from ..configs.evaluation import SystemConfig
from ..configs.load import parse_yaml, write_yaml
from ..configs.schema import RunConfig
from ..data.history import cut_history, lines_of
from ..data.types import Document, Question
from ..envs.client.base import EnvironmentApi
from ..envs.plan import SearchPlan
from ..envs.schemas import PlanResult
from ..errors import ConfigError, EngineUnavailableError, EnvironmentUnavailableError
from ..eval.answering import DecodeOptions, batches, model_answers
from ..eval.records import EvalRecord, RecordStore, answer_key
from ..llms.access import Llm
from ..rewards.reward import node_reward, trajectory_value
from ..rewriters.few_shot import FewShotPrompt, FewShotRewriter
from ..rollouts.chat import Chat
from ..rollouts.checkpoints import metric_key, winning_turn
from ..rollouts.engines.base import Engine
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE
from ..storage import data_sha256
from ..train.questions import grade

log = logging.getLogger(__name__)

COMPONENT = "system"
"""GEPA's name of the text that it changes."""
_PLACEHOLDERS = ("{question}", "{documents}", "{retriever}", "{history}")
_TITLES = 3
"""Titles of retrieved documents that the reflection model is shown for each question."""

Trace = tuple[Question, list[EvalRecord]]
"""A question and its answer, a record for each turn."""


@dataclass(frozen=True)
class PromptAdapter:
    """Evaluates candidates, and turns evaluations of training questions into feedback."""

    config: RunConfig
    client: EnvironmentApi
    rewriter: FewShotRewriter
    model: Engine | Llm
    store: RecordStore
    questions: Sequence[Question]
    """A prompt has to leave room for all of them."""
    titles: Mapping[str, Sequence[str]]
    """Of relevant documents by training question, as far as they are known here."""
    propose_new_texts = None
    """GEPA looks for it; the reflection model makes the proposals."""

    @property
    def turns(self) -> int:
        return len(self.config.rollout.branching)

    def evaluate(
        self, batch: Sequence[Question], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Trace, tuple[str, ...]]:
        """The rewards of a candidate, in the order of the batch; an unusable prompt has the reward 0 and is not
        searched. Raises as `answers`."""
        try:
            prompt = self.prompt_of(candidate)
        except ConfigError as error:
            log.info("a proposal cannot be used: %s", error)
            return EvaluationBatch(outputs=[()] * len(batch), scores=[0.0] * len(batch), num_metric_calls=0)
        answers = self.answers(prompt, batch)
        return EvaluationBatch(
            outputs=[records[-1].rewrites for records in answers],
            scores=list(map(self.reward, answers)),
            trajectories=list(zip(batch, answers, strict=True)) if capture_traces else None,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Trace, tuple[str, ...]],
        components: list[str],
    ) -> dict[str, list[dict[str, Any]]]:
        """What the reflection model reads of each training question."""
        traces, settings = eval_batch.trajectories or [], self.config.reward
        pairs = [(question.id, question.text) for question, _ in traces]
        depth = self.config.search_depth
        raw = grade(self.client, pairs, settings.metric, depth, "training questions as they stand")
        plans = {}
        for i, (_, records) in enumerate(traces):
            if plan := records[-1].plan:
                plans[i] = SearchPlan.model_validate(plan)
            elif records[-1].hits is not None:  # a refused native query; a search says why
                plans[i] = SearchPlan.of(records[-1].rewrites[0], mode="native")
        retrieved = dict(
            zip(plans, self.client.search(list(plans.values()), with_text=_TITLES) if plans else (), strict=True)
        )
        examples: list[dict[str, Any]] = []
        for index, (question, records) in enumerate(traces):
            found = retrieved.get(index, PlanResult(ranking=[]))
            raw_reward = node_reward(raw[index].metrics[self.config.reward.metric], True, settings.format_weight) or 0.0
            matching = "" if found.hits is None else f"{found.hits} documents match"
            readable = all(record.format_ok or record.hits is not None for record in records)
            facts = {
                "Conversation": lines_of(cut_history(question, self.config.rollout.history_tokens).history),
                "Question": question.text,
                "Query": " → ".join(" · ".join(record.rewrites) for record in records),
                "Reward": f"{self.reward(records):.2f}; the question itself as the query has {raw_reward:.2f}",
                "Format": "" if readable else "wrong, so the answer was not searched",
                "Search engine": f"refused the query: {found.error}" if found.error else matching,
                "Retrieved first": " | ".join(title_of(hit.document) for hit in found.ranking[:_TITLES]),
                "Relevant": " | ".join(self.titles.get(question.id, ())),
            }
            examples.append({name: fact for name, fact in facts.items() if fact})
        return dict.fromkeys(components, examples)

    def prompt_of(self, candidate: Mapping[str, str]) -> FewShotPrompt:
        """The prompt with this system message. Raises ConfigError, whose message says what is wrong with the text."""
        text = candidate[COMPONENT]
        if not text.strip():
            raise ConfigError("the system message is empty")
        if stray := [placeholder for placeholder in _PLACEHOLDERS if placeholder in text]:
            raise ConfigError(f"the system message holds {stray[0]}, which nothing replaces there")
        prompt = self.rewriter.prompt.model_copy(update={"system": text})
        try:
            readable = FewShotPrompt.model_validate(parse_yaml(prompt_yaml(prompt))) == prompt
        except (YAMLError, ValueError):
            readable = False
        if not readable:
            raise ConfigError("the text has characters that a YAML file cannot hold")
        if isinstance(self.model, Llm):
            return prompt
        chat, rollout = Chat(self.model.tokenizer, set(self.model.stop_ids)), self.config.rollout
        if any(chat.plain(message["content"]) != message["content"] for message in prompt.messages()):
            raise ConfigError("it holds control tokens of the chat template")
        rewriter = self.rewriter.with_prompt(prompt)
        shown = [chat.plain_question(question, rollout.history_tokens) for question in self.questions]
        longest = max(shown, key=lambda question: len(question.in_context))
        tokens = len(chat.first(rewriter.first(longest), rewriter.opening)) + rollout.earlier_tokens(self.turns)
        if tokens > rollout.max_prompt_tokens:
            raise ConfigError(
                f"with the longest question it takes {tokens} tokens, at most {rollout.max_prompt_tokens} are allowed"
            )
        return prompt

    def answers(self, prompt: FewShotPrompt, questions: Sequence[Question]) -> list[list[EvalRecord]]:
        """The answer to each question, a record for each turn.

        Raises EnvironmentUnavailableError for a failed search, EngineUnavailableError for a missing answer of the
        model: neither is a reward.
        """
        settings = data_sha256([prompt_yaml(prompt)])
        keys = {question.id: answer_key(settings, question) for question in questions}
        pending = [question for question in questions if len(self.store.get(keys[question.id])) < self.turns]
        rewriter = self.rewriter.with_prompt(prompt)
        decoding = DecodeOptions(self.turns, [self.config.reward.metric])
        system = SystemConfig(llm=self.config.optimize.task, turns=self.turns)
        parts = batches(pending, ANSWERED_AT_ONCE)
        for records in model_answers(
            parts, "task", decoding, system, self.model, self.client, rewriter, self.config.rollout
        ):
            failures = {record.question_id: record.failure for record in records if record.failure}
            failed = {record.question_id for record in records if record.metrics[self.config.reward.metric] is None}
            complete = [record for record in records if record.question_id not in failed | failures.keys()]
            self.store.add(replace(record, key=keys[record.question_id]) for record in complete)
            if failures:
                raise EngineUnavailableError(
                    f"optimize.task gave no answer to {len(failures)} questions ({next(iter(failures.values()))}). "
                    "Check the endpoint and continue with --resume."
                )
            if failed:
                raise EnvironmentUnavailableError(
                    f"the searches for {len(failed)} questions got no answer before client.deadline "
                    f"({self.config.client.deadline:g} s; last failure: {self.client.last_failure}). Check the "
                    "service and continue with --resume."
                )
        return [sorted(self.store.get(keys[question.id]), key=lambda record: record.turn) for question in questions]

    def means(self, prompt: FewShotPrompt, questions: Sequence[Question]) -> dict[str, float | None]:
        """The means of a prompt's answers, named as in validation.jsonl."""
        answers = self.answers(prompt, questions)
        record: dict[str, float | None] = {"questions": len(answers), "reward": fmean(map(self.reward, answers))}
        for turn in range(1, self.turns + 1):
            records = [of_question[turn - 1] for of_question in answers]
            record[f"reward/turn{turn}"] = fmean(map(self.turn_reward, records))
            record[metric_key(self.config.reward.metric, turn)] = fmean(
                row.metrics[self.config.reward.metric] or 0.0 for row in records
            )
            record[f"format/turn{turn}"] = fmean(row.format_ok for row in records)
        return record | {"turn": winning_turn(record, self.config.reward.metric, self.turns)}

    def turn_reward(self, record: EvalRecord) -> float:
        """The reward of one turn, in [0, 1]."""
        return (
            node_reward(record.metrics[self.config.reward.metric], record.format_ok, self.config.reward.format_weight)
            or 0.0
        )

    def reward(self, records: Sequence[EvalRecord]) -> float:
        """The mean of the turns' rewards, weighted by `reward.turn_weights`."""
        weights = self.config.reward.turn_weights
        total = sum(weights[: len(records)]) or 1.0
        return trajectory_value([self.turn_reward(record) for record in records], weights) / total


def prompt_yaml(prompt: FewShotPrompt) -> str:
    """The content of a prompt file."""
    return write_yaml(prompt.model_dump(mode="json", exclude_defaults=True))


def title_of(document: Document) -> str:
    """The title, or the beginning of the text, on one line."""
    return " ".join((document.title or document.text).split())[:100]
