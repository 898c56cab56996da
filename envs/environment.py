"""An opened environment: retriever × corpus × questions × qrels. It ranks plans and scores rankings.

It is `EnvironmentApi` (client/base.py) in this process; server/ puts it behind HTTP. Qrels stay inside: a trainer's
call gets questions, documents, rankings and metric values, never a judgement.
"""

import threading
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..configs.schema import EnvironmentConfig
from ..data.corpus import Corpus, load_dataset
from ..data.history import lines_of
from ..data.sampling import in_batches
from ..data.types import Dataset, Question
from ..errors import ConfigError, RequestError, in_one_line
from ..rewards.metrics import measure
from ..storage import data_sha256
from .index import Index, open_index
from .plan import Probe, SearchPlan, Term
from .retrievers.base import NOTHING, Retriever, fuse
from .retrievers.combined import Reranked, Reranker
from .retrievers.language import MAX_ERROR, Found, LanguageRetriever
from .retrievers.open import check_corpus, open_retriever, retriever_info
from .schemas import PRIMARY_METRIC, EnvironmentInfo, PlanResult, Step, StepResult

_measure = lru_cache(maxsize=256)(measure)

PLANS_AT_ONCE = 128
"""Plans that `search` and `step` rank together, as many as the HTTP client sends in one request."""


class RankedHit(NamedTuple):
    """One place of a ranking: a document id and its score, higher is better."""

    id: str
    score: float


class Ranking(list[RankedHit]):
    """What a plan found, best first, no document twice; the attributes are those of `PlanResult`."""

    hits: int | None = None
    error: str | None = None
    truncated: int = 0


