"""`querylect data get`: a published benchmark, from the Hub or a local copy, written as a BEIR folder."""

from dataclasses import replace
from pathlib import Path

from ..errors import ConfigError, DataError, HubError, in_one_line
from .beir import refuse_existing
from .benchmark import Benchmark, relevance_level_of, write_benchmark
from .known import KnownBenchmark, look_up


def get(
    name: str,
    target: Path,
    copy: Path | None = None,
    subset: str | None = None,
    queries: str = "examples",
    revision: str | None = None,
    corpus: Path | None = None,
    validation: int = 0,
) -> list[str]:
    """Write the benchmark `name` as the new folder `target`; return a report.

    `copy` is a folder with its published files, in place of the Hub; `revision` a commit or branch there. `subset`,
    `queries`, `corpus` and `validation` are options of `_opened` and `write_answers`.

    Raises DataError for an unknown name or subset and for files of another form, HubError if the Hub does not answer
    (the same call goes on with what has arrived), StorageError if the files cannot be written.
    """
    from .convert import write_answers

    entry = look_up(name)
    refuse_existing(target.expanduser())
    if corpus is not None and entry.kind != "answers":
        raise ConfigError(f"--corpus is for questions with right answers, and {name} has its own.")
    folders = _downloaded(entry, revision) if copy is None else [copy.expanduser()]
    if not folders[0].is_dir():
        raise DataError(f"{folders[0]} is no folder; expected a copy of the published files of {name}.")
    if entry.kind == "answers":
        return write_answers(entry, folders[0], target, corpus, validation)
    benchmark = _opened(entry, folders, subset, queries)
    judged = {"ignore_identical_ids": entry.ignore_identical_ids, "relevance_level": relevance_level_of(name)}
    origin = {"name": name, "subset": subset, "folders": list(map(str, folders))}
    licence = "; on its card: ".join(filter(None, (entry.licence, benchmark.licence)))
    about = {**judged, "made_from": origin}
    return write_benchmark(replace(benchmark, licence=licence, about=about), target)


def _opened(entry: KnownBenchmark, folders: list[Path], subset: str | None, queries: str) -> Benchmark:
    """The reader's benchmark. `subset`: RAGBench's parts with commas, BRIGHT's domain, FinAgentBench's task, or one of
    the subsets of tables on the Hub."""
    from .bright import open_bright
    from .conversations import open_qrecc, open_topiocqa
    from .convert import open_pairs, open_passages
    from .finagentbench import open_finagentbench
    from .hub_tables import open_tables
    from .ragbench import open_ragbench

    folder = folders[0]
    match entry.kind:
        case "ragbench":
            return open_ragbench(folder, subset.split(",") if subset else None)
        case "bright":
            if not subset:
                raise ConfigError("BRIGHT is one benchmark for each domain. Choose one: --subset biology.")
            return open_bright(folder, subset, queries)
        case "finagentbench":
            return open_finagentbench(folder, subset or "chunks")
        case "topiocqa":
            return open_topiocqa(folder)
        case "qrecc":
            return open_qrecc(folder)
        case "pairs" | "passages":
            assert entry.layout is not None, "known.yaml describes the layout of every set of these kinds"
            return (open_pairs if entry.kind == "pairs" else open_passages)(entry.name, folder, entry.layout)
        case _:
            name = entry.name.removeprefix("beir/").removeprefix("hub:")
            return open_tables(folder, name, subset, folders[1] if len(folders) > 1 else None)


def _downloaded(benchmark: KnownBenchmark, revision: str | None) -> list[Path]:
    """The folder of each repository in the Hub's cache."""
    if not benchmark.repositories:
        raise DataError(f"{benchmark.name} cannot be fetched by a program: {benchmark.by_hand}.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError, XetDownloadError

    folders = []
    for repository in benchmark.repositories:
        try:
            patterns = list(repository.files)
            path = snapshot_download(repository.repo, repo_type="dataset", revision=revision, allow_patterns=patterns)
        except (HFValidationError, HTTPError, XetDownloadError, OSError) as error:
            raise HubError(
                f"the Hub could not give {repository.repo} ({in_one_line(error)}). Check the name, and the terms of "
                "the repository on the Hub, and run the same command again: it goes on with what has arrived. "
                "A copy from another machine is read with --from FOLDER."
            ) from error
        folders.append(Path(path))
    return folders
