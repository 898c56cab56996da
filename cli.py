"""The command line. Heavy imports are inside the commands, so that `querylect --help` answers at once.

Only `main` turns errors into exit codes: 2 for what the user can fix, 1 for other failures, 130 for Ctrl-C; a
`StoppedError` has 75.
"""

import gc
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .adapt.commands import app as adapt_app
from .command_options import DryRun, MixMember, Trust, Verbose
from .configs.load import dump_config, known_configs, load_config, load_run_config
from .configs.schema import RunConfig, chosen, only
from .data.commands import app as data_app
from .doctor.commands import app as doctor_app
from .envs.commands import app as prepare_app
from .errors import ConfigError, QuerylectError, UserError
from .eval.commands import app as eval_app
from .eval.commands import data_app as baselines_app
from .export.commands import app as hub_app
from .inference.commands import app as use_app
from .logs import progress_bar, set_up_logging
from .optimize.commands import app as optimize_app
from .questions.commands import data_questions, index_questions, index_test_questions
from .slurm.launch import launch
from .sources import optional_packages
from .sweep.commands import app as sweep_app
from .version import __version__

log = logging.getLogger(__name__)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train a language model to speak the query dialect of the retriever it will really use.",
)
index_app = typer.Typer(no_args_is_help=True, help="Build or check the index that the retriever searches.")
app.add_typer(index_app, name="index")
data_app.add_typer(prepare_app)
data_app.add_typer(baselines_app)
data_app.command("questions")(data_questions)
app.add_typer(data_app, name="data")
app.add_typer(doctor_app)
app.add_typer(eval_app)
app.add_typer(hub_app)
app.add_typer(use_app)
app.add_typer(optimize_app)
app.add_typer(adapt_app)
app.add_typer(sweep_app)


Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A packaged config (demo, tiny, …) or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as train.steps=5.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing index.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `querylect`: run one command and exit the process with its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    gc.set_threshold(10_000, 20, 20)  # a sixth of the time to import PyTorch and TRL went to looking for garbage
    try:
        with optional_packages(_EXTRAS.get(arguments[0] if arguments else "")):
            app(arguments)
    except SystemExit as stop:
        # typer wraps these two in its own SystemExit
        cause = stop.__context__.__cause__ if stop.__context__ else None
        if not isinstance(cause, KeyboardInterrupt | EOFError):
            raise
        sys.exit(_report(cause))
    except BaseException as error:  # noqa: BLE001 (the last stop of every error)
        sys.exit(_report(error))


_EXTRAS = {
    **dict.fromkeys(("data", "index", "serve"), "serve"),
    **dict.fromkeys(("export", "rewrite"), "local"),
    "mcp": "mcp",
    **dict.fromkeys(("optimize", "sweep", "train"), "train"),
    **dict.fromkeys(("answers", "drift", "eval", "paper", "report"), "eval"),
    "adapt": "cpu",
}
"""The extra that installs everything that a command needs for most configs."""


def _report(error: BaseException) -> int:
    """Print what ended a command and return its exit code; a run of several processes says it once."""
    log.debug("where the error arose", exc_info=error)
    match error:
        case KeyboardInterrupt():
            silent, code = os.environ.get("RANK", "0") != "0", 130
            text = "Interrupted. Repeat the command to go on (train and optimize: with --resume)."
        case QuerylectError():
            silent, code, text = error.already_reported, error.exit_code, f"{error.label}: {error}"
        case PermissionError():
            silent, code, text = False, UserError.exit_code, f"error: {error}"
        case OSError():  # of the network or the Hugging Face Hub
            silent, code, text = False, QuerylectError.exit_code, f"error: {error}"
        case _:
            silent, code, text = False, 1, "".join(traceback.format_exception(error)).rstrip()
            text += (
                f"\nThis is a mistake in querylect {__version__}, not in your input: please report it with the above."
            )
    if not silent:
        _print_stderr(text)
    return code


def _print_stderr(text: str) -> None:
    with suppress(OSError):  # a closed terminal must not change the exit code
        typer.echo(text, err=True)


def _resolve(
    config: str,
    overrides: Iterable[str] | None,
    verbose: bool,
    dry_run: bool,
    load: Callable[[str, Sequence[str]], RunConfig] = load_config,
) -> RunConfig:
    """Load a command's config; a dry run prints it and ends the command."""
    set_up_logging(verbose)
    settings = load(config, list(overrides or ()))
    if dry_run:
        typer.echo(dump_config(settings), nl=False)
        raise typer.Exit
    return settings


