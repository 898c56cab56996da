"""Â: thresholds by hand, completion of matrices of known rank, judged pairs, and their comparison with A."""

import numpy as np
import pytest
from querylect.benchmarks import answerability_estimates as estimates
from querylect.configs.questions import ExtendConfig
from querylect.configs.schema import EnvironmentConfig, QuestionsConfig
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.retrievers.question_index import AnswerabilityEntry, open_question_index, question_id
from querylect.errors import IncompleteError
from querylect.questions.build import write_question_index
from querylect.questions.completion import Completed, complete
from querylect.questions.extend import Similar, completed_answers, similar_contents

from ..jsonl import read_jsonl, write_jsonl
from ..question_models import TEXTS, QuestionModel, corpus, questions_config  # noqa: F401 (a fixture)
from ..raising import refused


def low_rank(shape, rank, seed):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(shape[0], rank)) @ draw.normal(size=(rank, shape[1]))


def sampled_entries(matrix, share, seed=0):
    """A share of the entries, and the whole first row, so that no column is unknown."""
    mask = np.random.default_rng(seed).random(matrix.shape) < share
    mask[0] = True
    rows, columns = np.nonzero(mask)
    return rows, columns, matrix[rows, columns], mask


@pytest.mark.parametrize(("shape", "cap"), [((30, 40), 1), ((2, 60), 1)])
def test_a_matrix_of_low_rank_is_completed_from_a_part_of_it(shape, cap):
    """Of 30 rows by the iterative decomposition, of 2 by the dense one."""
    matrix = low_rank(shape, 1, 1)
    rows, columns, values, mask = sampled_entries(matrix, 0.7)
    completed = complete(rows, columns, values, shape, cap, shrinkage=0.05)
    hidden = np.nonzero(~mask)
    error = np.linalg.norm(completed.at(*hidden) - matrix[hidden]) / np.linalg.norm(matrix[hidden])
    assert error < 0.1
    again = complete(rows, columns, values, shape, cap, shrinkage=0.05)
    assert np.array_equal(again.values, completed.values)


def test_one_step_is_the_shrunken_decomposition_and_none_is_known_is_zero():
    matrix = low_rank((12, 9), 3, 2)
    rows, columns = (axis.ravel() for axis in np.indices(matrix.shape))
    (left, values, right) = np.linalg.svd(matrix, full_matrices=False)
    completed = complete(rows, columns, matrix.ravel(), matrix.shape, 2, shrinkage=0.5, steps=1)
    expected = (left[:, :2] * (values[:2] - 0.5)) @ right[:2]
    assert np.allclose(completed.at(rows, columns).reshape(matrix.shape), expected)
    nothing = complete(np.zeros(0, int), np.zeros(0, int), np.zeros(0), (4, 5), 2, 0.5)
    assert list(nothing.at_least(0.1)) == []


def test_entries_above_the_cut_are_those_of_the_whole_matrix(monkeypatch):
    monkeypatch.setattr("querylect.questions.completion._BLOCK", 20)
    draw = np.random.default_rng(0)
    left, values, right = draw.normal(size=(11, 3)), np.array([2.0, 1.0, 0.5]), draw.normal(size=(3, 9))
    matrix = (left * values) @ right
    assert set(Completed(left, values, right).at_least(0.7)) == set(zip(*np.nonzero(matrix >= 0.7), strict=True))


SIMILAR = Similar(np.array([0, 0, 1, 2]), ["a", "b", "b", "c"], np.array([0.9, 0.5, 0.7, 0.5]))


def test_thresholds_and_shares_by_hand():
    assert SIMILAR.above(0.7) == [(0, "a"), (1, "b")]
    assert SIMILAR.above(0.5) == [(0, "a"), (0, "b"), (1, "b"), (2, "c")], "equal to the threshold counts"
    assert SIMILAR.threshold(2 / 9, 9) == 0.7
    assert SIMILAR.threshold(1, 9) == 0.5, "no more than were looked at"
    assert SIMILAR.above(SIMILAR.threshold(0.01, 9)) == []


SILENT = {name: [] for name in TEXTS}


def extended(env, tmp_path, config, **settings):
    index = EnvironmentConfig(dataset=env.dataset, retriever="bm25", index=str(tmp_path / "contents"))
    if not (tmp_path / "contents").exists():
        build_index(index)
    extend = ExtendConfig(**{"retriever": "bm25", "index": str(tmp_path / "contents"), "threshold": 0.1, **settings})
    return config.model_copy(update={"extend": extend})


