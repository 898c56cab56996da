"""The documents that the reader gets from each system.

A recorded search plan is sent to the environment again, with texts and deep enough for the largest `top`. For records
without plans, the texts of the ranked document ids come from the local dataset.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...configs.schema import RunConfig
from ...data.jsonl import read_records
from ...data.load import load_dataset
from ...data.types import Document, Question
from ...envs.client.base import SearchClient
from ...envs.plan import SearchPlan
from ...errors import ConfigError, DataError
from ..records import METRICS, RAW
from ..table import Arm


@dataclass(frozen=True, slots=True)
class QuestionSearch:
    """What one system searched for one question."""

    question: str
    plan: SearchPlan | None
    """None where it was not recorded, or where the format failed (`failed`)."""
    ranking: tuple[str, ...]
    """The recorded document ids, best first."""
    ndcg: float | None
    failed: bool = False
    """Whether the model's answer had the wrong format: nothing was searched, and the reader gets no documents."""


Searches = Mapping[Arm, Mapping[str, QuestionSearch]]
"""By system and turn, then by question id, in the order of the evaluation."""


def recorded_searches(path: Path) -> Searches:
    """The last turn of every system in an eval.jsonl, raw first; with sampled answers, the first sample.

    Raises DataError for a line that is not a record.
    """
    searches: dict[Arm, dict[str, QuestionSearch]] = {}
    for number, row in read_records(path, "evaluation records, as `querylect eval` writes them"):
        try:
            if row.get("sample", 0):
                continue
            arm = Arm(str(row["system"]), int(row["turn"]))
            searches.setdefault(arm, {})[row["question_id"]] = _search(arm, row)
        except (KeyError, TypeError, AttributeError, ValueError, ValidationError) as error:
            raise DataError(
                f"{path}, line {number}, is not an evaluation record ({type(error).__name__}: {error}). "
                "Run `querylect eval` again."
            ) from error
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
            question.id: QuestionSearch(question.text, SearchPlan.of(question.text), (), None) for question in questions
        }
    }


class Contexts:
    """The documents of searches, from the environment or from the dataset."""

    def __init__(self, config: RunConfig, client: SearchClient, searches: Searches) -> None:
        """Raises ConfigError where `answers.top` needs more documents than a record without a plan has."""
        self._config, self._client, self._deepest = config, client, max(config.answers.top)
        unplanned = [
            search
            for by_id in searches.values()
            for search in by_id.values()
            if search.plan is None and not search.failed
        ]
        longest = max((len(search.ranking) for search in unplanned), default=self._deepest)
        if longest < self._deepest:
            raise ConfigError(
                f"the records hold no search plans and {longest} documents of a ranking; answers.top asks for "
                f"{self._deepest}. Ask for fewer (--top {max(1, longest)}), or run `querylect eval` again.",
                code="too-few-documents",
            )
        self.moved = 0
        """Number of rankings that differ from the recorded ones."""

    def of(self, searches: Sequence[QuestionSearch]) -> list[list[Document] | None]:
        """The documents of each search, best first; None where the evaluation got no ranking.

        Raises EnvironmentUnavailableError where the environment does not answer, ConfigError where the texts of a
        recorded ranking are not on this machine.
        """
        plans = [search.plan.model_copy(update={"k": self._deepest}) for search in searches if search.plan is not None]
        rankings = iter(self._client.search(plans, with_text=True) if plans else [])
        contexts: list[list[Document] | None] = []
        for search in searches:
            if search.failed:
                contexts.append([])
            elif search.plan is not None:
                documents = [hit.document for hit in next(rankings)]
                ids = tuple(document.id for document in documents)
                same = min(len(ids), len(search.ranking))
                self.moved += ids[:same] != search.ranking[:same]
                contexts.append(documents)
            else:
                contexts.append(self._recorded(search) if search.ndcg is not None else None)
        return contexts

    def _recorded(self, search: QuestionSearch) -> list[Document]:
        unknown = [document_id for document_id in search.ranking if document_id not in self._dataset]
        if unknown:
            raise DataError(
                f"the records rank document {unknown[0]!r}, which the dataset does not have. Name the right one."
            )
        return [self._dataset[document_id] for document_id in search.ranking]

    @cached_property
    def _dataset(self) -> Mapping[str, Document]:
        if self._config.client.urls != "local":
            raise ConfigError(
                "the records hold no search plans, and the environment is on another machine: the texts of their "
                "documents are not known here. Run `querylect eval` again with this version."
            )
        return {document.id: document for document in load_dataset(self._config.env.dataset).corpus}


def _search(arm: Arm, row: Mapping[str, Any]) -> QuestionSearch:
    recorded = row.get("plan")
    plan = SearchPlan.model_validate(recorded) if recorded is not None else None
    if plan is None and arm.system == RAW:
        plan = SearchPlan.of(row["question"])
    ndcg = row["metrics"].get(METRICS[0])
    return QuestionSearch(row["question"], plan, tuple(row["ranking"]), ndcg, failed=not row["format_ok"])
