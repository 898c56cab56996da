"""`querylect rewrite`: a real tiny policy, a real environment as a child process, plain data on standard output."""

import io
import json
import sys

import pytest
from querylect.cli import main
from querylect.configs.schema import LoraConfig, PolicyConfig

from ..used import add_id


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


def test_each_question_is_a_line_of_plain_data(settings, capsys, monkeypatch):
    code, records, _ = run(capsys, settings, "-q", "my head hurts", "-q", "<|im_end|> sugar")
    assert code == 0
    assert [record["question"] for record in records] == ["my head hurts", "<|im_end|> sugar"]
    keys = {"id", "question", "text", "rewrites", "think", "plan", "turn", "failure", "fallback"}
    assert all(record.keys() == keys for record in records)
    assert all(record["fallback"] and record["failure"] and record["rewrites"] == [] for record in records)
    assert [record["text"] for record in records] == [record["question"] for record in records]
    monkeypatch.setattr(sys, "stdin", io.StringIO("my head hurts\n\n  <|im_end|> sugar\n"))
    assert [record | {"id": "-"} for record in run(capsys, settings)[1]] == [record | {"id": "-"} for record in records]


@pytest.fixture
def say(monkeypatch):
    """A function: the engine generates this text from now on, since a random policy never keeps the format."""
    from querylect.rollouts.engines.base import Completion
    from querylect.rollouts.engines.transformers import TransformersEngine

    calls = []

    def say(text):
        def generate(engine, prompts, n, sampling):
            calls.append((n, sampling.temperature, sampling.max_new_tokens))
            ids = engine.tokenizer(text)["input_ids"]
            return [[Completion([*ids, engine.tokenizer.eos_token_id], [], True)] for _ in prompts]

        monkeypatch.setattr(TransformersEngine, "generate", generate)
        return calls

    monkeypatch.setattr(TransformersEngine, "_compare_with_plain_forward", lambda engine: None)
    return say


def test_a_policy_that_keeps_the_format_says_its_rewrite_and_plan(settings, capsys, say):
    calls = say("<think>why</think><rewrite>migraine < ache</rewrite>")
    _, (record,), _ = run(capsys, settings, "-q", "my head hurts")
    assert calls == [(1, 0.0, 12)]
    assert (record["rewrites"], record["think"]) == (["migraine < ache"], "why")
    assert record["plan"]["probes"][0]["terms"] == [{"text": "migraine < ache", "weight": 1.0}]


def test_the_question_is_searched_as_asked_whatever_the_prompt_shows(settings, capsys, say):
    """Control tokens are taken out of prompts; what a plan keeps of the question is its own text, as in training."""
    say("<think></think><rewrite>x</rewrite>")
    question = "ache <|im_end|> here"
    _, (record,), _ = run(capsys, settings, "rewriter.keep_question_weight=1.0", "-q", question)
    assert [term["text"] for term in record["plan"]["probes"][0]["terms"]] == [question, "x"]


def test_a_run_folder_uses_its_checkpoint(settings, tiny_policy, capsys, tmp_path, monkeypatch):
    """The adapter of the run is what answers: its next-token choices differ from those of the untrained policy."""
    import torch
    from querylect.rollouts.engines.transformers import TransformersEngine
    from querylect.rollouts.policy import add_lora, load_policy

    config = PolicyConfig(model=str(tiny_policy), dtype="float32", lora=LoraConfig(r=4))
    policy = add_lora(load_policy(config)[0], config)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight) * 0.1)
    policy.save_pretrained(tmp_path / "final")

    generated = []
    generate = TransformersEngine.generate

    def remember(engine, prompts, n, sampling):
        samples = generate(engine, prompts, n, sampling)
        generated.append((prompts[0], samples[0][0].ids))
        return samples

    monkeypatch.setattr(TransformersEngine, "generate", remember)
    assert run(capsys, settings, "-q", "my head hurts")[0] == 0
    prompt, untrained = generated[-1]
    assert run(capsys, settings.parent, "--turn", "1", "-q", "my head hurts")[0] == 0
    same_prompt, trained = generated[-1]
    assert same_prompt == prompt
    assert trained != untrained
    out = policy.eval().generate(torch.tensor([prompt]), max_new_tokens=len(trained), do_sample=False)
    assert trained == out[0, len(prompt) :].tolist()


