"""`querylect rewrite` and `querylect mcp`. Heavy imports are inside the command."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from ..command_options import Trust, Verbose
from ..configs.load import is_override
from ..data.history import parse_history
from ..data.types import Question
from ..errors import ConfigError, DataError, UserError
from ..logs import set_up_logging
from ..storage import parse_json

log = logging.getLogger(__name__)

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
    batch: Annotated[int, typer.Option("--batch", min=1, help="Questions at once; a finished batch is printed.")] = 192,
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
    verbose: Verbose = False,
) -> None:
    """Rewrite questions; write one JSON object a line, whose `text` is what to search (docs/use.md).

    The answer is that of the turn that won on validation; between turns the environment of the run is searched.
    """
    set_up_logging(verbose)
    from .rewriter import Rewriter

    changes = list(overrides or ())
    if is_override(rewriter):
        rewriter, changes = "demo", [rewriter, *changes]
    if question and source is not None:
        raise ConfigError("--question and --input are both given; give one of them.")
    answers, failures = 0, Counter[str]()
    with nullcontext(sys.stdin) if source is None else source.expanduser().open(encoding="utf-8") as stream:
        questions = read_questions(question or stream)
        if (first := next(questions, None)) is None:
            raise UserError("no question to rewrite: give --question TEXT, or one question per line of input.")
        pending = chain([first], questions)
        with Rewriter.from_pretrained(
            rewriter,
            revision=revision,
            checkpoint=checkpoint,
            settings=changes,
            trust=trust,
            turn=turn,
            endpoint=endpoint,
            model=model,
        ) as loaded:
            while part := list(islice(pending, batch)):
                for result in loaded.rewrite(part, retriever=env):
                    answers += 1
                    failures.update([result.failure] if result.failure is not None else [])
                    typer.echo(json.dumps({"id": result.question.id, **result.record()}, ensure_ascii=False))
    if failures:
        log.warning(
            "%d of %d answers failed, and the question itself is their text and plan: %s",
            failures.total(), answers, ", ".join(f"{reason} ({count})" for reason, count in failures.most_common()),
        )  # fmt: skip


@app.command()
def mcp(
    env: Annotated[
        str, typer.Option("--env", metavar="URL", help="The environment service whose documents are searched.")
    ],
    rewriter: Annotated[
        str | None, typer.Argument(metavar="[RUN|EXPORT|ID]", help="What rewrites questions; none: no tool `search`.")
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
    """Give agents search tools (MCP) over a running service (docs/use.md, docs/assistant.md).

    `search` rewrites a question; `query`, where the retriever has a query language, takes what the agent writes in it.
    """
    set_up_logging(verbose)
    from .mcp_server import serve_search
    from .rewriter import Rewriter

    with (
        nullcontext()
        if rewriter is None
        else Rewriter.from_pretrained(
            rewriter, revision=revision, checkpoint=checkpoint, trust=trust, turn=turn, endpoint=endpoint, model=model
        ) as loaded
    ):
        serve_search(loaded, env)


def read_questions(lines: Iterable[str]) -> Iterator[Question]:
    """The questions of lines, each with the `id` of its line, by default its number; blank lines are left out.

    A line that begins with { is a JSON object with `question` and, optionally, `id`, `options` and `history`, or a line
    of BEIR's queries.jsonl, whose fields are `text` and `_id`. Raises DataError that names a line without a question.
    """
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line.startswith("{"):
            if line:
                yield Question(str(number), line)
            continue
        try:
            values = parse_json(line)
            text = values.get("question", values.get("text"))
            if not isinstance(text, str) or not text.strip():
                raise ValueError('it has no "question" (or "text") with a text')
            history = parse_history(values.get("history"))
        except ValueError as error:
            raise DataError(f"line {number} is no question: {error}.") from error
        name = str(values.get("id", values.get("_id", number)))
        yield Question(name, text.strip(), tuple(map(str, values.get("options") or ())), history)
