"""A policy is trained and evaluated on an index of questions by the commands, as on any environment."""

import json
from pathlib import Path

import pytest
import yaml
from querylect.cli import main
from querylect.configs.schema import EnvironmentConfig
from querylect.envs.builder.build import build_index
from querylect.questions.build import write_question_index

from ..lessons import PROMPT, TEXTS, records
from ..question_models import QuestionsConfig


def ended(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return stop.value.code or 0


@pytest.fixture
def config(lessons, speaking, tmp_path):
    """A run of one step whose documents are found by one question each, which shares no word with their text."""
    vetted = tmp_path / "vetted.jsonl"
    rows = [{"question": f"When do people take {name}?", "contents": [name]} for name in TEXTS]
    vetted.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folders = {"folder": str(tmp_path / "questions"), "index": str(tmp_path / "of-questions")}
    settings = {"retriever": "qb-rag", "question_index": folders, "index": str(tmp_path / "index")}
    env = EnvironmentConfig.model_validate({**lessons.model_dump(mode="json"), **settings})
    write_question_index(QuestionsConfig(), env, folders["folder"], add=vetted)
    build_index(env)
    (tmp_path / "prompt.yaml").write_text(PROMPT)
    values = {
        "name": "run",
        "output": str(tmp_path / "runs"),
        "env": env.model_dump(mode="json"),
        "policy": {"model": str(speaking), "dtype": "float32", "lora": {"r": 4, "alpha": 8}},
        "rewriter": {"name": "small", "prompt": str(tmp_path / "prompt.yaml")},
        "rollout": {"branching": [2, 2], "max_new_tokens": 6, "documents": 2, "document_tokens": 8},
        "train": {"steps": 1, "questions_per_step": 5, "learning_rate": 0.01},
        "eval": {"permutations": 50, "bootstrap": 50},
        "tracking": {"wandb": "disabled"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    return str(tmp_path / "run.yaml")


def rankings(trees):
    """The rankings of all turns, as ids."""
    turns = [turn for tree in trees for turn in tree["turns"]]
    return [turn["ranking"] for turn in [*turns, *(child for turn in turns for child in turn["children"])]]


@pytest.mark.usefixtures("service_in_thread")
def test_training_and_evaluation_search_questions(config, tmp_path, capsys):
    assert ended("train", config) == 0
    (step,) = records(tmp_path / "runs" / "run" / "metrics.jsonl")
    assert step["reward/turn1"] > 0.1
    assert step["grad_norm"] > 0
    ids = rankings(records(tmp_path / "runs" / "run" / "rollouts.jsonl"))
    assert set().union(*ids) == set(TEXTS), "contents are found, and no question"
    assert max(map(len, ids)) == 1, "a query names one medicine, and one question does"
    capsys.readouterr()
    assert ended("eval", str(tmp_path / "runs" / "run")) == 0
    report = Path(capsys.readouterr().out.splitlines()[-1])
    assert "qb-rag" in report.read_text()
    rows = [row for path in report.parent.rglob("*.jsonl") for row in records(path) if "ranking" in row]
    assert {name for row in rows for name in row["ranking"]} <= set(TEXTS)
    assert any(row["ranking"] for row in rows)
