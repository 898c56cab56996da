"""Prints what a job script needs from a config as shell assignments: `python -m querylect.slurm.facts [--gpus N
[--on-all]] CONFIG [KEY=VALUE …]`, where N GPUs are to train, with --on-all also adapters.

Exit code 2 and one sentence where the config is wrong. Light: it runs at the start of every job.
"""

import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from ..configs.load import load_config
from ..configs.mix import environments
from ..errors import ConfigError, QuerylectError
from ..logs import set_up_logging
from .requests import SHARDINGS, refuse_paths, training_layout


def facts(
    config: str, overrides: Sequence[str], gpus: int | None = None, on_all: bool = False
) -> dict[str, str | list[str]]:
    """The variables that slurm/lib.sh reads, by name; those of the processes that train where `gpus` do.

    Raises ConfigError.
    """
    settings = load_config(config, overrides)
    refuse_paths(settings)
    layout = training_layout(settings.policy, gpus or 0, on_all)
    runs = environments(settings)
    served = {name: run for name, run in runs.items() if run.client.urls == "local"}
    tokens = sorted({run.client.token_env for run in served.values()})
    for name, run in runs.items():
        if name not in served and run.client.token_env in tokens:
            raise ConfigError(
                f"mix.environments.{name} is served elsewhere and has its token in {run.client.token_env}, where the "
                "job puts the token of the services that it starts. Give it one of its own: "
                f"mix.environments.{name}.client.token_env=…"
            )
    missing: dict[Path, str] = {}
    for name, run in served.items():
        if not run.env.has_index:
            missing.setdefault(run.env.index_folder, name)
    return {
        "run": str(settings.run_folder),
        "model": settings.policy.model,
        "processes": str(layout.processes),
        "sharding": next(name for name, of in SHARDINGS.items() if of.sharding == layout.sharding),
        "token_envs": tokens,
        "serving": list(served),  # environments without a service of their own, by name; "" is that of no mix
        "building": list(missing.values()),  # those of them whose index is not there …
        "index_locks": [str(index.with_name(f".{index.name}.job")) for index in missing],  # … and who builds it
    }


def as_shell(variables: dict[str, str | list[str]]) -> str:
    """One assignment a line, lists as arrays."""
    lines = []
    for name, value in variables.items():
        quoted = f"({' '.join(map(shlex.quote, value))})" if isinstance(value, list) else shlex.quote(value)
        lines.append(f"{name}={quoted}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = ArgumentParser()
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--on-all", action="store_true")
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args(arguments)
    set_up_logging()
    try:
        variables = facts(options.config, options.overrides, options.gpus, options.on_all)
        sys.stdout.write(as_shell(variables) + "\n")
    except QuerylectError as error:
        sys.stderr.write(f"{error.label}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
