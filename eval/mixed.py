"""Evaluating a run that mixes environments: one report for each, of the policy that was trained on all."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ..configs.mix import chosen
from ..configs.schema import RunConfig
from ..data.mixed_ids import joined
from ..envs.connect import open_environments
from ..envs.mixture import MixedClient
from ..rollouts.checkpoints import find_checkpoint, find_warm_start
from .baselines import compare_with_published
from .compare import (
    evaluate,
    evaluate_systems,
    held_out_questions,
    place_results,
    refuse_overlap,
    refuse_training_split,
)
from .systems import policy_systems


def evaluate_each(
    config: RunConfig,
    run: Path | None,
    output: Path | None,
    name: str | None = None,
    checkpoint_name: str | None = None,
    check: Callable[[str], None] | None = None,
    overwrite: bool = False,
) -> Iterator[Path]:
    """Evaluate on the environment called `name`, or on every one of them; gives the reports as they are written.

    A run of one environment is evaluated by `evaluate`. Of a mix, each report and its files lie in `eval-NAME` of the
    folder where that would have put them. Raises as `evaluate`, ConfigError for an unknown name, and DataError where a
    question to evaluate on one environment was trained on in another.
    """
    asked = chosen(config, name)
    if config.mix is None:
        yield evaluate(config, run, output, checkpoint_name, check, overwrite)
        return
    refuse_training_split(config)
    checkpoint = find_checkpoint(run, checkpoint_name) if run is not None else None
    placement = place_results(config, run, output, checkpoint, overwrite)
    with open_environments(config) as mixed:
        assert isinstance(mixed, MixedClient), "a mix is opened as one"
        for environment, one in asked.items():
            _refuse_trained_elsewhere(one, mixed, environment)
        baselines = {
            name: compare_with_published(mixed.clients[name], one, check) if check is not None else []
            for name, one in asked.items()
        }
        for environment, one in asked.items():
            client = mixed.clients[environment]
            systems = policy_systems(one, client, checkpoint, find_warm_start(run) if run is not None else None)
            place = replace(placement, folder=report_folder(placement.folder, environment))
            yield evaluate_systems(
                one, client, systems, place, run=run, checkpoint=checkpoint, baselines=baselines[environment]
            )


def report_folder(run: Path, environment: str) -> Path:
    """Where the evaluation on one environment of a mix lies in a run folder."""
    return run / f"eval-{environment}"


def _refuse_trained_elsewhere(config: RunConfig, mixed: MixedClient, environment: str) -> None:
    """Members may split the same questions differently; what one trains on tests no other. Equal ids mean nothing."""
    client = mixed.clients[environment]
    asked = joined(environment, held_out_questions(client, client.environment().model_dump(), config))
    for name, other in mixed.clients.items():
        if name != environment and other.environment().splits.get("train"):
            trained = joined(name, other.questions("train"))
            refuse_overlap(f"{environment} with {name}", config.eval.split, asked, trained)