def pairs_of(folder, source):
    return {
        (answer.question, answer.content) for answer in open_question_index(folder).answers() if answer.source == source
    }


def test_similar_contents_are_taken_or_judged_and_never_asked_twice(tmp_path, corpus):  # noqa: F811
    """The word headache stands in two contents, stops in one."""
    model = QuestionModel(SILENT | {"aspirin": ["Is headache bad?"], "triptan": ["Who stops it?"]})
    model.wrong = {("triptan", "Is headache bad?")}
    with questions_config(model) as config:
        unjudged = extended(corpus, tmp_path, config, judge=False)
        description = write_question_index(unjudged, corpus, tmp_path / "unjudged")
        assert pairs_of(tmp_path / "unjudged", "similar") == {(question_id("Is headache bad?"), "triptan")}
        assert description.counts["pairs_similar"] == 1
        high = extended(corpus, tmp_path, config, threshold=99.0)
        assert write_question_index(high, corpus, tmp_path / "high").counts["pairs_similar"] == 0
        model.judged[:] = []
        judged = extended(corpus, tmp_path, config)
        description = write_question_index(judged, corpus, tmp_path / "judged", start=tmp_path / "unjudged")
        assert model.judged == [("triptan", "Is headache bad?")]
        assert (description.counts["pairs_similar"], description.counts["pairs_judged"]) == (0, 1), "the judge said no"
        model.wrong, model.judged[:] = set(), []
        write_question_index(judged, corpus, tmp_path / "judged")
        assert model.judged == []
        write_question_index(config, corpus, tmp_path / "judged")
        assert len(read_jsonl(tmp_path / "judged" / "pairs.jsonl")) == 1, "verdicts outlast an index without extension"


def test_a_pair_without_a_reply_is_missing_and_asked_again(tmp_path, corpus):  # noqa: F811
    model = QuestionModel(SILENT | {"aspirin": ["Is headache bad?"]})
    model.silent = lambda text: "Text: About triptan" in text and "Is headache" in text
    with questions_config(model) as config:
        extended_config = extended(corpus, tmp_path, config)
        with refused(IncompleteError, "1 replies", tmp_path / "q"):
            write_question_index(extended_config, corpus, tmp_path / "q")
        assert open_question_index(tmp_path / "q").description.counts["pairs_missing"] == 1
        model.silent = lambda text: False
        description = write_question_index(extended_config, corpus, tmp_path / "q")
    assert (description.counts["pairs_missing"], description.counts["pairs_similar"]) == (0, 1)


def block_matrix(groups=3, size=6):
    """Questions and contents of as many groups, within which everything answers everything."""
    questions = [f"q{group}-{number}" for group in range(groups) for number in range(2 * size)]
    contents = [f"c{group}-{number}" for group in range(groups) for number in range(size)]
    truth = {(q, c): q[1] == c[1] for q in questions for c in contents}
    return questions, contents, truth


def test_completion_finds_held_out_pairs_of_a_block_matrix_and_a_finds_none():
    questions, contents, truth = block_matrix()
    draw = np.random.default_rng(0)
    base_pairs = {(q, next(c for c in contents if truth[q, c])) for q in questions}
    judged = {pair: yes for pair, yes in truth.items() if pair in base_pairs or draw.random() < 0.6}
    extend = ExtendConfig(retriever="bm25", index="x", by="completed", threshold=0.0, rank=3, shrinkage=0.1)
    held_out = {pair: yes for pair, yes in judged.items() if pair not in base_pairs}
    agreement = estimates.agreement(
        "completed", estimates.by_completion(judged, base_pairs, questions, contents, extend), held_out, 0
    )
    assert (agreement.right + agreement.overlooked, agreement.wrong + agreement.right) != (0, 0)
    assert agreement.precision > 0.98
    assert agreement.recall > 0.98
    inferred = list(completed_answers(judged, questions, contents, extend))
    assert {(entry.question, entry.content) for entry in inferred} == {p for p in truth if p not in judged and truth[p]}
    assert estimates.agreement("A", set(), held_out, 0).recall == 0
    assert estimates.agreement("A", set(), held_out, 0).precision is None
    dealt = estimates.folds(sorted(held_out), 5, 0)
    assert sorted(pair for fold in dealt for pair in fold) == sorted(held_out)


