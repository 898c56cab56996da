"""`querylect index questions`, `test-questions` and `data questions`; heavy imports are inside them."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..command_options import DryRun, MixMember, Verbose
from ..configs.load import dump_config, load_config
from ..configs.schema import only
from ..errors import ConfigError
from ..logs import progress_bar, set_up_logging

Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A packaged config or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as questions.mean=8.")
]
NewFolder = Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The new BEIR folder.")]


def index_questions(
    config: Config,
    overrides: Overrides = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="The question index; env.question_index.folder.")
    ] = None,
    add: Annotated[
        Path | None, typer.Option("--add", metavar="FILE", help="Add vetted questions (JSON lines) and ask nobody.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an index of other settings or another model.")
    ] = False,
    env: MixMember = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
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
        raise ConfigError(message)
    from .index import write_question_index

    with progress_bar("asking") as progress:
        description = write_question_index(
            settings.questions, settings.env, folder, add=add, overwrite=overwrite, progress=progress
        )
    typer.echo(f"{folder}: {description.questions} questions")
    for name, count in {**description.counts, **description.costs}.items():
        typer.echo(f"{name.replace('_', ' ')}: {count}")


def index_test_questions(
    config: Config,
    kind: Annotated[
        Literal["rephrased", "new"],
        typer.Option("--kind", help="rephrased: questions of the index in other words. new: others."),
    ],
    to: NewFolder,
    overrides: Overrides = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="So many questions or contents, a random sample; all.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Let a model write test questions for an index of questions, as QB-RAG's paper does; none stands in the index."""
    set_up_logging(verbose)
    settings = load_config(config, overrides or ())
    if settings.env.question_index is None:
        raise ConfigError("env.question_index is not set; name its folder.")
    from .test_sets import write_test_set

    with progress_bar("asking") as progress:
        counts = write_test_set(kind, settings.questions, settings.env, to, limit, progress)
    typer.echo(
        f"{to}: {counts['questions']} questions; left out: {counts['failed']} replies not of their form, "
        f"{counts['repeated']} that stand in the index or twice, {counts['dropped']} that their content does not answer"
    )


def data_questions(
    config: Config,
    corpus: Annotated[Path, typer.Option("--corpus", metavar="FOLDER", help="What `data documents` wrote.")],
    to: NewFolder,
    overrides: Overrides = None,
    test: Annotated[
        Path | None, typer.Option("--test", metavar="FOLDER", help="A BEIR folder with judged questions of users.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Let a model write questions for the passages of a corpus, to train on; say how good they are."""
    set_up_logging(verbose)
    settings = load_config(config, overrides or ())
    from .training_set import write_training_set

    with progress_bar("asking") as progress:
        lines = write_training_set(settings.questions, settings.synthetic, settings.env, corpus, to, test, progress)
    typer.echo("\n".join(lines))
