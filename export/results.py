"""Finds the held-out evaluation of a checkpoint in its run folder.

`querylect eval` records the hash of the checkpoint it measured. Results are exported only with those weights and
settings.
"""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..configs.load import parse_yaml, validated
from ..configs.schema import RunConfig, environments
from ..data.history import parse_history
from ..data.leakage import words
from ..data.types import Question
from ..errors import CheckpointError
from ..eval.records import TRAINED
from ..eval.results import RESULTS, EvalResults, read_results
from ..eval.run import EVALUATIONS
from ..eval.table import MEAN, Arm, Comparison, Score
from ..storage import logged_objects
from ..train.run_folder import changed_keys
from .source import CheckpointSource

HELD_OUT = ("validation", "test")
_ANSWER_SETTINGS = ("policy.model", "rewriter", "rollout", "reward.metric", "reward.kind", "reward.answer.top")
"""Sections and settings, besides the weights, that affect answers."""


def find_results(source: CheckpointSource, required: bool = True) -> dict[str, EvalResults]:
    """The results of these weights by environment name; of several evaluations the one with the most questions.

    If they are `required`, an environment without any raises CheckpointError, which says why the evaluations that
    there are cannot be used.
    """
    results: dict[str, EvalResults] = {}
    paths = (*source.run.glob(RESULTS), *sorted(source.run.glob(f"{EVALUATIONS}/*/{RESULTS}")))
    for name in environments(source.config):
        usable, reasons = [], []
        for path in paths:
            evaluated = read_results(path)
            if reason := _unusable(path, evaluated, name, source):
                reasons.append(f"{path} {reason}")
            else:
                usable.append(_published(evaluated, name or evaluated.environments[0]))
        if usable:
            results[name] = max(usable, key=questions_asked)  # the first on ties
        elif required:
            command = ["querylect", "eval", str(source.run), "--checkpoint", source.checkpoint.name]
            raise CheckpointError(
                f"{source.run} holds no held-out evaluation{f' on {name}' if name else ''} of these weights "
                f"({source.checkpoint.name}), and a rewriter is published with what it gained. Run "
                f"`{shlex.join([*command, *(['--env', name] if name else [])])}`, or export it --without-evaluation, "
                f"which its card will say.{''.join(f' {reason}.' for reason in reasons)}"
            )
    return results


def _unusable(path: Path, results: EvalResults, name: str, source: CheckpointSource) -> str:
    """Why results are not a held-out evaluation of what is exported in an environment; "" if they are."""
    if name and name not in results.environments:
        return f"was not measured on {name}"
    if results.provenance.get("checkpoint_hash") != source.checkpoint_hash:
        return "measured other weights"
    if results.split not in HELD_OUT:
        return f"was measured on the split {results.split!r}, which is not held out"
    if results.split == "validation" and source.checkpoint.name == "best":
        return "was measured on the split that chose `best` among the checkpoints, so it flatters: eval.split=test"
    measured = validated(RunConfig, parse_yaml(results.config), str(path))
    here, there = (environments(config)[name] for config in (source.config, measured))
    if differing := [change for change in changed_keys(here, there) if change.startswith(_ANSWER_SETTINGS)]:
        return f"was measured with other settings than those of the run: {'; '.join(differing)}"
    used = source.used
    score = results.score(Arm(TRAINED, used.turn), environment=name)
    if score is None or not score.n:
        return f"did not measure turn {used.turn}, which its users get ({used.reason}): eval.turns={used.turn}"
    # `querylect eval` compares its questions only with the training split of the environment that it searches
    trained = _questions(source.run / "rollouts.jsonl")
    if shared := trained & _questions(path.with_name("eval.jsonl")):
        return f"shares {len(shared)} questions with the training, so it is not held out"
    return ""


def questions_asked(results: EvalResults) -> int:
    """Questions of the evaluation, of which some may have failed."""
    return max(score.of for score in results.scores)


def _questions(path: Path) -> set[Any]:
    """The words of the questions in a log, each with its history."""
    return {
        words(Question("", record["question"], history=parse_history(record.get("history"))).in_context)
        for record in logged_objects(path)
    }


def _published(results: EvalResults, name: str) -> EvalResults:
    """What an export repeats of results, of one environment."""
    environment = results.provenance["environments"][name]
    dataset = environment["dataset"]
    published = {key: results.provenance[key] for key in ("seed", "versions", "dtype")}
    published["licence"] = results.provenance["licences"].get(dataset, "")
    published["environment"] = {key: environment[key] for key in ("name", "corpus_size", "corpus_hash", "index_hash")}
    published["retriever"] = environment["retriever"]

    def of_environment(row: Score | Comparison) -> bool:
        return row.environment == name and row.dataset != MEAN

    return replace(
        results,
        provenance=published,
        scores=list(filter(of_environment, results.scores)),
        comparisons=list(filter(of_environment, results.comparisons)),
        samples={dataset: results.samples[dataset]} if dataset in results.samples else {},
        config="",
        facts={},
        identity={},
        examples=[],
        cells=[],
        failed=[],
    )
