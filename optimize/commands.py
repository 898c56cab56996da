"""The command `querylect optimize`. Heavy imports are inside the function."""

from typing import Annotated

import typer

from ..command_options import DryRun, MixMember, Verbose
from ..configs.load import dump_config, load_config
from ..configs.schema import RunConfig, only
from ..errors import ConfigError
from ..logs import set_up_logging

app = typer.Typer()


@app.command()
def optimize(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A packaged config (demo, tiny, …) or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as name=prompt.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run was stopped.")] = False,
    env: MixMember = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Optimise the prompt of CONFIG's policy with GEPA against its environment and print the run folder."""
    set_up_logging(verbose)
    settings = only(load_config(config, list(overrides or ())), env)
    refuse_unsupported(settings)
    if dry_run:
        typer.echo(dump_config(settings), nl=False)
        raise typer.Exit
    from .run import optimize as optimize_prompt

    typer.echo(optimize_prompt(settings, resume))


def refuse_unsupported(config: RunConfig) -> None:
    """Raise ConfigError for a rewriter without a prompt file, the offer to stop, and rewards by answers."""
    wrong = {
        "reward.kind=metric": config.reward.kind == "answer",
        "rewriter.stop=false": bool(config.rewriter.stop),
        "rewriter.name=few_shot and rewriter.prompt=FILE.yaml": config.rewriter.name != "few_shot",
    }
    for remedy in (remedy for remedy, applies in wrong.items() if applies):
        raise ConfigError(
            "`querylect optimize` changes the prompt file of the rewriter few_shot and scores it by the metric of its "
            f"rankings. Set {remedy}."
        )
