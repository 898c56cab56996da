"""The warm start: which proposal or sample is imitated, by rewards alone, and that imitating it works."""

import pytest
import torch
from querylect.configs.schema import ClientConfig, TrainConfig
from querylect.data.types import Question
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import StepResult
from querylect.rewriters.base import Rewrite
from querylect.rewriters.delegating import FIRST_UNSEARCHED
from querylect.rollouts.tree import Node, Tree
from querylect.train import warm_start as warm_starts
from querylect.train.run import train
from querylect.train.warm_start import (
    TitleExample,
    best_sample,
    demonstration,
    imitation_loss,
    title_examples,
)
from safetensors.torch import load_file

from ..lessons import change, records
from ..several import Started
from ..tree_samplers import engine_of, tree_sampler_of

pytestmark = pytest.mark.model


@pytest.fixture
def client(lesson_url):
    with EnvironmentClient(ClientConfig(urls=[lesson_url])) as opened:
        yield opened


def keep_all(monkeypatch, share=1.0):
    """Of the questions without a title that earns enough, keep this share."""
    monkeypatch.setattr("querylect.train.warm_start.UNANSWERED_SHARE", share)


@pytest.fixture(autouse=True)
def least(monkeypatch):
    monkeypatch.setattr("querylect.train.warm_start.LEAST_REWARD", 0.6)


@pytest.fixture
def warm(settings):
    return change(settings, **{"train.warm_start": {"questions": 5}})


@pytest.fixture
def tree_sampler(warm, client):
    return tree_sampler_of(warm, client, engine_of(warm))


class Graded:
    """An environment that rewards the title of each question, and records its searches."""

    def __init__(self, real, titles, broken=False):
        self.real, self.titles, self.broken, self.searches = real, titles, broken, []

    def step(self, steps, with_text=False, metrics=()):
        results = self.real.step(steps, with_text=with_text, metrics=metrics)
        self.searches += [(step.question_id, step.plan.probes[0].terms[0].text) for step in steps]
        if self.broken:
            return [None, *results[1:]]
        return [
            result.model_copy(update={"metrics": {metrics[0]: float(term == self.titles.get(question))}})
            for result, (question, term) in zip(results, self.searches[-len(steps) :], strict=True)
        ]


def test_the_best_title_is_imitated_and_the_question_where_none_gains(warm, tree_sampler, client, monkeypatch):
    questions = client.questions("train")
    tree_sampler.client = probe = Graded(client, {})
    keep_all(monkeypatch)
    every = warm
    lessons = {lesson.question.id: lesson for lesson in title_examples(every, tree_sampler, questions)}
    assert {lesson.answer for lesson in lessons.values()} == {question.text.lower() for question in questions}

    second = {id: lesson.documents[-1].title for id, lesson in lessons.items() if lesson.documents}
    tree_sampler.client = Graded(client, second)
    for lesson in title_examples(every, tree_sampler, questions):
        if lesson.documents:
            assert lesson.answer == second[lesson.question.id].lower()
    assert {id for id, _ in probe.searches} == {question.id for question in questions}


class Reading(Graded):
    """Also a reader that answers some questions without documents; only `titles` are rewarded."""

    def __init__(self, real, titles, by_heart):
        super().__init__(real, titles)
        self.by_heart = by_heart

    def step(self, steps, **options):
        results = super().step(steps, **options)
        return [self.rewarded(result, result.metrics.popitem()[1]) for result in results]

    def step_and_read(self, steps, unsearched, *, metrics=()):
        assert not steps
        results = [StepResult.without_search(name, metrics) for name in unsearched]
        return [self.rewarded(result, self.by_heart.get(result.question_id, 0.0)) for result in results]

    def rewarded(self, result, value):
        return result.model_copy(update={"metrics": {"answer_reward": value}})


