"""`querylect rewrite` and `querylect mcp`. Heavy imports are inside the command."""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..command_options import DryRun, Trust, Verbose
from ..configs.load import dump_config, is_override
from ..errors import ConfigError, UserError
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
        typer.Option("--input", "-i", metavar="FILE", exists=True, help="Lines of text or JSON; standard input."),
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
    if question and source is not None:
        raise ConfigError("--question and --input are both given; give one of them.")
    if resume and output is None:
        raise ConfigError("--resume goes on with a file, and there is no --output.")
    from .jsonl_io import Output, read_questions

    records_file = None if output is None else Output(output, resume)
    with nullcontext(sys.stdin) if source is None else source.expanduser().open(encoding="utf-8") as stream:
        questions = read_questions(question or stream)
        pending = iter(questions) if records_file is None else records_file.unanswered(questions)
        first = list(islice(pending, 1))
        if not first and not (records_file and records_file.done):
            raise UserError("no question to rewrite: give --question TEXT, or one question per line of input.")
        if first:
            from .endpoint import endpoint_of
            from .rewriter import Rewriter

            engine = endpoint_of(endpoint, model, trained.is_trained) if endpoint is not None else None
            with Rewriter(trained, engine, turn=turn) as loaded:
                _write_rewrites(loaded, chain(first, pending), batch, records_file)


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
    from .mcp_server import serve_search
    from .rewriter import Rewriter

    with Rewriter.from_pretrained(
        rewriter, revision=revision, checkpoint=checkpoint, trust=trust, turn=turn, endpoint=endpoint, model=model
    ) as loaded:
        serve_search(loaded, env)
