"""CLI commands for finished runs. Heavy imports are inside the functions."""

from pathlib import Path
from typing import Annotated

import typer

from ..command_options import Verbose
from ..logs import set_up_logging

app = typer.Typer()


@app.command()
def sync(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders.")],
    verbose: Verbose = False,
) -> None:
    """Upload to Weights & Biases what runs that were tracked offline have left; print where each is seen."""
    set_up_logging(verbose)
    from .sync import sync as sync_runs

    sync_runs(runs, typer.echo)
