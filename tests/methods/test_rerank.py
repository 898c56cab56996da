"""Rerank and QA-RAG, worked by hand, and the cross-encoder of environments."""

import pytest

from ..scripted import ASKED, Shelf, doc, ids, qa_rag, rerank, run

QUERY = ASKED.text


class Table:
    """A cross-encoder that looks up the score of a document's text."""

    def __init__(self, scores):
        self.table, self.requests = scores, []

    def scores(self, question, texts):
        self.requests.append((question, list(texts)))
        return [self.table[text] for text in texts]


def test_rerank_keeps_the_best_candidates_and_ties_stay_in_order():
    shelf = Shelf({QUERY: [doc(name, name) for name in "abcde"]})
    scores = Table({"a": 0.0, "b": 2.0, "c": -1.0, "d": 2.0, "e": 0.0})
    result, _ = run(rerank(candidates=4, k=3), None, cross_encoder=scores, wiki=shelf)
    assert (shelf.plans[0].k, scores.requests) == (4, [(QUERY, ["a", "b", "c", "d"])])
    assert (ids(result), result.notes["scores"]) == (["b", "d", "a"], [2.0, 2.0, 0.0])
    shelf = Shelf({QUERY: [doc(str(number)) for number in range(200)]})
    result, _ = run(rerank(), None, cross_encoder=Table({f"text of {n}": n for n in range(200)}), wiki=shelf)
    assert ids(result) == [str(number) for number in range(149, 134, -1)], "15 of 150"
    result, _ = run(rerank(), None, cross_encoder=(empty := Table({})), wiki=Shelf({}))
    assert (result.documents, result.failure, empty.requests) == ((), "", [])


def test_qa_rag_searches_with_the_answer_alone():
    shelf = Shelf({"It was Ann.": [doc("a"), doc("b")], QUERY: [doc("c"), doc("a2", "text of a")]})
    result, _ = run(qa_rag(k=2), lambda prompt: "<think>x</think> It was Ann.", wiki=shelf)
    assert (shelf.queries, ids(result)) == ([["It was Ann."]], ["a", "b"])
    nothing, _ = run(qa_rag(), lambda prompt: " \n", wiki=(shelf := Shelf({})))
    assert (nothing.failure, shelf.plans) == ("empty answer", [])


@pytest.mark.model
def test_the_cross_encoder_of_environments_serves_methods(tmp_path):
    from querylect.configs.environment import RerankConfig
    from querylect.envs.retrievers.combined import PairScorer
    from sentence_transformers import CrossEncoder
    from torch import nn

    from ..encoders import save_cross_encoder

    folder = save_cross_encoder(tmp_path / "cross")
    scorer = PairScorer(RerankConfig(model=str(folder), max_length=8))
    texts = ["aspirin relieves headache", "insulin lowers blood glucose in the blood", "安"]
    peer = CrossEncoder(str(folder), activation_fn=nn.Identity(), max_length=8)
    expected = [float(peer.predict([(QUERY, text)], show_progress_bar=False)[0]) for text in texts]
    assert scorer.scores(QUERY, texts) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 1
    assert scorer.scores(QUERY, []) == []
    shelf = Shelf({QUERY: [doc(str(index), text) for index, text in enumerate(texts)]})
    result, _ = run(rerank(k=2), None, cross_encoder=scorer, wiki=shelf)
    assert result.notes["scores"] == pytest.approx(sorted(expected, reverse=True)[:2], abs=1e-5)
