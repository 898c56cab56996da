"""The runs of a sweep: every combination of some values of settings, each a run of its own, and their table.

OUTPUT/SWEEP/configs/RUN.yaml   the settings of each run
OUTPUT/SWEEP/RUN                its run folder
OUTPUT/SWEEP/sweep.csv          the table of runs, made from their folders alone, so also of runs on a cluster
OUTPUT/SWEEP/logs               of jobs that were submitted to Slurm
"""

import csv
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ruamel.yaml.error import YAMLError

from ..configs.evaluation import RAW
from ..configs.load import dump_config, load_config, parse_yaml
from ..configs.schema import RunConfig
from ..configs.section import as_name
from ..errors import ConfigError, StoppedError
from ..eval.records import TRAINED
from ..eval.results import RESULTS, EvalResults, read_results
from ..eval.table import Arm
from ..markdown_tables import markdown_table
from ..rollouts.checkpoints import best_record, best_value
from ..storage import data_sha256, json_object, logged_objects, only_command, write_text
from ..train.run_folder import changed_keys

_LONGEST_NAME = 100
_VALIDATION = "best validation "
"""Beginning of the columns with the best validation, of which there is one for each metric."""
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals on which a run saves its last step and ends; Ctrl-C and Ctrl-Z come from the terminal."""

Row = dict[str, str | float | None]


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


def plan_sweep(config: str, overrides: Sequence[str], swept: Sequence[str], name: str | None = None) -> SweepPlan:
    """All runs of a sweep over `config` with fixed `overrides`: every combination of the `swept` values, each given as
    KEY=A,B,C.

    Raises ConfigError, before anything is written, for a text of another form, if a run has invalid settings, or if its
    folder holds a run of others.
    """
    values = dict(map(_values_of, swept))
    if len(values) < len(swept):
        raise ConfigError("--set is given twice for one setting. Give all its values at once, as --set KEY=A,B,C.")
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
    try:
        parsed = parse_yaml(f"[{values}]")
    except YAMLError:
        parsed = []
    if not (key and parsed) or key in ("name", "output"):
        raise ConfigError(
            f"--set {text!r} is no setting with values, as --set train.steps=20,40; name and output follow from --name."
        )
    return key, parsed


def run_names(combinations: Sequence[Mapping[str, object]]) -> list[str]:
    """A name for each, of letters, digits, '.', '_' and '-': settings by their last parts, with their values.

    A name that would be too long, or be that of two combinations, ends in a hash of its own.
    """
    labelled = ([f"{key.rpartition('.')[2]}-{_text_of(value)}" for key, value in row.items()] for row in combinations)
    plain = [re.sub("-+", "-", as_name("-".join(words))).strip("-") for words in labelled]
    count = Counter(plain)
    return [
        f"{name[:_LONGEST_NAME]}-{data_sha256(combination)[:8]}"
        if count[name] > 1 or len(name) > _LONGEST_NAME
        else name
        for name, combination in zip(plain, combinations, strict=True)
    ]


def _text_of(value: object) -> str:
    """A value as it is typed: text as it stands, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def run_sweep(plan: SweepPlan, evaluate: bool, report: Callable[[str], None]) -> dict[str, int]:
    """Do here what is left of each run, one after another; `report` gets a line for each command.

    A run that fails is passed over; returns the exit codes of those. Raises StoppedError or KeyboardInterrupt if a
    signal ended a run, StorageError if another command is at work in the folder.
    """
    failed: dict[str, int] = {}
    with only_command(plan.folder):
        for number, run in enumerate(plan.runs, start=1):
            write_text(run.config_file, dump_config(run.config))
            for command in run.commands(evaluate):
                report(f"[{number}/{len(plan.runs)}] {run.name}: {shlex.join(['querylect', *command])}")
                if code := run_process(command, {"WANDB_RUN_GROUP": plan.name}):
                    failed[run.name] = code
                    break
    return failed


def run_process(arguments: Sequence[str], variables: Mapping[str, str]) -> int:
    """The exit code of `querylect ARGUMENTS` in a process of its own, so that a run that fails or is killed for its
    memory ends no other one; its output goes to stderr.

    `variables` are added to its environment, unless they are set already. Raises KeyboardInterrupt or StoppedError once
    it has ended after a signal.
    """
    received: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        process.send_signal(number)

    command = [sys.executable, "-P", "-m", "querylect", *arguments]
    process = subprocess.Popen(command, stdout=2, env={**variables, **os.environ})
    caught = [number for number in _PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in caught}
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the process has got Ctrl-C, too, and saves
        process.wait()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received or code == StoppedError.exit_code:
        message = "a signal ended the run; its last finished step is saved. Give the same command again to go on."
        raise StoppedError(message)
    return code


def write_table(plan: SweepPlan, failed: Mapping[str, int]) -> tuple[Path, list[str]]:
    """Write sweep.csv: what each run changed, how far it is, its validation, its final evaluation, its minutes.

    Returns its path, and the table in Markdown, where the run with the best validation is bold, if all are validated by
    one metric. `failed` has the exit codes of runs that have failed just now.
    """
    rows = [_row(run, failed.get(run.name)) for run in plan.runs]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path = plan.folder / "sweep.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    validation = [column for column in columns if column.startswith(_VALIDATION)]
    if len(validation) == 1:
        scores = [value for row in rows if isinstance(value := row.get(validation[0]), float)]
        for row in rows:
            if scores and row.get(validation[0]) == max(scores):
                row["run"] = f"**{row['run']}**"
    return path, markdown_table(columns, [[_cell(row.get(column)) for column in columns] for row in rows])


def _row(run: SweepRun, exit_code: int | None) -> Row:
    reward, record = run.config.reward, best_record(run.folder)
    steps = logged_objects(run.folder / "metrics.jsonl")
    if exit_code is not None:
        state = f"failed (exit code {exit_code})"
    elif run.is_trained:
        state = "evaluated" if run.is_evaluated else "trained"
    else:
        step = max((int(record["step"]) for record in steps), default=0)
        state = f"step {step} of {run.config.train.steps}" if run.is_started else "not started"
    row: Row = {"run": run.name, **{key: _text_of(value) for key, value in run.overrides.items()}, "state": state}
    if record is not None:
        price = f" less {reward.search_price:g} a search" if reward.search_price else ""
        best = best_value(record, reward.objective, len(run.config.rollout.branching))
        row |= {f"{_VALIDATION}{reward.signal}{price}": best, "step": int(record["step"] or 0)}
    if run.is_evaluated:
        row |= _final_scores(read_results(run.folder))
    seconds = [step.get("seconds/step") for step in steps]
    seconds += [validation.get("seconds") for validation in logged_objects(run.folder / "validation.jsonl")]
    return {**row, "minutes": sum(second or 0.0 for second in seconds) / 60 if seconds else None}


def _final_scores(results: EvalResults) -> Row:
    """The trained policy in each environment, at the turn that its users get: mean, 95 % interval, and the mean of the
    raw question."""
    row: Row = {}
    for environment in results.environments:
        scores = {score.arm: score for score in results.scores if score.environment == environment}
        trained = scores[Arm(TRAINED, results.turn or max(arm.turn for arm in scores if arm.system == TRAINED))]
        low, high = trained.interval or (None, None)
        place = [environment] if len(results.environments) > 1 else []
        name = " ".join([*place, results.split, results.metrics[0]])
        row |= {name: trained.mean, f"{name} low": low, f"{name} high": high, f"{name} raw": scores[Arm(RAW, 0)].mean}
    return row


def _cell(value: str | float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
