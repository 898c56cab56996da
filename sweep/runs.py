"""The runs of a sweep: combinations of values, their names, and the check of all of them before one starts.

OUTPUT/SWEEP/configs/RUN.yaml   the settings of each run
OUTPUT/SWEEP/RUN                its run folder
OUTPUT/SWEEP/sweep.md           the table of runs, also as sweep.csv and sweep.json
OUTPUT/SWEEP/job, logs          what was submitted to Slurm
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ..configs.load import dump_config, load_config
from ..configs.names import as_name
from ..configs.schema import RunConfig
from ..configs.sweep import SweepConfig
from ..errors import ConfigError, QuerylectError, in_one_line
from ..rollouts.preflight import check_run
from ..slurm.launch import LaunchOptions
from ..storage import data_sha256, write_text
from ..train.arguments import check_combinations, check_settings
from ..train.run_folder import changed_keys

MOST_RUNS = 1000
_LONGEST_NAME = 100
_SHOWN = 5
"""Invalid combinations that a message lists."""


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
    """A sweep whose runs are all valid."""

    name: str
    folder: Path
    runs: Sequence[SweepRun]


def plan_sweep(
    config: str, overrides: Sequence[str], sweep: SweepConfig, local: bool, options: LaunchOptions | None = None
) -> SweepPlan:
    """All runs of a sweep over `config` with fixed `overrides`, to be trained on this machine (`local`) or in jobs with
    these `options`; with neither, by the fewest processes that its settings allow.

    Raises ConfigError, before anything is written, if one of them is no valid run, or its folder holds another one.
    """
    base = load_config(config, overrides)
    name = sweep.name or f"{base.name}-sweep"
    output = f"{base.output.rstrip('/')}/{name}"
    combinations = list(_combinations(sweep))
    runs, problems = [], []
    for values, run_name in zip(combinations, run_names(combinations), strict=True):
        chosen = {"name": run_name, "output": output, "tracking.group": name}
        try:
            settings = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in (values | chosen).items()]
            run = SweepRun(values, load_config(config, [*overrides, *settings]))
            if local:
                check_settings(run.config, 1)
            elif options is None:
                check_combinations(run.config, run.config.rollout.vllm.tensor_parallel_size)
            runs.append(run)
        except QuerylectError as error:
            problems.append(f"{settings_text(values)}: {in_one_line(error)}")
    if problems:
        raise _invalid(problems, len(combinations))
    _refuse_equal(runs)
    if local:
        _refuse_unusable(runs)
    for run in runs:
        _refuse_other_run(run)
    return SweepPlan(name, Path(base.output).expanduser() / name, runs)


def _combinations(sweep: SweepConfig) -> Iterator[dict[str, object]]:
    """The combinations in the order of the settings, the last one varying fastest; of a sample as they are drawn."""
    total = math.prod(len(values) for values in sweep.set.values())
    count = total if sweep.random is None else sweep.random
    if count > total:
        raise ConfigError(
            f"random asks for {count} runs, and the values have {total} combinations. Ask for fewer, or leave random "
            "out for all of them."
        )
    if count > MOST_RUNS:
        raise ConfigError(
            f"the sweep has {count:,} runs; at most {MOST_RUNS:,} are trained by one. Take fewer values, or a sample "
            "with random."
        )
    numbers: dict[int, None] = dict.fromkeys(range(total)) if sweep.random is None else {}
    draw = Random(sweep.seed)
    while len(numbers) < count:
        numbers[draw.randrange(total)] = None
    for number in numbers:
        combination = {}
        for key, values in reversed(sweep.set.items()):
            number, position = divmod(number, len(values))
            combination[key] = values[position]
        yield {key: combination[key] for key in sweep.set}


def run_names(combinations: Sequence[Mapping[str, object]]) -> list[str]:
    """A name for each, of letters, digits, '.', '_' and '-': settings by their last parts, with their values.

    A name that would be too long, or be that of two combinations, ends in a hash of its own.
    """
    keys = list(combinations[0]) if combinations else []
    labels = {key: _short_key(key, keys) for key in keys}
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


def _short_key(key: str, keys: Sequence[str]) -> str:
    """The last parts of a dotted setting that no other one ends in."""
    parts = key.split(".")
    endings = (".".join(parts[-length:]) for length in range(1, len(parts)))
    return next((end for end in endings if sum(f".{other}".endswith(f".{end}") for other in keys) == 1), key)


def _as_words(value: object) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text_of(value)).strip("-")


def text_of(value: object) -> str:
    """A value as it is typed: text as it stands, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def settings_text(values: Mapping[str, object]) -> str:
    """A combination as it would be typed."""
    return " ".join(f"{key}={text_of(value)}" for key, value in values.items())


def _invalid(problems: Sequence[str], total: int) -> ConfigError:
    more = f"\n… and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    listed = "\n".join(problems[:_SHOWN])
    return ConfigError(
        f"{len(problems)} of {total} combinations cannot be trained, so no run was started:\n{listed}{more}"
    )


def _refuse_equal(runs: Sequence[SweepRun]) -> None:
    """Raise ConfigError if two runs would have the same settings."""
    by_settings: dict[str, SweepRun] = {}
    for run in runs:
        settings = dump_config(run.config.model_copy(update={"name": "run"}))
        twin = by_settings.setdefault(settings, run)
        if twin is not run:
            raise ConfigError(
                f"{settings_text(twin.overrides)} and {settings_text(run.overrides)} are the same run. Leave one of "
                "the values out."
            )


def _refuse_unusable(runs: Sequence[SweepRun]) -> None:
    """Raise ConfigError if an index, a model or a prompt of a run is missing; each is looked at once."""
    problems, checked = [], set()
    for run in runs:
        config = run.config
        used = repr((config.env, config.client, config.mix, config.rewriter, config.policy.model))
        if used in checked:
            continue
        checked.add(used)
        try:
            check_run(config)
        except QuerylectError as error:
            problems.append(f"{settings_text(run.overrides)}: {in_one_line(error)}")
    if problems:
        raise _invalid(problems, len(runs))


def _refuse_other_run(run: SweepRun) -> None:
    """Raise ConfigError if the folder of a run holds one of other settings, which could not be resumed."""
    if not run.is_started:
        return
    changed = changed_keys(load_config(str(run.folder / "config.yaml")), run.config)
    if changed:
        raise ConfigError(
            f"{run.folder} was started with other settings: {'; '.join(changed[:5])}. Give the sweep another name "
            "(--name), or the settings of then."
        )


def write_configs(runs: Sequence[SweepRun]) -> None:
    """Write configs/RUN.yaml of each. Raises StorageError."""
    for run in runs:
        write_text(run.config_file, dump_config(run.config), remedy="Free some space or choose another output=….")
