"""Finds the held-out evaluation of a checkpoint in its run folder.

`querylect eval` records the hash of the checkpoint it measured. Results are exported only with those weights and
settings.
"""

import shlex
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..configs.load import validated
from ..configs.mix import environments
from ..configs.schema import RunConfig
from ..configs.yaml12 import parse_yaml
from ..data.history import parse_history
from ..data.leakage import words
from ..data.sampling import QuestionSample
from ..data.types import Question
from ..errors import CheckpointError, ConfigError, DataError
from ..eval.placement import EVALUATIONS
from ..eval.records import METRICS, TRAINED
from ..storage import json_object, logged_objects
from .exported import ExportedEnvironment
from .source import CheckpointSource

HELD_OUT = ("validation", "test")

_SHOWN = ("created", "headline", "split", "questions", "sample", "systems", "comparisons")
"""Entries of results.json that an export repeats."""
_PROVENANCE = ("seed", "versions", "licence")
"""And of its `provenance`."""

_ANSWER_SETTINGS = (
    "policy.model",
    "rewriter",
    "rollout.max_prompt_tokens",
    "rollout.documents",
    "rollout.document_tokens",
    "rollout.observation_tokens",
    "rollout.history_tokens",
    "reward.metric",
    "reward.kind",
    "reward.answer.top",
)
"""Settings, besides the weights, that affect answers."""


def find_results(source: CheckpointSource) -> tuple[dict[str, dict[str, Any]], str | None]:
    """The results of these weights by environment name, and the dtype that the weights were loaded in.

    Of several evaluations, the one with the most questions is taken. An environment without results of these weights
    is missing from the dict. If none of its result files is usable, the error of the first one is raised:
    CheckpointError for other settings, DataError for training questions or for the split that selected the checkpoint.
    """
    by_env: dict[str, dict[str, Any]] = {}
    dtypes: set[str] = set()
    for name, config in environments(source.config).items():
        folder = source.run / f"eval-{name}" if name else source.run
        unusable: list[CheckpointError | DataError] = []
        usable: list[tuple[dict[str, Any], str]] = []
        for path in (*folder.glob("results.json"), *sorted(folder.glob(f"{EVALUATIONS}/*/results.json"))):
            try:
                results, dtype = _usable(path, config, source)
            except (CheckpointError, DataError) as error:
                unusable.append(error)
                continue
            if results is not None:
                usable.append((results, dtype))
        if usable:
            by_env[name], dtype = max(usable, key=lambda entry: entry[0]["questions"])  # the first on ties
            dtypes.add(dtype)
        elif unusable:
            raise unusable[0]
    return by_env, next(iter(dtypes)) or None if len(dtypes) == 1 else None


def _usable(path: Path, config: RunConfig, source: CheckpointSource) -> tuple[dict[str, Any] | None, str]:
    """The results in a file and the dtype of the weights; None if the file is about other weights."""
    values = _read(path)
    provenance = values.get("provenance", {})
    if provenance.get("checkpoint_hash") != source.checkpoint_hash:
        return None, ""
    _refuse_other_settings(path, provenance, config)
    return _results(path, values, source), str(provenance.get("dtype") or "")


def refuse_unevaluated(source: CheckpointSource, results: Mapping[str, dict[str, Any]]) -> None:
    """Raise CheckpointError if an environment has no results of these weights."""
    for name in environments(source.config):
        if name in results:
            continue
        run, checkpoint = source.run, source.checkpoint.name
        command = shlex.join(
            ["querylect", "eval", str(run), "--checkpoint", checkpoint, *(["--env", name] if name else [])]
        )
        scope = f" on {name}" if name else ""
        raise CheckpointError(
            f"{run} holds no held-out evaluation{scope} of these weights ({checkpoint}), and a rewriter is published "
            f"with what it gained. Run `{command}`, or export it --without-evaluation, which its card will say."
        )


def _read(path: Path) -> dict[str, Any]:
    values = json_object(path)
    if values is None:
        raise CheckpointError(f"{path} cannot be read, or was cut. Evaluate again.")
    return values


def _results(path: Path, values: dict[str, Any], source: CheckpointSource) -> dict[str, Any]:
    provenance = values["provenance"]
    split = values.get("split")
    if split not in HELD_OUT:
        raise DataError(
            f"{path} was measured on the split {split!r}, which is not held out. Run "
            f"`querylect eval {shlex.quote(str(source.run))}`."
        )
    if split == "validation" and source.checkpoint.name == "best":
        raise DataError(
            f"{path} was measured on the split that chose `best` among the checkpoints, so it flatters. Run "
            f"`querylect eval {shlex.quote(str(source.run))} eval.split=test`."
        )
    try:
        environment = provenance["environment"]
        results = {name: values[name] for name in _SHOWN} | {name: provenance[name] for name in _PROVENANCE}
        sample = values["sample"]
        results["count"] = str(values["questions"] if sample is None else QuestionSample(**sample))
        results["metric"] = METRICS[0]
        results["environment"] = ExportedEnvironment.model_validate(environment).model_dump()
        results["retriever"] = str(environment["retriever"].get("name", ""))
    except (ValidationError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} is not what this version of `querylect eval` writes. Evaluate again.") from error
    measured = {row["turn"] for row in results["systems"] if row["system"] == TRAINED and row["n"]}
    if source.used.turn not in measured:
        raise CheckpointError(
            f"{path} measured turn {', '.join(map(str, sorted(measured))) or 'none'} of the trained policy, and turn "
            f"{source.used.turn} is what its users get ({source.used.reason}). Evaluate again with "
            f"eval.turns={source.used.turn}."
        )
    _refuse_trained_questions(path, source)
    return results


def _refuse_other_settings(path: Path, provenance: dict[str, Any], config: RunConfig) -> None:
    """Raise CheckpointError if the evaluation used other settings than the run."""
    try:
        measured = validated(RunConfig, parse_yaml(str(provenance["config"])), str(path))
    except (ConfigError, KeyError) as error:
        raise CheckpointError(
            f"{path} does not say its settings in a form that this version reads. Evaluate again."
        ) from error
    differing = [key for key in _ANSWER_SETTINGS if attrgetter(key)(measured) != attrgetter(key)(config)]
    if measured.rollout.max_new_tokens != config.rollout.max_new_tokens:
        differing.append("rollout.max_new_tokens")
    if differing:
        raise CheckpointError(
            f"{path} was measured with other settings than those of the run: {', '.join(differing)}. Evaluate again "
            "without overriding them."
        )


def _refuse_trained_questions(path: Path, source: CheckpointSource) -> None:
    """Raise DataError if the evaluation log shares a question with the training log.

    `querylect eval` compares its questions only with the training split of the environment that it searches.
    """
    trained = set(map(words, _questions(source.run / "rollouts.jsonl")))
    shared = [text for text in _questions(path.with_name("eval.jsonl")) if words(text) in trained]
    if shared:
        raise DataError(
            f"{len(set(shared))} questions of {path.with_name('eval.jsonl')} were trained on ({shared[0]!r}), so its "
            "figures are not held out. Take them out of one of the two splits and evaluate again."
        )


def _questions(path: Path) -> Iterator[str]:
    """The questions in a log, each with its history."""
    for record in logged_objects(path):
        yield Question("", record["question"], history=parse_history(record.get("history"))).in_context
