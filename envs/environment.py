"""One environment: retriever × corpus × questions × qrels. It ranks plans and scores rankings.

Qrels stay inside: a trainer's call gets questions, documents, rankings and metric values, never a judgement.
"""

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import NamedTuple

from ..configs.schema import EnvironmentConfig
from ..data.corpus import LoadedQuestions, open_corpus
from ..data.history import lines_of
from ..data.types import Dataset, Document, Question
from ..errors import RequestError
from ..rewards.metrics import measure
from ..storage import data_sha256
from .index.open import Index, open_index
from .plan import PlanWithout, Probe, SearchPlan, Term
from .retrievers import bm25
from .retrievers.base import Retriever, depth_limit_of, truncation_of
from .retrievers.fusion import Scored, fuse
from .retrievers.open import check_corpus, open_retriever
from .retrievers.rerank import Reranked, Reranker

_measure = lru_cache(maxsize=256)(measure)


class RankedHit(NamedTuple):
    """One place of a ranking: a document id and its score, higher is better."""

    id: str
    score: float


Ranking = list[RankedHit]
"""Best first, no document twice."""


class PlanRanking(Ranking):
    """The ranking of a plan."""

    truncated: int = 0
    """Texts of the plan that are longer than a query of the retriever may be, and were read only in part."""


class Environment:
    """An opened environment. Not thread-safe: one thread at a time may call `search`."""

    def __init__(
        self,
        config: EnvironmentConfig,
        dataset: Dataset,
        index: Index,
        retriever: Retriever,
        reranker: Reranker | None = None,
    ) -> None:
        """Use `Environment.open`, which checks that dataset, index and retriever belong together."""
        manifest = index.manifest
        self.name = config.name or f"{dataset.name}/{manifest.recipe.name}"
        self.dataset = dataset.name
        self.retriever: dict[str, object] = _info(config, index)
        """How the retriever works, for prompts and clients: name, kind, trained, query_template, …"""
        self.corpus_size = manifest.documents
        self.corpus_hash = manifest.corpus_hash
        self.index_hash = manifest.index_hash
        self.relevance_level = dataset.relevance_level
        """The least grade that binary metrics count as relevant in a split that has it."""
        self.splits: Mapping[str, int] = {name: len(split.questions) for name, split in dataset.splits.items()}
        """Number of questions by split."""
        self.judged = any(split.relevant for split in dataset.splits.values()) or not dataset.splits
        """Whether its questions have relevant documents."""
        self._dataset = dataset
        self._retriever = retriever
        if (frequent := getattr(retriever, "frequent_terms", None)) is not None:
            self.retriever |= {"frequent_terms": frequent}
        if reranker is not None:
            self.retriever = reranker.describe(self.retriever)
            self.index_hash = reranker.hash_over(self.index_hash)
            self._retriever = Reranked(retriever, reranker, index.documents)
        self._documents = index.documents
        self._qrels = _all_qrels(dataset)
        self._levels = _all_levels(dataset)
        self._left_out = _left_out(dataset, self._documents)
        """The documents that are left out of the rankings of a question, by its id."""
        self.settings_hash = settings_hash(dataset, self._documents, config)
        """Hash of what a score depends on besides the index."""

    def __repr__(self) -> str:
        splits = ", ".join(f"{count} {name} questions" for name, count in self.splits.items())
        return f"Environment({self.name!r}, {self.retriever['name']}, {self.corpus_size} documents, {splits})"

    @classmethod
    def open(cls, config: EnvironmentConfig, loaded: LoadedQuestions | None = None) -> "Environment":
        """Open the index, and load the questions and judgements of its dataset; documents stay in the index.

        `loaded` are those of `config.dataset` from before, if they were read for an index.

        Raises DataError for the dataset, also where a judged document is not in the index, ConfigError for an unknown
        retriever, ModelError for its models, IndexFolderError where the index folder is missing, corrupt, or was
        built from another corpus or for another retriever.
        """
        index, corpus = open_index(config.index), open_corpus(config.dataset)
        check_corpus(index, corpus)
        dataset = loaded.current(config.dataset) if loaded is not None else None
        if dataset is None:
            dataset = corpus.questions(index.documents)
        reranker = Reranker.open(config.rerank) if config.rerank else None
        return cls(config, dataset, index, open_retriever(index, config, dataset), reranker)

    def questions(self, split: str, offset: int = 0, limit: int | None = None) -> list[Question]:
        """Questions of a split in their fixed order, from `offset` on, at most `limit`. RequestError for an unknown
        split."""
        if split not in self.splits:
            message = f"unknown split {split!r}; this environment has {', '.join(self.splits)}."
            raise RequestError(message)
        return list(self._dataset.splits[split].questions[offset : None if limit is None else offset + limit])

    @property
    def question_ids(self) -> Set[str]:
        """The ids of the questions of all splits."""
        return self._qrels.keys()

    def document(self, doc_id: str) -> Document:
        """The document of that id. KeyError where the corpus has none."""
        return self._documents.at(self._documents.position(doc_id))

    def plan_for(self, question_id: str, plan: SearchPlan) -> SearchPlan:
        """The plan to search for a question. It leaves out the documents that the question excludes, and the one with
        the question's id where the dataset says so (`ignore_identical_ids`)."""
        return _without(plan, self._left_out.get(question_id, ()))

    def plans_without(self, plans: Sequence[SearchPlan], ids: Iterable[str]) -> list[SearchPlan]:
        """The plans to search without these documents; ids that the corpus does not have change nothing."""
        left_out = sorted({name for name in ids if name in self._documents})
        return [_without(plan, left_out) for plan in plans]

    def search(self, plans: Sequence[SearchPlan]) -> list[PlanRanking]:
        """Rank every plan, at most `plan.k` documents each; all plans go to the retriever as one batch.

        A probe that stands in several plans is ranked once. Each probe contributes its best `probe.k` documents
        (`plan.k` where None) to the fusion. A plan that matches nothing has an empty ranking.

        Raises RequestError for a probe with a `source`: this environment holds one knowledge base, without a name.
        """
        depths: dict[tuple[Term, ...], int] = {}
        for plan in plans:
            for probe in plan.probes:
                if probe.source is not None:
                    raise RequestError(
                        f"unknown source {probe.source!r}: {self.name} holds one knowledge base. Leave source out."
                    )
                depth = self._depth(probe.k or plan.k, len(plan.without) if isinstance(plan, PlanWithout) else 0)
                depths[probe.terms] = max(depths.get(probe.terms, 0), min(depth, self.corpus_size))
        probes = [Probe(terms=terms) for terms in depths]
        ranked = self._retriever.rank(probes, list(depths.values())) if probes else []
        truncated = map(truncation_of(self._retriever), probes)
        by_terms = dict(zip(depths, zip(ranked, truncated, strict=True), strict=True))
        return [self._ranking(plan, by_terms) for plan in plans]

    def _depth(self, asked: int, left_out: int) -> int:
        """How many documents a probe has to rank so that `asked` remain after `left_out` are removed. Fewer may remain
        if the retriever has a depth limit."""
        limit = depth_limit_of(self._retriever)
        return asked + left_out if limit is None else max(asked, min(asked + left_out, limit))

    def score(self, question_id: str, ranking: Ranking, metrics: Sequence[str]) -> dict[str, float]:
        """Value of each metric, in [0, 1], for a question's ranking; a document that is ignored there is passed over.

        Raises KeyError for an unknown question, ConfigError for an unknown metric.
        """
        qrels, level = self._qrels[question_id], self._levels[question_id]
        ids = [hit.id for hit in ranking]
        if left_out := self._left_out.get(question_id):
            ids = [name for name in ids if name not in left_out]
        return {name: _measure(name, level)(ids, qrels) for name in metrics}

    def _ranking(self, plan: SearchPlan, by_terms: Mapping[tuple[Term, ...], tuple[Scored, int]]) -> PlanRanking:
        rankings = [by_terms[probe.terms][0] for probe in plan.probes]
        if isinstance(plan, PlanWithout):
            left_out = [self._documents.position(name) for name in plan.without]
            rankings = [ranking.without(left_out) for ranking in rankings]
        parts = [ranking.cut(probe.k or plan.k) for ranking, probe in zip(rankings, plan.probes, strict=True)]
        fused = fuse(parts, plan.fuse, plan.k)
        ids = map(self._documents.id, fused.documents.tolist())
        ranking = PlanRanking(map(RankedHit, ids, fused.scores.tolist()))
        ranking.truncated = sum(by_terms[probe.terms][1] for probe in plan.probes)
        return ranking


