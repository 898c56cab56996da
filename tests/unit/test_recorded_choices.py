"""benchmarks/recorded_choices.py on a folder in the form of MIRAGE: shares, agreement, and a folder without answers."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ANSWERS = {
    "1": '{"step_by_step_thinking": "so", "answer_choice": "B"}',
    "2": '{"step_by_step_thinking": "so", "answer_choice": "B. no"}',
    "3": "The answer is option A.",
    "4": '{"answer_choice": "A, B"}',
}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield importlib.import_module("recorded_choices")
    del sys.modules["recorded_choices"]


def test_shares_agreement_and_what_is_right(benchmark, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "prediction" / "bioasq" / "cot" / "m"
    folder.mkdir(parents=True)
    for name, text in ANSWERS.items():
        (folder / f"test_{name}.json").write_text(json.dumps([text]))
    (folder / "test_5.json").write_text("[]")
    options = {"options": {"A": "yes", "B": "no"}}
    questions = {name: {**options, "answer": "A" if name == "1" else "B"} for name in ANSWERS}
    (tmp_path / "benchmark.json").write_text(json.dumps({"bioasq": questions}))
    monkeypatch.setattr("sys.argv", ["recorded_choices.py", str(tmp_path), "--unread"])
    benchmark.main()
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert printed[2:4] == [f"4 50.00 % 75.00 % 2 of 2 25.00 % 25.00 % {name}" for name in ("bioasq/cot/m", "all")]
    assert printed[4:] == ["", f"read as None, strictly None: {ANSWERS['4']}"]


def test_a_folder_without_answers_is_refused(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["recorded_choices.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="prediction"):
        benchmark.main()
