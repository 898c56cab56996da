"""`querylect data prepare`, which embeds documents to find near-duplicates."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..command_options import Verbose
from ..data.commands import To
from ..logs import progress_bar, set_up_logging

app = typer.Typer()


@app.command("prepare")
def prepare(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="A BEIR folder, such as `data get` writes.")],
    to: To,
    encoder: Annotated[
        str | None, typer.Option("--encoder", metavar="RETRIEVER", help="Take near-duplicates out, by this encoder.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Where the encoder's weights lie, if elsewhere.")] = None,
    duplicates: Annotated[float, typer.Option("--duplicates", min=0, max=1, help="Over which cosine.")] = 0.99,
    near_leaks: Annotated[
        bool, typer.Option("--near-leaks", help="Take out questions that nearly repeat one of a later split.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Write a BEIR folder again, near-duplicate documents taken out."""
    set_up_logging(verbose)
    from ..configs.schema import EnvironmentConfig
    from ..data.prepare import prepare as write
    from .retrievers.encoder import open_encoder

    embedding = partial(open_encoder, EnvironmentConfig(retriever=encoder, model=model)) if encoder else None
    for line in write(source, to, embedding, duplicates, near_leaks, stage=progress_bar):
        typer.echo(line)
