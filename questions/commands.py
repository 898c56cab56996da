"""`querylect index questions`. Heavy imports stand inside it."""

from pathlib import Path
from typing import Annotated

import typer

from ..configs.load import dump_config, load_config
from ..configs.mix import only
from ..errors import ConfigError
from ..logs import progress_bar, set_up_logging


def index_questions(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A packaged config or a YAML file: its corpus.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as questions.mean=8.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="The question index; env.question_index.folder.")
    ] = None,
    start: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="Take over the answers of this question index.")
    ] = None,
    add: Annotated[
        Path | None,
        typer.Option("--add", metavar="FILE", help="Add vetted questions (JSON lines) and ask nobody."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Ask everything again where other settings were used.")
    ] = False,
    env: Annotated[
        str | None, typer.Option("--env", metavar="NAME", help="One environment of a config that mixes several.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and stop.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log details.")] = False,
) -> None:
    """Let a model write and judge questions for CONFIG's contents, for the retriever qb-rag; go on where it stopped."""
    set_up_logging(verbose)
    settings = only(load_config(config, overrides or ()), env)
    if dry_run:
        typer.echo(dump_config(settings), nl=False)
        return
    question_index = settings.env.question_index
    folder = to or (Path(question_index.folder) if question_index is not None else None)
    if folder is None:
        message = "where the questions go is not said: give --to FOLDER, or set env.question_index.folder."
        raise ConfigError(message, code="missing-folder")
    from .build import write_question_index

    with progress_bar("asking") as progress:
        description = write_question_index(
            settings.questions, settings.env, folder, start=start, add=add, overwrite=overwrite, progress=progress
        )
    counts, costs = description.counts, description.costs
    typer.echo(
        f"{folder}: {description.questions} questions of {counts['contents']} contents, "
        f"{counts['contents_without_a_question']} of which have none"
    )
    typer.echo(
        f"written {counts['questions_written']}: kept {counts['questions_kept']}, dropped "
        f"{counts['questions_dropped']}, not judged {counts['questions_unjudged']}; the writer failed on "
        f"{counts['contents_failed']} contents, {counts['contents_missing']} got no reply; vetted pairs "
        f"{counts['pairs_vetted']}, more pairs {counts['pairs_similar'] + counts['pairs_completed']}"
    )
    amounts = {name: "unknown" if count is None else str(count) for name, count in costs.items()}
    typer.echo(f"{amounts['calls']} calls, {amounts['prompt_tokens']} tokens read, {amounts['tokens']} written")
