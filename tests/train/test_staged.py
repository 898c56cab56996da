"""The first stage in training: one call when a question comes up, and another question if it fails."""

from random import Random

import pytest
from querylect.data.types import Question
from querylect.errors import ConfigError
from querylect.train.distributed.processes import Processes
from querylect.train.staged import StagedQuestions

from ..raising import refused
from ..several import side_by_side


class Stages:
    """Has no answer for some questions, and records its requests."""

    def __init__(self, fails):
        self.fails, self.requests = fails, []

    def ask(self, questions):
        self.requests += ids(questions)
        return ["no reply" if self.fails(question.id) else question for question in questions]


def questions(*names):
    return {name: Question(name, name) for name in names}


def make_staged(fails, mixed=False, processes=None):
    stages = Stages(fails)
    return StagedQuestions(stages, processes or Processes(), mixed), stages


def ids(selected):
    return [question.id for question in selected]


def test_a_question_is_asked_about_when_it_comes_up():
    by_id = questions(*"abcdef")
    staged, stages = make_staged(lambda name: False)
    assert ids(staged.ready([by_id["b"], by_id["a"], by_id["b"]], by_id, Random(0))) == ["b", "a", "b"]
    assert stages.requests == ["b", "a"]
    assert ids(staged.ready([by_id["a"], by_id["c"]], by_id, Random(0))) == ["a", "c"]


def test_a_question_without_an_answer_is_replaced_by_another_one():
    by_id = questions(*"abcd")
    staged, stages = make_staged(lambda name: name in "ab")
    selected = ids(staged.ready([by_id["a"], by_id["c"]], by_id, Random(0)))
    assert selected == ["d", "c"], "b fails too, if it is drawn"
    assert ids(staged.ready([by_id["a"], by_id["b"]], by_id, Random(1)))[0] in "cd"
    assert sorted(filter("ab".__contains__, stages.requests)) == ["a", "b"], "what failed is not asked about again"


def test_in_a_mix_another_question_is_of_the_same_environment():
    by_id = questions("x/1", "x/2", "y/1", "y/2", "y/3", "y/4")
    staged, _ = make_staged(lambda name: name == "x/1", mixed=True)
    assert ids(staged.ready([by_id["x/1"], by_id["y/1"]], by_id, Random(0))) == ["x/2", "y/1"]


@pytest.mark.parametrize("count", [3, 100])
def test_a_run_ends_where_no_question_has_an_answer(count):
    by_id = questions(*map(str, range(count)))
    staged, stages = make_staged(lambda name: True)
    with refused(ConfigError, "rewriter.llm"):
        staged.ready([by_id["0"], by_id["1"]], by_id, Random(0))
    assert len(stages.requests) <= 66, "not the whole split"


def test_processes_agree_on_what_replaces_a_question():
    by_id, drawn = questions(*"abcdefgh"), [["a", "c"], ["b", "a"]]

    def ready(processes):
        staged, stages = make_staged(lambda name: name in "ab", processes=processes)
        return ids(staged.ready([by_id[name] for name in drawn[processes.rank]], by_id, Random(7))), stages.requests

    (first, requests), (second, nothing) = side_by_side(2, ready)
    assert ({*requests} >= {*first, *second}, nothing) == (True, []), "one process asks for both"
    assert first[1] == "c"
    assert not set("ab") & {*first, *second}
    assert len({first[0], *second}) == 3, "each slot its own"
