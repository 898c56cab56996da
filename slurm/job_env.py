"""Prints what a job needs of its config as shell assignments: `python -m querylect.slurm.job_env GPUS ON_ALL CONFIG
[KEY=VALUE …]`. ON_ALL, unless empty: adapters are trained on all GPUs.

Runs at the start of every job, without heavy imports. Exit code 2 and one sentence if the config is wrong.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ..configs.load import load_config
from ..configs.schema import environments
from ..errors import ConfigError, QuerylectError
from ..logs import set_up_logging
from .requests import launcher_of


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
