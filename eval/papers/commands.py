"""The command that runs a paper again. Heavy imports stand inside it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ...configs.paper import ENVIRONMENT_AWARE, chosen_parts, dump_paper, load_paper
from ...errors import ConfigError
from ...logs import set_up_logging

app = typer.Typer()


@app.command()
def paper(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="hcqr, chr, qb_rag, misknow, environment_aware, or a YAML file.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as tasks.medqa.data=FILE.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="So many questions of each task, a random sample.")
    ] = None,
    reader: Annotated[
        str | None, typer.Option("--reader", metavar="MODEL", help="The model that answers: reader.model.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="Where it is served: reader.base_url.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option("--task", help="Only this task; repeat it.")] = None,
    system: Annotated[list[str] | None, typer.Option("--system", help="Only this system; repeat it.")] = None,
    environment: Annotated[
        list[str] | None,
        typer.Option("--environment", metavar="NAME", help="Only this retriever of environment_aware; repeat it."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the results; papers/NAME-MODEL.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace tables of other questions.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved settings and stop.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log details.")] = False,
) -> None:
    """Run a paper's methods over its tasks; print the path of the tables, our figures beside the paper's."""
    set_up_logging(verbose)
    if name == ENVIRONMENT_AWARE:
        from ...configs.spec_files import chosen_cells, dump_spec, load_spec, prompted_by

        changes = [*(overrides or ()), *([f"limit={limit}"] if limit is not None else [])]
        spec = chosen_cells(load_spec(name, changes), task or (), environment or (), system or ())
        spec = prompted_by(spec, reader, endpoint)
        if dry_run:
            from ..run_baselines import with_run_baselines

            typer.echo(dump_spec(with_run_baselines(spec)), nl=False)
            return
        from ...rollouts.preflight import check_spec
        from ..tasks.records import reader_name
        from .environment_aware import run_environment_aware

        check_spec(spec)
        if output is None and reader is not None:
            output = Path(spec.output) / f"{spec.name}-{reader_name(reader)}"
        path, failed = run_environment_aware(spec, output, overwrite)
        typer.echo(path)
        if failed is not None:
            raise failed
        return
    if environment:
        message = f"--environment is for {ENVIRONMENT_AWARE}; in {name} a system has its own: systems.NAME.sources=[…]."
        raise ConfigError(message, code="environment-of-paper")
    options = {"limit": limit, "reader.model": reader, "reader.base_url": endpoint}
    changes = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    settings = chosen_parts(load_paper(name, [*(overrides or ()), *changes]), task or [], system or [])
    if dry_run:
        typer.echo(dump_paper(settings), nl=False)
        return
    from .run import run_paper

    typer.echo(run_paper(settings, output, overwrite=overwrite))
