"""A sweep as a job array: one task per run, each a training job of its own; its evaluation follows in a second array.

A script names the configs of its runs by path. A later call with other values writes a new script and new configs, so
jobs that are still waiting are not changed.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..configs.load import dump_config
from ..configs.schema import RunConfig
from ..errors import ClusterError, ConfigError
from ..storage import writing
from .launch import (
    Job,
    JobTarget,
    LaunchOptions,
    describe_jobs,
    make_job,
    placement_of,
    requested_options,
    require_sbatch,
    script_of,
    submit_chain,
    write_script,
)
from .requests import refuse_paths

TASK = "${SLURM_ARRAY_TASK_ID:-1}"


@dataclass(frozen=True, slots=True)
class ArrayRun:
    """A run to train, and where its config is."""

    config: RunConfig
    config_file: Path


@dataclass(frozen=True, slots=True)
class SweepArrays:
    """What is left of a sweep."""

    name: str
    folder: Path
    training: Sequence[ArrayRun]
    evaluating: Sequence[Path] = ()
    """Run folders to evaluate that are trained already."""
    evaluate: bool = False
    """Whether those of `training` are evaluated, too."""
    at_once: int | None = None
    """Tasks that run at the same time; None: as many as the cluster gives."""


def jobs_of_sweep(arrays: SweepArrays, options: LaunchOptions) -> list[list[Job]]:
    """Chains of jobs. Raises ConfigError as `jobs_of`, and if the runs ask for different nodes or GPUs."""
    chains = []
    if arrays.training:
        chains.append(_training(arrays, options))
    if arrays.evaluating:
        chains.append([_evaluation("eval-trained", arrays, arrays.evaluating, options)])
    return chains


def _training(arrays: SweepArrays, options: LaunchOptions) -> list[Job]:
    configs = [run.config for run in arrays.training]
    for config in configs:
        refuse_paths(config)
    needs = {(script_of(config.env, options), config.policy.lora is not None) for config in configs}
    if len(needs) > 1:
        raise ConfigError(
            "the runs ask for different jobs: some train LoRA on one GPU and others all weights, or their retrievers "
            f"have different scripts ({', '.join(sorted({script for script, _ in needs}))}). Sweep them separately."
        )
    ((script, adapters),) = needs
    request = requested_options(options) | {"array": _span(len(configs), arrays.at_once)}
    before = [f"export WANDB_RUN_GROUP={shlex.quote(arrays.name)}"]
    before += [f"configs=({shlex.join(str(run.config_file) for run in arrays.training)})"]
    target = JobTarget(arrays.name, arrays.folder, adapters, "sweep")
    training = make_job("train", script, f'"${{configs[{TASK} - 1]}}"', request, target, options, before=before)
    if not arrays.evaluate:
        return [training]
    return [training, _evaluation("eval", arrays, [config.run_folder for config in configs], options)]


def _evaluation(name: str, arrays: SweepArrays, folders: Sequence[Path], options: LaunchOptions) -> Job:
    """A job array in which every task evaluates the run of its number."""
    request = placement_of(options) | {"array": _span(len(folders), arrays.at_once)}
    request |= {"gpus": "0"} if options.gpus == 0 else {}
    target = JobTarget(arrays.name, arrays.folder, False, "sweep")
    return make_job(name, "eval_array", shlex.join(map(str, folders)), request, target, options)


def _span(tasks: int, at_once: int | None) -> str:
    return f"1-{tasks}" + (f"%{at_once}" if at_once is not None else "")


def launch_sweep(arrays: SweepArrays, options: LaunchOptions) -> list[tuple[str, Path]]:
    """Write configs and scripts and submit them; the id and the script of every job.

    Raises as `launch`: ClusterError, StorageError, and ConfigError if a job may still wait for another config of a run.
    """
    require_sbatch("sweep --slurm", "without --slurm the runs are trained here")
    chains = jobs_of_sweep(arrays, options)
    folder = arrays.folder / "job"
    with writing(folder):
        for run in arrays.training:
            text = dump_config(run.config)
            if run.config_file.exists() and run.config_file.read_text(encoding="utf-8") != text:
                raise ConfigError(
                    f"{run.config_file} holds other settings, and a job that was submitted with it reads them when it "
                    "starts. Choose another --name, or, where no such job is left, remove the file."
                )
        for path in (folder, arrays.folder / "logs", arrays.folder / "configs"):
            path.mkdir(parents=True, exist_ok=True)
        new_files = [run.config_file for run in arrays.training if not run.config_file.exists()]
        for run in arrays.training:
            run.config_file.write_text(dump_config(run.config), encoding="utf-8")
        scripts = [[write_script(folder, job) for job in chain] for chain in chains]
    submitted: list[tuple[str, Path]] = []
    try:
        for chain, paths in zip(chains, scripts, strict=True):
            # aftercorr: a task of the evaluation waits for the training of the same number alone
            submitted += submit_chain(chain, paths, "aftercorr")
    except ClusterError:
        for path in () if submitted else new_files:
            path.unlink(missing_ok=True)  # no job reads them: the next launch may have other settings
        raise
    return submitted


def describe_sweep(arrays: SweepArrays, options: LaunchOptions) -> str:
    """All jobs as text."""
    jobs = [job for chain in jobs_of_sweep(arrays, options) for job in chain]
    return describe_jobs(jobs, arrays.folder / "job")
