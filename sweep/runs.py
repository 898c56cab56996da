"""The runs of a sweep: every combination of some values of settings, each a run of its own.

OUTPUT/SWEEP/configs/RUN.yaml   the settings of each run
OUTPUT/SWEEP/RUN                its run folder
OUTPUT/SWEEP/sweep.csv          the table of runs
OUTPUT/SWEEP/logs               of jobs that were submitted to Slurm
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml.error import YAMLError

from ..configs.load import load_config, parse_yaml
from ..configs.schema import RunConfig
from ..configs.section import as_name
from ..errors import ConfigError
from ..eval.results import RESULTS
from ..slurm.launch import SweepJobs
from ..storage import data_sha256, json_object
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
    def is_evaluated(self) -> bool:
        results = json_object(self.folder / RESULTS)
        return results is not None and not results.get("failed")

    def commands(self, evaluate: bool) -> list[list[str]]:
        """What is left to do, as arguments of `querylect`."""
        resume = ["--resume"] if self.is_started else []
        train = [] if self.is_trained else [["train", str(self.config_file), *resume]]
        return train + ([["eval", str(self.folder)]] if evaluate and not self.is_evaluated else [])


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep whose runs all have valid settings."""

    name: str
    folder: Path
    runs: Sequence[SweepRun]

    def jobs(self, evaluate: bool, at_once: int | None) -> SweepJobs:
        """The runs that are not finished, for Slurm. Raises ConfigError if all of them are."""
        training = {run.config_file: run.config for run in self.runs if not run.is_trained}
        trained = [run.folder for run in self.runs if evaluate and run.is_trained and not run.is_evaluated]
        if not (training or trained):
            raise ConfigError(f"all {len(self.runs)} runs of {self.folder} are finished; --table writes their table.")
        return SweepJobs(self.folder, training, trained, evaluate, at_once)


def plan_sweep(config: str, overrides: Sequence[str], swept: Sequence[str], name: str | None = None) -> SweepPlan:
    """All runs of a sweep over `config` with fixed `overrides`: every combination of the `swept` values, each given as
    KEY=A,B,C.

    Raises ConfigError, before anything is written, for a text of another form, if a run has invalid settings, or if its
    folder holds a run of others.
    """
    parsed = list(map(_values_of, swept))
    values = dict(parsed)
    if repeated := [key for key, count in Counter(key for key, _ in parsed).items() if count > 1]:
        raise ConfigError(f"--set {repeated[0]} is given twice. Give all its values at once, as --set KEY=A,B,C.")
    base = load_config(config, overrides)
    name = as_name(name) if name else f"{base.name}-sweep"
    output = f"{base.output.rstrip('/')}/{name}"
    combinations = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    runs = []
    for combination, run_name in zip(combinations, run_names(combinations), strict=True):
        chosen = combination | {"name": run_name, "output": output}
        settings = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in chosen.items()]
        run = SweepRun(combination, load_config(config, [*overrides, *settings]))
        if run.is_started and (changed := changed_keys(load_config(str(run.folder / "config.yaml")), run.config)):
            raise ConfigError(
                f"{run.folder} was started with other settings: {'; '.join(changed[:5])}. Give the sweep another name "
                "(--name), or the settings of then."
            )
        runs.append(run)
    return SweepPlan(name, Path(base.output).expanduser() / name, runs)


def _values_of(text: str) -> tuple[str, list[object]]:
    """A setting and its values. Raises ConfigError for a text that is no key with values, and for what a sweep sets."""
    key, _, values = text.partition("=")
    if key in ("name", "output"):
        raise ConfigError(f"a sweep sets {key} itself. Leave it out, and name the sweep with --name.")
    try:
        parsed = parse_yaml(f"[{values}]")
    except YAMLError:
        parsed = []
    if any(value in parsed[:number] for number, value in enumerate(parsed)):
        raise ConfigError(f"--set {text!r} has a value twice, and equal runs are one. Leave one out.")
    if not (key and parsed):
        raise ConfigError(f"--set {text!r} is no key with values. Write it as --set train.steps=20,40.")
    return key, parsed


def run_names(combinations: Sequence[Mapping[str, object]]) -> list[str]:
    """A name for each, of letters, digits, '.', '_' and '-': settings by their last parts, with their values.

    A name that would be too long, or be that of two combinations, ends in a hash of its own.
    """
    labelled = ([f"{key.rpartition('.')[2]}-{text_of(value)}" for key, value in row.items()] for row in combinations)
    plain = [re.sub("-+", "-", as_name("-".join(words))).strip("-") for words in labelled]
    count = Counter(plain)
    return [
        f"{name[:_LONGEST_NAME]}-{data_sha256(combination)[:8]}"
        if count[name] > 1 or len(name) > _LONGEST_NAME
        else name
        for name, combination in zip(plain, combinations, strict=True)
    ]


def text_of(value: object) -> str:
    """A value as it is typed: text as it stands, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
