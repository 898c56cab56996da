"""The documents that the reader gets from each system.

A recorded search plan is sent to the environment again, with texts and deep enough for the largest `top`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ...data.types import Document, Question
from ...envs.client.base import EnvironmentApi
from ...envs.plan import SearchPlan
from ...envs.schemas import HitBody, Step
from ...errors import DataError, EnvironmentUnavailableError, in_one_line
from ..records import METRICS, RAW, EvalRecord, read_records, record_of_search
from ..table import Arm

Searches = Mapping[Arm, Mapping[str, EvalRecord]]
"""By system and turn, then by question id, in the order of the evaluation."""


def recorded_searches(path: Path) -> Searches:
    """The last turn of every system in an eval.jsonl, raw first; with sampled answers, the first sample.

    Raises DataError for a line that is not a record.
    """
    searches: dict[Arm, dict[str, EvalRecord]] = {}
    for record in read_records(path):
        if not record.sample:
            searches.setdefault(Arm(record.system, record.turn), {})[record.question_id] = record
    if not searches:
        raise DataError(f"{path} holds no evaluation record. Run `querylect eval` again.")
    last = {arm.system: arm for arm in sorted(searches, key=lambda arm: arm.turn)}
    return {
        arm: searches[arm]
        for arm in sorted(last.values(), key=lambda arm: (arm.system != RAW, list(searches).index(arm)))
    }


def raw_searches(questions: Iterable[Question]) -> Searches:
    """A search with the raw text of every question."""
    return {
        Arm(RAW, 0): {
            question.id: record_of_search(RAW, question, [question.text], SearchPlan.of(question.text), None, METRICS)
            for question in questions
        }
    }


def recorded_ndcg(record: EvalRecord) -> float | None:
    """nDCG@10 of the recorded ranking; None where the environment gave none."""
    return record.metrics.get(METRICS[0])


def _plan(record: EvalRecord) -> SearchPlan | None:
    """The recorded plan; None where nothing was searched. Raises DataError for a plan that cannot be read."""
    if record.plan is None:
        return None
    try:
        return SearchPlan.model_validate(record.plan)
    except ValidationError as error:
        raise DataError(
            f"the search plan of {record.system} for the question {record.question_id!r} cannot be read "
            f"({in_one_line(error)}). Run `querylect eval` again."
        ) from error


def known_questions(client: EnvironmentApi, split: str, searched: Collection[str]) -> set[str]:
    """Those of the ids `searched` that are of questions of the environment. Its splits are read until all are found,
    `split` first, which is where an evaluation takes its questions from."""
    sizes = client.info().splits
    ids: set[str] = set()
    for name in sorted(filter(sizes.__getitem__, sizes), key=lambda name: name != split):
        ids.update({question.id for question in client.questions(name)}.intersection(searched))
        if len(ids) == len(searched):
            break
    return ids


class Contexts:
    """The documents of searches, from the environment."""

    def __init__(self, deepest: int, client: EnvironmentApi, known: Collection[str]) -> None:
        """`deepest`: the largest of `answers.top`; `known`: the ids that are those of the environment's questions
        (`known_questions`)."""
        self._deepest, self._client, self._known = deepest, client, known

    def of(self, searches: Sequence[EvalRecord]) -> list[list[Document]]:
        """The documents of each search, best first; an empty list where nothing was searched, because the model's
        answer had the wrong format or it stopped before any search.

        Raises EnvironmentUnavailableError where the environment does not answer, DataError for a plan that cannot be
        read.
        """
        plans = [_plan(record) for record in searches]
        deep = [
            (record.question_id, plan.model_copy(update={"k": self._deepest}))
            for record, plan in zip(searches, plans, strict=True)
            if plan is not None
        ]
        rankings = iter(self._rankings(deep))
        return [[hit.document for hit in next(rankings)] if plan is not None else [] for plan in plans]

    def _rankings(self, plans: Sequence[tuple[str, SearchPlan]]) -> list[Sequence[HitBody]]:
        """The ranking of each plan, without the documents that the environment leaves out for its question."""
        steps = [Step(question_id=name, plan=plan) for name, plan in plans if name in self._known]
        without_steps = [plan for name, plan in plans if name not in self._known]
        results = self._client.step(steps, with_text=True) if steps else []
        if None in results:
            raise EnvironmentUnavailableError(
                "a search got no answer before client.deadline. Check the service and run the command again."
            )
        of_steps = iter([result.ranking for result in results if result is not None])
        results_of_others = self._client.search(without_steps, with_text=True) if without_steps else []
        of_others = iter([result.ranking for result in results_of_others])
        return [next(of_steps if name in self._known else of_others) for name, _ in plans]
