"""`querylect rewrite` and `querylect mcp`. Heavy imports are inside the command."""

import gzip
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..command_options import DryRun, Trust, Verbose
from ..configs.load import dump_config, is_override
from ..errors import ConfigError, DataError, IncompleteError, UserError
from ..logs import set_up_logging

if TYPE_CHECKING:
    from ..data.types import Question
    from .jsonl_io import Output
    from .rewriter import Rewriter

app = typer.Typer()

TrainedRewriter = Annotated[
    str, typer.Argument(metavar="RUN|EXPORT|ID", help="A run or export folder, a Hub id, or a config (untrained).")
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="best, final or checkpoint-N of a run; the first there is.")
]
Revision = Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit of a Hub id.")]
Endpoint = Annotated[
    str | None,
    typer.Option("--endpoint", metavar="URL", help="Where the model is served (OpenAI's protocol); loads none."),
]
EndpointModelName = Annotated[str | None, typer.Option("--model", help="Its name at the endpoint.")]


@app.command()
def rewrite(
    rewriter: TrainedRewriter = "demo",
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, as rollout.micro_batch=8.")
    ] = None,
    question: Annotated[
        list[str] | None, typer.Option("--question", "-q", help="A question; repeat it. Else one per line of input.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--input", "-i", metavar="FILE", help="Lines, JSON lines, .tsv of ids and texts; standard input."),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option("--history", metavar="FILE", help="What was said before the question, as JSON; with --question."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A new file; standard output.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --output where it was interrupted.")] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Questions at once; a finished batch is written.")] = 192,
    checkpoint: Checkpoint = None,
    revision: Revision = None,
    env: Annotated[
        str | None, typer.Option("--env", metavar="NAME", help="One environment of a policy for several.")
    ] = None,
    turn: Annotated[
        int | None, typer.Option("--turn", min=1, help="Give the answer of this turn; the one that won on validation.")
    ] = None,
    endpoint: Endpoint = None,
    model: EndpointModelName = None,
    trust: Trust = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Rewrite questions; write one JSON object a line, whose `text` is what to search (docs/use.md).

    The answer is that of the turn that won on validation; between turns the environment of the run is searched.
    """
    set_up_logging(verbose)
    from ..rewriters.registry import refuse_unknown
    from ..rollouts.preflight import check_run
    from .load import only_member, open_trained

    changes = list(overrides or ())
    if is_override(rewriter):
        rewriter, changes = "demo", [rewriter, *changes]
    trained = open_trained(rewriter, revision=revision, checkpoint=checkpoint, settings=changes, trust=trust or dry_run)
    trained = only_member(trained, env)
    if len(trained.members) > 1 and not dry_run:
        raise ConfigError(
            f"{rewriter} was trained for {', '.join(trained.members)}, and this asks for one of them. "
            "Name it: --env NAME."
        )
    if dry_run:
        typer.echo(dump_config(trained.config), nl=False)
        return
    for member in trained.members.values():
        refuse_unknown(member.rewriter.name)
    if any(member.card is None for member in trained.members.values()):
        check_run(trained.config)  # its environment has to be asked which retriever it is
    _refuse_model_alone(model, endpoint)
    if resume and output is None:
        raise ConfigError("--resume goes on with a file, and there is no --output.")
    _check_questions(question or (), source, history)
    from .jsonl_io import Output, QuestionLines, read_history

    utterances = read_history(history) if history is not None else ()
    with _open_lines(source) as stream, nullcontext() if output is None else Output(output, resume) as records_file:
        lines = QuestionLines(question or stream, utterances)
        pending = iter(lines) if records_file is None else records_file.unanswered(lines)
        first = list(islice(pending, 1))
        if not first and not lines.bad and not (records_file and records_file.done):
            raise UserError("no question to rewrite: give --question TEXT, or one question per line of input.")
        if first:
            from .endpoint import endpoint_of
            from .rewriter import Rewriter

            engine = endpoint_of(endpoint, model, trained.is_trained) if endpoint is not None else None
            with Rewriter(trained, engine, turn=turn) as loaded:
                _write_rewrites(loaded, chain(first, pending), batch, records_file)
    if lines.bad:
        raise IncompleteError(f"{lines.bad} lines were no question and are logged above; all others were rewritten.")


def _refuse_model_alone(model: str | None, endpoint: str | None) -> None:
    if model is not None and endpoint is None:
        raise ConfigError("--model names a model at an endpoint, and there is no --endpoint.")


def _check_questions(questions: Sequence[str], source: Path | None, history: Path | None) -> None:
    """Raise ConfigError for options that say twice what is asked, UserError for a blank question."""
    if questions and source is not None:
        raise ConfigError("--question and --input are both given; give one of them.")
    if history is not None and not questions:
        raise ConfigError("--history is for --question; a JSON line of --input has its own field history.")
    for number, text in enumerate(questions, start=1):
        if not text.strip():
            raise UserError(f"question {number} of {len(questions)} (--question) is blank: {text!r}.")


def _write_rewrites(
    rewriter: "Rewriter", questions: Iterable["Question"], batch: int, records_file: "Output | None"
) -> None:
    """Rewrite the questions, `batch` at a time, into the file or to standard output; log the failures at the end."""
    from .jsonl_io import log_failures, rewritten

    answers, failures = 0, Counter[str]()
    for records in rewritten(rewriter, questions, batch):
        answers += len(records)
        failures.update(str(record["failure"]) for record in records if record["fallback"])
        if records_file is not None:
            records_file.write(records)
            continue
        for record in records:
            typer.echo(json.dumps(record, ensure_ascii=False))
    log_failures(answers, failures)


@app.command()
def mcp(
    rewriter: TrainedRewriter,
    env: Annotated[
        str, typer.Option("--env", metavar="URL", help="The environment service whose documents are searched.")
    ],
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Serve over HTTP on this machine; standard input and output."),
    ] = None,
    checkpoint: Checkpoint = None,
    revision: Revision = None,
    turn: Annotated[
        int | None, typer.Option("--turn", min=1, help="Search with the answer of this turn; the one that won.")
    ] = None,
    endpoint: Endpoint = None,
    model: EndpointModelName = None,
    trust: Trust = False,
    verbose: Verbose = False,
) -> None:
    """Give agents a tool `search` (MCP) that rewrites a question and searches a running service (docs/use.md)."""
    set_up_logging(verbose)
    _refuse_model_alone(model, endpoint)
    from .mcp_server import serve_search
    from .rewriter import Rewriter

    with Rewriter.from_pretrained(
        rewriter, revision=revision, checkpoint=checkpoint, trust=trust, turn=turn, endpoint=endpoint, model=model
    ) as loaded:
        serve_search(loaded, env, port, typer.echo)


@contextmanager
def _open_lines(source: Path | None) -> Iterator[Iterable[str | bytes]]:
    """The lines of a file (also a gzipped one) or of standard input, read lazily; those of a .tsv become JSON lines."""
    if source is None:
        yield getattr(sys.stdin, "buffer", sys.stdin)
        return
    path = source.expanduser()
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{source} cannot be read ({error.strerror}). Give a file of questions.") from error
    with file:
        if path.with_suffix("" if path.suffix == ".gz" else path.suffix).suffix == ".tsv":
            from ..data.trec import read_topics

            yield (json.dumps({"id": name, "question": text}) for _, name, text in read_topics(path))
        else:
            yield _readable(gzip.GzipFile(fileobj=file), path) if path.suffix == ".gz" else file


def _readable(lines: Iterable[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from lines
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); expected gzipped lines. Compress or copy it again.") from error
