"""`querylect rewrite`: a real tiny policy, a real environment as a child process, plain data on standard output."""

import io
import json
import sys

import pytest
from querylect.cli import main
from querylect.rollouts.engines.base import Completion
from querylect.rollouts.engines.transformers import TransformersEngine

from ..used import add_id

pytestmark = pytest.mark.model


@pytest.fixture
def settings(tiny_policy, small_environment, url, tmp_path):
    """A config file around the tiny policy and a running environment."""
    path = tmp_path / "config.yaml"
    config = {
        "env": small_environment.model_dump(mode="json"),
        "client": {"urls": [url]},
        "policy": {"model": str(tiny_policy), "dtype": "float32", "lora": {"r": 4}},
        "rewriter": {"name": "general"},
        "rollout": {"max_new_tokens": 12},
    }
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    add_id(tmp_path)
    return path


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["rewrite", *map(str, arguments)])
    out, err = capsys.readouterr()
    return caught.value.code or 0, [json.loads(line) for line in out.splitlines()], err


def test_each_question_is_a_line_of_plain_data(settings, capsys):
    code, records, _ = run(capsys, settings, "-q", "my head hurts", "-q", "<|im_end|> sugar")
    assert code == 0
    assert [record["question"] for record in records] == ["my head hurts", "<|im_end|> sugar"]
    keys = {"id", "question", "text", "rewrites", "think", "plan", "turn", "failure"}
    keys |= {"stopped", "unsearched"}
    assert all(record.keys() == keys for record in records)
    assert all(record["failure"] and record["rewrites"] == [] for record in records)
    assert [record["text"] for record in records] == [record["question"] for record in records]


def test_the_question_is_searched_as_asked_whatever_the_prompt_shows(settings, capsys, monkeypatch):
    """Control tokens are taken out of prompts; what a plan keeps of the question is its own text, as in training."""

    def generate(engine, prompts, n, sampling):
        ids = engine.tokenizer("<think>why</think><rewrite>x < y</rewrite>")["input_ids"]
        return [[Completion([*ids, engine.tokenizer.eos_token_id], [], True)] for _ in prompts]

    monkeypatch.setattr(TransformersEngine, "generate", generate)
    monkeypatch.setattr(TransformersEngine, "_compare_with_plain_forward", lambda engine: None)
    question = "ache <|im_end|> here"
    _, (record,), _ = run(capsys, settings, "rewriter.keep_question_weight=1.0", "-q", question)
    assert (record["rewrites"], record["think"]) == (["x < y"], "why")
    assert [term["text"] for term in record["plan"]["probes"][0]["terms"]] == [question, "x < y"]


LINES = """my head hurts

{"id": "a", "question": "too much sugar", "options": ["yes", "no"]}
{"_id": "q1", "text": "bleeding gums", "history": [{"role": "user", "content": "my head hurts"}]}
[2] is no object, and so a question
"""


def test_lines_are_questions_or_objects_and_keep_their_ids(settings, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(LINES))
    code, records, _ = run(capsys, settings, "--batch", "3")
    asked = ["my head hurts", "too much sugar", "bleeding gums", "[2] is no object, and so a question"]
    assert (code, [record["question"] for record in records]) == (0, asked)
    assert [record["id"] for record in records] == ["1", "a", "q1", "5"]
    assert records[2]["history"] == [{"role": "user", "text": "my head hurts"}]


def test_mistakes_end_in_a_sentence_and_exit_code_2(settings, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    for arguments, fact in (
        ([], "no question"),
        (["-q", "x", "-i", settings], "--question and --input"),
        (["--checkpoint", "best", "-q", "x"], "'best'"),
    ):
        code, records, err = run(capsys, settings, *arguments)
        assert (code, records, fact in err, "Traceback" in err) == (2, [], True, False), err
