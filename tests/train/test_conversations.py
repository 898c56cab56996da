"""Training on conversations: questions of equal words, of which only the history says what is meant."""

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Dataset, Question, Split, Utterance
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.train.run import train
from querylect.train.step_trees import StepTrees
from transformers import AutoTokenizer

from ..lessons import ASKED, change, records

pytestmark = pytest.mark.model


def conversations(lessons, folder):
    """The environment of the lessons, whose questions are now the history of "And what helps?"."""
    questions = [Question(name, "And what helps?", (), (Utterance("user", ASKED[name][0]),)) for name in ASKED]
    split = Split(questions, {name: grades for name, (_, grades) in ASKED.items()})
    save_beir(Dataset("conversations", load_beir(lessons.dataset.path).corpus, {"train": split}), folder)
    dataset = DatasetConfig(path=str(folder))
    return EnvironmentConfig.model_validate({**lessons.model_dump(), "dataset": dataset.model_dump()})


def test_training_shows_the_history_and_rewards_what_it_means(lessons, settings, run_app, tmp_path, monkeypatch):
    env, trees, inner = conversations(lessons, tmp_path / "data"), [], StepTrees.sample

    def keep(step_trees, step):
        trees.extend(sampled := inner(step_trees, step))
        return sampled

    monkeypatch.setattr(StepTrees, "sample", keep)
    with run_app(create_app(Environment.open(env))) as url:
        folder = train(change(settings, env=env.model_dump(), **{"client.urls": [url], "train.steps": 3}))
    tokenizer = AutoTokenizer.from_pretrained(settings.policy.model)
    assert len(trees) == 6
    rewards = {}
    for tree in trees:
        utterance = ASKED[tree.question.id][0]
        for node in tree.walk():
            prompt = tokenizer.decode(node.prompt_ids)
            assert prompt.count(f"User: {utterance}\nAnd what helps?") == 1, prompt
            assert not [text for text, _ in ASKED.values() if text != utterance and text in prompt]
            for word in node.rewrite.rewrites:
                rewards.setdefault(word, {})[tree.question.id] = node.reward
    assert any(len(set(by_history.values())) > 1 for by_history in rewards.values()), "one rewrite, two histories"
    steps = records(folder / "metrics.jsonl")
    assert any(step["signal/turn1"] > 0 and step["grad_norm"] > 0 for step in steps)
