"""Evaluations for tests: a plan of a served environment, and the report of a run."""

import json
from dataclasses import replace
from pathlib import Path

from querylect.configs.evaluation import SpecConfig
from querylect.data.types import Question
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import EnvironmentInfo, HitBody, StepResult
from querylect.eval.records import METRICS, RAW, read_records, record_of_search
from querylect.eval.run import results_folder, spec_of_run
from querylect.eval.spec import evaluate_spec

from .lessons import PROMPT


def environment_info(**changes) -> EnvironmentInfo:
    """The description of an environment that does not exist."""
    values = {
        "name": "toy", "retriever": {"name": "bm25", "kind": "bm25"}, "corpus_size": 4, "corpus_hash": "c" * 64,
        "index_hash": "a" * 64, "settings_hash": "s", "splits": {},
    }  # fmt: skip
    return EnvironmentInfo(**values | changes)


def evaluate(config, run=None, output=None, checkpoint=None, environment=None, overwrite=False) -> Path:
    """The report of a run, as `querylect eval` writes it."""
    spec = spec_of_run(config, run, checkpoint, environment)
    path, failed = evaluate_spec(spec, output or results_folder(spec, config, run), overwrite, run=config)
    if failed is not None:
        raise failed
    return path


def records_of(folder, system):
    """The records of one system in a results folder."""
    return [record for record in read_records(folder / "eval.jsonl") if record.system == system]


def row(question, value=0.5, turn=0, sample=0):
    """The record of a search, with `value` as every metric; None where it failed."""
    result = None
    if value is not None:
        metrics = dict.fromkeys(METRICS, value)
        result = StepResult(question_id=question, ranking=[HitBody(id="d", score=1.0)], reward=value, metrics=metrics)
    asked = Question(question, f"question {question[1:]}")
    record = record_of_search(RAW, asked, ["x"], SearchPlan.of("x"), result, METRICS)
    return replace(record, turn=turn, sample=sample)


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
        "rewriter": {"name": "few_shot", "prompt": str(folder / "prompt.yaml")},
        "rollout": {"max_new_tokens": 6, "documents": 2, "document_tokens": 8},
        "systems": {"prompted": {"turns": 2}, "sampled": {"samples": 2}},
    }


def carry_out(values, overwrite=False, **changes):
    """Evaluate a plan; returns its folder, the content of its results.json, and the error of the failed cells."""
    path, failed = evaluate_spec(SpecConfig.model_validate({**values, **changes}), overwrite=overwrite)
    return path.parent, json.loads((path.parent / "results.json").read_text()), failed