class Environment:
    """An opened environment; thread-safe, one thread at a time searches.

    A search that fails raises at once: there is no connection to retry.
    """

    last_failure: object = None

    def __init__(
        self,
        config: EnvironmentConfig,
        dataset: Dataset,
        index: Index,
        retriever: Retriever,
        reranker: Reranker | None = None,
    ) -> None:
        """Use `Environment.open`, which checks that dataset, index and retriever belong together."""
        meta, description = index.meta, retriever_info(config, index)
        index_hash = meta.index_hash
        if retriever.frequent_terms is not None:
            description["frequent_terms"] = retriever.frequent_terms
        if reranker is not None:
            description, index_hash = reranker.describe(description), reranker.hash_over(index_hash)
            retriever = Reranked(retriever, reranker, index.documents)
        if config.order == "date" and not isinstance(retriever, LanguageRetriever):
            raise ConfigError(
                f"env.order is date, and {meta.preset.name} has no query language, or env.rerank. Leave env.order out."
            )
        self.dataset = dataset.name
        self._dataset, self._retriever, self._documents = dataset, retriever, index.documents
        self._judgements = _judgements(dataset, index.documents)
        self._lock = threading.Lock()
        self._info = EnvironmentInfo(
            name=config.name or f"{dataset.name}/{meta.preset.name}",
            retriever=description,
            corpus_size=meta.documents,
            corpus_hash=meta.corpus_hash,
            index_hash=index_hash,
            settings_hash=settings_hash(dataset, index.documents, config),
            relevance_level=dataset.relevance_level,
            splits={name: len(split.questions) for name, split in dataset.splits.items()},
            judged=any(split.relevant for split in dataset.splits.values()) or not dataset.splits,
        )

    def __repr__(self) -> str:
        info = self._info
        splits = ", ".join(f"{count} {name} questions" for name, count in info.splits.items())
        return f"Environment({info.name!r}, {info.retriever['name']}, {info.corpus_size} documents, {splits})"

    @classmethod
    def open(cls, config: EnvironmentConfig, dataset: Dataset | None = None) -> "Environment":
        """Open the index, and load the questions and judgements of its dataset; documents stay in the index.

        `dataset` is `config.dataset`, if it was read before for an index of its corpus.

        Raises DataError for the dataset, also where a judged document is not in the index, ConfigError for an unknown
        retriever, ModelError for its models, IndexFolderError where the index folder is missing, corrupt, or was
        built from another corpus or for another retriever.
        """
        index, corpus = open_index(config.index), Corpus(config.dataset)
        check_corpus(index, corpus)
        if dataset is None:
            dataset = load_dataset(config.dataset, index.documents)
        reranker = Reranker(config.rerank) if config.rerank else None
        return cls(config, dataset, index, open_retriever(index, config, dataset), reranker)

    def info(self) -> EnvironmentInfo:
        """What is searched, by which retriever, and which questions there are."""
        return self._info

    def questions(self, split: str) -> list[Question]:
        """All questions of a split, in their fixed order. Raises RequestError for an unknown split."""
        if split not in self._dataset.splits:
            message = f"unknown split {split!r}; this environment has {', '.join(self._dataset.splits)}."
            raise RequestError(message)
        return list(self._dataset.splits[split].questions)

    def search(self, plans: Sequence[SearchPlan], *, with_text: bool | int = True) -> list[PlanResult]:
        """One result for each plan. Raises as `rank`."""
        return [self.result(ranking, with_text) for ranking in self._rank_in_parts(plans)]

    def step(
        self, steps: Sequence[Step], *, with_text: bool | int = False, metrics: Sequence[str] = ()
    ) -> list[StepResult]:
        """Rank and score every step.

        Raises RequestError for an unknown question, ConfigError for an unknown metric, and as `rank`.
        """
        rankings = self._rank_in_parts(list(map(self.plan_of, steps)))
        return [
            StepResult.model_validate(self.step_fields(step, ranking, with_text, metrics))
            for step, ranking in zip(steps, rankings, strict=True)
        ]

    def _rank_in_parts(self, plans: Sequence[SearchPlan]) -> list[Ranking]:
        return [ranking for part in in_batches(plans, PLANS_AT_ONCE) for ranking in self.rank(part)]

    def plan_of(self, step: Step) -> SearchPlan:
        """The plan to rank for a step. It leaves out the documents that the question excludes, and the one with the
        question's id where the dataset says so (`ignore_identical_ids`). Raises RequestError for an unknown question.
        """
        if step.question_id not in self._judgements:
            raise RequestError(f"unknown question id {step.question_id!r}; take ids from the environment's questions.")
        plan, left_out = step.plan, self._judgements[step.question_id].left_out
        return plan.model_copy(update={"without": (*plan.without, *left_out)}) if left_out else plan

    def rank(self, plans: Sequence[SearchPlan]) -> list[Ranking]:
        """Rank every plan, at most `plan.k` documents each; all plans go to the retriever as one batch.

        A probe that stands in several plans is ranked once. Each probe contributes its best `probe.k` documents
        (`plan.k` where None) to the fusion. A plan that matches nothing has an empty ranking.

        Native plans are searched text by text: the hits of one are the most of its texts, and one text that is refused
        refuses it.

        Raises RequestError for a native plan that has weights or several texts in a probe, or whose retriever has no
        query language.
        """
        depths: dict[tuple[Term, ...], int] = {}
        native: dict[str, int] = {}
        left_out = [
            [self._documents.position(name) for name in plan.without if name in self._documents] for plan in plans
        ]
        for plan, excluded in zip(plans, left_out, strict=True):
            for probe in plan.probes:
                depth = min(self._depth(probe.k or plan.k, len(excluded)), self._info.corpus_size)
                if plan.mode == "native":
                    query = self._query(probe)
                    native[query] = max(native.get(query, 0), depth)
                else:
                    depths[probe.terms] = max(depths.get(probe.terms, 0), depth)
        probes = [Probe(terms=terms) for terms in depths]
        with self._lock:
            ranked = self._retriever.rank(probes, list(depths.values())) if probes else []
            truncated = dict(zip(depths, map(self._retriever.truncated, probes), strict=True))
            found = dict(zip(native, self._ask(list(native), list(native.values())), strict=True))
        by_terms = dict(zip(depths, ranked, strict=True))
        rankings = []
        for plan, excluded in zip(plans, left_out, strict=True):
            answers = [found[self._query(probe)] for probe in plan.probes] if plan.mode == "native" else []
            by_probe = [answer.ranking for answer in answers] or [by_terms[probe.terms] for probe in plan.probes]
            errors = [answer.error for answer in answers if answer.error is not None]
            parts = [
                NOTHING if errors else scored.without(excluded).cut(probe.k or plan.k)
                for probe, scored in zip(plan.probes, by_probe, strict=True)
            ]
            fused = fuse(parts, plan.fuse, plan.k)
            ids = map(self._documents.id, fused.documents.tolist())
            ranking = Ranking(map(RankedHit, ids, fused.scores.tolist()))
            ranking.error = in_one_line(errors[0], MAX_ERROR) if errors else None
            if answers:
                ranking.hits = 0 if errors else max(answer.hits for answer in answers)
            else:
                ranking.truncated = sum(truncated[probe.terms] for probe in plan.probes)
            rankings.append(ranking)
        return rankings

    def _query(self, probe: Probe) -> str:
        """The text of a native probe."""
        if len(probe.terms) > 1 or probe.terms[0].weight != 1:
            raise RequestError("mode is native, and a probe has weights or several texts. Give each probe one text.")
        return probe.terms[0].text

    def _ask(self, queries: Sequence[str], limits: Sequence[int]) -> list[Found]:
        if not queries:
            return []
        if not isinstance(self._retriever, LanguageRetriever):
            raise RequestError(f"mode is native, and {self._info.name} has no query language. Set mode to text.")
        return self._retriever.ask(queries, limits)

    def _depth(self, k: int, left_out: int) -> int:
        """How many documents a probe has to rank so that `k` remain after `left_out` are removed. Fewer may remain
        if the retriever has a depth limit."""
        limit = self._retriever.depth_limit
        return k + left_out if limit is None else max(k, min(k + left_out, limit))

    def score(self, question_id: str, ranking: Sequence[RankedHit], metrics: Sequence[str]) -> dict[str, float]:
        """Value of each metric, in [0, 1], for a question's ranking; a document that is ignored there is passed over.

        Raises KeyError for an unknown question, ConfigError for an unknown metric.
        """
        judged = self._judgements[question_id]
        ids = [hit.id for hit in ranking if hit.id not in judged.left_out]
        return {name: _measure(name, judged.level)(ids, judged.qrels) for name in metrics}

    def result(self, ranking: Ranking, with_text: bool | int = True) -> PlanResult:
        """What a plan's ranking is to a client."""
        return PlanResult.model_validate(self.result_fields(ranking, with_text))

    def result_fields(self, ranking: Ranking, with_text: bool | int) -> dict[str, object]:
        """The fields of a ranking's `PlanResult`."""
        hits: list[dict[str, object]] = [{"id": name, "score": score} for name, score in ranking]
        for hit, (name, _) in zip(hits if with_text is True else hits[:with_text], ranking, strict=False):
            document = self._documents.at(self._documents.position(name))
            hit |= {"title": document.title, "text": document.text}
        return {"ranking": hits, "hits": ranking.hits, "error": ranking.error, "truncated": ranking.truncated}

    def step_fields(
        self, step: Step, ranking: Ranking, with_text: bool | int, metrics: Sequence[str]
    ) -> dict[str, object]:
        """The fields of a step's `StepResult`. Raises as `score`."""
        values = self.score(step.question_id, ranking, [PRIMARY_METRIC, *metrics])
        scored = {"question_id": step.question_id, "reward": values[PRIMARY_METRIC], "metrics": values}
        return {**scored, **self.result_fields(ranking, with_text)}


