"""`querylect export`. Heavy imports are inside the command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..command_options import Trust, Verbose
from ..logs import set_up_logging

app = typer.Typer()


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `querylect train` wrote.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR|hub:OWNER/NAME", help="A folder, or a repository to upload.")],
    merge_lora: Annotated[
        bool, typer.Option("--merge-lora", help="Export whole weights instead of an adapter.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="best, final or checkpoint-N; the first there is.")
    ] = None,
    without_evaluation: Annotated[
        bool, typer.Option("--without-evaluation", help="Also where nothing held-out was measured; the card says so.")
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="Let everyone see the repository.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder that exists.")] = False,
    base_model: Annotated[
        str | None, typer.Option("--base-model", metavar="ID", help="Hub id of a base model that lies in a folder.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="The licence, where the base model does not say it.")
    ] = None,
    trust: Trust = False,
    verbose: Verbose = False,
) -> None:
    """Export RUN's trained policy as a plain model folder with a model card, or publish it; print where it is."""
    set_up_logging(verbose)
    from .export import export_to_folder, export_to_hub

    options: dict[str, Any] = {
        "merge_lora": merge_lora,
        "without_evaluation": without_evaluation,
        "checkpoint": checkpoint,
        "base_model": base_model,
        "licence": licence,
        "trust": trust,
    }
    run, hub = run.expanduser(), to.removeprefix("hub:")
    if hub != to:
        typer.echo(export_to_hub(run, hub, public=public, **options))
    else:
        typer.echo(export_to_folder(run, Path(to).expanduser(), overwrite=overwrite, **options))