def _resolve_run(
    run: str, overrides: Iterable[str] | None, verbose: bool, dry_run: bool, trust: bool
) -> tuple[RunConfig, Path | None]:
    """(config, folder) of a run folder; (config, None) of a packaged config or a YAML file."""
    folder = Path(run).expanduser()
    if (folder / "config.yaml").is_file():
        load = partial(load_run_config, trust=trust or dry_run)
        return _resolve(str(folder), overrides, verbose, dry_run, load), folder
    if folder.is_dir() and run not in known_configs():
        raise ConfigError(f"{run} is no run folder: it holds no config.yaml. Give one that `querylect train` wrote.")
    return _resolve(run, overrides, verbose, dry_run), None


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"querylect {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Train a language model to speak the query dialect of the retriever it will really use."""


@index_app.command("build")
def index_build(
    config: Config = "demo",
    overrides: Overrides = None,
    overwrite: Overwrite = False,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="i/n", help="Only write shard i of n; then `index merge`.")
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only what a local service of CONFIG would open and what is not there.")
    ] = False,
    env: MixMember = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Build the index of CONFIG's corpus for its retriever; go on where an interrupted build stopped."""
    settings = _resolve(config, overrides, verbose, dry_run)
    if shard is not None:
        if overwrite or missing:
            raise ConfigError("--shard writes parts and nothing else: leave out --overwrite and --missing.")
        from .envs.build import build_shard

        target = only(settings, env).env
        with progress_bar("indexing") as progress:
            parts = build_shard(target, *_shard(shard), progress=progress)
        typer.echo(f"{target.index}: shard {shard} is written ({parts} parts)")
        return
    from filelock import FileLock

    from .envs.build import build_index

    for member in chosen(settings, env).values():
        if missing and (member.client.urls != "local" or member.env.has_index):
            continue
        index = member.env.index_folder
        index.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(index.with_name(f".{index.name}.job")) if missing else nullcontext():
            if missing and member.env.has_index:
                continue  # another process built it while this one waited
            with progress_bar("indexing") as progress:
                meta = build_index(member.env, overwrite=overwrite, progress=progress)
        typer.echo(f"{member.env.index}: {meta.documents} documents")


