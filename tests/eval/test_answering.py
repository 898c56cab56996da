"""Batches of a policy: their order, their time, and which of their searches ask for document texts."""

from dataclasses import replace

import pytest
from querylect.configs.schema import PolicyConfig, RewriterConfig, RolloutConfig
from querylect.data.types import Question, Utterance
from querylect.envs.schemas import HitBody, StepResult
from querylect.eval.answering import DecodeOptions, answer, batches
from querylect.eval.records import records_of_trees
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rollouts.engines.open import load_engine
from querylect.rollouts.tree_sampler import PolicyConversation

from ..lessons import PROMPT

pytestmark = pytest.mark.model

QUESTIONS = [Question(f"q{number}", "how much blood " * (number + 1)) for number in range(4)]
ROLLOUT = RolloutConfig(max_new_tokens=6, documents=2, document_tokens=8)


@pytest.fixture(scope="module")
def engine(speaking):
    return load_engine(PolicyConfig(model=str(speaking), dtype="float32"), RolloutConfig(), 0, None)


@pytest.fixture
def rewriter(tmp_path):
    (tmp_path / "prompt.yaml").write_text(PROMPT)
    config = RewriterConfig(name="few_shot", prompt=str(tmp_path / "prompt.yaml"))
    return make_rewriter(config, RetrieverInfo("bm25", "bm25"), 2)


class Client:
    """Finds the same document for every plan."""

    def __init__(self):
        self.texts = []

    def step(self, steps, *, with_text=False, metrics=()):
        self.texts.append(with_text)
        words = {"title": "About statin", "text": "statin"} if with_text else {}
        hits = [HitBody(id="statin", score=1.0, **words)]
        values = dict.fromkeys(metrics, 0.5)
        return [
            StepResult(
                question_id=step.question_id, ranking=hits, reward=0.5, metrics={"ndcg@10": 0.5, **values}, truncated=1
            )
            for step in steps
        ]


def test_questions_of_like_length_stand_together_and_the_longest_come_first():
    assert [[question.id for question in part] for part in batches(QUESTIONS, 3)] == [["q3", "q2", "q1"], ["q0"]]
    talked = replace(QUESTIONS[0], history=(Utterance("user", "a long story " * 20),))
    assert batches([*QUESTIONS[1:], talked], 1)[0] == [talked], "a prompt shows the history, too"


def test_every_turn_is_timed_and_only_the_last_goes_without_the_documents_words(engine, rewriter):
    client = Client()
    conversation = PolicyConversation(engine, rewriter, ROLLOUT)
    trees, seconds = answer(conversation, QUESTIONS, DecodeOptions(2, ["ndcg@10", "mrr"], samples=2), client)
    assert [len(list(tree.paths())) for tree in trees] == [2] * 4
    assert len(seconds) == 2
    assert min(seconds) > 0
    assert client.texts == [2, 0]
    records = records_of_trees("s", trees, ["ndcg@10", "mrr"])
    assert {(record.turn, record.calls) for record in records} == {(1, 1), (2, 2)}
    assert {record.truncated for record in records} == {1, None}, "unknown where an answer was not searched"
    second = [child for tree in trees for root in tree.roots for child in root.children]
    assert any("About statin" in engine.tokenizer.decode(node.prompt_ids) for node in second)
