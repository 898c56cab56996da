"""Training the methods whose answer is a plan: the same tree, credit and reward with another prompt and parser."""

import json
import logging

import pytest
from querylect.benchmarks.greedy import greedy_trees
from querylect.configs.load import load_config
from querylect.envs.client.connect import open_environment
from querylect.inference.load import of_config
from querylect.inference.rewriter import Rewriter
from querylect.train.run import train

from ..chat_server import ChatServer, serving
from ..lessons import WORDS, change, records, save_chain

pytestmark = [pytest.mark.model, pytest.mark.slow]

LABELS = {
    "chr": ("H_plus:", "H_minus:"),
    "multi_query": ("Sub-query 1:", "Sub-query 2:", "Sub-query 3:"),
    "hcqr": ("Query 1:", "Query 2:", "Query 3:"),
}
HYPOTHESIS = {"discriminating_features": ["a"], "reasoning": "b", "confirming_evidence": ["c"], "best_guess": "guess"}


def save_listing(folder, labels):
    """A policy that goes on from the first label: a word, the next label, another word, to the last part."""
    later = [f"\n{label}" for label in labels[1:]]
    share = len(WORDS) // len(labels)
    words = [WORDS[index * share :][:share] for index in range(len(labels))]
    links = [(begin, part, None) for begin, part in zip((labels[0], *later), words, strict=True)]
    for part, after in zip(words, [[label] for label in later] + [[]], strict=True):
        links += [(word, after, None) for word in part]
    return save_chain(folder, [*later, *WORDS], links)


def formed(body):
    """A hypothesis for every question but one."""
    return "I do not know." if "common pills" in str(body["messages"]) else json.dumps(HYPOTHESIS)


@pytest.fixture
def run(settings, tmp_path, run_app):
    """Settings of a run of two steps with a rewriter, and the model that forms hypotheses."""
    server = ChatServer(formed)
    with serving(run_app, server) as url:
        llm = {"model": "m", "base_url": url, "cache": str(tmp_path / "replies.sqlite")}

        def config_of(name):
            values = {"rewriter.name": name, "rewriter.llm": llm, "rollout.max_new_tokens": 8, "train.steps": 2}
            values["policy.model"] = str(save_listing(tmp_path / "policy", LABELS[name]))
            return change(settings, **values)

        yield config_of, server


@pytest.mark.parametrize("name", ["multi_query", "hcqr"])
def test_a_policy_learns_to_write_plans(run, name, caplog):
    config_of, server = run
    config = config_of(name)
    with caplog.at_level(logging.WARNING):
        folder = train(config)
    trained_on = {line["question_id"] for line in records(folder / "rollouts.jsonl")}
    first_prompts = {str(body["messages"][0]) for body in server.bodies}
    counts = (len(trained_on), len(trained_on) + 1) if name == "hcqr" else (0,)
    assert len(first_prompts) in counts, "those that came up"
    metrics = records(folder / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2]
    assert {line[f"format/turn{turn}"] for line in metrics for turn in (1, 2)} == {1.0}
    assert max(line["reward/turn1"] for line in metrics) > 0.1, "some plan found something"
    assert any(line["grad_norm"] > 0 for line in metrics)
    with open_environment(config.env, config.client) as client:
        questions = client.questions("train")
        trees = greedy_trees(config, client, None, questions)
    plans = [node.rewrite.plan for tree in trees for node in tree.walk()]
    assert all([[term.weight for term in probe.terms] for probe in plan.probes] == [[1.0]] * 3 for plan in plans)
    lines = Rewriter(of_config("", config, None, None)).rewrite(["too much sugar", "common pills"])
    if name != "hcqr":
        assert server.bodies == []
        assert len(trees) == len(questions)
        assert all(line.plan for line in lines)
        return
    assert "1 of 5" in caplog.text
    assert [tree.question.id for tree in trees] == [question.id for question in questions if question.id != "pills"]
    assert [line.failure is not None for line in lines] == [False, True]
    assert "pills" not in (folder / "rollouts.jsonl").read_text()
    repairs = sum("does not fit" in str(body["messages"][-1]) for body in server.bodies)
    again = len(server.bodies) - len({str(body["messages"]) for body in server.bodies})
    assert (len(server.bodies), repairs, again) == (6, 1, 0), "every question once, whoever asks"


def save_doubter(folder):
    """A policy that goes on from "Thought:" to an answer or to what is missing and two queries, either in any turn."""
    answer, missing, first, second = labels = ["\nAnswer:", "\nMissing:", "\nQuery 1:", "\nQuery 2:"]
    thoughts, answers, lacks, queries, followers = WORDS[:2], WORDS[2:3], WORDS[3:4], WORDS[4:6], WORDS[6:]
    links = [("Thought:", thoughts, None), (answer, answers, None), (missing, lacks, None)]
    links += [(first, queries, None), (second, followers, None)]
    links += [(word, (answer, missing), None) for word in thoughts]
    links += [(word, (first,), None) for word in lacks]
    links += [(word, (second,), None) for word in queries]
    links += [(word, (), None) for word in (*answers, *followers)]
    return save_chain(folder, [*labels, *WORDS], links)


def test_the_queries_for_missing_knowledge_are_learned_in_two_turns(settings, tmp_path):
    """The packaged config with a tiny policy, a small corpus and few steps."""
    packaged = load_config("misknow_bm25").model_dump(include={"rewriter", "reward"})
    config = change(settings, **packaged, **{
        "policy.model": str(save_doubter(tmp_path / "policy")), "rollout.branching": [4, 4],
        "rollout.max_new_tokens": 10, "train.steps": 2,
    })  # fmt: skip
    folder = train(config)
    metrics = records(folder / "metrics.jsonl")
    assert any(line["grad_norm"] > 0 for line in metrics)
    assert all(max(line[f"format/turn{turn}"] for line in metrics) > 0 for turn in (1, 2))
    assert min(line["format/turn2"] for line in metrics) < 1, "the form of the first turn is none of the second"
    with open_environment(config.env, config.client) as client:
        trees = greedy_trees(config, client, None, client.questions("train"))
    nodes = [(tree.question.text, node) for tree in trees for node in tree.walk() if node.rewrite.plan is not None]
    assert nodes
    for question, node in nodes:
        texts = [probe.terms[0].text for probe in node.rewrite.plan.probes]
        assert texts == ([question] if node.turn == 1 else [question, *node.rewrite.rewrites])