def test_agreement_by_hand():
    held_out = {("q", "a"): True, ("q", "b"): False, ("r", "a"): True, ("r", "b"): True}
    agreement = estimates.agreement("x", {("q", "a"), ("q", "b"), ("r", "a"), ("s", "a")}, held_out, 7)
    assert (agreement.right, agreement.wrong, agreement.overlooked, agreement.pairs) == (2, 1, 1, 7)
    assert (agreement.precision, agreement.recall) == (2 / 3, 2 / 3)


def test_retrieval_without_a_service_is_what_the_service_measures(tmp_path, corpus):  # noqa: F811
    vetted = {"headache?": "aspirin", "gums of sailors?": "citrus", "does my head hurt?": "fremd"}
    rows = [{"question": question, "contents": [content]} for question, content in vetted.items()]
    file = write_jsonl(tmp_path / "vetted.jsonl", *rows)
    write_question_index(QuestionsConfig(), corpus, corpus.question_index.folder, add=file)
    build_index(corpus)
    index = open_question_index(corpus.question_index.folder)
    retrieval, environment = estimates.Retrieval(corpus, index, "test"), Environment.open(corpus)
    questions = environment.questions("test")
    rankings = environment.search([SearchPlan.of(question.text) for question in questions])
    scores = [
        environment.score(question.id, ranking, ["ndcg@10"])["ndcg@10"]
        for question, ranking in zip(questions, rankings, strict=True)
    ]
    assert retrieval.ndcg(index.answers()) == pytest.approx(sum(scores) / 2)
    head = question_id("does my head hurt?")
    more = AnswerabilityEntry(question=head, content="triptan", source="similar", judged=False)
    assert retrieval.ndcg([*index.answers(), more]) > retrieval.ndcg(index.answers())
    names = [question.id for question in index.questions()]
    similar = Similar(np.array([names.index(head)]), ["triptan"], np.array([1.0]))
    extend = ExtendConfig(retriever="bm25", index="x", threshold=0.5, shrinkage=0.0)
    base_pairs = {(answer.question, answer.content) for answer in index.answers()}
    judged = dict.fromkeys(base_pairs, True) | {(head, "triptan"): True, (head, "citrus"): False}
    share = 1 / (len(names) * 6)
    table = {
        estimate.name.partition(" (")[0]: estimate
        for estimate in estimates.compare(
            index.answers(), base_pairs, judged, similar, names, list(index.contents()), extend, [share], retrieval
        )
    }
    assert (table["A"].recall, table["A"].pairs) == (0, 3)
    near = table[f"similar, {share:.2%}"]
    assert (near.precision, near.recall, near.pairs) == (1, 1, 4)
    assert near.ndcg > table["A"].ndcg


def test_similarities_are_those_of_the_retriever(tmp_path, corpus):  # noqa: F811
    plain = EnvironmentConfig(dataset=corpus.dataset, retriever="bm25", index=str(tmp_path / "contents"))
    build_index(plain)
    from querylect.data.corpus import open_corpus
    from querylect.data.types import Document

    questions = [Document("q1", "", "headache"), Document("q2", "", "vitamin c and blood")]
    extend = ExtendConfig(retriever="bm25", index=plain.index, threshold=0.0, depth=2)
    similar = similar_contents(questions, {"aspirin", "triptan", "citrus"}, extend, corpus, open_corpus(corpus.dataset))
    hits = Environment.open(plain).search([SearchPlan.of(question.text, k=2) for question in questions])
    expected = [
        (number, hit.id, hit.score) for number, ranking in enumerate(hits) for hit in ranking if hit.id != "insulin"
    ]
    assert list(zip(similar.questions.tolist(), similar.contents, similar.scores.tolist(), strict=True)) == expected


def test_completion_is_measured_on_what_it_has_not_seen():
    """Verdicts by chance cannot be guessed; with the held-out ones in sight nearly all would be right."""
    draw = np.random.default_rng(3)
    questions, contents = [f"q{number}" for number in range(12)], [f"c{number}" for number in range(10)]
    judged = {(q, c): bool(draw.random() < 0.5) for q in questions for c in contents}
    extend = ExtendConfig(retriever="bm25", index="x", by="completed", threshold=0.0, rank=8, shrinkage=0.1)
    taken = estimates.by_completion(judged, set(), questions, contents, extend)
    agreement = estimates.agreement("chance", taken, judged, 0)
    assert agreement.right + agreement.wrong > 0
    assert agreement.precision < 0.8
