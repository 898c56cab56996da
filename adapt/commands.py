"""`querylect adapt`. Heavy imports are inside the command."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from ..command_options import Verbose
from ..configs.load import dump_config, load_config
from ..errors import ConfigError, StoppedError
from ..logs import set_up_logging

app = typer.Typer()


@app.command()
def adapt(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="DOCS", help="A file or folder: Markdown, text, HTML, PDF, JSONL.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as train.steps=60.")
    ] = None,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where everything goes.")] = Path("adapted"),
    llm: Annotated[
        str | None, typer.Option("--llm", metavar="MODEL", help="The model that writes and judges questions.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="Where that model is served (OpenAI's protocol).")
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option("--test", metavar="FOLDER", exists=True, help="A BEIR folder with judged questions of users."),
    ] = None,
    words: Annotated[int, typer.Option("--words", min=20, help="A passage has at most so many words.")] = 200,
    overlap: Annotated[int, typer.Option("--overlap", min=0, help="Words that repeat the passage before.")] = 30,
    config: Annotated[str, typer.Option("--config", help="A packaged config or a YAML file.")] = "adapt",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the stages and the config, and stop.")] = False,
    verbose: Verbose = False,
) -> None:
    """Train a rewriter for DOCS without judgements: read, index, write questions, train, evaluate, export.

    Prints the paths of the report and the export. Given again, it goes on where it was interrupted.
    """
    set_up_logging(verbose)
    shortcuts = {"questions.writer.model": llm, "questions.writer.base_url": endpoint}
    changes = [f"{key}={value}" for key, value in shortcuts.items() if value is not None]
    folder = to.expanduser()
    if folder.resolve().is_relative_to(source.expanduser().resolve()):
        raise ConfigError(f"--to {to} lies in {source} and would be read as documents; name a folder outside of it.")
    from .stages import config_in, run_stages, stages_of

    settings = config_in(load_config(config, [*changes, *(overrides or ())]), folder)
    stages = stages_of(settings, source, folder, test, words, overlap)
    if dry_run:
        for number, stage in enumerate(stages, start=1):
            typer.echo(f"# {number}. {stage.name}: {stage.command}")
        typer.echo(dump_config(settings), nl=False)
        return
    from ..sources import resolve_model

    resolve_model(settings.policy.model)
    querylect = context.find_root().command

    def run(arguments: Sequence[str]) -> None:
        with redirect_stdout(sys.stderr):
            querylect.main([*arguments, *(["--verbose"] if verbose else [])], standalone_mode=False)

    try:
        run_stages(settings, folder, stages, run, lambda line: typer.echo(line, err=True))
    except StoppedError as error:
        message = "a signal ended the training; its last finished step is saved. Give the same command again."
        raise StoppedError(message) from error
    for stage in stages[-2:]:
        typer.echo(stage.output)
