"""`querylect data …`. Its commands reach above `data/`, as those of `cli.py` do: inside, and only when they run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError, DataError
from ..logs import progress_bar, set_up_logging

app = typer.Typer(no_args_is_help=True, help="Fetch, prepare and check benchmarks.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of `querylect data list`.")]
From = Annotated[Path | None, typer.Option("--from", metavar="FOLDER", help="A local copy of the published files.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log details.")]


@app.command("list")
def list_known() -> None:
    """Say which benchmarks are known by name, and under which licence."""
    from .known import listed

    for name, about, licence in listed():
        typer.echo(f"{name:<24} {about}\n{'':<24} licence: {licence}")


@app.command("get")
def get(
    name: Name,
    copy: From = None,
    to: Annotated[Path | None, typer.Option("--to", help="The new folder; datasets/NAME where not given.")] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Commit or branch on the Hub; the newest.")] = None,
    verbose: Verbose = False,
) -> None:
    """Fetch the published files of NAME, from the Hub or a local copy; go on where an interrupted call stopped."""
    set_up_logging(verbose)
    from .fetch import fetch
    from .known import look_up

    known = look_up(name)
    with progress_bar(f"fetching {name}") as progress:
        folder = fetch(known, to or _folder(name), copy, revision, progress=progress)
    typer.echo(f"{folder}\nlicence: {known.licence or 'see its README.md'}")
    typer.echo(
        f"next: querylect data prepare {name} --to FOLDER, or env.dataset.kind={known.kind} env.dataset.path={folder}"
    )


@app.command("prepare")
def prepare(
    name: Name,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The new BEIR folder.")],
    copy: From = None,
    parts: Annotated[str | None, typer.Option("--parts", help="ragbench: parts, with commas; all twelve.")] = None,
    positives: Annotated[str, typer.Option("--positives", help="ragbench: all or relevant.")] = "all",
    task: Annotated[str, typer.Option("--task", help="finagentbench: chunks or documents.")] = "chunks",
    subset: Annotated[str | None, typer.Option("--subset", help="mteb: a language or other subset.")] = None,
    encoder: Annotated[
        str | None, typer.Option("--encoder", metavar="RETRIEVER", help="Take near-duplicates out, by this encoder.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Where the encoder's weights lie, if elsewhere.")] = None,
    duplicates: Annotated[float, typer.Option("--duplicates", min=0, max=1, help="Over which cosine.")] = 0.99,
    leaks: Annotated[str, typer.Option("--leaks", help="Taken out of training: text, or near as well.")] = "text",
    restart: Annotated[bool, typer.Option("--restart", help="Discard what an interrupted call has done.")] = False,
    verbose: Verbose = False,
) -> None:
    """Write NAME as a BEIR folder, near-duplicates taken out; go on where an interrupted call stopped."""
    set_up_logging(verbose)
    if leaks not in ("text", "near"):
        raise ConfigError(f"--leaks is {leaks!r}; expected text or near.")
    dataset = _dataset(name, copy, parts=_split(parts), positives=positives, task=task, subset=subset)
    from ..configs.schema import EnvironmentConfig
    from ..envs.prepare import prepare as write
    from ..envs.prepare import summary

    embedding = EnvironmentConfig(retriever=encoder, model=model) if encoder else None
    meta = write(dataset, to, embedding, duplicates, leaks == "near", restart, stage=progress_bar)
    for line in summary(meta):
        typer.echo(line)
    typer.echo(f"next: querylect index build CONFIG env.dataset.kind=beir env.dataset.path={to}")


@app.command("check")
def check(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A BEIR folder, or one that `data get` wrote.")],
    parts: Annotated[str | None, typer.Option("--parts", help="ragbench: parts, with commas.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="How to read a folder that does not say so.")] = None,
    task: Annotated[str, typer.Option("--task", help="finagentbench: chunks or documents.")] = "chunks",
    subset: Annotated[str | None, typer.Option("--subset", help="mteb: a language or other subset.")] = None,
    verbose: Verbose = False,
) -> None:
    """Say what a dataset holds, whether its files are whole, and which questions stand in two splits."""
    set_up_logging(verbose)
    from .check import check as found
    from .fetched import source_of

    kind = kind or source_of(path.expanduser()).kind or None
    given = {"kind": kind, "path": str(path), "parts": _split(parts), "task": task, "subset": subset}
    for line in found(path, _settings(given) if kind and kind != "beir" else None):
        typer.echo(line)


@app.command("merge")
def merge(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE=FOLDER", help="Two BEIR folders or more.")],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The new BEIR folder.")],
    questions: Annotated[
        str | None, typer.Option("--questions", help="Sources to take the questions of, with commas; all.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the dataset; the new folder's.")] = None,
    verbose: Verbose = False,
) -> None:
    """Write one BEIR folder of several: SOURCE/ID is the id of a document, and each passage stands once."""
    set_up_logging(verbose)
    from .merge import Source, summary
    from .merge import merge as write

    if bare := [one for one in sources if not all(one.partition("="))]:
        raise ConfigError(f"{bare[0]!r} is no source; expected a name and a folder: wiki=datasets/wiki.")
    given = [Source(source, Path(folder)) for source, _, folder in (one.partition("=") for one in sources)]
    for line in summary(write(given, to, _split(questions), name)):
        typer.echo(line)
    typer.echo(f"next: querylect index build CONFIG env.dataset.kind=beir env.dataset.path={to}")


@app.command("baselines")
def baselines(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A packaged config or a YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Which questions; eval.split.")] = None,
    tolerance: Annotated[float, typer.Option("--tolerance", min=0, help="Allowed difference of nDCG@10.")] = 0.005,
    env: Annotated[str | None, typer.Option("--env", metavar="NAME", help="One environment of a mix.")] = None,
    verbose: Verbose = False,
) -> None:
    """Measure un-rewritten questions and compare them with published figures; exit 1 where one is wrong."""
    set_up_logging(verbose)
    from ..configs.load import load_config
    from ..configs.mix import chosen
    from ..eval.baselines import measure_raw
    from .references import check_baselines

    settings = load_config(config, overrides or [])
    wrong = 0
    for one in chosen(settings, env).values():
        for verdict in check_baselines(measure_raw(one, split or one.eval.split), tolerance):
            typer.echo(verdict.sentence)
            wrong += verdict.status == "wrong"
    if wrong:
        raise typer.Exit(1)


def _dataset(name: str, copy: Path | None, **given: Any) -> Any:
    """The settings of a benchmark that was fetched, or lies in `copy`."""
    if name.startswith("ir_datasets/"):
        return _settings({"kind": "ir_datasets", "path": name.removeprefix("ir_datasets/")})
    from .fetched import source_of
    from .known import known

    folder = copy or _folder(name)
    if not folder.expanduser().is_dir():
        raise DataError(f"{folder} does not exist. Fetch it: querylect data get {name}; or give a copy with --from.")
    entry = known().get(name)
    kind = entry.kind if entry else source_of(folder.expanduser()).kind or "mteb"
    ignores = {"ignore_identical_ids": True} if entry and entry.ignore_identical_ids else {}
    return _settings({"kind": kind, "path": str(folder), **given, **ignores})


def _settings(given: dict[str, Any]) -> Any:
    from pydantic import ValidationError

    from ..configs.schema import DatasetConfig

    try:
        return DatasetConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: " if first["loc"] else ""
        raise ConfigError(f"{place}{first['msg']}.") from error


def _split(written: str | None) -> list[str] | None:
    return [each.strip() for each in written.split(",")] if written else None


def _folder(name: str) -> Path:
    return Path("datasets") / name.replace("hub:", "").replace("/", "-")
