"""The held-out evaluation of a checkpoint: found in the run folder, and refused where it is of something else.

`querylect eval` writes the hash of the checkpoint that it measured. Results leave with exactly those weights, under the
settings that they were measured with, and never with figures on questions that were trained on.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..configs.load import validated
from ..configs.mix import environments
from ..configs.run_settings import known_settings
from ..configs.schema import RunConfig
from ..configs.yaml12 import parse_yaml
from ..data.leakage import words
from ..errors import CheckpointError, ConfigError, DataError
from ..eval.placement import EVALUATIONS
from ..eval.records import METRICS, TRAINED
from .exported import ExportedResults
from .source import Source, read_json

log = logging.getLogger(__name__)

HELD_OUT = ("validation", "test")

_SAME = (
    "policy.model",
    "rewriter",
    "rollout.max_prompt_tokens",
    "rollout.documents",
    "rollout.document_tokens",
    "rollout.observation_tokens",
    "rollout.keep_rewrites_weight",
    "reward.metric",
)
"""Settings that answers depend on, besides the weights."""


def find_results(source: Source) -> tuple[dict[str, ExportedResults], str | None]:
    """The results of these weights by the name of their environment, and the type that they were loaded in.

    Of several evaluations the one of the most questions is taken. An environment without results of these weights is
    missing. Where none of its files can be used, raises what the
    first one lacks: CheckpointError for results under other settings, DataError for questions that were trained on or
    the split that chose the checkpoint.
    """
    found: dict[str, ExportedResults] = {}
    dtypes: set[str] = set()
    for name, config in environments(source.config).items():
        unusable: list[CheckpointError | DataError] = []
        usable: list[tuple[Path, ExportedResults, str]] = []
        for path in _places(source.run, name):
            try:
                results, dtype = _usable(path, config, source)
            except (CheckpointError, DataError) as error:
                unusable.append(error)
                continue
            if results is not None:
                usable.append((path, results, dtype))
        if usable:
            path, found[name], dtype = max(usable, key=lambda one: one[1].questions)  # the first of equals
            dtypes.add(dtype)
            log.info("the card shows %s: %s %s questions", path, found[name].count, found[name].split)
        elif unusable:
            raise unusable[0]
    return found, next(iter(dtypes)) or None if len(dtypes) == 1 else None


def _usable(path: Path, config: RunConfig, source: Source) -> tuple[ExportedResults | None, str]:
    """The results in a file and the type that the weights were loaded in; None for those of other weights."""
    values = _read(path)
    said = values.get("provenance", {})
    if said.get("checkpoint_hash") != source.checkpoint_hash:
        return None, ""
    _refuse_other_settings(path, said, config)
    return _results(path, values, source), str(said.get("dtype") or "")


def refuse_unevaluated(source: Source, found: Mapping[str, ExportedResults]) -> None:
    """CheckpointError where an environment has no results of these weights; it says what there is instead."""
    for name in environments(source.config):
        if name in found:
            continue
        run, checkpoint = source.run, source.checkpoint.name
        command = f"querylect eval {run} --checkpoint {checkpoint}" + (f" --env {name}" if name else "")
        others = [path for path in _places(run, name) if path.is_file()]
        where = f" on {name}" if name else ""
        if not others:
            raise CheckpointError(
                f"{run} holds no held-out evaluation{where} of {checkpoint}, and a rewriter is published with what it "
                f"gained. Run `{command}`, or export it --without-evaluation, which its card will say."
            )
        measured = Path(str(_read(others[0]).get("provenance", {}).get("checkpoint") or "no checkpoint"))
        same = measured.name == checkpoint
        what = "other weights under that name, or by an earlier version" if same else measured.name
        raise CheckpointError(
            f"{others[0]} was measured on {what}, and {checkpoint} is exported. Run `{command}`, export the "
            "checkpoint that was measured (--checkpoint), or export this one --without-evaluation."
        )


def _places(run: Path, environment: str) -> Iterator[Path]:
    """Where results may lie: in the run folder first, then where `querylect eval` put others of it, also by -o."""
    inside = f"eval-{environment}/" if environment else ""
    aside = run.glob(f"{inside}{EVALUATIONS}/*/results.json")
    others = sorted(
        {*aside, *run.glob(f"*/{inside}results.json"), *run.glob(f"*/{EVALUATIONS}/*/{inside}results.json")}
    )
    first = run / f"{inside}results.json"
    yield from (path for path in (first, *(one for one in others if one != first)) if path.is_file())


def _read(path: Path) -> dict[str, Any]:
    values = read_json(path)
    if values is None:
        raise CheckpointError(f"{path} cannot be read, or was cut. Evaluate again.")
    return values


def _results(path: Path, values: dict[str, Any], source: Source) -> ExportedResults:
    said = values["provenance"]
    split = values.get("split")
    if split not in HELD_OUT:
        raise DataError(
            f"{path} was measured on the split {split!r}, which is not held out. Run `querylect eval {source.run}`."
        )
    if split == "validation" and source.checkpoint.name == "best":
        raise DataError(
            f"{path} was measured on the split that chose `best` among the checkpoints, so it flatters. Run "
            f"`querylect eval {source.run} eval.split=test`."
        )
    try:
        results = ExportedResults.model_validate(
            {
                **values,
                "metric": METRICS[0],
                "environment": said["environment"],
                "retriever": str(said["environment"]["retriever"].get("name", "")),
                "seed": said["seed"],
                "versions": said["versions"],
                "licence": said["licence"],
            }
        )
    except (ValidationError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} is not what this version of `querylect eval` writes. Evaluate again.") from error
    if not any(row.system == TRAINED and row.n for row in results.systems):
        raise CheckpointError(f"{path} holds no scored answer of the trained policy. Evaluate again.")
    measured = {row.turn for row in results.systems if row.system == TRAINED and row.n}
    if source.used.turn not in measured:
        raise CheckpointError(
            f"{path} measured turn {', '.join(map(str, sorted(measured)))} of the trained policy, and turn "
            f"{source.used.turn} is what its users get ({source.used.reason}). Evaluate again with "
            f"eval.turns={source.used.turn}."
        )
    _refuse_trained_questions(path, source)
    return results


def _refuse_other_settings(path: Path, said: dict[str, Any], config: RunConfig) -> None:
    """The weights are the same; what they were asked must be too."""
    try:
        measured = validated(RunConfig, known_settings(RunConfig, parse_yaml(str(said["config"])))[0], str(path))
    except (ConfigError, KeyError) as error:
        raise CheckpointError(
            f"{path} does not say its settings in a form that this version reads. Evaluate again."
        ) from error
    differing = [key for key in _SAME if _setting(measured, key) != _setting(config, key)]
    turns = range(1, max(measured.eval.turns, 1) + 1)
    if any(measured.rollout.new_tokens(turn) != config.rollout.new_tokens(turn) for turn in turns):
        differing.append("rollout.max_new_tokens")
    if differing:
        raise CheckpointError(
            f"{path} was measured with other settings than those of the run: {', '.join(differing)}. Evaluate again "
            "without overriding them."
        )


def _setting(config: RunConfig, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _refuse_trained_questions(path: Path, source: Source) -> None:
    """Evaluation refuses them too; this sees what it wrote beside what training logged."""
    trained = {words(text): text for text in _questions(source.run / "rollouts.jsonl")}
    shared = sorted({text for text in _questions(path.with_name("eval.jsonl")) if words(text) in trained})
    if shared:
        raise DataError(
            f"{len(shared)} questions of {path.with_name('eval.jsonl')} were trained on ({shared[0]!r}), so its "
            "figures are not held out. Take them out of one of the two splits and evaluate again."
        )


def _questions(path: Path) -> Iterator[str]:
    """The texts of the questions in a log; none where there is no such file."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                question = json.loads(line).get("question")
            except (ValueError, AttributeError):
                continue
            if isinstance(question, str):
                yield question
