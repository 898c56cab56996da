"""A client of an environment that is open in this process: no service, no HTTP, the same answers."""

import threading
from collections.abc import Iterator, Sequence
from itertools import islice

from ...configs.schema import EnvironmentConfig
from ...data.corpus import LoadedQuestions
from ...data.types import Question
from ...errors import RequestError
from ..environment import Environment, PlanRanking
from ..plan import SearchPlan
from ..schemas import PRIMARY_METRIC, EnvironmentInfo, HitBody, Hits, Step, StepResult
from ..wire import hit_fields, info_of, result_fields

PLANS_AT_ONCE = 128
"""Plans that are searched together, as many as the HTTP client sends in one request."""


class InProcessClient:
    """Searches and scores in this process; thread-safe.

    An environment that fails raises at once: there is no connection to retry.
    """

    last_failure: object = None

    def __init__(self, config: EnvironmentConfig, loaded: LoadedQuestions | None = None) -> None:
        """Open the environment. Arguments and errors are those of `Environment.open`."""
        self._environment = Environment.open(config, loaded)
        self._info = info_of(self._environment)
        self._lock = threading.Lock()

    def info(self) -> EnvironmentInfo:
        """What is searched, by which retriever, and which questions there are."""
        return self._info

    def questions(self, split: str) -> list[Question]:
        """All questions of a split, in their fixed order. Raises RequestError for an unknown split."""
        return self._environment.questions(split)

    def search(self, plans: Sequence[SearchPlan], with_text: bool = True, without: Sequence[str] = ()) -> list[Hits]:
        """One ranking for each plan, without the documents of the ids `without`. Raises as `Environment.search`."""
        searched = self._environment.plans_without(plans, without) if without else plans
        with self._lock:
            return [self._hits(ranking, with_text) for ranking in self._ranked(searched)]

    def step(
        self, steps: Sequence[Step], *, with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Rank and score every step; none is None.

        Raises RequestError for an unknown question, ConfigError for an unknown metric, and as `Environment.search`.
        """
        for step in steps:
            if step.question_id not in self._environment.question_ids:
                raise RequestError(f"unknown question id {step.question_id!r}; take ids from questions().")
        names = list(dict.fromkeys([PRIMARY_METRIC, *metrics]))
        with self._lock:
            ranked = self._ranked([self._environment.plan_for(step.question_id, step.plan) for step in steps])
            scored = [
                result_fields(self._environment, step.question_id, ranking, with_text, names)
                for step, ranking in zip(steps, ranked, strict=True)
            ]
        return [StepResult.model_validate(fields) for fields in scored]

    def _ranked(self, plans: Sequence[SearchPlan]) -> Iterator[PlanRanking]:
        remaining = iter(plans)
        while part := list(islice(remaining, PLANS_AT_ONCE)):
            yield from self._environment.search(part)

    def _hits(self, ranking: PlanRanking, with_text: bool) -> Hits:
        fields = hit_fields(self._environment, ranking, with_text)
        return Hits.of(map(HitBody.model_validate, fields), ranking.truncated)
