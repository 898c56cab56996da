"""Catalogue of `querylect data get`: where a benchmark is published, in which form, under which licence.

`ragbench`, `finagentbench`, `beir/NAME`, and the question sets and corpora of the papers are in known.yaml;
`hub:OWNER/NAME` is any dataset on the Hub with tables of documents, questions and judgements.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..configs.yaml12 import parse_yaml
from ..errors import DataError

_BEIR_LICENCE = "BEIR (Thakur et al. 2021); {}, as its authors report"
_TABLES = ("README.md", "corpus*", "corpus/*", "queries*", "queries/*")


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Files of one repository on the Hub."""

    repo: str
    files: tuple[str, ...]
    """Patterns (fnmatch) of the files to fetch."""
    folder: str = ""
    """Target folder, below the folder of the benchmark."""
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a question set or corpus has what `convert` needs: names of columns."""

    splits: Mapping[str, str]
    """Split → pattern of its files; `corpus` for a corpus."""
    question: tuple[str, ...] = ()
    """The first of these that holds a text is the question."""
    answer: str = ""
    options: str = ""
    id: str = ""
    """Empty: rows are numbered."""
    title: str = ""
    text: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read."""
        return tuple(filter(None, (*self.question, self.answer, self.options, self.id, self.title, self.text)))


@dataclass(frozen=True, slots=True)
class KnownBenchmark:
    """Catalogue entry of one benchmark."""

    name: str
    kind: str
    """`dataset.kind` of the published form; one of `convert.CONVERTED` where it has to be converted first."""
    about: str
    licence: str
    repositories: tuple[HubFiles, ...] = ()
    files: tuple[str, ...] = ("*",)
    """Patterns of the files to take from a local copy."""
    by_hand: str = ""
    """How to get it by hand, if it may not be fetched by a program."""
    ignore_identical_ids: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    """Published numbers of documents, and of questions and judgements above 0 in `split`; may be empty."""
    split: str = "test"
    """The split that published results are for."""
    layout: Layout | None = None
    """For kinds that have to be converted."""


@cache
def known() -> Mapping[str, KnownBenchmark]:
    """All benchmarks of known.yaml, by name."""
    entries = parse_yaml((Path(__file__).parent / "known.yaml").read_text(encoding="utf-8"))
    benchmarks = {name: _from_entry(name, entry) for name, entry in entries.items() if name != "beir"}
    return benchmarks | {f"beir/{name}": _beir(name, entry) for name, entry in entries["beir"].items()}


def look_up(name: str) -> KnownBenchmark:
    """The benchmark of that name. Raises DataError if there is none."""
    benchmark = known().get(name)
    if benchmark is not None:
        return benchmark
    if name.startswith("hub:"):
        repo = name.removeprefix("hub:")
        return KnownBenchmark(name, "mteb", f"tables of {repo}", "", (HubFiles(repo, ("*",)),))
    raise DataError(
        f"no benchmark {name!r} is known; known are {', '.join(known())}, and hub:OWNER/NAME for a dataset on the Hub "
        "with tables of documents, questions and judgements."
    )


def listed() -> Iterator[tuple[str, str, str]]:
    """(name, description, licence note) for each line of `querylect data list`."""
    for entry in known().values():
        yield entry.name, entry.about, entry.licence
    yield "hub:OWNER/NAME", "tables of documents, questions and judgements on the Hub", "as its card says"


def _from_entry(name: str, entry: Mapping[str, Any]) -> KnownBenchmark:
    repositories = tuple(HubFiles(item["repo"], tuple(item["files"])) for item in entry.get("repositories", ()))
    files = tuple(entry.get("files") or (pattern for repository in repositories for pattern in repository.files))
    layout = entry.get("layout")
    if layout is not None:
        question = layout.get("question", ())
        layout = Layout(**{**layout, "question": (question,) if isinstance(question, str) else tuple(question)})
    fields = {"name": name, "repositories": repositories, "files": files, "layout": layout}
    return KnownBenchmark(**{**entry, **fields})


def _beir(name: str, entry: Mapping[str, Any]) -> KnownBenchmark:
    return KnownBenchmark(
        name=f"beir/{name}",
        kind="mteb",
        about=f"{entry['documents']:,} documents, {entry['questions']:,} {entry['split']} questions",
        licence=_BEIR_LICENCE.format(entry["licence"]),
        repositories=(HubFiles(f"BeIR/{name}", _TABLES), HubFiles(f"BeIR/{name}-qrels", ("*.tsv",), "qrels")),
        files=(*_TABLES, "qrels/*"),
        ignore_identical_ids=True,
        counts={name: entry[name] for name in ("documents", "questions", "judgements")},
        split=entry["split"],
    )
