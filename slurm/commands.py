"""The command `querylect launch`. Heavy imports stand inside."""

from typing import Annotated

import typer

from ..command_options import Verbose
from ..configs.load import load_config
from ..errors import ConfigError
from ..logs import set_up_logging


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
    retriever_nodes: Annotated[
        int, typer.Option("--retriever-nodes", min=0, help="So many of the nodes serve the retriever.")
    ] = 0,
    shards: Annotated[int, typer.Option("--shards", min=1, help="Tasks that build the index, with --chain.")] = 16,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the jobs and stop.")] = False,
    verbose: Verbose = False,
) -> None:
    """Train CONFIG on a Slurm cluster: write the config into the run folder, submit the job, print its id."""
    set_up_logging(verbose)
    settings = load_config(config, list(overrides or ()))
    from .launch import LaunchOptions, describe, jobs_of, submit

    needed = 1 + vllm_server + retriever_nodes
    nodes = nodes or (needed if needed > 1 else None)
    if nodes is not None and nodes < needed:
        raise ConfigError(
            f"--nodes {nodes} leaves none to train: vLLM takes {int(vllm_server)} and the retriever {retriever_nodes}. "
            f"Ask for at least {needed}."
        )
    options = LaunchOptions(nodes, gpus, time, partition, account, vllm_server, retriever_nodes, shards)
    jobs = jobs_of(settings, options, chain)
    if dry_run:
        typer.echo(describe(jobs), nl=False)
        return
    for number, name in submit({settings.run_folder / "job" / "config.yaml": settings}, [jobs]):
        typer.echo(f"{number} {name}")