def test_a_stop_in_turn_1_is_taught_where_the_reader_needs_no_document(warm, client, monkeypatch):
    """At equal rewards it is a stop, because a search costs; where a title is better, or neither is good, it is not."""
    keep_all(monkeypatch)
    changes = {"rewriter.stop": "answer", "reward.kind": "answer"}
    config = change(warm, **changes)
    questions = client.questions("train")
    tree_sampler = tree_sampler_of(config, client, engine_of(config))
    titles = {"head": "About aspirin", "fat": "About statin", "pills": "About aspirin"}
    tree_sampler.client = Reading(client, titles, {"head": 1.0, "fat": 0.8, "gums": 0.7, "sugar": 0.1})
    lessons = {lesson.question.id: lesson for lesson in title_examples(config, tree_sampler, questions)}
    alone = {name for name, lesson in lessons.items() if lesson.documents is None}
    assert {"gums"} <= alone
    assert {"sugar", "pills"}.isdisjoint(alone)
    for name, title in titles.items():
        has_title = any(document.title == title for document in lessons[name].documents or ())
        assert not has_title or lessons[name].answer == title.lower()
    taught = demonstration(tree_sampler, lessons["gums"])
    ((begin, end),) = taught.spans
    answer = tree_sampler.policy.engine.tokenizer.decode(taught.ids[begin:end], skip_special_tokens=False)
    rewriter = tree_sampler.policy.rewriter
    assert rewriter.parse(lessons["gums"].question, rewriter.opening + answer, 1).unsearched
    assert FIRST_UNSEARCHED in tree_sampler.policy.engine.tokenizer.decode(taught.ids[:begin])


@pytest.mark.parametrize("packing", [True, False])
def test_the_loss_is_that_of_the_answers_alone(tree_sampler, packing):
    lesson = TitleExample(Question("q", "Aspirin headache"), [], "statin")
    taught = demonstration(tree_sampler, lesson)
    ids = torch.tensor([taught.ids])
    logps = torch.log_softmax(tree_sampler.policy.engine.model(input_ids=ids).logits[0, :-1].float(), -1)
    logps = logps.gather(-1, ids[0, 1:, None])[:, 0]
    texts = [tree_sampler.policy.chat.text(taught.ids[begin:end]) for begin, end in taught.spans]
    expected = ["aspirin headache</rewrite>", "statin</rewrite>"]
    assert [text.rpartition("<rewrite>")[2] for text in texts] == expected
    answers = [index - 1 for begin, end in taught.spans for index in range(begin, end)]
    loss = imitation_loss(tree_sampler.policy.engine.model, [taught], TrainConfig(packing=packing))
    torch.testing.assert_close(loss, -logps[answers].mean())


@pytest.fixture
def expert(settings):
    """Three rounds over four of the five questions each, eight samples of one turn."""
    warm = {"questions": 4, "learning_rate": 0.02}
    return change(settings, **{"train.warm_start": warm, "rollout.branching": [8], "train.steps": 1})


def node(reward, **changes):
    rewrite = Rewrite(SearchPlan.of("word"), rewrites=("word",))
    return Node(**{"turn": 1, "prompt_ids": [1], "completion_ids": [7, 8], "logprobs": [], "finished": True, "text": "",
                   "rewrite": rewrite, "reward": reward, **changes})  # fmt: skip


def chosen(*roots):
    best = best_sample(Tree(Question("q", "question"), list(roots)))
    return None if best is None else best.reward


def test_the_best_sample_is_imitated_where_it_beats_the_mean_by_the_margin(monkeypatch):
    monkeypatch.setattr(warm_starts, "MARGIN", 0.25)
    assert chosen(node(0.0), node(0.5), node(1.0)) == 1.0
    assert chosen(node(0.5), node(0.5), node(0.8)) is None, "0.2 above a mean of 0.6"
    assert chosen(node(0.5), node(1.0)) is None, "the margin itself is not enough"


def test_two_processes_share_what_the_first_has_imitated(expert, tmp_path):
    config = change(expert, **{"train.questions_per_step": 4, "train.steps": 2})
    single = train(config)
    assert {line["round"] for line in records(single / "warm_start.jsonl")} <= {1, 2, 3}
    with Started(change(config, output=str(tmp_path / "both")), tmp_path / "two", 2) as started:
        assert started.codes() == [0, 0], started.stderr(0) + started.stderr(1)
    pair = tmp_path / "both" / "run"
    assert records(pair / "warm_start.jsonl") == records(single / "warm_start.jsonl")
    warmed, alone = (load_file(folder / "warm_start" / "adapter_model.safetensors") for folder in (pair, single))
    assert all(torch.equal(warmed[name], alone[name]) for name in alone)
    rollouts = [records(folder / "rollouts.jsonl") for folder in (pair, single)]
    assert rollouts[0] == rollouts[1], "half of them are of the second process"
