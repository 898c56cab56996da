"""`querylect data …`, but for `prepare` (envs/commands.py) and `baselines` (eval/commands.py)."""

from pathlib import Path
from typing import Annotated

import typer

from ..command_options import Verbose
from ..errors import ConfigError
from ..logs import progress_bar, set_up_logging

app = typer.Typer(no_args_is_help=True, help="Get, prepare and check datasets: folders in BEIR's form.")

To = Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The new BEIR folder.")]


@app.command("list")
def list_known_benchmarks() -> None:
    """Say which benchmarks are known by name, and under which licence."""
    from .get import known_benchmarks

    for name, entry in known_benchmarks().items():
        typer.echo(f"{name:<24} {entry.about}\n{'':<24} licence: {entry.licence}")
    typer.echo(f"{'hub:OWNER/NAME':<24} tables of documents, questions and judgements on the Hub")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `querylect data list`.")],
    to: To,
    copy: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="A local copy of the published files.")
    ] = None,
    subset: Annotated[
        str | None,
        typer.Option(
            "--subset",
            help="ragbench: parts, with commas. bright: the domain, or DOMAIN-long for whole pages. finagentbench: "
            "chunks or documents. hub: a language or other subset.",
        ),
    ] = None,
    queries: Annotated[
        str, typer.Option("--queries", help="bright: the folder of the questions, such as gpt4_reason.")
    ] = "examples",
    corpus: Annotated[
        Path | None, typer.Option("--corpus", metavar="FOLDER", help="medqa, nq-open, …: the BEIR folder to search.")
    ] = None,
    validation: Annotated[
        int, typer.Option("--validation", min=0, help="With --corpus: training questions that become dev.")
    ] = 200,
    verbose: Verbose = False,
) -> None:
    """Write the benchmark NAME as a BEIR folder, from the Hub or a local copy of its published files."""
    set_up_logging(verbose)
    from .get import get as write

    typer.echo("\n".join(write(name, to, copy, subset, queries, corpus, validation)))


@app.command("merge")
def merge(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE=FOLDER", help="Two BEIR folders or more.")],
    to: To,
    questions: Annotated[
        str | None, typer.Option("--questions", help="Sources to take the questions of, with commas; all.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Write one BEIR folder of several: SOURCE/ID is the id of a document, and each passage is written once."""
    set_up_logging(verbose)
    from .knowledge_bases import merge as write

    parsed = dict(argument.split("=", 1) for argument in sources if all(argument.partition("=")))
    if len(parsed) < len(sources):
        raise ConfigError(f"the sources are {sources}; expected different names with folders: wiki=datasets/wiki.")
    folders = {name: Path(folder) for name, folder in parsed.items()}
    typer.echo("\n".join(write(folders, to, questions.split(",") if questions else None)))


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
    from .documents import write_corpus

    with progress_bar("reading documents") as progress:
        lines = write_corpus(source, to, words, overlap, progress)
    typer.echo("\n".join(lines))


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

    typer.echo("\n".join(write_chunks(folder, to, words)))


@app.command("pairs")
def pairs(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines with question and answers.")],
    to: To,
    verbose: Verbose = False,
) -> None:
    """Write questions and their answers as documents of a BEIR folder, each pair once."""
    set_up_logging(verbose)
    from .knowledge_bases import write_pairs

    typer.echo("\n".join(write_pairs(file, to)))


@app.command("check")
def check(
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="A BEIR folder.")],
    leaks: Annotated[
        Path | None, typer.Option("--leaks", metavar="FILE", help="List the leaking questions there.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Say what a dataset holds, whether its files are whole, and which questions two splits share."""
    set_up_logging(verbose)
    from .check import check as check_dataset

    for line in check_dataset(path, leaks):
        typer.echo(line)
