"""What an environment answers, in the form of schemas.py: over HTTP and to a client in this process."""

import math
from collections.abc import Sequence

from .environment import Environment, PlanRanking, RankedHit
from .schemas import PRIMARY_METRIC, EnvironmentInfo, HitBody


def info_of(environment: Environment) -> EnvironmentInfo:
    """What is searched, by which retriever, and which questions there are."""
    return EnvironmentInfo(
        name=environment.name,
        retriever=environment.retriever,
        corpus_size=environment.corpus_size,
        corpus_hash=environment.corpus_hash,
        index_hash=environment.index_hash,
        relevance_level=environment.relevance_level,
        splits=dict(environment.splits),
        judged=environment.judged,
        settings_hash=environment.settings_hash,
    )


def hit_fields(environment: Environment, ranking: Sequence[RankedHit], with_text: bool) -> list[dict[str, object]]:
    """The fields of each `HitBody` of a ranking. ValueError for a score that is no finite number."""
    if not all(map(math.isfinite, [score for _, score in ranking])):
        raise ValueError("a ranking holds a score that is no finite number")
    if not with_text:
        return [{"id": name, "score": score} for name, score in ranking]
    documents = [environment.document(hit.id) for hit in ranking]
    return [
        {"id": hit.id, "score": hit.score, "title": document.title, "text": document.text}
        for hit, document in zip(ranking, documents, strict=True)
    ]


def result_fields(
    environment: Environment,
    question_id: str,
    ranking: PlanRanking,
    with_text: bool,
    metrics: Sequence[str],
) -> dict[str, object]:
    """The fields of the `StepResult` of a ranking. `metrics` include nDCG@10; raises as `Environment.score`, and
    ValueError for a reward outside [0, 1]."""
    values = environment.score(question_id, ranking, metrics)
    reward = values[PRIMARY_METRIC]
    if not 0.0 <= reward <= 1.0 + 1e-9 or not all(map(math.isfinite, values.values())):
        raise ValueError(f"question {question_id!r} was scored {values}, which is no reward")
    return {
        "question_id": question_id,
        "ranking": hit_fields(environment, ranking, with_text),
        "reward": reward,
        "metrics": values,
        "truncated": ranking.truncated,
    }


def read_hits(environment: Environment, rankings: Sequence[Sequence[RankedHit]]) -> list[list[HitBody]]:
    """Rankings with the texts of their documents."""
    return [[HitBody.model_validate(hit) for hit in hit_fields(environment, hits, True)] for hits in rankings]
