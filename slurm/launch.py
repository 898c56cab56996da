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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from ..command_options import Verbose
from ..configs.load import dump_config, load_config
from ..configs.schema import RunConfig, environments
from ..errors import ClusterError, ConfigError, in_one_line
from ..logs import set_up_logging
from ..storage import write_text
from .job_env import FOLDER, script_on_one_node

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
    group: str = ""
    """Of the runs in W&B."""

    def command(self, *more: str) -> list[str]:
        """The sbatch command; `more`: options."""
        log = f"{self.folder}/logs/job-{self.name}-".replace("%", "%%") + "%j.log"  # % begins a pattern of Slurm
        options = {"job-name": f"{self.name}-{self.folder.name}", "output": log, "export": "ALL", **self.request}
        flags = ["--parsable", *(f"--{name}={value}" for name, value in options.items()), *more]
        variables = [f"QUERYLECT_SLURM={FOLDER}", f"QUERYLECT={Path(sys.executable).with_name('querylect')}"]
        variables += [f"WANDB_RUN_GROUP={self.group}"] if self.group else []
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
    if missing := [env for env in local if not env.has_index]:
        no_gpu = {"gpus": "0"} if options.gpus == 0 or all(env.retriever == "bm25" for env in missing) else {}
        request = options.placement | no_gpu | {"array": "1"}
        jobs.insert(0, Job("index", folder, "index_array", files, request))
    return jobs


def sweep_jobs(
    folder: Path,
    training: Mapping[Path, RunConfig],
    trained: Sequence[Path],
    evaluate: bool,
    at_once: int | None,
    options: LaunchOptions,
) -> list[list[Job]]:
    """A job array with a task per run of a sweep, followed by one that evaluates each.

    `training` has the runs to train by the file that gets their config, `trained` the folders of those that are only
    evaluated; at most `at_once` tasks run at the same time. Raises ConfigError if the runs need different jobs.
    """

    def tasks(runs: Sequence[object]) -> dict[str, str]:
        return {"array": f"1-{len(runs)}" + (f"%{at_once}" if at_once else "")}

    chains: list[list[Job]] = []
    if training:
        files = list(map(str, training))
        job, *others = [_training(config, folder, files, options) for config in training.values()]
        if any((job.script, job.request) != (other.script, other.request) for other in others):
            scripts = ", ".join(sorted({each.script for each in (job, *others)}))
            raise ConfigError(
                f"the runs need different jobs (scripts {scripts}; one GPU for LoRA, several for all weights). "
                "Sweep them separately."
            )
        chains.append([replace(job, request={**job.request, **tasks(files)}, group=folder.name)])
        if evaluate:
            folders = [config.run_folder for config in training.values()]
            chains[0].append(_evaluation("eval", folder, folders, options, tasks(folders)))
    if trained:
        chains.append([_evaluation("eval-trained", folder, trained, options, tasks(trained))])
    return chains


def _training(config: RunConfig, folder: Path, files: Sequence[str], options: LaunchOptions) -> Job:
    several = (options.nodes or 1) > 1 or (options.gpus or 1) > 1
    script = "grpo_vllm_server" if options.vllm_server else "grpo_nodes" if several else script_on_one_node(config.env)
    request = {} if several or options.vllm_server or config.policy.lora is None else ONE_GPU
    request = request | _given({"nodes": options.nodes, "time": options.time, "gpus-per-node": options.gpus})
    return Job("train", folder, script, files, request | options.placement)


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
    a config cannot be written.
    """
    if shutil.which("sbatch") is None:
        raise ClusterError("there is no sbatch here: submit on a login node. `--dry-run` prints the jobs anywhere.")
    for path, config in configs.items():
        write_text(path, dump_config(config))
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


def launch(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A packaged config or a YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")] = None,
    chain: Annotated[
        bool, typer.Option("--chain", help="Index, train, evaluate: each job once the one before has ended well.")
    ] = False,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Nodes in all.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="GPUs per node.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="Time limit, such as 12:00:00 or 2-00.")] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", help="Where; else as the cluster file says.")
    ] = None,
    account: Annotated[
        str | None, typer.Option("--account", "-A", help="Who pays; else as the cluster file says.")
    ] = None,
    vllm_server: Annotated[bool, typer.Option("--vllm-server", help="Generate on a node of its own.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the jobs and stop.")] = False,
    verbose: Verbose = False,
) -> None:
    """Train CONFIG on a Slurm cluster: write the config into the run folder, submit the job, print its id."""
    set_up_logging(verbose)
    settings = load_config(config, list(overrides or ()))
    if vllm_server and nodes == 1:
        raise ConfigError("--nodes 1 leaves none to train beside vLLM. Ask for 2.")
    options = LaunchOptions(nodes, gpus, time, partition, account, vllm_server)
    jobs = jobs_of(settings, options, chain)
    if dry_run:
        typer.echo(describe(jobs), nl=False)
        return
    for number, name in submit({settings.run_folder / "job" / "config.yaml": settings}, [jobs]):
        typer.echo(f"{number} {name}")
