"""`querylect index questions`, `test-questions` and `data questions`; heavy imports are inside them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ..command_options import DryRun, MixMember, Verbose
from ..configs.load import dump_config, load_config
from ..configs.mix import only
from ..errors import ConfigError
from ..logs import progress_bar, set_up_logging

if TYPE_CHECKING:
    from .test_sets import Kind


def index_questions(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A packaged config or a YAML file: its corpus.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as questions.mean=8.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="The question index; env.question_index.folder.")
    ] = None,
    add: Annotated[
        Path | None, typer.Option("--add", metavar="FILE", help="Add vetted questions (JSON lines) and ask nobody.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Ask everything again where other settings were used.")
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
    from .build import write_question_index

    with progress_bar("asking") as progress:
        description = write_question_index(
            settings.questions, settings.env, folder, add=add, overwrite=overwrite, progress=progress
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
        f"{counts['pairs_vetted']}"
    )
    typer.echo(f"{costs['calls']} calls, {costs['prompt_tokens']} tokens read, {costs['tokens']} written")


Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A packaged config or a YAML file, with a question index.")
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")]


def index_test_questions(
    config: Config,
    kind: Annotated[str, typer.Option("--kind", help="rephrased: questions of the index in other words. new: others.")],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The new BEIR folder.")],
    overrides: Overrides = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="So many questions or contents, a random sample; all.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Let a model write test questions for an index of questions, as QB-RAG's paper does; none stands in the index."""
    set_up_logging(verbose)
    settings = load_config(config, overrides or ())
    if kind not in ("rephrased", "new"):
        raise ConfigError(f"--kind is {kind!r}; expected rephrased or new.")
    if settings.env.question_index is None:
        raise ConfigError("env.question_index is not set; name its folder.")
    from .test_sets import write_test_set

    test_set = write_test_set(cast("Kind", kind), settings.questions, settings.env, to, limit)
    typer.echo(
        f"{test_set.folder}: {test_set.questions} questions; left out: {test_set.failed} replies not of their form, "
        f"{test_set.repeated} that stand in the index or twice, {test_set.dropped} that their content does not answer"
    )


def data_questions(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A config: its retriever, index, writer and judge.")],
    corpus: Annotated[Path, typer.Option("--corpus", metavar="FOLDER", help="What `data documents` wrote.")],
    overrides: Overrides = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="The new BEIR folder; env.dataset.path.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option("--test", metavar="FOLDER", help="A BEIR folder with judged questions of users.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Let a model write questions for the passages of a corpus, to train on; say how good they are."""
    set_up_logging(verbose)
    settings = load_config(config, overrides or ())
    folder = to or (Path(settings.env.dataset.path) if settings.env.dataset.path else None)
    if folder is None:
        message = "where the questions go is not said: give --to FOLDER, or set env.dataset.path."
        raise ConfigError(message)
    from .training_set import write_training_set

    with progress_bar("asking") as progress:
        written = write_training_set(
            settings.questions, settings.synthetic, settings.env, corpus, folder, test, progress
        )
    for line in written.lines():
        typer.echo(line)
