"""`querylect data prepare`, which embeds documents to find near-duplicates."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..command_options import Verbose
from ..data.commands import From, Name, fetched_dataset, fetched_folder, split_commas
from ..errors import ConfigError
from ..logs import progress_bar, set_up_logging

app = typer.Typer()


@app.command("prepare")
def prepare(
    name: Name,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The new BEIR folder.")],
    copy: From = None,
    parts: Annotated[str | None, typer.Option("--parts", help="ragbench: parts, with commas; all twelve.")] = None,
    task: Annotated[str, typer.Option("--task", help="finagentbench, bright: chunks or documents.")] = "chunks",
    subset: Annotated[
        str | None, typer.Option("--subset", help="mteb: a language or other subset. bright: the domain.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option("--encoder", metavar="RETRIEVER", help="Take near-duplicates out, by this encoder.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Where the encoder's weights lie, if elsewhere.")] = None,
    duplicates: Annotated[float, typer.Option("--duplicates", min=0, max=1, help="Over which cosine.")] = 0.99,
    leaks: Annotated[str, typer.Option("--leaks", help="Taken out of training: text, or near as well.")] = "text",
    corpus: Annotated[
        Path | None, typer.Option("--corpus", metavar="FOLDER", help="medqa, nq-open, …: the BEIR folder to search.")
    ] = None,
    validation: Annotated[
        int, typer.Option("--validation", min=0, help="With --corpus: training questions that become dev.")
    ] = 200,
    verbose: Verbose = False,
) -> None:
    """Write NAME as a BEIR folder, near-duplicates taken out."""
    set_up_logging(verbose)
    from ..data.convert import CONVERTED, convert
    from ..data.known import known

    if leaks not in ("text", "near"):
        raise ConfigError(f"--leaks is {leaks!r}; expected text or near.")
    entry = known().get(name)
    if corpus is not None and (entry is None or entry.kind != "answers"):
        raise ConfigError(f"--corpus is for questions with right answers, and {name} has its own.")
    if entry is not None and entry.kind in CONVERTED:
        if encoder is not None:
            raise ConfigError(
                f"{name} is converted, and --encoder takes near-duplicates out of benchmarks. Leave it out."
            )
        for line in convert(entry, fetched_folder(name, copy), to, corpus, validation):
            typer.echo(line)
        if corpus is not None:
            typer.echo(f"next: querylect train answers {shlex.quote(f'env.dataset={{kind: beir, path: {to}}}')} …")
        return
    dataset = fetched_dataset(name, copy, parts=split_commas(parts), task=task, subset=subset)
    from ..configs.schema import EnvironmentConfig
    from ..data.prepare import prepare as write
    from ..data.prepare import summary
    from .retrievers.encoder import open_encoder

    embedding = partial(open_encoder, EnvironmentConfig(retriever=encoder, model=model)) if encoder else None
    meta = write(dataset, to, embedding, duplicates, leaks == "near", name, stage=progress_bar)
    for line in summary(meta):
        typer.echo(line)
    typer.echo(f"next: querylect index build CONFIG env.dataset.kind=beir {shlex.quote(f'env.dataset.path={to}')}")