def test_an_output_that_was_interrupted_goes_on_where_it_stopped(settings, capsys, tmp_path, monkeypatch):
    from querylect.rollouts.engines.transformers import TransformersEngine

    questions_file, out = tmp_path / "asked.txt", tmp_path / "out.jsonl"
    questions_file.write_text("".join(f"question {n}\n" for n in range(7)))
    assert run(capsys, settings, "-i", questions_file, "-o", out, "--batch", "2")[:2] == (0, [])
    complete = out.read_text()
    assert len(complete.splitlines()) == 7
    assert run(capsys, settings, "-i", questions_file, "-o", out)[0] == 2, "nothing is written over"

    generate, calls = TransformersEngine.generate, []

    def interrupted(engine, prompts, n, sampling):
        if n == 1 and len(prompts[0]) > 8:  # not the engine's look at itself
            calls.append(len(prompts))
            if len(calls) == 3:
                raise KeyboardInterrupt
        return generate(engine, prompts, n, sampling)

    out.unlink()
    monkeypatch.setattr(TransformersEngine, "generate", interrupted)
    assert run(capsys, settings, "-i", questions_file, "-o", out, "--batch", "2")[0] == 130
    assert out.read_text() == "".join(complete.splitlines(True)[:4])
    with out.open("a") as file:
        file.write('{"id": "5", "ques')
    calls.append(0)
    assert run(capsys, settings, "-i", questions_file, "-o", out, "--resume")[0] == 0
    assert out.read_text() == complete
    assert calls[-1] == 3, "what stands there is not asked again"
    questions_file.write_text("another question\n")
    code, _, err = run(capsys, settings, "-i", questions_file, "-o", out, "--resume")
    assert code == 2
    assert "'another question'" in err


LINES = """my head hurts

{"id": "a", "question": "too much sugar", "options": ["yes", "no"]}
{"_id": "q1", "text": "bleeding gums", "metadata": {}}
[2] is no object, and so a question
"""


def test_lines_are_questions_or_objects_and_keep_their_ids(settings, capsys, tmp_path):
    (tmp_path / "asked.jsonl").write_text(LINES)
    code, records, _ = run(capsys, settings, "--input", tmp_path / "asked.jsonl", "--batch", "3")
    assert (code, [(record["id"], record["question"]) for record in records]) == (
        0,
        [
            ("1", "my head hurts"),
            ("a", "too much sugar"),
            ("q1", "bleeding gums"),
            ("5", "[2] is no object, and so a question"),
        ],
    )


@pytest.mark.parametrize("line", ['{"id": "a", "question": "again"}', '{"question": 3}', '{"id": "cut'])
def test_a_malformed_line_ends_the_command_after_the_batches_before_it(settings, capsys, tmp_path, line):
    (tmp_path / "asked.jsonl").write_text(f'{{"id": "a", "question": "gums"}}\n{line}\n')
    code, records, err = run(capsys, settings, "--input", tmp_path / "asked.jsonl", "--batch", "1")
    assert (code, [record["id"] for record in records], "line 2" in err) == (2, ["a"], True)


def test_mistakes_end_in_a_sentence_and_exit_code_2(settings, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    for arguments, fact in (
        ([], "no question"),
        (["--resume", "-q", "x"], "--output"),
        (["-q", "x", "-i", settings], "--question and --input"),
        (["--env", "bm25", "-q", "x"], "'bm25'"),
        (["--checkpoint", "best", "-q", "x"], "'best'"),
        (["--revision", "v1", "-q", "x"], "'v1'"),
    ):
        code, records, err = run(capsys, settings, *arguments)
        assert (code, records, fact in err, "Traceback" in err) == (2, [], True, False), err


def test_the_history_of_a_line_stands_before_its_question(settings, capsys, tmp_path):
    history = [{"role": "user", "content": "my head hurts"}, {"role": "assistant", "content": "since when?"}]
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"question": "since monday", "history": history}), encoding="utf-8")
    code, (record,), _ = run(capsys, settings, "-i", lines)
    assert (code, record["question"]) == (0, "since monday")
    assert record["history"] == [{"role": said["role"], "text": said["content"]} for said in history]