def settings_hash(dataset: Dataset, documents: Container[str], config: EnvironmentConfig) -> str:
    """Hash of what a score depends on besides the index.

    That is the questions of each split with their options, histories and qrels, the documents that are ignored, the
    device of the vector search, and another order than that of the scores.
    """
    questions = sorted(
        (question.id, split, question.text, question.options, lines_of(question.history), question.reference_rewrite)
        for split, content in dataset.splits.items()
        for question in content.questions
    )
    judgements = sorted(_judgements(dataset, documents).items())
    qrels = {name: sorted(judged.qrels.items()) for name, judged in judgements}
    left_out = [(name, judged.left_out) for name, judged in judgements if judged.left_out]
    order = [config.order] if config.order != "score" else []
    return data_sha256([questions, qrels, left_out, dataset.relevance_level, config.vectors.device, *order])


class _Judgement(NamedTuple):
    """By what the rankings of a question are scored."""

    qrels: Mapping[str, int]
    level: int
    """The least grade that binary metrics count as relevant."""
    left_out: tuple[str, ...]
    """Documents of the corpus that are left out of its rankings."""


def _judgements(dataset: Dataset, documents: Container[str]) -> dict[str, _Judgement]:
    """By question id; no question is in two splits (data/corpus.py)."""
    judgements = {}
    for split in dataset.splits.values():
        level = split.relevance_level(dataset.relevance_level)
        for question in split.questions:
            names = dict.fromkeys([*question.excluded, *([question.id] if dataset.ignore_identical_ids else [])])
            left_out = tuple(name for name in names if name in documents)
            judgements[question.id] = _Judgement(split.qrels[question.id], level, left_out)
    return judgements
