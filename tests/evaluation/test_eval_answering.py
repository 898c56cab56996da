"""Batches under way: one searches while the next is generated, in the caller's thread, and errors end all of them."""

import threading

import pytest
from querylect.configs.schema import RewriterConfig, RolloutConfig, RunConfig
from querylect.data.types import Question
from querylect.envs.server.schemas import HitBody, StepResult
from querylect.errors import ConfigError
from querylect.eval.answering import Asking, answers, batches
from querylect.rewriters.card import RetrieverCard
from querylect.rewriters.registry import make_rewriter
from querylect.rollouts.engines.open import load_engine

from ..lessons import PROMPT, speaking  # noqa: F401 (a fixture)

QUESTIONS = [Question(f"q{number}", "how much blood " * (number + 1)) for number in range(4)]
ROLLOUT = RolloutConfig(max_new_tokens=6, documents=2, document_tokens=8)


@pytest.fixture(scope="module")
def engine(speaking):  # noqa: F811
    return load_engine(RunConfig.model_validate({"policy": {"model": str(speaking), "dtype": "float32"}}), None)


@pytest.fixture
def rewriter(tmp_path):
    (tmp_path / "prompt.yaml").write_text(PROMPT)
    config = RewriterConfig(name="small", prompt=str(tmp_path / "prompt.yaml"))
    return make_rewriter(config, RetrieverCard("bm25", "bm25"), 2)


class Client:
    """Finds one document for whatever is asked, once `ready` is set."""

    def __init__(self):
        self.ready = threading.Event()
        self.texts = []

    def step(self, steps, *, with_text=False, metrics=()):
        assert self.ready.wait(60), "nothing was generated while this search was under way"
        self.texts.append(with_text)
        words = {"title": "About statin", "text": "statin"} if with_text else {}
        hits = [HitBody(id="statin", score=1.0, **words)]
        values = dict.fromkeys(metrics, 0.5)
        return [
            StepResult(question_id=step.question_id, ranking=hits, reward=0.5, metrics={"ndcg@10": 0.5, **values})
            for step in steps
        ]


class Noting:
    """The engine, calling `at` before every generation."""

    def __init__(self, engine, at):
        self.engine, self.at = engine, at
        self.tokenizer, self.stop_ids = engine.tokenizer, engine.stop_ids
        self.calls = 0

    def generate(self, prompts, n, sampling):
        self.calls += 1
        self.at(self.calls)
        return self.engine.generate(prompts, n, sampling)


def ask(engine, client, rewriter, asking, size=2):
    return list(answers(batches(QUESTIONS, size), asking, engine, client, rewriter, ROLLOUT))


def left():
    return [thread for thread in threading.enumerate() if thread.name == "querylect-batch"]


def test_questions_of_like_length_stand_together_and_the_longest_come_first():
    assert [[question.id for question in part] for part in batches(QUESTIONS, 3)] == [["q3", "q2", "q1"], ["q0"]]


def test_a_batch_is_generated_by_this_thread_while_another_one_searches(engine, rewriter):
    client, threads = Client(), set()

    def generated(call):
        threads.add(threading.current_thread())
        if call == 2:
            client.ready.set()

    found = ask(Noting(engine, generated), client, rewriter, Asking(1, ["ndcg@10"]))
    assert sorted(tree.question.id for answered in found for tree in answered.trees) == ["q0", "q1", "q2", "q3"]
    assert threads == {threading.main_thread()}
    assert client.texts == [False, False]


def test_every_turn_is_timed_and_only_the_last_goes_without_the_documents_words(engine, rewriter):
    client = Client()
    client.ready.set()
    found = ask(Noting(engine, lambda call: None), client, rewriter, Asking(2, ["ndcg@10", "mrr"], samples=2), size=4)
    (answered,) = found
    assert [len(list(tree.paths())) for tree in answered.trees] == [2] * 4
    assert len(answered.seconds) == 2
    assert all(seconds > 0 for seconds in answered.seconds)
    assert client.texts == [True, False]
    second = [child for tree in answered.trees for root in tree.roots for child in root.children]
    assert any("About statin" in engine.tokenizer.decode(node.prompt_ids) for node in second)


def test_an_error_of_generation_comes_out_and_leaves_no_thread(engine, rewriter):
    client = Client()
    client.ready.set()

    def broken(call):
        if call == 2:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        ask(Noting(engine, broken), client, rewriter, Asking(1, ["ndcg@10"]), size=1)
    for thread in left():
        thread.join(10)
    assert not left()


def test_a_prompt_that_is_too_long_is_told(engine, rewriter):
    rollout = ROLLOUT.model_copy(update={"max_prompt_tokens": 16})
    parts = batches(QUESTIONS, 2)
    with pytest.raises(ConfigError, match=r"rollout\.max_prompt_tokens is 16"):
        list(answers(parts, Asking(1, ["ndcg@10"]), engine, Client(), rewriter, rollout))


def test_whoever_stops_listening_leaves_no_thread(engine, rewriter):
    client = Client()
    client.ready.set()
    listening = answers(batches(QUESTIONS, 1), Asking(2, ["ndcg@10"]), engine, client, rewriter, ROLLOUT)
    next(listening)
    listening.close()
    for thread in left():
        thread.join(10)
    assert not left()
