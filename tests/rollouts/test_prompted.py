"""Trees of a model behind llms/: what each turn is asked, what is sent back, and what becomes of a missing answer."""

import pytest
from querylect.configs.schema import RewardConfig, RewriterConfig, RolloutConfig
from querylect.data.types import Question
from querylect.envs.schemas import HitBody, StepResult
from querylect.eval.records import records_of_trees
from querylect.llms.access import Llm
from querylect.rewriters.registry import make_rewriter
from querylect.rollouts.prompted import PromptedConversation
from querylect.rollouts.tree_sampler import TreeSampler

from ..scripted import BM25, Script

HEAD, GUMS = Question("head", "my head hurts"), Question("gums", "bleeding gums")


class Client:
    """Finds one document for every plan but those that hold a lost text."""

    def __init__(self, lost=""):
        self.lost, self.searched = lost, []

    def step(self, steps, *, with_text=False, metrics=()):
        self.searched += [step.plan.texts for step in steps]
        hits = [HitBody(id="d", score=1.0, title="Triptan", text="one two three")]
        return [
            None
            if step.plan.texts == [self.lost]
            else StepResult(question_id=step.question_id, ranking=hits, reward=0.5, metrics=dict.fromkeys(metrics, 0.5))
            for step in steps
        ]


def grow(script, questions, branching, client=None, greedy=True, rewriter=None, **settings):
    rollout = RolloutConfig(max_new_tokens=9, temperature=0.7, document_tokens=2, documents=1)
    made = make_rewriter(RewriterConfig(**(rewriter or {"name": "general"})), BM25)
    conversation = PromptedConversation(Llm(script), made, rollout, **settings)
    sampler = TreeSampler(conversation, client or Client(), RewardConfig())
    return sampler.grow(questions, branching, greedy), conversation


def say(text):
    return f"<think></think><rewrite>{text}</rewrite>"


def test_a_turn_shows_what_the_turn_before_found_within_the_budgets_in_words():
    model, client = Script(say("headache"), say("migraine")), Client()
    ((tree,), _) = grow(model, [HEAD], [1, 1], client)
    assert client.searched == [["headache"], ["migraine"]]
    assert [message["role"] for message in model.requests[1].messages] == ["user", "assistant", "user"]
    assert "[1] Triptan: one\n" in model.prompts[1]
    (first, second) = records_of_trees("p", [tree], ["ndcg@10"])
    assert (first.tokens, second.tokens, second.calls, second.searches) == (1, 2, 2, 2)


def test_an_answer_that_cannot_be_read_is_sent_back_once_at_the_cost_of_both():
    model = Script("nonsense", "Sure! <rewrite>headache</rewrite>", "nonsense", "nonsense")
    ((good,), _), ((bad,), _) = grow(model, [HEAD], [1]), grow(model, [HEAD], [1])
    assert (good.roots[0].rewrite.rewrites, good.roots[0].tokens, good.roots[0].calls) == (("headache",), 2, 2)
    assert "missing rewrite" in model.prompts[1]
    assert (bad.roots[0].rewrite.failure, bad.roots[0].reward) == ("missing rewrite", 0.0)


def missing(conversation):
    return {(branch.tree.question.id, *key): reason for (branch, *key), reason in conversation.missing.items()}


def test_a_missing_answer_has_a_reason_and_a_failed_search_ends_the_chat():
    model = Script(say("lost"), None, say("citrus"), say("vitamin"))
    (lost, unanswered, whole), conversation = grow(
        model, [HEAD, GUMS, Question("both", "?")], [1, 1], Client(lost="lost")
    )
    assert missing(conversation) == {("gums", 1, 0): "silent"}
    assert (unanswered.roots, lost.roots[0].reward, lost.roots[0].children) == ([], None, [])
    assert [node.rewrite.rewrites for node in whole.walk()] == [("citrus",), ("vitamin",)]


def test_samples_have_seeds_of_their_own_and_keep_their_numbers():
    model = Script(say("a"), None, say("b"), say("c"), None)
    ((tree,), conversation) = grow(model, [HEAD], [3, 1], greedy=False, seed=2)
    assert [draw.seed for draw in model.draws[:3]] == [2_000_006, 2_000_007, 2_000_008]
    assert [(path[0].number, len(path)) for path in tree.paths()] == [(0, 2), (2, 1)]
    assert missing(conversation) == {("head", 1, 1): "silent", ("head", 2, 2): "silent"}


def test_a_stop_keeps_the_ranking_before_it_and_ends_the_chat():
    model, client = Script(say("headache"), "<stop/>"), Client()
    ((tree,), _) = grow(model, [HEAD], [1, 1, 1], client, rewriter={"name": "general", "stop": True})
    first, stop = tree.walk()
    assert (stop.rewrite.plan, stop.ranking, stop.reward) == (first.rewrite.plan, first.ranking, first.reward)
    assert (client.searched, tree.searches) == ([["headache"]], 1)


@pytest.mark.parametrize("trained", [True, False])
def test_a_trained_policy_gets_its_opening_and_is_parsed_strictly(trained):
    model = Script("cleft lip</rewrite> Hope this helps!", "cleft lip</rewrite>")
    ((tree,), _) = grow(model, [HEAD], [1], rewriter={"name": "few_shot"}, trained=trained)
    opening = {"role": "assistant", "content": "<think></think><rewrite>"}
    assert (model.requests[0].messages[-1] == opening) == trained
    assert tree.roots[0].rewrite.failure == ("text outside tags" if trained else "")
