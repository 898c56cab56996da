"""What an export is made of: a checkpoint of a run, its settings and environments, its evaluation, the base model.

`querylect eval` records the hash of the checkpoint it measured. Results are exported only with those weights and
settings.
"""

import logging
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..configs.load import load_run_config, parse_yaml, validated
from ..configs.schema import RunConfig, environments
from ..data.history import parse_history
from ..data.leakage import words
from ..data.types import Question
from ..envs.schemas import EnvironmentInfo
from ..errors import CheckpointError, ConfigError
from ..eval.environments import folder_identity
from ..eval.records import TRAINED
from ..eval.results import RESULTS, EvalResults, read_results
from ..eval.run import EVALUATIONS
from ..eval.table import MEAN, Arm, Comparison, Score
from ..rollouts.checkpoints import UsedTurn, find_checkpoint, refuse_task_model, used_turn
from ..sources import resolve_model
from ..storage import json_object, logged_objects
from ..train.run_folder import changed_keys

log = logging.getLogger(__name__)

UNKNOWN = "unknown"
"""The Hub's value for an unstated licence."""
_ANSWER_SETTINGS = ("policy.model", "rewriter", "rollout", "reward.metric", "reward.kind", "reward.answer.top")
"""Sections and settings, besides the weights, that affect answers."""


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """One checkpoint of one run."""

    run: Path
    config: RunConfig
    checkpoint: Path
    checkpoint_hash: str
    searched: Mapping[str, EnvironmentInfo]
    """Description of each environment by name; {"": …} if there is only one."""
    used: UsedTurn
    """The turn whose rewrite is used."""

    @property
    def step(self) -> int | None:
        """Training steps of the checkpoint, if known."""
        name = self.checkpoint.name
        if match := re.fullmatch(r"checkpoint-(\d+)", name):
            return int(match[1])
        best: Mapping[str, Any] = json_object(self.checkpoint / "best.json") or {}
        return best.get("step") if name == "best" else self.config.train.steps


def open_source(run: Path, checkpoint: str | None = None, trust: bool = False) -> CheckpointSource:
    """The named checkpoint of a run folder, by default the one that `querylect eval` takes.

    Raises ConfigError for a folder that is no run or needs `trust` (as `load_run_config`), CheckpointError if it lacks
    a checkpoint or environment.json.
    """
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"{run} is no run folder: it holds no config.yaml. Give one that `querylect train` wrote.")
    config = load_run_config(run, trust=trust)
    folder = find_checkpoint(run, checkpoint)
    refuse_task_model(config.optimize, folder)
    info = json_object(run / "environment.json") or {}
    searched = {"": info} if config.mix is None else info.get("environments", {})
    if not info or set(searched) != set(environments(config)):
        raise CheckpointError(
            f"{run / 'environment.json'} does not say what was searched. Go on with the run (--resume), which "
            "writes it, or train again."
        )
    described = {name: EnvironmentInfo.model_validate(values) for name, values in searched.items()}
    used = used_turn(config.rollout, config.reward, config.train, run, folder)
    return CheckpointSource(run, config, folder, folder_identity(folder), described, used)


def example_question(run: Path, environment: str) -> Question:
    """The first evaluation question of the run, else its first training question, else a stand-in."""
    for path in (run / "eval.jsonl", run / "rollouts.jsonl"):
        for record in logged_objects(path):
            if not environment or record.get("environment") in (None, environment):
                return Question("example", record["question"], history=parse_history(record.get("history")))
    return Question("example", "What is known about this?")


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
                reasons.append(f" {path} {reason}.")
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
                f"which its card will say.{''.join(reasons)}"
            )
    return results


