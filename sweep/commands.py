"""The command `querylect sweep`. Heavy imports are inside the function."""

import shlex
from typing import Annotated

import typer

from ..command_options import Verbose
from ..errors import ConfigError, IncompleteError
from ..logs import set_up_logging

app = typer.Typer()


@app.command()
def sweep(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A packaged config (demo, tiny, …) or a YAML file.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE…", help="Settings of all runs."),
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=A,B,C", help="Values of a setting; repeat it for a grid.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the sweep: its folder, W&B group and job.")] = None,
    evaluate: Annotated[bool, typer.Option("--eval", help="Evaluate every run after its training.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Only write the table of what is there.")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Submit the runs as a job array.")] = False,
    at_once: Annotated[
        int | None, typer.Option("--at-once", min=1, help="With --slurm: tasks that run at the same time.")
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="With --slurm: nodes of each run.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="With --slurm: GPUs per node.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="With --slurm: time limit of each run.")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="With --slurm: where.")] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="With --slurm: who pays.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and stop.")] = False,
    verbose: Verbose = False,
) -> None:
    """Train CONFIG with every combination of some values, one run after another, and print the path of their table.

    Given again, finished runs are not repeated, and a stopped one goes on.
    """
    set_up_logging(verbose)
    if not values:
        raise ConfigError("nothing is swept. Give values, as --set train.learning_rate=1e-5,1e-4.")
    from .runs import plan_sweep, run_sweep, write_table

    plan = plan_sweep(config, arguments or (), values, name)
    if slurm and not table:
        from ..slurm.launch import LaunchOptions, describe, submit, sweep_jobs

        training = {run.config_file: run.config for run in plan.runs if not run.is_trained}
        trained = [run.folder for run in plan.runs if evaluate and run.is_trained and not run.is_evaluated]
        if not (training or trained):
            raise ConfigError(f"all {len(plan.runs)} runs of {plan.folder} are finished; --table writes their table.")
        options = LaunchOptions(nodes, gpus, time, partition, account)
        chains = sweep_jobs(plan.folder, training, trained, evaluate, at_once, options)
        if dry_run:
            typer.echo(describe([job for chain in chains for job in chain]), nl=False)
            return
        # aftercorr: a task of the evaluation waits for the training of the same number alone
        for number, job in submit(training, chains, "aftercorr"):
            typer.echo(f"{number} {job}")
        return
    if dry_run:
        for run in plan.runs:
            commands = [shlex.join(["querylect", *command]) for command in run.commands(evaluate)]
            typer.echo(f"{run.name}: {' && '.join(commands) or 'finished'}")
        return
    failed = {} if table else run_sweep(plan, evaluate, lambda line: typer.echo(line, err=True))
    path, lines = write_table(plan, failed)
    typer.echo("\n".join(lines), err=True)
    typer.echo(path)
    if failed:
        names = ", ".join(f"{run} (exit code {code})" for run, code in failed.items())
        raise IncompleteError(f"{len(failed)} of {len(plan.runs)} runs failed: {names}. Rerun the command to go on.")