@index_app.command("merge")
def index_merge(
    config: Config = "demo",
    overrides: Overrides = None,
    overwrite: Overwrite = False,
    env: MixMember = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Put the shards of CONFIG's index together, once `index build --shard` has written them all."""
    settings = only(_resolve(config, overrides, verbose, dry_run), env)
    from .envs.build import merge_index

    meta = merge_index(settings.env, overwrite=overwrite)
    typer.echo(f"{settings.env.index}: {meta.documents} documents")


def _shard(shard: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None:
        raise ConfigError(f"--shard is {shard!r}; expected i/n, such as 3/16.")
    return int(match[1]), int(match[2])


@index_app.command("verify")
def index_verify(
    config: Config = "demo",
    overrides: Overrides = None,
    env: MixMember = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Check every file of CONFIG's index, and of a hybrid's members, against its meta.json."""
    settings = _resolve(config, overrides, verbose, dry_run)
    from .envs.retrievers.open import verify_indexes

    for run_config in chosen(settings, env).values():
        for folder, meta in verify_indexes(run_config.env).items():
            typer.echo(f"{folder}: {meta.documents} documents, every file as its meta.json says")


index_app.command("questions")(index_questions)
index_app.command("test-questions")(index_test_questions)


@app.command()
def serve(
    config: Config = "demo",
    overrides: Overrides = None,
    rewriter: Annotated[
        str | None,
        typer.Option("--rewriter", metavar="RUN|EXPORT|ID", help="Rewrite and search, too: /v1/ask."),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="Of the rewriter's run: best, final or checkpoint-N.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Of the rewriter on the Hub: a branch, tag or commit.")
    ] = None,
    turn: Annotated[
        int | None, typer.Option("--turn", min=1, help="Of the rewriter; the turn that won on validation.")
    ] = None,
    env: MixMember = None,
    tell: Annotated[
        Path | None,
        typer.Option("--tell", metavar="FILE", help="Serve as a run's own service does, and write the URL there."),
    ] = None,
    trust: Trust = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Serve CONFIG's environment over HTTP until Ctrl-C; print its URL once it answers."""
    settings = only(_resolve(config, overrides, verbose, dry_run), env)
    if rewriter is None and (checkpoint is not None or revision is not None or turn is not None or trust):
        raise ConfigError("--checkpoint, --revision, --turn and --trust need --rewriter.")
    from .envs.client.base import token_of
    from .envs.client.child_process import PRIVATE
    from .envs.client.connect import write_url

    token = token_of(settings.client.token_env) or None
    served = settings.env if tell is None else settings.env.model_copy(update=PRIVATE)
    extend = None
    if rewriter is not None:
        from .inference.load import open_trained

        trained = open_trained(rewriter, checkpoint=checkpoint, revision=revision, trust=trust)
        from .inference.rewriter import Rewriter
        from .inference.server import mount

        loaded = Rewriter(trained, turn=turn)
        extend = partial(mount, rewriter=loaded, env=env if env in trained.members else None)
    from .envs.server.serve import serve as serve_environment

    def ready(url: str) -> None:
        if tell is not None:
            write_url(tell, url, served)
        typer.echo(url)

    serve_environment(served, token=token, ready=ready, extend=extend)


@app.command()
def train(
    config: Config = "demo",
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="With --resume: also read DeepSpeed's pickles of a run of another user.")
    ] = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Train CONFIG's policy against its environment and print the run folder.

    A dry run refuses settings that contradict each other or the processes that train: those of a launcher, one where
    one GPU is enough, else those of the config's Slurm script. It says, as comments below the config, how much memory
    the script's processes are estimated to need, and warns if they do not fit.
    """
    settings = _resolve(config, overrides, verbose, dry_run=False)
    if dry_run:
        from .doctor.memory import preview_training

        typer.echo(dump_config(settings) + "".join(f"# {line}\n" for line in preview_training(settings)), nl=False)
        raise typer.Exit
    from .train.run import train as train_policy

    out = sys.stdout  # a tracker may have redirected sys.stdout by the end of the run
    folder = train_policy(settings, resume, trust)
    if os.environ.get("RANK", "0") == "0":
        typer.echo(folder, file=out)


app.command("launch")(launch)


@app.command("eval")
def evaluate(
    run: Annotated[
        str, typer.Argument(metavar="SPEC|RUN", help="A spec, a run folder, or a config for the untrained policy.")
    ],
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the results.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="best, final or checkpoint-N of RUN; the first there is.")
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace results of other questions, checkpoints or settings; stored answers are kept.",
        ),
    ] = False,
    env: MixMember = None,
    trust: Trust = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Evaluate a SPEC of systems × datasets × environments, or one RUN; print the path of the report.

    A RUN is compared with its untrained policy, HyDE at equal cost and the raw question, in every environment of a mix.
    """
    from .configs.evaluation import dump_spec, is_spec, load_spec

    changes, of_run = list(overrides or ()), not is_spec(run)
    if of_run:
        settings, folder = _resolve_run(run, changes, verbose, dry_run, trust)
        if folder is None and checkpoint is not None:
            raise ConfigError(f"--checkpoint {checkpoint} needs a run folder, and {run!r} is a config.")
        from .eval.run import results_folder, spec_of_run

        spec = spec_of_run(settings, folder, checkpoint, env)
        output = output or results_folder(spec, settings, folder)
    else:
        if checkpoint is not None or env is not None:
            raise ConfigError("--checkpoint and --env are for a run; in a spec say systems.NAME.checkpoint=…")
        set_up_logging(verbose)
        spec = load_spec(run, changes)
        if dry_run:
            from .eval.run import with_run_baselines

            typer.echo(dump_spec(with_run_baselines(spec)), nl=False)
            raise typer.Exit
    from .eval.spec import evaluate_spec

    gc.set_threshold(100_000, 20, 20)  # millions of small objects and no cycles: a tenth of the time went to looking
    path, failed = evaluate_spec(spec, output, overwrite, trust, run=settings if of_run else None)
    _print_stderr(path.with_name("tables.md").read_text(encoding="utf-8"))
    typer.echo(path)
    if failed is not None:
        raise failed


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, finished or not.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; training.html in the (common) folder of the runs.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Draw the training curves and evaluations of runs on one page, seeds of one configuration as a band; print its
    path."""
    set_up_logging(verbose)
    from .eval.curves import write_report

    typer.echo(write_report(runs, output))