def _info(config: EnvironmentConfig, index: Index) -> dict[str, object]:
    manifest = index.manifest
    retriever = manifest.recipe.model_dump(mode="json", exclude_none=True)
    engine = {"engine": manifest.engine} if manifest.engine is not None else {}
    if manifest.recipe.kind == "bm25" and not config.remote:
        return {**retriever, **engine, "k1": bm25.K1, "b": bm25.B}
    model = {"model": config.model or manifest.recipe.model} if manifest.recipe.model else {}
    remote = {"remote": config.remote.index} if config.remote else {}
    return {**retriever, **engine, **model, **remote, "model_fingerprint": manifest.model_fingerprint}


def settings_hash(dataset: Dataset, documents: Container[str], config: EnvironmentConfig) -> str:
    """Hash of what a score depends on besides the index.

    That is the questions of each split with their options, histories and qrels, the documents that are ignored, and
    the device of the vector search.
    """
    questions = sorted(
        (question.id, split, question.text, question.options, lines_of(question.history), question.reference_rewrite)
        for split, content in dataset.splits.items()
        for question in content.questions
    )
    qrels = {name: sorted(judged.items()) for name, judged in sorted(_all_qrels(dataset).items())}
    left_out = sorted(_left_out(dataset, documents).items())
    return data_sha256([questions, qrels, left_out, dataset.relevance_level, config.vectors.device])


def _without(plan: SearchPlan, ids: Sequence[str]) -> SearchPlan:
    return PlanWithout(probes=plan.probes, fuse=plan.fuse, k=plan.k, without=tuple(ids)) if ids else plan


def _left_out(dataset: Dataset, documents: Container[str]) -> dict[str, tuple[str, ...]]:
    """The documents of the corpus that are left out of a question's rankings, by question id; only of questions with
    some."""
    left_out = {}
    for question in (question for split in dataset.splits.values() for question in split.questions):
        names = dict.fromkeys(name for name in question.excluded if name in documents)
        if dataset.ignore_identical_ids and question.id in documents:
            names[question.id] = None
        if names:
            left_out[question.id] = tuple(names)
    return left_out


def _all_levels(dataset: Dataset) -> dict[str, int]:
    """The least grade that binary metrics count, by question id."""
    levels: dict[str, int] = {}
    for split in dataset.splits.values():
        level = split.relevance_level(dataset.relevance_level)
        levels |= {question.id: level for question in split.questions}
    return levels


def _all_qrels(dataset: Dataset) -> dict[str, Mapping[str, int]]:
    """The qrels of all splits by question id; no question is in two splits (data/load.py)."""
    return {question.id: split.qrels[question.id] for split in dataset.splits.values() for question in split.questions}
