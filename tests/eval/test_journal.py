"""The journal of a cell: complete lines only, the last record of a question, no records of another identity."""

import json
from dataclasses import replace

import pytest
from querylect.data.types import Question
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import HitBody, StepResult
from querylect.errors import DataError
from querylect.eval.journal import Journal, fingerprint, finished
from querylect.eval.records import METRICS, RAW, record_line, record_of_search

from ..raising import refused

ASKED = [Question(f"q{number}", f"question {number}") for number in range(3)]


def row(question, value=0.5, turn=0, sample=0, text=None):
    result = None
    if value is not None:
        metrics = dict.fromkeys(("ndcg@10", "recall@10", "mrr@10"), value)
        result = StepResult(question_id=question, ranking=[HitBody(id="d", score=1.0)], reward=value, metrics=metrics)
    record = record_of_search(
        RAW, Question(question, text or f"question {question[1:]}"), ["x"], SearchPlan.of("x"), result, METRICS
    )
    return replace(record, turn=turn, sample=sample)


def test_what_was_appended_comes_back_and_the_identity_lies_beside_it(tmp_path):
    journal = Journal(tmp_path, {"system": "raw", "depth": 10})
    assert journal.read() == []
    assert not journal.folder.exists()
    journal.append([row("q0")])
    journal.append([row("q1"), row("q2", None)])
    assert Journal(tmp_path, {"depth": 10, "system": "raw"}).read() == [row("q0"), row("q1"), row("q2", None)]
    assert json.loads((journal.folder / "cell.json").read_text()) == {"system": "raw", "depth": 10}


@pytest.mark.parametrize("change", [{"depth": 100}, {"system": {"policy": "x"}}, {"more": None}])
def test_another_identity_is_another_cell(tmp_path, change):
    identity = {"system": "raw", "depth": 10}
    Journal(tmp_path, identity).append([row("q0")])
    assert Journal(tmp_path, {**identity, **change}).read() == []
    assert fingerprint(identity) != fingerprint({**identity, **change})


def test_a_cut_last_line_is_cut_off_and_writing_goes_on_behind_the_whole_ones(tmp_path):
    journal = Journal(tmp_path, {})
    journal.append([row("q0")])
    first, second = journal.records.read_bytes(), record_line(row("q1")).encode()
    for cut in (1, 40, len(second) - 1):
        journal.records.write_bytes(first + second[:-cut])
        assert journal.read() == [row("q0")]
        journal.append([row("q1")])
        assert journal.records.read_bytes() == first + second
        assert Journal(tmp_path, {}).read() == [row("q0"), row("q1")]


def test_a_whole_line_that_is_no_record_is_an_error(tmp_path):
    journal = Journal(tmp_path, {})
    journal.append([row("q0")])
    with journal.records.open("ab") as file:
        file.write(b'{"system": "raw"}\n')
    with refused(DataError, journal.records, "line 2"):
        journal.read()


def test_of_a_question_that_was_asked_again_the_last_answer_counts(tmp_path):
    journal = Journal(tmp_path, {})
    journal.append([row("q0", None), row("q1", 0.25)])
    journal.append([row("q0", 0.75)])
    assert journal.read() == [row("q0", 0.75), row("q1", 0.25)]


def test_a_later_turn_never_outlives_the_turn_that_it_followed(tmp_path):
    journal = Journal(tmp_path, {})
    first = [row("q0", turn=1), row("q0", None, turn=2), row("q0", turn=3)]
    journal.append([*first, row("q0", turn=1, sample=1), row("q0", turn=2, sample=1)])
    journal.append([row("q0", 0.75, turn=1)])
    assert [(record.turn, record.sample) for record in journal.read()] == [(1, 0), (1, 1), (2, 1)]
    journal.append([row("q0", 0.25, turn=2)])
    assert len(journal.read()) == 4


def test_why_an_answer_is_missing_is_known_until_it_comes(tmp_path):
    journal = Journal(tmp_path, {})
    assert journal.missing() == {}
    journal.miss({})
    assert not journal.folder.exists()
    journal.miss({("q0", 1, 0): "HTTP 500", ("q1", 2, 1): "timeout"})
    journal.miss({("q0", 1, 0): "HTTP 429"})
    with journal.unanswered.open("ab") as file:
        file.write(b'{"question_id": "q')
    assert journal.missing() == {("q0", 1, 0): "HTTP 429", ("q1", 2, 1): "timeout"}
    journal.append([row("q0", turn=1)])
    assert journal.missing() == {("q1", 2, 1): "timeout"}
    with journal.unanswered.open("ab") as file:
        file.write(b"nonsense\n")
    with refused(DataError, journal.unanswered):
        journal.missing()


def test_finished_questions_have_scores_for_every_turn_sample_and_wording():
    every = [row("q0", turn=turn, sample=sample) for turn in (1, 2) for sample in (0, 1)]
    assert finished(every, ASKED, [1, 2], 2) == {"q0"}
    assert finished(every[:-1], ASKED, [1, 2], 2) == set()
    assert finished([*every[:-1], row("q0", None, 2, 1)], ASKED, [1, 2], 2) == set()
    assert finished([row("q0"), row("q1", text="another")], ASKED, [0], 1) == {"q0"}
    assert finished([row("q9")], ASKED, [0], 1) == set()
