"""The runs of a sweep: combinations of values and their names.

OUTPUT/SWEEP/configs/RUN.yaml   the settings of each run
OUTPUT/SWEEP/RUN                its run folder
OUTPUT/SWEEP/sweep.md           the table of runs, also as sweep.csv
OUTPUT/SWEEP/logs               of jobs that were submitted to Slurm
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..configs.load import dump_config, load_config
from ..configs.schema import RunConfig
from ..configs.section import as_name
from ..errors import ConfigError
from ..slurm.launch import SweepJobs
from ..storage import data_sha256, write_text
from ..train.run_folder import changed_keys

_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run of a sweep."""

    overrides: Mapping[str, object]
    """The value of every swept setting."""
    config: RunConfig

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def folder(self) -> Path:
        return self.config.run_folder

    @property
    def config_file(self) -> Path:
        return self.folder.parent / "configs" / f"{self.name}.yaml"

    @property
    def is_started(self) -> bool:
        return (self.folder / "config.yaml").exists()

    @property
    def is_trained(self) -> bool:
        return (self.folder / "final").is_dir()

    @property
    def result_files(self) -> dict[str, Path]:
        """results.json of the final evaluation by environment of a mix; without a mix by ""."""
        names = self.config.mix.environments if self.config.mix is not None else [""]
        return {name: self.folder / (f"eval-{name}" if name else "") / "results.json" for name in names}

    @property
    def is_evaluated(self) -> bool:
        return all(path.is_file() for path in self.result_files.values())


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep whose runs all have valid settings."""

    name: str
    folder: Path
    runs: Sequence[SweepRun]


def plan_sweep(
    config: str, overrides: Sequence[str], swept: Mapping[str, Sequence[object]], name: str | None = None
) -> SweepPlan:
    """All runs of a sweep over `config` with fixed `overrides`: every combination of the `swept` values.

    Raises ConfigError, before anything is written, if a run has invalid settings, or its folder holds a run of others.
    """
    base = load_config(config, overrides)
    name = as_name(name) if name else f"{base.name}-sweep"
    output = f"{base.output.rstrip('/')}/{name}"
    combinations = [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]
    runs = []
    for values, run_name in zip(combinations, run_names(combinations), strict=True):
        chosen = {"name": run_name, "output": output}
        settings = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in (values | chosen).items()]
        run = SweepRun(values, load_config(config, [*overrides, *settings]))
        if run.is_started and (changed := changed_keys(load_config(str(run.folder / "config.yaml")), run.config)):
            raise ConfigError(
                f"{run.folder} was started with other settings: {'; '.join(changed[:5])}. Give the sweep another name "
                "(--name), or the settings of then."
            )
        runs.append(run)
    return SweepPlan(name, Path(base.output).expanduser() / name, runs)


def run_names(combinations: Sequence[Mapping[str, object]]) -> list[str]:
    """A name for each, of letters, digits, '.', '_' and '-': settings by their last parts, with their values.

    A name that would be too long, or be that of two combinations, ends in a hash of its own.
    """
    keys = list(combinations[0]) if combinations else []
    last_parts = Counter(key.rpartition(".")[2] for key in keys)
    labels = {key: key if last_parts[key.rpartition(".")[2]] > 1 else key.rpartition(".")[2] for key in keys}
    plain = [
        as_name("-".join(f"{labels[key]}-{_as_words(value)}" for key, value in combination.items()))
        for combination in combinations
    ]
    count = Counter(plain)
    return [
        f"{name[:_LONGEST_NAME]}-{data_sha256(combination)[:8]}"
        if count[name] > 1 or len(name) > _LONGEST_NAME
        else name
        for name, combination in zip(plain, combinations, strict=True)
    ]


def _as_words(value: object) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text_of(value)).strip("-")


def text_of(value: object) -> str:
    """A value as it is typed: text as it stands, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write_configs(runs: Sequence[SweepRun]) -> None:
    """Write configs/RUN.yaml of each. Raises StorageError."""
    for run in runs:
        write_text(run.config_file, dump_config(run.config))


def jobs_of_sweep(plan: SweepPlan, evaluate: bool, at_once: int | None) -> SweepJobs:
    """The runs that are not finished, for Slurm. Raises ConfigError if all of them are."""
    training = {run.config_file: run.config for run in plan.runs if not run.is_trained}
    trained = [run.folder for run in plan.runs if evaluate and run.is_trained and not run.is_evaluated]
    if not (training or trained):
        raise ConfigError(
            f"all {len(plan.runs)} runs of {plan.folder} are finished; --table instead of --slurm writes their table."
        )
    return SweepJobs(plan.folder, training, trained, evaluate, at_once)
