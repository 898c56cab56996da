"""What the order of documents with equal scores does to nDCG@10 of BM25: querylect against bm25s on the same words.

    python benchmarks/equal_scores.py FOLDER …

Each FOLDER is in BEIR form. Printed for its test questions: nDCG@10 of bm25s, of querylect, and of querylect with the
corpus in reverse order; how many questions differ between the first two; and for how many of these a score of the first
ten differs at any rank.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytrec_eval
from machine import describe
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Dataset, Split
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from raw_peers import K, bm25s_ranking

Ranking = list[tuple[str, float]]
"""Ids and scores of the first K documents, best first; none that scores 0."""
NEAR = 1e-4
"""bm25s computes in single precision."""


def main() -> None:
    """Print a line for each folder."""
    folders = [Path(argument) for argument in sys.argv[1:]]
    if not folders:
        sys.exit("No folder is given; give one or more folders in BEIR form, such as data/scifact.")
    print(describe("querylect", "bm25s"))
    print("collection  questions  bm25s  querylect  corpus reversed  questions that differ  with another score")
    for folder in folders:
        dataset = load_beir(folder)
        split = dataset.splits["test"]
        peer, ours = by_bm25s(dataset, split), by_querylect(dataset, split)
        backwards = by_querylect(replace(dataset, corpus=dataset.corpus[::-1]), split)
        values = [ndcg(split, rankings) for rankings in (peer, ours, backwards)]
        differing = [name for name in values[0] if abs(values[0][name] - values[1][name]) > 1e-9]
        rescored = [name for name in differing if not same_scores(peer[name], ours[name])]
        means = "  ".join(f"{np.mean(list(value.values())):.4f}" for value in values)
        print(f"{folder.name}  {len(split.questions)}  {means}  {len(differing)}  {len(rescored)}")


def by_bm25s(dataset: Dataset, split: Split) -> dict[str, Ranking]:
    """The rankings of bm25s by question."""
    texts = [f"{document.title} {document.text}" for document in dataset.corpus]
    positions, scores = bm25s_ranking(texts, [question.text for question in split.questions])
    return {
        question.id: [(dataset.corpus[index].id, float(score)) for index, score in zip(*pair, strict=True) if score > 0]
        for question, *pair in zip(split.questions, positions, scores, strict=True)
    }


def by_querylect(dataset: Dataset, split: Split) -> dict[str, Ranking]:
    """The rankings of an index of the dataset, by question."""
    with tempfile.TemporaryDirectory() as temporary:
        save_beir(dataset, Path(temporary) / "data")
        source = DatasetConfig(kind="beir", path=f"{temporary}/data", ignore_identical_ids=False)
        config = EnvironmentConfig(dataset=source, retriever="bm25", index=f"{temporary}/index")
        build_index(config)
        rankings = Environment.open(config).search([SearchPlan.of(question.text, k=K) for question in split.questions])
        return {
            question.id: [(hit.id, hit.score) for hit in ranking]
            for question, ranking in zip(split.questions, rankings, strict=True)
        }


def ndcg(split: Split, rankings: dict[str, Ranking]) -> dict[str, float]:
    """nDCG@K of each question, by the ranks alone."""
    run = {name: {id_: float(-rank) for rank, (id_, _) in enumerate(ranking)} for name, ranking in rankings.items()}
    qrels = {question.id: dict(split.qrels[question.id]) for question in split.questions}
    scores = pytrec_eval.RelevanceEvaluator(qrels, {f"ndcg_cut.{K}"}).evaluate(run)
    return {name: scores.get(name, {}).get(f"ndcg_cut_{K}", 0.0) for name in qrels}


def same_scores(first: Ranking, second: Ranking) -> bool:
    """Whether two rankings have the same scores, rank by rank."""
    return len(first) == len(second) and all(abs(a - b) < NEAR for (_, a), (_, b) in zip(first, second, strict=True))


if __name__ == "__main__":
    main()
