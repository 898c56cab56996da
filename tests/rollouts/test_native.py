"""Turns whose rewrites are native queries: what is refused, what the next turn is told, rewards, records, metrics."""

import pytest
from querylect.configs.schema import ClientConfig, RewardConfig, RewriterConfig, RolloutConfig
from querylect.envs.build import build_index
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.schemas import StepResult
from querylect.envs.server.app import create_app
from querylect.errors import EnvironmentUnavailableError
from querylect.eval.records import records_of_trees
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rollouts.tree_sampler import REFUSED, PolicyConversation, StreamingTreeSampler, TreeSampler
from querylect.train.credit import assign_credit
from querylect.train.metrics import step_metrics
from querylect.train.run import train
from querylect.train.turns import turns_of

from ..jsonl import read_jsonl
from ..lessons import change
from .test_grow import HEAD, SUGAR, Script, observation, say, text_of
from .test_streaming import QUESTIONS, STREAMS, Searched, Uneven

pytestmark = [pytest.mark.model, pytest.mark.server]

STOP = "<think></think><stop/>"


@pytest.fixture(scope="module")
def fts5(small_environment, tmp_path_factory, run_app):
    """A client of a service of the small environment's documents in FTS5."""
    index = str(tmp_path_factory.mktemp("fts5") / "index")
    config = small_environment.model_copy(update={"retriever": "fts5", "index": index})
    build_index(config)
    with run_app(create_app(Environment.open(config))) as url, EnvironmentClient(ClientConfig(urls=[url])) as client:
        yield client


def tree_sampler(client, engine, kind=TreeSampler, stop=False, query="native", k=10, metric="ndcg@10", **changes):
    info = RetrieverInfo("fts5", "fts5", query_language="words")
    rewriter = make_rewriter(RewriterConfig(name="explore", query=query, stop=stop), info, k)
    rollout = RolloutConfig(**{"max_prompt_tokens": 4096, "document_tokens": 60, **changes})
    return kind(PolicyConversation(engine, rewriter, rollout), client, RewardConfig(metric=metric))


def figures(trees):
    turns = turns_of(trees, [0.5, 1.0])
    return step_metrics(turns, assign_credit(turns, "turn", "none"))


def test_a_refused_query_is_a_format_failure_and_no_failed_search(fts5):
    """One of each: refused, without hits, with hits, and out of format."""
    engine = Script(
        say("aspirin, headache"), say("aspirin insulin"), say("aspirin OR triptan"), "none", *[say("blood")] * 4
    )
    (tree,) = tree_sampler(fts5, engine).grow([HEAD], [4, 1])
    refused, nothing, found, failed = tree.roots
    assert (refused.reward, refused.rewrite.failure, refused.rewrite.plan) == (0.0, REFUSED, None)
    assert (refused.error, refused.hits, refused.ranking) == ('fts5: syntax error near ","', 0, [])
    assert refused.rewrite.rewrites == ("aspirin, headache",)
    assert (nothing.reward, nothing.hits, nothing.error, nothing.rewrite.failure) == (pytest.approx(0.1), 0, None, "")
    assert (found.hits, found.reward > 0.5) == (2, True)
    assert (failed.hits, failed.error, failed.reward) == (None, None, 0.0)
    shown = [text_of(engine, observation(root)) for root in tree.roots]
    assert 'The search engine refused the query: fts5: syntax error near ","' in shown[0]
    assert "Documents that match: 0\n" in shown[1]
    assert "Documents that match: 2\n" in shown[2]
    assert "About triptan" in shown[2]
    assert not any("refused" in text or "About" in text for text in (shown[1], shown[3]))
    measured = figures([tree])
    names = ("refused/turn1", "no_hits/turn1", "format/turn1", "failed_search/turn1", "refused/turn2", "no_hits/turn2")
    assert [measured[name] for name in names] == pytest.approx([1 / 3, 1 / 3, 1 / 2, 0.0, 0.0, 0.0])


def test_records_say_what_was_refused_and_found(fts5):
    texts = ("aspirin,", "blood", "aspirin insulin", "a, b")
    engine = Script(*[say(text) for text in (texts[0], texts[2], texts[1], texts[3])])
    trees = tree_sampler(fts5, engine).grow([HEAD, SUGAR], [1, 1], greedy=True)
    rows = [
        (row.turn, row.format_ok, row.hits, row.searches, row.rewrites, row.plan is None)
        for row in records_of_trees("p", trees, ["ndcg@10"])
    ]
    assert rows == [
        (1, False, 0, 0, ("aspirin,",), True),
        (2, True, 2, 1, ("blood",), False),
        (1, True, 0, 1, ("aspirin insulin",), False),
        (2, False, 0, 1, ("a, b",), True),
    ]


def test_words_have_neither_hits_nor_figures_of_them(fts5):
    (tree,) = tree_sampler(fts5, Script(say("aspirin, headache"), say("nowhere")), query="text").grow([HEAD], [2])
    assert [node.hits for node in tree.roots] == [None, None]
    assert tree.roots[0].reward > 0.1
    assert not {"refused/turn1", "no_hits/turn1"} & set(figures([tree]))


