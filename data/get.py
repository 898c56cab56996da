"""`querylect data get`: a published benchmark, from the Hub or a local copy, written as a BEIR folder.

known.yaml is the catalogue: where a benchmark is published, in which form, under which licence. `hub:OWNER/NAME` is any
dataset on the Hub with tables of documents, questions and judgements.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from ..configs.load import parse_yaml
from ..errors import ConfigError, DataError, HubError, in_one_line
from .beir import new_beir_folder, refuse_existing, write_documents, write_meta, write_questions
from .judgements import judged_splits
from .leakage import described, near_leaks, without_leaks
from .question_sets import Layout, open_pairs, open_passages, write_answers
from .types import Benchmark


class HubFiles(BaseModel):
    """Files of one repository on the Hub."""

    repo: str
    files: list[str]
    """Patterns (fnmatch) of the files to fetch."""


class KnownBenchmark(BaseModel):
    """Catalogue entry of one benchmark."""

    kind: str
    """Its published form; `_opened` has a reader for each."""
    about: str
    licence: str = ""
    repositories: list[HubFiles] = []
    by_hand: str = ""
    """How to get it by hand, if it may not be fetched by a program."""
    ignore_identical_ids: bool = False
    relevance_level: int = 1
    layout: Layout = Layout(splits={})


@cache
def known_benchmarks() -> Mapping[str, KnownBenchmark]:
    """All benchmarks of known.yaml, by name, `beir/NAME` among them."""
    entries = parse_yaml((Path(__file__).parent / "known.yaml").read_text(encoding="utf-8"))
    for name, entry in entries.pop("beir").items():
        tables = ["README.md", "corpus*", "corpus/*", "queries*", "queries/*"]
        entries[f"beir/{name}"] = {
            **entry,
            "kind": "tables",
            "about": f"{entry['documents']:,} documents, {entry['questions']:,} {entry['split']} questions",
            "licence": f"BEIR (Thakur et al. 2021); {entry['licence']}, as its authors report",
            "repositories": [
                {"repo": f"BeIR/{name}", "files": tables},
                {"repo": f"BeIR/{name}-qrels", "files": ["*.tsv"]},
            ],
            "ignore_identical_ids": True,
        }
    return {name: KnownBenchmark.model_validate(entry) for name, entry in entries.items()}


def get(
    name: str,
    target: Path,
    copy: Path | None = None,
    subset: str | None = None,
    queries: str = "examples",
    corpus: Path | None = None,
    validation: int = 0,
) -> list[str]:
    """Write the benchmark `name` as the new folder `target`; return a report.

    `copy` is a folder with its published files, in place of the Hub. `subset`, `queries`, `corpus` and `validation` are
    options of `_opened` and `write_answers`.

    Raises DataError for an unknown name or subset and for files of another form, HubError if the Hub does not answer
    (the same call goes on with what has arrived), StorageError if the files cannot be written.
    """
    if name.startswith("hub:"):
        repository = HubFiles(repo=name.removeprefix("hub:"), files=["*"])
        entry = KnownBenchmark(kind="tables", about="", repositories=[repository])
    elif name in known_benchmarks():
        entry = known_benchmarks()[name]
    else:
        raise DataError(
            f"no benchmark {name!r} is known; known are {', '.join(known_benchmarks())}, and hub:OWNER/NAME."
        )
    refuse_existing(target.expanduser())
    if corpus is not None and entry.kind != "answers":
        raise ConfigError(f"--corpus is for questions with right answers, and {name} has its own.")
    folders = _downloaded(name, entry) if copy is None else [copy.expanduser()]
    if not folders[0].is_dir():
        raise DataError(f"{folders[0]} is no folder; expected a copy of the published files of {name}.")
    if entry.kind == "answers":
        return write_answers(name, entry.licence, entry.layout, folders[0], target, corpus, validation)
    benchmark = _opened(name, entry, folders, subset, queries)
    licence = "; on its card: ".join(filter(None, (entry.licence, benchmark.licence)))
    notes = list(benchmark.notes)
    with new_beir_folder(target) as folder:
        documents = write_documents(folder, benchmark.documents())
        splits = judged_splits(benchmark.name, benchmark.questions, benchmark.qrels, documents, notes)
        splits, leaks = without_leaks(benchmark.name, splits)
        notes += [*leaks, *described(benchmark.name, near_leaks(splits))]
        write_questions(folder, splits)
        counts = {split: len(content.questions) for split, content in splits.items()}
        meta = {"name": benchmark.name, "licence": licence, "notes": notes, "made_from": list(map(str, folders))}
        judged = {"ignore_identical_ids": entry.ignore_identical_ids, "relevance_level": entry.relevance_level}
        write_meta(folder, {**meta, **judged})
    listed = ", ".join(f"{count:,} {split}" for split, count in counts.items()) or "none"
    return [f"{benchmark.name}: {len(documents):,} documents; questions: {listed}", f"licence: {licence}", *notes]


def _opened(name: str, entry: KnownBenchmark, folders: list[Path], subset: str | None, queries: str) -> Benchmark:
    """The reader's benchmark. `subset`: RAGBench's parts with commas, BRIGHT's domain, FinAgentBench's task, or one of
    the subsets of tables on the Hub."""
    from .benchmarks import open_bright, open_finagentbench, open_ragbench
    from .conversations import open_qrecc, open_topiocqa
    from .hub_tables import open_tables

    folder, tables = folders[0], name.removeprefix("beir/").removeprefix("hub:")
    readers = {
        "tables": lambda: open_tables(folder, tables, subset, folders[1] if len(folders) > 1 else None),
        "ragbench": lambda: open_ragbench(folder, subset.split(",") if subset else None),
        "bright": lambda: open_bright(folder, subset or "", queries),
        "finagentbench": lambda: open_finagentbench(folder, subset or "chunks"),
        "topiocqa": lambda: open_topiocqa(folder),
        "qrecc": lambda: open_qrecc(folder),
        "pairs": lambda: open_pairs(name, folder, entry.layout),
        "passages": lambda: open_passages(name, folder, entry.layout),
    }
    return readers[entry.kind]()


def _downloaded(name: str, benchmark: KnownBenchmark) -> list[Path]:
    """The folder of each repository in the Hub's cache."""
    if not benchmark.repositories:
        raise DataError(f"{name} cannot be fetched by a program: {benchmark.by_hand}.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError, XetDownloadError

    folders = []
    for repository in benchmark.repositories:
        try:
            path = snapshot_download(repository.repo, repo_type="dataset", allow_patterns=repository.files)
        except (HFValidationError, HTTPError, XetDownloadError, OSError) as error:
            raise HubError(
                f"the Hub could not give {repository.repo} ({in_one_line(error)}). Check the name, and the terms of "
                "the repository on the Hub, and run the same command again: it goes on with what has arrived. "
                "A copy from another machine is read with --from FOLDER."
            ) from error
        folders.append(Path(path))
    return folders
