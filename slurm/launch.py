"""Writes the job scripts of a run into its folder and submits them: those of this folder with their blanks filled.

A written script holds its resolved request (#SBATCH), the paths of this installation and the config as it is now: what
runs tomorrow is what was launched today, and `sbatch RUN/job/train.sh` does the same again.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..configs.load import dump_config
from ..configs.mix import environments
from ..configs.schema import RunConfig
from ..errors import ClusterError, StorageError

FOLDER = Path(__file__).parent.resolve()
SCRIPTS = {"bm25": "grpo_bm25", "contriever": "grpo_contriever"}
SCRIPTS |= {"all-minilm-l6-v2": "grpo_minilm", "qwen3-embedding-0.6b": "grpo_qwen3"}
"""The script of each retriever; another dense one runs as Contriever does."""
OPTION = re.compile(r"^#SBATCH --([a-z-]+)=?(.*)$")
BODY = re.compile(r"^(\w+_job\w*(?: --vllm-nodes \d+)?)(?: \w+)? \"\$@\"$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user wants other than a script says; None as it says."""

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
class Job:
    """One script to submit."""

    name: str
    text: str
    options: Sequence[str] = ()
    """Arguments of sbatch, which come before what the cluster file exports."""


def jobs_of(config: RunConfig, wishes: Wishes, chain: bool) -> list[Job]:
    """The jobs in their order; each but the first waits until the one before has ended well."""
    run = Path(config.output) / config.name
    config_path = str(run / "job" / "config.yaml")
    train = _job("train", _script_of(config, wishes), [config_path], _asked(wishes), config, wishes)
    if not chain:
        return [train]
    where = {name: value for name, value in _asked(wishes).items() if name in ("partition", "account")}
    jobs = []
    local = [one for one in environments(config).values() if one.client.urls == "local"]
    if any(not (Path(one.env.index) / "manifest.json").exists() for one in local):
        no_gpu = {"gpus": "0"} if all(one.env.retriever == "bm25" for one in local) else {}
        shards = where | no_gpu | {"array": f"1-{wishes.shards}"}
        jobs.append(_job("index", "index_array", [config_path], shards, config, wishes))
        jobs.append(_job("merge", "index_array", [config_path], shards | {"array": "0", "gpus": "0"}, config, wishes))
    return [*jobs, train, _job("eval", "eval_array", [str(run)], where, config, wishes)]


def launch(config: RunConfig, wishes: Wishes, chain: bool = False) -> list[tuple[str, Path]]:
    """Write the scripts and submit them; gives the id and the script of every job.

    Raises ClusterError where there is no Slurm or it refuses a job, StorageError where the scripts cannot be written.
    """
    if shutil.which("sbatch") is None:
        raise ClusterError(
            "there is no sbatch here: `querylect launch` submits to Slurm, from a machine that has its commands. "
            "`--dry-run` shows the job anywhere, `querylect train` trains here."
        )
    jobs = jobs_of(config, wishes, chain)
    folder = Path(config.output) / config.name / "job"
    scripts = [_write(folder, job) for job in jobs]
    _write_text(folder / "config.yaml", dump_config(config))
    (folder.parent / "logs").mkdir(exist_ok=True)
    submitted: list[tuple[str, Path]] = []
    for job, script in zip(jobs, scripts, strict=True):
        after = [f"--dependency=afterok:{submitted[-1][0]}", "--kill-on-invalid-dep=yes"] if submitted else []
        try:
            submitted.append((_submit([*job.options, *after, str(script)]), script))
        except ClusterError:
            if submitted:
                subprocess.run(["scancel", *(number for number, _ in submitted)], check=False, capture_output=True)
            raise
    return submitted


def _script_of(config: RunConfig, wishes: Wishes) -> str:
    if wishes.vllm_server:
        return "grpo_vllm_server"
    if (wishes.nodes or 1) - wishes.retriever_nodes > 1 or (wishes.gpus or 1) > 1:
        return "grpo_nodes"
    return SCRIPTS.get(config.env.retriever, "grpo_contriever")


def _asked(wishes: Wishes) -> dict[str, str]:
    given = {"nodes": wishes.nodes, "time": wishes.time, "partition": wishes.partition, "account": wishes.account}
    return {name: str(value) for name, value in given.items() if value is not None}