def test_a_stop_after_a_refused_turn_keeps_the_ranking_before_it(fts5):
    engine = Script(say("aspirin OR triptan"), say("aspirin,"), STOP)
    (tree,) = tree_sampler(fts5, engine, stop=True).grow([HEAD], [1, 1, 1])
    first, refused, stop = next(tree.paths())
    assert (refused.reward, stop.reused, stop.rewrite.plan) == (0.0, True, first.rewrite.plan)
    assert (stop.ranking, stop.reward) == (first.ranking, first.reward)
    assert tree.searches == 1


def test_a_service_that_is_down_refuses_nothing(fts5):
    (tree,) = tree_sampler(Searched(fts5, out=["q-head"]), Script(say("aspirin,"))).grow([HEAD], [1, 1])
    (lost,) = tree.roots
    assert (lost.reward, lost.error, lost.rewrite.failure, lost.children) == (None, None, "", [])
    with pytest.raises(EnvironmentUnavailableError):
        tree_sampler(Searched(fts5, fails=True), Script(say("aspirin,"))).grow([HEAD], [1, 1])


def test_what_a_reader_answers_after_a_refused_query_is_worth_nothing():
    class Reader:
        def step(self, steps, **how):
            (name,) = (step.question_id for step in steps)
            return [StepResult(question_id=name, ranking=[], hits=0, error="no", reward=0.0, metrics={"ndcg@10": 0.7})]

    (tree,) = tree_sampler(Reader(), Script(say("aspirin,"))).grow([HEAD], [1])
    assert [(node.reward, node.metrics) for node in tree.walk()] == [(0.0, {"ndcg@10": 0.0})]


def test_an_error_that_quotes_the_query_opens_no_turn(fts5):
    """The query names a column of the control token."""
    engine = Script(say('"<|im_end|>": aspirin'), say("aspirin"))
    (tree,) = tree_sampler(fts5, engine).grow([HEAD], [1, 1])
    assert "<|im_end|>" in tree.roots[0].error
    shown = text_of(engine, observation(tree.roots[0]))
    assert "no such column:" in shown
    assert shown.count("<|im_end|>") == 1


class Queries(Uneven):
    """Answers with words, of which a comma is refused and two words may find nothing."""

    def _sample(self, stream, number):
        completion, rounds = super()._sample(stream, number)
        if rounds % 3 == 0:
            ids = self.tokenizer(say("aspirin, sugar"), add_special_tokens=False)["input_ids"]
            completion = type(completion)([*ids, self.tokenizer.eos_token_id], [-0.5] * (len(ids) + 1), True)
        return completion, rounds


def test_trees_that_are_searched_while_they_are_sampled_are_those_of_the_loop(fts5):
    expected = tree_sampler(fts5, Queries()).grow(QUESTIONS, [4, 3], streams=STREAMS)
    grown = tree_sampler(fts5, Queries(), StreamingTreeSampler).grow(QUESTIONS, [4, 3], streams=STREAMS)
    assert grown == expected
    outcomes = {(node.hits, node.error is None) for tree in expected for node in tree.walk()}
    assert {(0, False), (0, True), (None, True)} < outcomes


def test_only_the_documents_that_a_turn_is_shown_carry_their_texts(fts5):
    """However deep the metric looks."""
    asked = []

    class Watched:
        def step(self, steps, **how):
            asked.append((how["with_text"], [step.plan.k for step in steps]))
            return fts5.step(steps, **how)

    everything = "about OR headache OR blood"
    engine = Script(say(everything), say("aspirin"))
    sampler = tree_sampler(Watched(), engine, k=1000, metric="f3@1000", documents=2)
    (tree,) = sampler.grow([HEAD], [1, 1])
    (first,) = tree.roots
    assert asked == [(2, [1000]), (0, [1000])]
    assert len(first.ranking) == first.hits == 6
    assert [hit.text is not None for hit in first.ranking] == [True, True, False, False, False, False]
    precision, recall = 2 / 6, 1.0
    assert first.metrics["f3@1000"] == pytest.approx(10 * precision * recall / (9 * precision + recall))
    shown = text_of(engine, observation(first))
    assert sum(f"About {hit.id}" in shown for hit in first.ranking) == 2


@pytest.mark.slow  # ten seconds: a training
def test_a_training_on_a_metric_of_sets_logs_what_its_native_queries_find(settings, tmp_path, run_app):
    env = settings.env.model_copy(update={"retriever": "fts5", "index": str(tmp_path / "index"), "order": "date"})
    build_index(env)
    with run_app(create_app(Environment.open(env))) as url:
        native = {"env": env.model_dump(), "client.urls": [url], "rewriter.query": "native"}
        config = change(settings, **native, **{"reward.metric": "f3@1000", "train.steps": 2})
        assert config.search_depth == 1000
        lines = read_jsonl(train(config) / "metrics.jsonl")
    steps = [line for line in lines if "reward/turn1" in line]
    assert len(steps) == 2
    for line in steps:
        assert line["reward/turn2"] == pytest.approx(0.9 * line["f3/turn2"] + 0.1 * line["format/turn2"], abs=1e-5)
        assert (line["refused/turn1"], line["no_hits/turn1"], line["failed_search/turn2"]) == (0.0, 0.0, 0.0)
