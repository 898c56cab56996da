"""What the job of a config requests from Slurm and how its processes start, without heavy imports.

`python -m querylect.slurm.job_env GPUS ON_ALL CONFIG [KEY=VALUE …]` runs at the start of every job and prints what it
needs of its config as shell assignments; ON_ALL, unless empty: adapters are trained on all GPUs. Exit code 2 and one
sentence if the config is wrong.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..configs.load import load_config
from ..configs.schema import EnvironmentConfig, PolicyConfig, environments
from ..errors import ConfigError, QuerylectError
from ..logs import set_up_logging
from ..train.memory import ProcessLayout

FOLDER = Path(__file__).parent.resolve()
CONFIGS = FOLDER.parent / "configs"
OPTION = re.compile(r"^#SBATCH --([a-z-]+)=(.*)$", re.MULTILINE)
SHARDINGS = {
    "ddp": ProcessLayout(),
    "zero2": ProcessLayout(sharding="ZeRO-2"),
    "zero3": ProcessLayout(sharding="ZeRO-3"),
    "fsdp2": ProcessLayout(sharding="FSDP2"),
}
"""What several processes may split, by the value of the variable SHARDING."""


def sharding_of(policy: PolicyConfig) -> str:
    """The variable SHARDING; unset, zero2 if all weights are trained, else ddp: every GPU can hold adapters whole.

    Raises ConfigError for an unknown value.
    """
    sharding = os.environ.get("SHARDING") or ("zero2" if policy.lora is None else "ddp")
    if sharding not in SHARDINGS:
        raise ConfigError(f"the variable SHARDING is {sharding!r}; expected one of {', '.join(SHARDINGS)}.")
    return sharding


def launcher_of(policy: PolicyConfig, gpus: int, on_all: bool) -> Sequence[str]:
    """Options of `accelerate launch` for one process per GPU; none for a single process: on one GPU, and for adapters
    unless they are trained `on_all`."""
    sharding = sharding_of(policy)
    if not on_all and (policy.lora is not None or gpus <= 1):
        return []
    launcher = ["--num_processes", str(gpus), "--mixed_precision", "no", "--dynamo_backend", "no"]
    if sharding == "ddp":
        return [*launcher, "--multi_gpu"]
    if sharding == "fsdp2":
        return [*launcher, "--config_file", str(CONFIGS / "fsdp" / "fsdp2.yaml")]
    settings = str(CONFIGS / "deepspeed" / f"{sharding}.json")
    deepspeed = ["--use_deepspeed", "--deepspeed_config_file", settings, "--deepspeed_multinode_launcher", "standard"]
    return [*launcher, *deepspeed]


def script_on_one_node(env: EnvironmentConfig) -> str:
    """The script for a retriever; all but BM25 run as Contriever does."""
    return "grpo_bm25" if env.retriever == "bm25" else "grpo_contriever"


def request_of(env: EnvironmentConfig, policy: PolicyConfig) -> tuple[str, ProcessLayout]:
    """The script of a retriever, and the processes, on H100s, that it requests to train `policy`."""
    script = script_on_one_node(env)
    options = dict(OPTION.findall((FOLDER / f"{script}.sh").read_text(encoding="utf-8")))
    gpus = int(options["nodes"]) * int(options["gpus-per-node"])
    layout = replace(SHARDINGS[sharding_of(policy)], processes=gpus) if policy.lora is None else ProcessLayout()
    return script, layout


def job_env(
    config: str, overrides: Sequence[str], gpus: int = 1, on_all: bool = False
) -> dict[str, str | Sequence[str]]:
    """The variables of slurm/lib.sh by name. Raises ConfigError."""
    settings = load_config(config, overrides)
    members = environments(settings)
    served = {name: member for name, member in members.items() if member.client.urls == "local"}
    tokens = sorted({member.client.token_env for member in served.values()})
    for name, member in members.items():
        if name not in served and member.client.token_env in tokens:
            raise ConfigError(
                f"mix.environments.{name} is served elsewhere with the token in {member.client.token_env}, where the "
                "job puts the token of the services that it starts. Give it another variable: "
                f"mix.environments.{name}.client.token_env=…"
            )
    missing: dict[Path, str] = {}
    for name, member in served.items():
        if not member.env.has_index:
            missing.setdefault(member.env.index_folder, name)
    parts = [index.with_name(f".{index.name}.parts") for index in missing]
    return {
        "run": str(settings.run_folder),
        "model": settings.policy.model,
        "launcher": launcher_of(settings.policy, gpus, on_all),
        "token_envs": tokens,
        "serving": list(served),  # names of the environments that the job serves; "" without a mix
        "building": list(missing.values()),  # those of them that have no index
        # folders whose files tell that the job has finished something
        "finished": [str(path) for path in (settings.run_folder / "checkpoints", *missing, *parts)],
    }


def as_shell(variables: dict[str, str | Sequence[str]]) -> str:
    """One assignment a line, lists as arrays."""
    quoted = {
        name: shlex.quote(value) if isinstance(value, str) else f"({shlex.join(value)})"
        for name, value in variables.items()
    }
    return "\n".join(f"{name}={value}" for name, value in quoted.items())


def main(gpus: str, on_all: str, config: str, *overrides: str) -> int:
    set_up_logging()
    try:
        variables = job_env(config, overrides, int(gpus), bool(on_all))
    except QuerylectError as error:
        sys.stderr.write(f"{error.label}: {error}\n")
        return error.exit_code
    sys.stdout.write(as_shell(variables) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
