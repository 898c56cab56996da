"""Folders that a report is made of: a real evaluation of a tiny model, and the same with answers that are hostile."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from querylect.configs.evaluation import SpecConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.schemas import EnvironmentInfo
from querylect.eval.records import read_records, write_records
from querylect.eval.run import evaluate_each
from querylect.eval.spec import evaluate_spec

from .lessons import ASKED, PROMPT, TEXTS

HOSTILE = "</script><script>window.hurt = true</script><img src=x onerror='window.hurt = true'> & \"{{ 7 * 7 }}\" <!--"
LONG = "שאלה על סוכר " + "glucose " * 1300 + "END"
RAW = {"t-head": 0.5, "t-sugar": 1.0, "t-gums": 0.0, "t-fat": 0.5, "t-pills": 0.5}
LAST = {"t-head": 1.0, "t-sugar": 0.0, "t-gums": 0.25, "t-fat": 0.5, "t-pills": None}
"""nDCG@10 of the raw question and of turn 2: two are helped, one is hurt, one unchanged, one unscorable."""


def environment_info(**changes) -> EnvironmentInfo:
    """The description of an environment that does not exist."""
    values = {
        "name": "toy", "retriever": {"name": "bm25", "kind": "bm25"}, "corpus_size": 4, "corpus_hash": "c" * 64,
        "index_hash": "a" * 64, "settings_hash": "s", "gain": "linear", "splits": {},
    }  # fmt: skip
    return EnvironmentInfo(**values | changes)


def evaluate(config, run, output, **options) -> Path:
    """The report of a run with one environment."""
    (report,) = evaluate_each(config, run, output, **options)
    return report


def plan_values(lessons, url, model, folder):
    """A plan of one served environment and two prompted systems, one of which samples."""
    (folder / "prompt.yaml").write_text(PROMPT)
    return {
        "name": "plan",
        "output": str(folder / "out"),
        "permutations": 50,
        "bootstrap": 50,
        "datasets": {"lessons": lessons.dataset.model_dump()},
        "environments": {"bm25": {"urls": {"lessons": [url]}}},
        "policy": {"model": str(model), "dtype": "float32"},
        "rewriter": {"name": "small", "prompt": str(folder / "prompt.yaml")},
        "rollout": {"max_new_tokens": 6, "documents": 2, "document_tokens": 8},
        "systems": {"prompted": {"turns": 2}, "sampled": {"samples": 2}},
    }


def carry_out(values, overwrite=False, **changes):
    """Evaluate a plan; returns its folder, the content of its results.json, and the error of the failed cells."""
    path, failed = evaluate_spec(SpecConfig.model_validate({**values, **changes}), overwrite=overwrite)
    return path.parent, json.loads((path.parent / "results.json").read_text()), failed


@pytest.fixture(scope="session")
def evaluated(lessons, lesson_url, speaking, tmp_path_factory) -> Path:
    """The folder of an evaluated plan; not to be changed."""
    folder = tmp_path_factory.mktemp("evaluated")
    out, _, failed = carry_out(plan_values(lessons, lesson_url, speaking, folder))
    assert failed is None
    return out


@pytest.fixture(scope="session")
def hostile(evaluated, tmp_path_factory) -> Path:
    """The same evaluation with a hostile corpus and hostile answers, and with the scores of RAW and LAST."""
    folder = tmp_path_factory.mktemp("hostile") / "plan"
    shutil.copytree(evaluated, folder)
    corpus = [Document(name, HOSTILE if name == "aspirin" else f"About {name}", text) for name, text in TEXTS.items()]
    questions = [Question(f"t-{name}", text) for name, (text, _) in ASKED.items()]
    qrels = {f"t-{name}": grades for name, (_, grades) in ASKED.items()}
    save_beir(Dataset("hostile", corpus, {"test": Split(questions, qrels)}), folder / "data")
    plan = json.loads((folder / "results.json").read_text())["plan"]
    text = (folder / "plan.yaml").read_text()
    (folder / "plan.yaml").write_text(
        text.replace(plan["datasets"]["lessons"]["path"], str(folder / "data")), encoding="utf-8"
    )
    for system, values in (("raw", RAW), ("prompted", LAST)):
        path = folder / "questions" / f"lessons.bm25.{system}.jsonl"
        records = [_changed(record, values) for record in read_records(path)]
        write_records(path, records)
    return folder


def _changed(record, values):
    """Question and rewrite of a record made hostile, its score set, its ranking all documents in a fixed order."""
    metrics = dict.fromkeys(record.metrics, values[record.question_id])
    ranking = tuple(sorted(TEXTS, reverse=record.turn > 0))
    record = replace(record, metrics=metrics, ranking=ranking, scores=tuple(range(len(ranking), 0, -1)))
    if record.turn:
        rewrite = HOSTILE if record.question_id == "t-head" else f"{record.question_id} rewritten {record.turn}"
        record = replace(record, rewrites=(rewrite,), think="so it is", format_ok=True, plan=None)
    return replace(record, question={"t-head": HOSTILE, "t-sugar": LONG}.get(record.question_id, record.question))
