"""Runs the stages one after another, and skips those that are finished."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..configs.differences import flat
from ..configs.load import dump_config
from ..configs.schema import RunConfig
from ..errors import ConfigError
from ..storage import KeyedJournal, only_command, write_text
from .stages import AdaptOptions, Stage, StageProgress, stages_of


@dataclass(frozen=True, slots=True)
class StartedStage:
    """A stage that was started, and with what."""

    key: str
    """Its name."""
    settings: dict[str, object]


def adapt(
    config: RunConfig, options: AdaptOptions, progress: StageProgress, report: Callable[[str], None]
) -> Sequence[Stage]:
    """Do what is left of the stages and return all of them; `report` gets a line for each and what it found.

    `config` is from `config_in`. Raises ConfigError if a finished stage was started with other settings, StorageError
    if another command is at work in the folder, and as the stages.
    """
    stages = stages_of(config, options)
    with only_command(options.folder):
        journal = KeyedJournal(options.folder / "stages.jsonl", StartedStage)
        for stage in stages:
            if stage.output.exists():
                _refuse_other_settings(stage, journal.get(stage.name), options)
        write_text(options.config_file, dump_config(config))
        for number, stage in enumerate(stages, start=1):
            label = f"[{number}/{len(stages)}] {stage.name}"
            if stage.output.exists():
                report(f"{label}: {stage.output} is there")
                continue
            report(f"{label}: {stage.command}")
            journal.append([StartedStage(stage.name, dict(stage.settings))])
            for line in stage.run(progress):
                report(line)
    return stages


def _refuse_other_settings(stage: Stage, started: StartedStage | None, options: AdaptOptions) -> None:
    """Raise ConfigError if the output of a finished stage is not what it would be now."""
    if started is None:
        raise ConfigError(
            f"{stage.output} exists, and the stage {stage.name!r} of this command did not write it. Remove it, or name "
            "another folder with --to."
        )
    old, new = dict(flat(started.settings)), dict(flat(stage.settings))
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    if changed:
        raise ConfigError(
            f"the stage {stage.name!r} in {options.folder} is finished, with other settings or documents: "
            f"{', '.join(changed[:5])}. Give those again, name another folder with --to, or do a stage alone, such as "
            f"`{stage.command}`."
        )
