"""benchmarks/adapt_writers.py on a folder of twenty passages: a scripted writer against the real training questions."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from querylect.cli import main
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Dataset, Document, Question, Split

from ..handbook import CLARITY, THINGS, short_run

pytestmark = pytest.mark.server


@pytest.fixture
def folder(tmp_path):
    """One passage for each thing; questions use a synonym. Three in five have training questions."""
    corpus, splits = [], {"train": {}, "validation": {}, "test": {}}
    for number, (name, common) in enumerate(THINGS.items()):
        corpus.append(Document(name, f"Rule {number}", f"The {name} costs {number + 3} coins a month. {CLARITY}"))
        split = ("train", "train", "train", "validation", "test")[number % 5]
        splits[split][f"q{number}"] = (f"Is a {common} or another {common} cheap?", name)
    split_data = {
        split: Split(
            [Question(name, text) for name, (text, _) in rows.items()],
            {name: {relevant: 1} for name, (_, relevant) in rows.items()},
        )
        for split, rows in splits.items()
    }
    save_beir(Dataset("things", corpus, split_data), tmp_path / "things")
    return tmp_path / "things"


@pytest.mark.slow
@pytest.mark.usefixtures("service_in_thread")
def test_a_scripted_writer_gives_the_real_questions_and_both_are_trained_on(
    folder, speaking, tmp_path, monkeypatch, capsys
):  # fmt: skip
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    writers = importlib.import_module("adapt_writers")

    def in_this_process(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code in (0, None)

    monkeypatch.setattr(writers, "_querylect", in_this_process)
    settings = [*short_run(speaking, tmp_path), "train.steps=1", "train.validate_steps=1", "synthetic.min_words=5"]
    monkeypatch.setattr(
        sys, "argv", ["adapt_writers.py", str(folder), "--to", str(tmp_path / "out"), "--passages", "40",
                      "--row", "scripted", "--row", "real", *settings]
    )  # fmt: skip
    writers.main()
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in row[:3]] for row in rows[2:]] == [
        ["scripted", str(len(load_beir(tmp_path / "out/scripted/dataset").splits["train"].questions)), "0.000"],
        ["real", "12", "0.000"],
    ]
    scripted = load_beir(tmp_path / "out/scripted/dataset")
    real = load_beir(folder)
    texts = {question.text for question in real.splits["train"].questions}
    assert {
        question.text for split in ("train", "validation") for question in scripted.splits[split].questions
    } <= texts
    assert scripted.splits["test"].questions == real.splits["test"].questions
    results = json.loads((tmp_path / "out/real/runs/real/results.json").read_text())
    assert results["scores"][0]["of"] == 4