def _unusable(path: Path, results: EvalResults, name: str, source: CheckpointSource) -> str:
    """Why results are not a held-out evaluation of what is exported in an environment; "" if they are."""
    if name and name not in results.environments:
        return f"was not measured on {name}"
    if results.provenance.get("checkpoint_hash") != source.checkpoint_hash:
        return "measured other weights"
    if results.split not in ("validation", "test"):
        return f"was measured on the split {results.split!r}, which is not held out"
    if results.split == "validation" and source.checkpoint.name == "best":
        return "was measured on the split that chose `best` among the checkpoints, so it flatters: eval.split=test"
    measured = validated(RunConfig, parse_yaml(results.config), str(path))
    here, there = (environments(config)[name] for config in (source.config, measured))
    if differing := [change for change in changed_keys(here, there) if change.startswith(_ANSWER_SETTINGS)]:
        return f"was measured with other settings than those of the run: {'; '.join(differing)}"
    turn, reason = source.used.turn, source.used.reason
    score = results.score(Arm(TRAINED, turn), environment=name)
    if score is None or not score.n:
        return f"did not measure turn {turn}, which its users get ({reason}): eval.turns={turn}"
    # `querylect eval` compares its questions only with the training split of the environment that it searches
    trained, evaluated = (_questions(file) for file in (source.run / "rollouts.jsonl", path.with_name("eval.jsonl")))
    if shared := trained & evaluated:
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

    of_machine: dict[str, Any] = {"config": "", "facts": {}, "identity": {}, "examples": [], "failed": []}

    def of_environment(row: Score | Comparison) -> bool:
        return row.environment == name and row.dataset != MEAN

    return replace(
        results,
        provenance=published,
        scores=list(filter(of_environment, results.scores)),
        comparisons=list(filter(of_environment, results.comparisons)),
        samples={dataset: results.samples[dataset]} if dataset in results.samples else {},
        **of_machine,
    )


@dataclass(frozen=True, slots=True)
class BaseModelSource:
    """The base model of a run, described without anything specific to this machine."""

    name: str
    """The Hub id, or the name of the local folder or package."""
    hub_id: str | None
    """None if the model exists only on this machine."""
    dequantised: bool
    """Whether the weights came from a quantised GGUF file, so that no published safetensors file has the same ones."""
    licence: Mapping[str, Any]
    """`license`, and `license_name` and `license_link` if it is "other", as in the metadata of a model card."""


def base_of(model: str, base_id: str | None = None, licence: str | None = None) -> BaseModelSource:
    """The base model behind `policy.model`.

    `base_id` is the Hub id of a model given as a folder or package; `licence` overrides the one that is looked up.
    Raises ModelError if the model cannot be resolved.
    """
    path = Path(resolve_model(model))
    hub_id = base_id if path.is_dir() else model
    name = hub_id or (model if model.startswith("package:") else path.resolve().name)
    gguf = [] if any(path.glob("*.safetensors")) else sorted(path.glob("*.gguf"))
    base_licence = {"license": licence} if licence else _licence(path, gguf)
    if base_licence["license"] == UNKNOWN:
        log.warning("%s does not say its licence; the card says `unknown`. State it with --license ID", name)
    return BaseModelSource(name, hub_id, bool(gguf), base_licence)


def _licence(model: Path, gguf: list[Path]) -> dict[str, Any]:
    """The licence in the card of a model folder or Hub id, or in its GGUF file."""
    from huggingface_hub import ModelCard
    from huggingface_hub.errors import EntryNotFoundError

    card = model / "README.md" if model.is_dir() else str(model)
    try:
        data = ModelCard.load(card, ignore_metadata_errors=True).data
        keys = ("license", "license_name", "license_link")
        return {"license": UNKNOWN} | {key: data.get(key) for key in keys if data.get(key)}
    except (OSError, ValueError, EntryNotFoundError) as error:
        log.debug("the card of %s could not be read: %s", model, error)
    for file in gguf[:1]:
        from gguf import GGUFReader

        if (field := GGUFReader(file).fields.get("general.license")) is not None:
            return {"license": str(field.contents()).lower()}
    return {"license": UNKNOWN}
