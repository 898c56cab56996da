"""`querylect data …`, but for `prepare` (envs/commands.py) and `baselines` (eval/commands.py)."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from ..command_options import Verbose
from ..configs.schema import DatasetConfig
from ..errors import ConfigError, DataError
from ..logs import progress_bar, set_up_logging

app = typer.Typer(no_args_is_help=True, help="Fetch, prepare and check benchmarks.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of `querylect data list`.")]
From = Annotated[Path | None, typer.Option("--from", metavar="FOLDER", help="A local copy of the published files.")]


@app.command("list")
def list_known() -> None:
    """Say which benchmarks are known by name, and under which licence."""
    from .known import listed

    for name, description, licence in listed():
        typer.echo(f"{name:<24} {description}\n{'':<24} licence: {licence}")


@app.command("get")
def get(
    name: Name,
    copy: From = None,
    to: Annotated[Path | None, typer.Option("--to", help="The new folder; datasets/NAME where not given.")] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Commit or branch on the Hub; the newest.")] = None,
    verbose: Verbose = False,
) -> None:
    """Fetch the published files of NAME, from the Hub or a local copy; go on where an interrupted call stopped."""
    set_up_logging(verbose)
    from .fetch import fetch
    from .fetched import card_licence
    from .known import look_up

    benchmark = look_up(name)
    folder = fetch(benchmark, to or _folder(name), copy, revision)
    on_card = card_licence(folder)
    typer.echo(folder)
    if benchmark.licence:
        typer.echo(f"licence: {benchmark.licence}")
    typer.echo(f"licence on its card: {on_card or 'none is stated'}")
    as_it_is = f", or env.dataset.kind={benchmark.kind} env.dataset.path={folder}" if benchmark.layout is None else ""
    typer.echo(f"next: querylect data prepare {name} --to FOLDER{as_it_is}")


@app.command("merge")
def merge(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE=FOLDER", help="Two BEIR folders or more.")],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The new BEIR folder.")],
    questions: Annotated[
        str | None, typer.Option("--questions", help="Sources to take the questions of, with commas; all.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Write one BEIR folder of several: SOURCE/ID is the id of a document, and each passage is written once."""
    set_up_logging(verbose)
    from .merge import MergeSource, summary
    from .merge import merge as write

    if invalid := [argument for argument in sources if not all(argument.partition("="))]:
        raise ConfigError(f"{invalid[0]!r} is no source; expected a name and a folder: wiki=datasets/wiki.")
    parsed = [
        MergeSource(source, Path(folder)) for source, _, folder in (argument.partition("=") for argument in sources)
    ]
    for line in summary(write(parsed, to, split_commas(questions))):
        typer.echo(line)
    typer.echo(f"next: querylect index build CONFIG env.dataset.kind=beir {shlex.quote(f'env.dataset.path={to}')}")


To = Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The new BEIR folder.")]


@app.command("documents")
def documents(
    source: Annotated[Path, typer.Argument(metavar="DOCS", help="A file or a folder of documents.")],
    to: To,
    words: Annotated[int, typer.Option("--words", min=20, help="A passage has at most so many words.")] = 200,
    overlap: Annotated[int, typer.Option("--overlap", min=0, help="Words that repeat the passage before.")] = 30,
    verbose: Verbose = False,
) -> None:
    """Write a folder of Markdown, text, HTML, PDF or JSONL files as a corpus of passages, for `data questions`."""
    set_up_logging(verbose)
    from .documents.corpus import write_corpus

    with progress_bar("reading documents") as progress:
        summary = write_corpus(source, to, words, overlap, progress)
    for line in summary.lines(str(to)):
        typer.echo(line)


@app.command("chunks")
def chunks(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A BEIR folder with long documents.")],
    to: To,
    words: Annotated[int, typer.Option("--words", min=2, help="A chunk has fewer words than this.")] = 300,
    verbose: Verbose = False,
) -> None:
    """Cut the documents of a BEIR folder into chunks, each once; judgements pass to all chunks of a document."""
    set_up_logging(verbose)
    from .knowledge_bases import write_chunks

    for line in write_chunks(folder, to, words):
        typer.echo(line)


@app.command("pairs")
def pairs(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines with question and answers.")],
    to: To,
    verbose: Verbose = False,
) -> None:
    """Write questions and their answers as documents of a BEIR folder, each pair once."""
    set_up_logging(verbose)
    from .knowledge_bases import write_pairs

    for line in write_pairs(file, to):
        typer.echo(line)


@app.command("check")
def check(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A BEIR folder, or one that `data get` wrote.")],
    parts: Annotated[str | None, typer.Option("--parts", help="ragbench: parts, with commas.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="How to read a folder that does not say so.")] = None,
    task: Annotated[str, typer.Option("--task", help="finagentbench, bright: chunks or documents.")] = "chunks",
    subset: Annotated[
        str | None, typer.Option("--subset", help="mteb: a language or other subset. bright: the domain.")
    ] = None,
    leaks: Annotated[
        Path | None, typer.Option("--leaks", metavar="FILE", help="List the leaking questions, for dataset.leave_out.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Say what a dataset holds, whether its files are whole, and which questions and documents two splits share."""
    set_up_logging(verbose)
    from .check import check as check_dataset
    from .convert import CONVERTED
    from .fetched import source_of

    kind = kind or source_of(path.expanduser()).kind or None
    settings = {"kind": kind, "path": str(path), "parts": split_commas(parts), "task": task, "subset": subset}
    config = dataset_settings(settings) if kind and kind not in ("beir", *CONVERTED) else None
    for line in check_dataset(path, config, leaks):
        typer.echo(line)


def fetched_dataset(name: str, copy: Path | None, **options: object) -> DatasetConfig:
    """Dataset settings of a benchmark that was fetched, or of its local copy `copy`."""
    from .fetched import source_of
    from .known import known

    folder = fetched_folder(name, copy)
    entry = known().get(name)
    kind = entry.kind if entry else source_of(folder.expanduser()).kind or "mteb"
    return dataset_settings({"kind": kind, "path": str(folder), **options})


def fetched_folder(name: str, copy: Path | None) -> Path:
    """The folder of a benchmark that was fetched, or `copy`. Raises DataError if there is none."""
    folder = copy or _folder(name)
    if not folder.expanduser().is_dir():
        raise DataError(f"{folder} does not exist. Fetch it: querylect data get {name}; or give a copy with --from.")
    return folder


def dataset_settings(values: Mapping[str, object]) -> DatasetConfig:
    """The settings of a dataset. Raises ConfigError."""
    try:
        return DatasetConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        location = f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: " if first["loc"] else ""
        raise ConfigError(f"{location}{first['msg']}.") from error


def split_commas(text: str | None) -> list[str] | None:
    return [item.strip() for item in text.split(",")] if text else None


def _folder(name: str) -> Path:
    return Path("datasets") / name.replace("hub:", "").replace("/", "-")
