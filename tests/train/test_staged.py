"""The first stage in training: one call when a question comes up, and another question if it fails."""

from random import Random

import pytest
from pydantic import BaseModel
from querylect.configs.llm import LlmConfig
from querylect.data.types import Question
from querylect.errors import ConfigError
from querylect.llms.base import Message, Prompt, SamplingParams
from querylect.llms.structured import AskForm
from querylect.rewriters.base import FirstStage
from querylect.rollouts.first_stage import StageModels
from querylect.train.distributed.processes import Processes
from querylect.train.staged import StagedQuestions

from ..raising import refused
from ..several import side_by_side


class Value(BaseModel):
    """The answer of a first stage."""

    question_id: str


class Rewriter:
    """A rewriter of two stages."""

    name, opening = "two", ""

    def __init__(self):
        self.learned = {}

    def stage(self, question):
        return FirstStage(AskForm(Prompt((Message(role="user", content=question.id),)), Value, SamplingParams()), None)

    def learn(self, question, answer):
        self.learned[question.id] = answer.question_id

    def learn_example(self, question): ...

    first = follow_up = parse = None


class Models(StageModels):
    """Has no answer for some questions, and records its requests."""

    def __init__(self, fails):
        super().__init__(LlmConfig(model="m"))
        self.fails, self.requests = fails, []

    def ask(self, stages, spent=None):
        names = [stage.ask.prompt.messages[0]["content"] for stage in stages]
        self.requests += names
        return ["no reply" if self.fails(name) else Value(question_id=name) for name in names]


def questions(*names):
    return {name: Question(name, name) for name in names}


def make_staged(fails, mixed=False, processes=None):
    rewriter, models = Rewriter(), Models(fails)
    return StagedQuestions(rewriter, models, processes or Processes(), mixed), rewriter, models


def ids(selected):
    return [question.id for question in selected]


def test_a_question_is_asked_about_when_it_comes_up_and_once():
    by_id = questions(*"abcdef")
    staged, rewriter, models = make_staged(lambda name: False)
    assert models.requests == []
    assert ids(staged.ready([by_id["b"], by_id["a"], by_id["b"]], by_id, Random(0))) == ["b", "a", "b"]
    assert models.requests == ["b", "a"]
    assert ids(staged.ready([by_id["a"], by_id["c"]], by_id, Random(0))) == ["a", "c"]
    assert (models.requests, rewriter.learned) == (["b", "a", "c"], {"a": "a", "b": "b", "c": "c"})


def test_a_question_without_an_answer_is_replaced_by_another_one():
    by_id = questions(*"abcd")
    staged, _, models = make_staged(lambda name: name in "ab")
    selected = ids(staged.ready([by_id["a"], by_id["c"]], by_id, Random(0)))
    assert selected == ["d", "c"], "b fails too, if it is drawn"
    assert ids(staged.ready([by_id["a"], by_id["b"]], by_id, Random(1)))[0] in "cd"
    assert len(models.requests) == len(set(models.requests)), "what failed is not asked about again"


def test_in_a_mix_another_question_is_of_the_same_environment():
    by_id = questions("x/1", "x/2", "y/1", "y/2", "y/3", "y/4")
    staged, _, _ = make_staged(lambda name: name == "x/1", mixed=True)
    assert ids(staged.ready([by_id["x/1"], by_id["y/1"]], by_id, Random(0))) == ["x/2", "y/1"]


@pytest.mark.parametrize("count", [3, 100])
def test_a_run_ends_where_no_question_has_an_answer(count):
    by_id = questions(*map(str, range(count)))
    staged, _, models = make_staged(lambda name: True)
    with refused(ConfigError, "rewriter.llm"):
        staged.ready([by_id["0"], by_id["1"]], by_id, Random(0))
    assert len(models.requests) <= 66, "not the whole split"


def test_processes_agree_on_what_replaces_a_question():
    by_id, drawn = questions(*"abcdefgh"), [["a", "c"], ["b", "a"]]

    def ready(processes):
        staged, rewriter, models = make_staged(lambda name: name in "ab", processes=processes)
        selected = ids(staged.ready([by_id[name] for name in drawn[processes.rank]], by_id, Random(7)))
        return selected, models.requests, rewriter.learned

    (first, requests, learned), (second, nothing, same) = side_by_side(2, ready)
    assert (set(requests), nothing) == ({*"ab", *learned}, []), "one process asks for both"
    assert learned == same
    assert first[1] == "c"
    assert not set("ab") & {*first, *second}
    assert len({first[0], *second}) == 3, "each slot its own"
