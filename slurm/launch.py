"""Submits the job scripts of this folder for a run, or for the runs of a sweep.

The config is written at submission, and the job reads that file when it starts: what runs tomorrow is what was launched
today.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..configs.load import dump_config
from ..configs.schema import RunConfig, environments
from ..errors import ClusterError, ConfigError, in_one_line
from ..storage import write_text
from .requests import FOLDER, script_on_one_node

UNDIVIDED = ("hybrid", "qb-rag")
"""Retrievers over other indexes, which are not built in shards."""
ONE_GPU = {"gpus-per-node": "1", "cpus-per-task": "16", "mem": "128G"}
"""Requested if one process trains adapters."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What the user changes in the request of a script; None keeps it."""

    nodes: int | None = None
    gpus: int | None = None
    """Per node."""
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    vllm_server: bool = False
    retriever_nodes: int = 0
    shards: int = 16

    @property
    def placement(self) -> dict[str, str]:
        """Options of sbatch for every job."""
        return _given({"partition": self.partition, "account": self.account})


@dataclass(frozen=True, slots=True)
class Job:
    """A script to submit."""

    name: str
    folder: Path
    """Of the run or sweep: its name ends the job's name, and it gets the log."""
    script: str
    arguments: Sequence[str]
    request: Mapping[str, str]
    """Options of sbatch beside name and log, without `--`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the job needs."""

    def command(self, *more: str) -> list[str]:
        """The sbatch command; `more`: options."""
        log = f"{self.folder}/logs/job-{self.name}-".replace("%", "%%") + "%j.log"  # % begins a pattern of Slurm
        options = {"job-name": f"{self.name}-{self.folder.name}", "output": log, "export": "ALL", **self.request}
        flags = ["--parsable", *(f"--{name}={value}" for name, value in options.items()), *more]
        installed = {"QUERYLECT_SLURM": str(FOLDER), "QUERYLECT": str(Path(sys.executable).with_name("querylect"))}
        variables = [f"{name}={value}" for name, value in {**installed, **self.variables}.items()]
        return ["env", *variables, "sbatch", *flags, str(FOLDER / f"{self.script}.sh"), *self.arguments]


def jobs_of(config: RunConfig, options: LaunchOptions, chain: bool) -> list[Job]:
    """The training of a run; with `chain`, index, training and evaluation, each after the one before has succeeded."""
    folder = config.run_folder
    files = [str(folder / "job" / "config.yaml")]
    train = _training(config, folder, files, options)
    if not chain:
        return [train]
    jobs = [train, _evaluation("eval", folder, [folder], options)]
    local = [member.env for member in environments(config).values() if member.client.urls == "local"]
    missing = [env for env in local if not env.has_index]
    if not missing:
        return jobs
    no_gpu = {"gpus": "0"} if options.gpus == 0 or all(env.retriever == "bm25" for env in missing) else {}
    shards = 1 if any(env.retriever in UNDIVIDED for env in missing) else options.shards
    if shards > 1:
        merging = options.placement | {"gpus": "0", "array": "0"}
        jobs.insert(0, Job("merge", folder, "index_array", files, merging))
    request = options.placement | no_gpu | {"array": f"1-{shards}"}
    return [Job("index", folder, "index_array", files, request), *jobs]


@dataclass(frozen=True, slots=True)
class SweepJobs:
    """The unfinished runs of a sweep."""

    folder: Path
    training: Mapping[Path, RunConfig]
    """The runs to train, by the file that gets their config."""
    trained: Sequence[Path]
    """Run folders that are only evaluated."""
    evaluate: bool
    """Whether the runs of `training` are evaluated, too."""
    at_once: int | None
    """Tasks that run at the same time; None: as many as the cluster gives."""

    def chains(self, options: LaunchOptions) -> list[list[Job]]:
        """A job array with a task per run, followed by one that evaluates each.

        Raises ConfigError if the runs need different nodes or GPUs.
        """
        chains: list[list[Job]] = []
        if self.training:
            files = list(map(str, self.training))
            jobs = [_training(config, self.folder, files, options) for config in self.training.values()]
            needs = {(job.script, tuple(job.request.items())) for job in jobs}
            if len(needs) > 1:
                scripts = ", ".join(sorted({script for script, _ in needs}))
                raise ConfigError(
                    f"the runs need different jobs (scripts {scripts}; one GPU for LoRA, several for all weights). "
                    "Sweep them separately."
                )
            variables = {**jobs[0].variables, "WANDB_RUN_GROUP": self.folder.name}
            request = {**jobs[0].request, **self._tasks(files)}
            chains.append([replace(jobs[0], request=request, variables=variables)])
            if self.evaluate:
                folders = [config.run_folder for config in self.training.values()]
                chains[0].append(_evaluation("eval", self.folder, folders, options, self._tasks(folders)))
        if self.trained:
            late = _evaluation("eval-trained", self.folder, self.trained, options, self._tasks(self.trained))
            chains.append([late])
        return chains

    def _tasks(self, runs: Sequence[object]) -> dict[str, str]:
        return {"array": f"1-{len(runs)}" + (f"%{self.at_once}" if self.at_once else "")}


