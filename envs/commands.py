"""`querylect data prepare`, which embeds documents where it is asked to."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..data.commands import From, Name, Verbose, fetched_dataset, split_commas
from ..errors import ConfigError
from ..logs import progress_bar, set_up_logging

app = typer.Typer()


@app.command("prepare")
def prepare(
    name: Name,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The new BEIR folder.")],
    copy: From = None,
    parts: Annotated[str | None, typer.Option("--parts", help="ragbench: parts, with commas; all twelve.")] = None,
    positives: Annotated[str, typer.Option("--positives", help="ragbench: all or relevant.")] = "all",
    task: Annotated[str, typer.Option("--task", help="finagentbench: chunks or documents.")] = "chunks",
    subset: Annotated[str | None, typer.Option("--subset", help="mteb: a language or other subset.")] = None,
    encoder: Annotated[
        str | None, typer.Option("--encoder", metavar="RETRIEVER", help="Take near-duplicates out, by this encoder.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Where the encoder's weights lie, if elsewhere.")] = None,
    duplicates: Annotated[float, typer.Option("--duplicates", min=0, max=1, help="Over which cosine.")] = 0.99,
    leaks: Annotated[str, typer.Option("--leaks", help="Taken out of training: text, or near as well.")] = "text",
    restart: Annotated[bool, typer.Option("--restart", help="Discard what an interrupted call has done.")] = False,
    verbose: Verbose = False,
) -> None:
    """Write NAME as a BEIR folder, near-duplicates taken out; go on where an interrupted call stopped."""
    set_up_logging(verbose)
    if leaks not in ("text", "near"):
        raise ConfigError(f"--leaks is {leaks!r}; expected text or near.")
    dataset = fetched_dataset(name, copy, parts=split_commas(parts), positives=positives, task=task, subset=subset)
    from ..configs.schema import EnvironmentConfig
    from ..data.prepare.prepare import prepare as write
    from ..data.prepare.prepare import summary
    from .retrievers.encoder import open_corpus_encoder

    embedding = partial(open_corpus_encoder, EnvironmentConfig(retriever=encoder, model=model)) if encoder else None
    meta = write(dataset, to, embedding, duplicates, leaks == "near", restart, stage=progress_bar)
    for line in summary(meta):
        typer.echo(line)
    typer.echo(f"next: querylect index build CONFIG env.dataset.kind=beir {shlex.quote(f'env.dataset.path={to}')}")
