"""Training on conversations: questions of equal words, of which only the history says what is meant."""

import pytest
from querylect.cli import main
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Dataset, Question, Split, Utterance
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.train.run import train
from querylect.train.step_trees import StepTrees
from transformers import AutoTokenizer

from ..lessons import ASKED, PROMPT, change, records

pytestmark = pytest.mark.model


def conversations(lessons, folder):
    """The environment of the lessons, whose questions are now the history of "And what helps?"."""
    questions = [Question(name, "And what helps?", (), (Utterance("user", ASKED[name][0]),)) for name in ASKED]
    split = Split(questions, {name: grades for name, (_, grades) in ASKED.items()})
    save_beir(Dataset("conversations", load_beir(lessons.dataset.path).corpus, {"train": split}), folder)
    dataset = DatasetConfig(kind="beir", path=str(folder))
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


@pytest.mark.slow  # an index of 25,757 documents, a step and an evaluation
@pytest.mark.timeout(1800)  # on a machine with ten times more work than processors it took eight minutes
def test_the_commands_of_the_page_train_and_evaluate_the_packaged_config(speaking, tmp_path, monkeypatch, capsys):
    """On its own data, with a tiny policy and a few questions."""
    (tmp_path / "prompt.yaml").write_text(PROMPT)
    monkeypatch.chdir(tmp_path)
    small = [
        f"policy.model={speaking}", "policy.dtype=float32", "policy.lora={r: 4, alpha: 8.0}",
        "rewriter.prompt=prompt.yaml", "rollout.branching=[4]", "rollout.max_new_tokens=6", "train.steps=1",
        "train.questions_per_step=2", "train.questions_per_micro_batch=2", "train.samples_per_update=null",
        "train.save_steps=1", "train.validate_steps=1", "train.validation_questions=4", "tracking.wandb=disabled",
    ]  # fmt: skip
    brief = ["eval.limit=4", "eval.tuning_questions=0", "eval.bootstrap=50", "eval.permutations=50"]
    for arguments in (
        ["index", "build", "conversations"],
        ["train", "conversations", *small],
        ["eval", "runs/conversations", *brief],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code in (0, None)
    printed = capsys.readouterr().err
    for system in ("Raw question", "History and question", "Reference rewrite", "Untrained, turn 1", "Trained, turn 1"):
        assert f"\n| {system}" in printed