def _training(config: RunConfig, folder: Path, files: Sequence[str], options: LaunchOptions) -> Job:
    several = (options.nodes or 1) - options.retriever_nodes > 1 or (options.gpus or 1) > 1
    script = "grpo_vllm_server" if options.vllm_server else "grpo_nodes" if several else script_on_one_node(config.env)
    request = {} if several or options.vllm_server or config.policy.lora is None else ONE_GPU
    request = request | _given({"nodes": options.nodes, "time": options.time, "gpus-per-node": options.gpus})
    variables = {"RETRIEVER_NODES": str(options.retriever_nodes)} if options.retriever_nodes else {}
    return Job("train", folder, script, files, request | options.placement, variables)


def _evaluation(
    name: str, folder: Path, runs: Sequence[Path], options: LaunchOptions, array: Mapping[str, str] = {}
) -> Job:
    request = {**options.placement, **({"gpus": "0"} if options.gpus == 0 else {}), **array}
    return Job(name, folder, "eval_array", [str(run) for run in runs], request)


def _given(options: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value is not None}


def describe(jobs: Sequence[Job]) -> str:
    """The commands that submit the jobs, each with its script, as text."""
    return "\n".join(
        f"── {job.name}: {shlex.join(job.command())}\n" + (FOLDER / f"{job.script}.sh").read_text(encoding="utf-8")
        for job in jobs
    )


def submit(
    configs: Mapping[Path, RunConfig], chains: Sequence[Sequence[Job]], dependency: str = "afterok"
) -> list[tuple[str, str]]:
    """Write the configs and submit chains of jobs, each with `dependency` on the one before; returns ids and names.

    Raises ClusterError if there is no Slurm or it refuses a job (the chain's jobs are then cancelled), StorageError if
    a config cannot be written, ConfigError if a job may still wait for another config in its place.
    """
    if shutil.which("sbatch") is None:
        message = (
            "there is no sbatch here: submit on a login node of the cluster. `--dry-run` prints the jobs anywhere."
        )
        raise ClusterError(message)
    new = [path for path in configs if not path.exists()]
    for path, config in configs.items():
        if path not in new and path.read_text(encoding="utf-8") != dump_config(config):
            raise ConfigError(
                f"{path} holds other settings, and a job that was submitted with it reads them when it starts. Choose "
                "another name, or, where no such job is left, remove the file."
            )
    for path in new:
        write_text(path, dump_config(configs[path]))
    submitted: list[tuple[str, str]] = []
    for chain in chains:
        (chain[0].folder / "logs").mkdir(parents=True, exist_ok=True)
        ids: list[str] = []
        try:
            for job in chain:
                after = [f"--dependency={dependency}:{ids[-1]}", "--kill-on-invalid-dep=yes"] if ids else []
                ids.append(_sbatch(job.command(*after)))
        except ClusterError:
            if ids:
                subprocess.run(["scancel", *ids], check=False, capture_output=True)
            for path in () if submitted else new:
                path.unlink(missing_ok=True)  # no job reads them: the next launch may have other settings
            raise
        submitted += [(number, job.name) for number, job in zip(ids, chain, strict=True)]
    return submitted


def _sbatch(command: Sequence[str]) -> str:
    """The id of the submitted job."""
    cluster = os.path.abspath(os.environ.get("QUERYLECT_CLUSTER") or FOLDER / "cluster.sh")
    # The cluster file may print something, and end with a line that fails.
    shell = ["bash", "-c", 'source "$0"; exec "$@"', cluster, *command]
    variables = os.environ | {"QUERYLECT_CLUSTER": cluster}
    process = subprocess.run(shell, env=variables, capture_output=True, text=True, check=False)
    if process.returncode:
        raise ClusterError(
            f"Slurm refused the job ({in_one_line(process.stderr)}). Change --nodes, --gpus, --time, --partition, "
            f"--account or what {cluster} exports."
        )
    return process.stdout.strip().splitlines()[-1].split(";")[0]
