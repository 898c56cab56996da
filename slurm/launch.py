"""Writes the job scripts of a run into its folder and submits them: those of this folder with their blanks filled.

A written script holds its resolved request (#SBATCH), the paths of this installation and the config as it is now: what
runs tomorrow is what was launched today. Its second line is the command that submits it: a name or path of the config
stands in it, and in every command of the script, quoted for a shell.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..configs.load import dump_config
from ..configs.mix import environments
from ..configs.schema import EnvironmentConfig, RunConfig
from ..errors import ClusterError, ConfigError, in_one_line
from ..storage import writing
from .requests import FOLDER, ON_ONE_NODE, ONE_GPU, command_of, header, refuse_paths, script_on_one_node

UNDIVIDED = ("hybrid", "qb-rag")
"""Retrievers over other indexes, which are not built in shards."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What the user changes in a script's request; None keeps the script's value."""

    nodes: int | None = None
    gpus: int | None = None
    """Per node."""
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    vllm_server: bool = False
    retriever_nodes: int = 0
    shards: int = 16


@dataclass(frozen=True, slots=True)
class JobTarget:
    """What a job works on."""

    name: str
    """Of the run or sweep; the job's name ends in it."""
    folder: Path
    """Its folder, for logs/ and job/."""
    adapters: bool
    """Whether LoRA is trained, for which one GPU is enough."""
    command: str = "launch"
    """The command of querylect that writes the script."""


@dataclass(frozen=True, slots=True)
class Job:
    """One script to submit."""

    name: str
    text: str
    options: Sequence[str] = ()
    """Arguments of sbatch, which come before what the cluster file exports."""


def jobs_of(config: RunConfig, options: LaunchOptions, chain: bool) -> list[Job]:
    """The jobs in their order; each but the first waits until the one before has ended well.

    Their scripts read the config that `launch` writes. Raises ConfigError for a path or an option that no
    script can hold.
    """
    refuse_paths(config)
    run = config.run_folder
    config_path = str(run / "job" / "config.yaml")
    target = JobTarget(config.name, run, config.policy.lora is not None)
    train = make_job(
        "train", script_of(config.env, options), shlex.quote(config_path), requested_options(options), target, options
    )
    if not chain:
        return [train]
    placement = placement_of(options)
    no_gpu = {"gpus": "0"} if options.gpus == 0 else {}
    evaluation = make_job("eval", "eval_array", shlex.quote(str(run)), placement | no_gpu, target, options)
    local = [member.env for member in environments(config).values() if member.client.urls == "local"]
    missing = [env for env in local if not env.has_index]
    if not missing:
        return [train, evaluation]
    if all(env.retriever == "bm25" for env in missing):
        no_gpu = {"gpus": "0"}
    if any(env.retriever in UNDIVIDED for env in missing):
        index = [
            make_job("index", "index_array", shlex.quote(config_path), placement | no_gpu, target, options, array=False)
        ]
    else:
        shards = placement | no_gpu | {"array": f"1-{options.shards}"}
        merging = placement | {"gpus": "0", "array": "0"}
        index = [
            make_job("index", "index_array", shlex.quote(config_path), shards, target, options),
            make_job("merge", "index_array", shlex.quote(config_path), merging, target, options),
        ]
    return [*index, train, evaluation]


def launch(config: RunConfig, options: LaunchOptions, chain: bool = False) -> list[tuple[str, Path]]:
    """Write the scripts and submit them; gives the id and the script of every job.

    Raises ClusterError where there is no Slurm or it refuses a job, StorageError where the scripts cannot be written,
    ConfigError where a job may still wait for another config of this run.
    """
    require_sbatch("launch", "`querylect train` trains here")
    jobs = jobs_of(config, options, chain)
    folder = config.run_folder / "job"
    config_file, text = folder / "config.yaml", dump_config(config)
    with writing(folder):
        previous = config_file.read_text(encoding="utf-8") if config_file.exists() else None
        if previous not in (None, text):
            raise ConfigError(
                f"{config_file} holds other settings, and a job of that launch reads them when it starts. Choose "
                f"another name=…, or, where no such job is left, remove {folder}."
            )
        folder.mkdir(parents=True, exist_ok=True)
        scripts = [write_script(folder, job) for job in jobs]
        config_file.write_text(text, encoding="utf-8")
        (folder.parent / "logs").mkdir(exist_ok=True)
    try:
        return submit_chain(jobs, scripts)
    except ClusterError:
        if previous is None:
            config_file.unlink(missing_ok=True)  # nobody reads it: the next launch may say something else
        raise


def require_sbatch(command: str, otherwise: str) -> None:
    """Raise ClusterError where there is no Slurm; `otherwise` says what does the same without."""
    if shutil.which("sbatch") is None:
        raise ClusterError(
            f"there is no sbatch here: `querylect {command}` submits to Slurm, from a machine that has its commands. "
            f"`--dry-run` shows the job anywhere, {otherwise}."
        )


