"""Evaluations for tests: a plan of a served environment, and the report of a run."""

import json
from pathlib import Path

from querylect.configs.evaluation import SpecConfig
from querylect.envs.schemas import EnvironmentInfo
from querylect.eval.run import evaluate_each
from querylect.eval.spec import evaluate_spec

from .lessons import PROMPT


def environment_info(**changes) -> EnvironmentInfo:
    """The description of an environment that does not exist."""
    values = {
        "name": "toy", "retriever": {"name": "bm25", "kind": "bm25"}, "corpus_size": 4, "corpus_hash": "c" * 64,
        "index_hash": "a" * 64, "settings_hash": "s", "splits": {},
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
        "rewriter": {"name": "few_shot", "prompt": str(folder / "prompt.yaml")},
        "rollout": {"max_new_tokens": 6, "documents": 2, "document_tokens": 8},
        "systems": {"prompted": {"turns": 2}, "sampled": {"samples": 2}},
    }


def carry_out(values, overwrite=False, **changes):
    """Evaluate a plan; returns its folder, the content of its results.json, and the error of the failed cells."""
    path, failed = evaluate_spec(SpecConfig.model_validate({**values, **changes}), overwrite=overwrite)
    return path.parent, json.loads((path.parent / "results.json").read_text()), failed
