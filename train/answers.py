"""Rewards by answers (`reward.kind: answer`): a frozen reader answers from what a rewrite retrieved.

`AnswerClient` stands between rollouts and the environment's client: it searches there, lets the reader answer from the
top documents, and adds the score of the answer to the metrics of each step. Where a policy stops before any search, the
reader answers without documents. The environment knows nothing of readers.

An outage of the reader is never a reward. A step without a reply has no result, as one that was not searched, and is
not scored; where the reader answers nothing at all, its error ends the step and the run saves a checkpoint.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean

from pydantic import JsonValue

from ..configs.schema import ANSWER, ANSWER_REWARD, EnvironmentConfig, RewardConfig, TrainConfig
from ..data.types import Question
from ..envs.client.base import EnvironmentApi, StepClient
from ..envs.plan import SearchPlan
from ..envs.schemas import EnvironmentInfo, PlanResult, Step, StepResult
from ..errors import ConfigError, DataError
from ..eval.tasks.gold import GoldSet, gold_answers
from ..eval.tasks.reader import PROMPT_VERSION, read_answer, reader_prompt
from ..llms.access import Llm
from ..llms.base import SamplingParams
from ..rewards.reward import answer_reward
from ..rollouts.llms import LocalModel, open_llm
from .processes import Processes

log = logging.getLogger(__name__)


class AnswerClient:
    """An environment whose steps are also scored by what a reader answers from their documents. Thread-safe."""

    def __init__(self, client: EnvironmentApi, reader: Llm, gold: GoldSet, reward: RewardConfig, seed: int) -> None:
        """Raises EnvironmentUnavailableError where the environment does not answer."""
        self.environment_client, self._reader, self._gold, self._reward = client, reader, gold, reward
        self._judged = client.info().judged
        self._metric = "accuracy" if gold.choice else reward.answer.metric
        self._sampling = SamplingParams(temperature=0.0, max_tokens=reward.answer.max_tokens, seed=seed)
        self._questions: dict[str, Question] = {}
        """Those that have a right answer, by id, as they were read; with the options of the right answers."""
        self._raw_scores: dict[str, float] = {}
        """By question id; a raw question is searched and read once."""
        self._failure = ""
        self._lock = threading.Lock()
        """Held while a step is searched and read."""
        self._seconds, self._taken = 0.0, dict[str, float]()
        """In which the reader was asked, and its figures at the last `take_figures`."""
        self._read_raw: list[float] = []
        """Scores of the raw questions of each call of `step` since then."""

    @property
    def last_failure(self) -> object:
        """Why a reply of the reader to the last steps is missing, else the environment's last failure."""
        return self._failure or self.environment_client.last_failure

    @property
    def identity(self) -> dict[str, JsonValue]:
        """What the scores depend on besides the settings. Loads the weights of a local reader."""
        reader = dict(self._reader.identity)
        if isinstance(backend := self._reader.backend, LocalModel):
            del reader["files"]  # it covers dates, which differ between copies
            reader["fingerprint"] = backend.fingerprint
        return {"reader": repr(sorted(reader.items())), "prompt": PROMPT_VERSION, "right_answers": self._gold.digest}

    def info(self) -> EnvironmentInfo:
        return self.environment_client.info()

    def questions(self, split: str) -> list[Question]:
        """The questions of a split that have a right answer, in their fixed order.

        Raises DataError where none has one, and as the client.
        """
        questions = self.environment_client.questions(split)
        answerable = [question for question in questions if question.id in self._gold.by_id]
        if questions and not answerable:
            raise DataError(
                f"none of {len(questions)} questions of the {split} split ({questions[0].id!r} among them) has a right "
                f"answer in {self._gold.source} ({next(iter(self._gold.by_id))!r} has one), and reward.kind is answer. "
                "Give the file of this dataset with reward.answer.gold."
            )
        if len(answerable) < len(questions):
            log.info("%d of %d %s questions have a right answer", len(answerable), len(questions), split)
        for question in answerable:
            options = self._gold.by_id[question.id].question.options
            self._questions[question.id] = replace(question, options=options)
        return answerable

    def search(self, plans: Sequence[SearchPlan], *, with_text: bool | int = True) -> list[PlanResult]:
        return self.environment_client.search(plans, with_text=with_text)

    def step(
        self, steps: Sequence[Step], *, with_text: bool | int = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """As `step_and_read` of steps alone."""
        return self.step_and_read(steps, (), with_text=with_text, metrics=metrics)

    def step_and_read(
        self,
        steps: Sequence[Step],
        unsearched: Sequence[str],
        *,
        with_text: bool | int = False,
        metrics: Sequence[str] = (),
    ) -> list[StepResult | None]:
        """As the client's `step`, with the texts that are read, too; then a result without a ranking for each question
        id of `unsearched`, which the reader answers without documents. Each result has the metrics ANSWER and
        ANSWER_REWARD, too, and those of the ranking, 0 without one, only if questions have judgements.

        None also where the reader gave no reply, or, with `reward.answer.gain`, none for the raw question. Raises as
        `Llm.ask` where the reader is not there at all.
        """
        with self._lock:
            self._failure = ""
            names = list(dict.fromkeys([*(step.question_id for step in steps), *unsearched]))
            raw_steps = self._raw_steps(names)
            searches = [*steps, *raw_steps]
            with_text = with_text if with_text is True else max(with_text, self._reward.answer.top)
            searched = self.environment_client.step(searches, with_text=with_text, metrics=metrics) if searches else []
            results = [*searched, *(StepResult.without_search(name, metrics) for name in unsearched)]
            scores = self._scores(results)
            for step, score in zip(raw_steps, scores[len(steps) : len(searches)], strict=True):
                if score is not None:
                    self._raw_scores[step.question_id] = score
            self._read_raw += [self._raw_scores[name] for name in names if name in self._raw_scores]
            outcomes = [self._rewarded(result, score) for result, score in zip(results, scores, strict=True)]
            return [*outcomes[: len(steps)], *outcomes[len(searches) :]]

    def take_figures(self) -> tuple[dict[str, float], list[float]]:
        """(counts as in `Costs`, scores of raw questions) of the reader in this process since the last call; it does
        not wait for a step that another thread samples ahead."""
        now, self._read_raw, raw_scores = self._reader.costs, [], self._read_raw
        total = {
            "reader/calls": now.calls,
            "reader/cached": now.cached,
            "reader/missing": now.missing.total(),
            "reader/tokens": now.prompt_tokens + now.tokens,
            "seconds/read": self._seconds,
        }
        figures = {name: value - self._taken.get(name, 0) for name, value in total.items()}
        self._taken = total
        return figures, raw_scores

    def _question(self, name: str) -> Question:
        """The question of an id. Another process may have drawn it: the splits are read until it is known."""
        for split in self.info().splits if name not in self._questions else ():
            self.questions(split)
        return self._questions[name]

    def _raw_steps(self, names: Sequence[str]) -> list[Step]:
        """A search with the raw text of each of these questions whose raw score is needed and not known."""
        settings = self._reward.answer
        unknown = [name for name in names if settings.gain and name not in self._raw_scores]
        return [
            Step(question_id=name, plan=SearchPlan.of(self._question(name).text, k=settings.top)) for name in unknown
        ]

    def _scores(self, results: Sequence[StepResult | None]) -> list[float | None]:
        """The score of the reader's answer for each result, in one batch; None without a result or a reply."""
        settings, started, reasons = self._reward.answer, time.perf_counter(), list[str]()
        present = [(index, result) for index, result in enumerate(results) if result is not None]
        visible = [[hit.document for hit in result.ranking[: settings.top]] for _, result in present]
        prompts = [
            reader_prompt(self._question(result.question_id), documents, settings.document_words)
            for (_, result), documents in zip(present, visible, strict=True)
        ]
        replies = self._reader.ask(prompts, self._sampling, missing=lambda _, reason: reasons.append(reason))
        self._seconds += time.perf_counter() - started
        if reasons:
            self._failure = f"the reader {settings.reader.model}: {reasons[-1]}"
            log.warning("%d of %d answers are missing; last: %s", len(reasons), len(prompts), self._failure)
        scores: list[float | None] = [None] * len(results)
        for (index, result), reply in zip(present, replies, strict=True):
            if reply is not None:
                gold = self._gold.by_id[result.question_id]
                answer = read_answer(reply.texts[0].text, gold.question)
                scores[index] = gold.score(answer, [self._metric])[self._metric]
        return scores

    def _rewarded(self, result: StepResult | None, score: float | None) -> StepResult | None:
        """The result with the reader's metrics; None if it cannot be scored."""
        settings = self._reward.answer
        raw_score = self._raw_scores.get(result.question_id) if result is not None else None
        if result is None or score is None or (settings.gain and raw_score is None):
            return None
        metric = result.metrics[self._reward.metric] if settings.weight < 1 else 0.0
        reward = answer_reward(score, raw_score, metric, settings.weight)
        of_ranking = result.metrics if self._judged else {}
        return result.model_copy(update={"metrics": {**of_ranking, ANSWER: score, ANSWER_REWARD: reward}})


@contextmanager
def rewarding(
    client: EnvironmentApi, reward: RewardConfig, train: TrainConfig, env: EnvironmentConfig, seed: int
) -> Iterator[EnvironmentApi]:
    """The client with the rewards of a run: itself, or for `reward.kind: answer` an AnswerClient around it.

    Raises ConfigError where the environment's questions lack the judgements that `reward` and `train.raw_metric` need,
    and as `open_llm` and `gold_answers`.
    """
    raw_metric = train.raw_metric
    needing = {
        "reward.kind is metric": reward.kind == "metric",
        f"reward.answer.weight is {reward.answer.weight:g}": reward.answer.weight < 1,
        f"train.raw_metric is {raw_metric}": raw_metric is not None,
    }
    setting = next((setting for setting, needs in needing.items() if needs), None)
    if setting is not None and not (info := client.info()).judged:
        raise ConfigError(
            f"{setting}, and the questions of {info.name} have no relevant documents. Set reward.kind=answer, "
            "reward.answer.weight=1 and train.raw_metric=null, or add judgements (qrels/) to the dataset."
        )
    if reward.kind != "answer":
        yield client
        return
    gold = gold_answers(env, reward.answer)
    with open_llm(reward.answer.reader) as reader:
        yield AnswerClient(client, reader, gold, reward, seed)


def without_reader(client: StepClient) -> StepClient:
    """The client of the environment alone, for metrics of rankings, which need no answer."""
    return client.environment_client if isinstance(client, AnswerClient) else client


def reader_metrics(client: object, processes: Processes) -> Mapping[str, float]:
    """The figures of the reader in all processes since the last call, for a log; none without a reader. Collective."""
    if not isinstance(client, AnswerClient):
        return {}
    figures, raw_scores = zip(*processes.all_gather(client.take_figures()), strict=True)
    record: dict[str, float] = {name: sum(part[name] for part in figures) for name in figures[0]}
    record["seconds/read"] = max(part["seconds/read"] for part in figures)
    if raw := [score for part in raw_scores for score in part]:
        record["answer/raw"] = fmean(raw)
    return record
