"""benchmarks/adapt_writers.py: its commands are valid, its writer answers what `adapt` asks, a row has the results."""

import shutil
import sys
from pathlib import Path

import pytest
from querylect import benchmarks
from querylect.configs.llm import LlmConfig
from querylect.configs.schema import QuestionsConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.eval.results import EvalResults, write_json
from querylect.eval.table import Comparison, Score
from querylect.questions.models import OneQuestion, excerpt, open_models, prompt

from ..command import end

pytestmark = pytest.mark.server


def results(folder):
    """Those of a run whose trained policy has .3, the others .2."""
    where = {"dataset": "d", "part": "", "environment": "bm25"}
    systems = (("raw", 0, 0.2), ("untrained", 1, 0.2), ("trained", 1, 0.3))
    scores = [
        Score(**where, system=name, turn=turn, label=name, n=2, of=2, metrics={"ndcg@10": mean}, intervals={})
        for name, turn, mean in systems
    ]
    difference = {"n": 2, "left_out": 0, "mean_a": 0.3, "mean_b": 0.2, "difference": 0.1, "low": 0.0, "high": 0.2}
    difference |= {"p": 0.05, "p_holm": 0.1, "wins": 1, "ties": 1, "losses": 0, "effect_size": 1.0}
    comparisons = [
        Comparison(**where, **difference, system="trained", turn=1, against=against, against_turn=turn)
        for against, turn, _ in systems[:2]
    ]
    folder.mkdir(parents=True)
    shown = {"name": "x", "split": "test", "metrics": ["ndcg@10"]}
    write_json(folder / "results.json", EvalResults(**shown, scores=scores, comparisons=comparisons))


def written_by(url, documents):
    """The questions that the writer at `url` gives for documents, "" where it gives none."""
    writer = LlmConfig(model="scripted", base_url=url, cache=None)
    with open_models(QuestionsConfig(writer=writer, words=200)) as models:
        prompts = [prompt("question", OneQuestion, about="x", text=excerpt([document], 200)) for document in documents]
        return [answer.value.question if answer.value else "" for answer in models.generate(prompts, OneQuestion)]


def test_each_row_gives_valid_commands_and_the_scripted_writer_knows_the_questions(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(benchmarks.__path__[0]))
    from querylect.benchmarks import adapt_writers

    corpus = [Document(name, f"About {name}", f"{name} text " * 150) for name in ("a", "b")]
    splits = {split: Split([Question(f"{split}-a", f"{split} of a?")], {f"{split}-a": {"a": 1}}) for split in
              ("train", "validation", "test")}  # fmt: skip
    data = tmp_path / "data"
    save_beir(Dataset("d", corpus, splits), data)
    commands, written = [], []

    def querylect(*arguments):
        commands.append(" ".join(arguments[:2] if arguments[0] == "index" else arguments[:1]))
        if arguments[0] != "eval":
            assert end(*arguments, "--dry-run") == 0
        if "--endpoint" in arguments:
            written.extend(written_by(arguments[arguments.index("--endpoint") + 1], load_beir(data).corpus))
        if arguments[0] == "adapt":
            to = Path(arguments[arguments.index("--to") + 1])
            shutil.copytree(data, to / "dataset")
            results(to / "runs" / to.name)
        if arguments[0] == "eval":
            results(Path(arguments[1]))

    monkeypatch.setattr(adapt_writers, "_querylect", querylect)
    monkeypatch.setattr(sys, "argv", ["adapt_writers.py", str(data), "--to", str(tmp_path / "to"), "train.steps=2"])
    adapt_writers.main()
    assert commands == ["adapt", "adapt", "index build", "train", "eval"]
    assert written == ["train of a?", ""]
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows[-3:]] == ["model", "scripted", "real"]
    assert all("0.200 | 0.200 | 0.300 | +0.100 (+0.000 to +0.200), p = 0.05" in row for row in rows[-3:])