def _job(
    name: str, script: str, arguments: Sequence[str], asked: Mapping[str, str], config: RunConfig, wishes: Wishes
) -> Job:
    """A script with its request, its paths and its arguments filled in."""
    text = (FOLDER / f"{script}.sh").read_text(encoding="utf-8")
    request = {match[1]: match[2] for line in text.splitlines() if (match := OPTION.match(line))}
    options = dict(asked)
    if wishes.gpus is not None and script.startswith("grpo_"):
        options["gpus-per-node"] = str(wishes.gpus)
    logs = Path(config.output) / config.name / "logs"
    own = {"job-name": f"{name}-{config.name}", "output": f"{logs}/job-{name}-%j.log"}
    body = BODY.search(text)
    assert body is not None, f"{script}.sh calls no job"
    surroundings = {"QUERYLECT_SLURM": str(FOLDER), "QUERYLECT": str(Path(sys.executable).with_name("querylect"))}
    if os.environ.get("QUERYLECT_CLUSTER"):
        surroundings["QUERYLECT_CLUSTER"] = os.path.abspath(os.environ["QUERYLECT_CLUSTER"])
    if wishes.retriever_nodes and script.startswith("grpo_"):
        surroundings["RETRIEVER_NODES"] = str(wishes.retriever_nodes)
    lines = [
        "#!/usr/bin/env bash",
        f"# {script}.sh for {config.name}, written by `querylect launch`. Submit it again, as it is, to go on.",
        *(
            f"#SBATCH --{key}={value}" if value else f"#SBATCH --{key}"
            for key, value in (request | options | own).items()
        ),
        *(f"export {key}={shlex.quote(value)}" for key, value in surroundings.items()),
        'source "$QUERYLECT_SLURM/lib.sh"',
        f'{body[1]} {shlex.join(arguments)} "$@"',
    ]
    return Job(name, "\n".join(lines) + "\n", [f"--{key}={value}" for key, value in options.items()])


def _write(folder: Path, job: Job) -> Path:
    path = folder / f"{job.name}.sh"
    _write_text(path, job.text)
    return path


def _write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}). Free some space or choose output=…."
        ) from error


def _submit(arguments: Sequence[str]) -> str:
    """The id of the submitted job."""
    cluster = os.environ.get("QUERYLECT_CLUSTER") or str(FOLDER / "cluster.sh")
    command = ["bash", "-c", 'source "$0" && exec sbatch --parsable "$@"', cluster, *arguments]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        raise ClusterError(_refusal(told.stderr, cluster))
    return told.stdout.split(";")[0].strip().splitlines()[-1]


def _refusal(said: str, cluster: str) -> str:
    """What Slurm says, in one sentence, with what to do."""
    lines = [line.split("error: ", 1)[-1].strip() for line in said.splitlines() if line.strip()]
    reason = "; ".join(dict.fromkeys(lines)) or "it gave no reason"
    remedy = f"Mend --nodes, --gpus, --time or what {cluster} exports."
    if "artition" in said:
        remedy = f"{_partitions()}Name one with --partition or as SBATCH_PARTITION in {cluster}."
    elif "ccount" in said:
        remedy = f"Name yours with --account or as SBATCH_ACCOUNT in {cluster}."
    elif "onnect" in said or "ontact" in said or "onfig" in said:
        remedy = "Slurm's controller does not answer from here: ask `sinfo`, and launch again later."
    return f"Slurm refused the job ({reason}). {remedy}"


def _partitions() -> str:
    told = subprocess.run(["sinfo", "--noheader", "--format=%R"], capture_output=True, text=True, check=False)
    names = sorted(set(told.stdout.split())) if told.returncode == 0 else []
    return f"There are: {', '.join(names)}. " if names else ""


def shown(config: RunConfig, wishes: Wishes, chain: bool, folder: Path) -> str:
    """All jobs as text: their scripts, and the components, nodes and commands of each. `folder` is for passing use."""
    written = folder / "config.yaml"
    _write_text(written, dump_config(config))
    true_path = str(Path(config.output) / config.name / "job" / "config.yaml")
    parts = []
    for job in jobs_of(config, wishes, chain):
        script = _write(folder, Job(job.name, job.text.replace(true_path, str(written))))
        told = subprocess.run(["bash", script, "--dry-run"], capture_output=True, text=True, check=False)
        if told.returncode:
            raise ClusterError(told.stderr.strip())
        options = " ".join(job.options)
        plan = told.stdout.replace(str(written), true_path)
        parts.append(f"── {job.name}: sbatch {options}\n{job.text}\n{plan}")
    return "\n".join(parts)