def submit_chain(jobs: Sequence[Job], scripts: Sequence[Path], dependency: str = "afterok") -> list[tuple[str, Path]]:
    """Submit each job with the dependency on the one before; the ids and scripts.

    Raises ClusterError, after the jobs before it are cancelled, if Slurm refuses one.
    """
    submitted: list[tuple[str, Path]] = []
    for job, script in zip(jobs, scripts, strict=True):
        after = [f"--dependency={dependency}:{submitted[-1][0]}", "--kill-on-invalid-dep=yes"] if submitted else []
        try:
            submitted.append((_submit([*job.options, *after, str(script)]), script))
        except ClusterError:
            if submitted:
                subprocess.run(["scancel", *(number for number, _ in submitted)], check=False, capture_output=True)
            raise
    return submitted


def script_of(env: EnvironmentConfig, options: LaunchOptions) -> str:
    if options.vllm_server:
        return "grpo_vllm_server"
    if (options.nodes or 1) - options.retriever_nodes > 1 or (options.gpus or 1) > 1:
        return "grpo_nodes"
    return script_on_one_node(env)


def requested_options(options: LaunchOptions) -> dict[str, str]:
    """What the options ask for, by names of sbatch."""
    values = {"nodes": options.nodes, "time": options.time, "partition": options.partition, "account": options.account}
    return {name: str(value) for name, value in values.items() if value is not None}


def placement_of(options: LaunchOptions) -> dict[str, str]:
    """The part of `requested_options` that holds for jobs of another size, too."""
    return {name: value for name, value in requested_options(options).items() if name in ("partition", "account")}


def make_job(
    name: str,
    script: str,
    arguments: str,
    requested: dict[str, str],
    target: JobTarget,
    options: LaunchOptions,
    array: bool = True,
    before: Sequence[str] = (),
) -> Job:
    """A script with its request, its paths and its arguments filled in; without `array` it is one job.

    `arguments` is text for a shell, `before` are lines of the script before its last.
    """
    request, body = header(script), command_of(script)
    del request["job-name"], request["output"]
    if not array:
        del request["array"]
    if script in ON_ONE_NODE and target.adapters:
        request |= ONE_GPU
    if options.gpus is not None and script.startswith("grpo_"):
        requested = requested | {"gpus-per-node": str(options.gpus)}
    log = f"{target.folder}/logs/job-{name}-".replace("%", "%%") + "%j.log"  # % begins one of Slurm's own names
    called = {"job-name": f"{name}-{target.name}", "output": log}
    job_options = [f"--{key}={value}" for key, value in (called | requested).items()]
    variables = {"QUERYLECT_SLURM": str(FOLDER), "QUERYLECT": str(Path(sys.executable).with_name("querylect"))}
    if os.environ.get("QUERYLECT_CLUSTER"):
        variables["QUERYLECT_CLUSTER"] = os.path.abspath(os.environ["QUERYLECT_CLUSTER"])
    if options.retriever_nodes and script.startswith("grpo_"):
        variables["RETRIEVER_NODES"] = str(options.retriever_nodes)
    lines = [
        "#!/usr/bin/env bash",
        f"# {shlex.join(['sbatch', *job_options, str(target.folder / 'job' / f'{name}.sh')])}",
        f"# {script}.sh for {target.name}, written by `querylect {target.command}`. Submit it again, as above, to go "
        "on.",
        *(f"#SBATCH --{key}={value}" if value else f"#SBATCH --{key}" for key, value in (request | requested).items()),
        *(f"export {key}={shlex.quote(value)}" for key, value in variables.items()),
        'source "$QUERYLECT_SLURM/lib.sh"',
        *before,
        f'{body} {arguments} "$@"',
    ]
    return Job(name, "\n".join(lines) + "\n", job_options)


def write_script(folder: Path, job: Job) -> Path:
    path = folder / f"{job.name}.sh"
    path.write_text(job.text, encoding="utf-8")
    return path


def _submit(arguments: Sequence[str]) -> str:
    """The id of the submitted job."""
    cluster = os.path.abspath(os.environ.get("QUERYLECT_CLUSTER") or FOLDER / "cluster.sh")
    # What the file itself prints is no answer of sbatch, and a last line that fails is nothing wrong.
    command = ["bash", "-c", 'source "$0"; exec sbatch --parsable "$@"', cluster, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise ClusterError(
            f"Slurm refused the job ({in_one_line(process.stderr)}). Change --nodes, --gpus, --time, --partition, "
            f"--account or what {cluster} exports."
        )
    return process.stdout.strip().splitlines()[-1].split(";")[0]


def describe_jobs(jobs: Sequence[Job], folder: Path) -> str:
    """The commands that submit jobs of `folder`, each with its script, as text."""
    return "\n".join(
        f"── {job.name}: {shlex.join(['sbatch', *job.options, str(folder / job.name)])}.sh\n{job.text}" for job in jobs
    )
