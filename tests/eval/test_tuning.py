"""The weights of training-free baselines: chosen on validation questions alone, the mildest of equal ones."""

import pytest
from querylect.data.types import Question
from querylect.envs.schemas import HitBody, StepResult
from querylect.errors import EnvironmentUnavailableError
from querylect.eval.training_free import GRIDS, best_baseline, tune

from ..evaluated import environment_info
from ..raising import refused

NAMES = ("first_titles", "rm3", "weighted_words")
METRICS = ("ndcg@10", "recall@10", "mrr@10")
VALIDATION = [Question(f"v{number}", f"validation text {number}") for number in range(6)]
TEST = [Question("t0", "test text zero"), Question("t1", "Validation text 5!")]


class Client:
    """Refuses every question but those of the validation split; `worth` gives the score of a plan."""

    def __init__(self, worth, splits=None):
        self.worth, self.splits = worth, {"validation": 6, "test": 2} if splits is None else splits
        self.steps, self.question_ids = 0, set()

    def info(self):
        card = {"name": "bm25", "kind": "bm25", "frequent_terms": ["common"]}
        return environment_info(retriever=card, splits=self.splits)

    def questions(self, split):
        assert split == "validation", "no other split is asked for"
        return VALIDATION

    def step(self, steps, with_text=False, metrics=()):
        assert all(step.question_id.startswith("v") for step in steps), "a test question was searched"
        self.steps += len(steps)
        self.question_ids |= {step.question_id for step in steps}
        return [self.answer(step) for step in steps]

    def answer(self, step):
        value = self.worth(step.plan.probes[0].terms)
        if value is None:
            return None
        hits = [HitBody(id="d", score=1.0, title="Title", text="some words")]
        return StepResult(question_id=step.question_id, ranking=hits, reward=value, metrics={"ndcg@10": value})


SETTINGS = {"split": "test", "metric": METRICS[0], "seed": 0}


def test_weights_are_chosen_on_validation_questions_and_never_on_evaluated_ones():
    client = Client(lambda terms: 0.8 if len(terms) == 2 and terms[1].weight == 0.3 else 0.5)
    titles, words = (tune(name, client, TEST, **SETTINGS) for name in ("first_titles", "weighted_words"))
    assert (titles.weights, words.weights) == ({"n": 1, "weight": 0.3}, {"n": 1, "weight": 0.3})
    assert titles.score == pytest.approx(0.8)
    assert client.question_ids == {"v0", "v1", "v2", "v3", "v4"}, "v5 says what a test question says"
    assert "the best of 15 by ndcg@10 on 5 validation questions: 0.800 (raw 0.500)" in titles.sentence


def test_of_equal_weights_the_mildest_is_taken():
    chosen = [tune(name, Client(lambda terms: 0.5), TEST, **SETTINGS) for name in NAMES]
    assert [choice.weights for choice in chosen] == [GRIDS[name][0] for name in NAMES]


@pytest.mark.parametrize(
    ("splits", "changes", "reason"),
    [
        ({"test": 2}, {}, "no validation split"),
        (None, {"split": "validation"}, "the validation questions are what is evaluated"),
    ],
)
def test_without_validation_questions_the_defaults_are_used_and_told(splits, changes, reason):
    client = Client(lambda terms: 0.5, splits)
    chosen = [tune(name, client, TEST, **{**SETTINGS, **changes}) for name in NAMES]
    assert client.steps == 0
    assert chosen[1].weights == {"fb_docs": 10, "fb_terms": 10, "original_query_weight": 0.5}
    assert all(reason in choice.sentence and choice.score is None for choice in chosen)
    tuned = {choice.name: choice for choice in chosen}
    assert best_baseline({"rm3": [0.4], "first_titles": [0.3, 0.3]}, tuned) == ("rm3", False)


def test_a_question_without_a_score_under_some_weights_counts_under_none():
    class Flaky(Client):
        def answer(self, step):
            lost = step.question_id == "v0" and len(step.plan.probes[0].terms) > 1
            return None if lost else super().answer(step)

    chosen = tune("weighted_words", Flaky(lambda terms: 0.5), [], **SETTINGS)
    assert "on 5 validation questions" in chosen.how
    with refused(EnvironmentUnavailableError, 6, "training_free"):
        tune("weighted_words", Client(lambda terms: None), [], **SETTINGS)
