"""Catalogue of `querylect data get`: where a benchmark is published, in which form, under which licence.

Its names are those of known.yaml, `beir/NAME` among them; `hub:OWNER/NAME` is any dataset on the Hub with tables of
documents, questions and judgements.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ..configs.load import parse_yaml
from ..errors import DataError

_TABLES = ("README.md", "corpus*", "corpus/*", "queries*", "queries/*")


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Files of one repository on the Hub."""

    repo: str
    files: tuple[str, ...]
    """Patterns (fnmatch) of the files to fetch."""


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
    """Its published form; get.py has a reader for each."""
    about: str
    licence: str
    repositories: tuple[HubFiles, ...] = ()
    by_hand: str = ""
    """How to get it by hand, if it may not be fetched by a program."""
    ignore_identical_ids: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    """Published numbers of documents, and of questions and judgements above 0 in `split`; may be empty."""
    split: str = "test"
    """The split that published results are for."""
    layout: Layout | None = None
    """For sets that convert.py reads."""


@cache
def known() -> Mapping[str, KnownBenchmark]:
    """All benchmarks of known.yaml, by name."""
    entries = parse_yaml((Path(__file__).parent / "known.yaml").read_text(encoding="utf-8"))
    beir = entries.pop("beir")
    benchmarks = {}
    for name, entry in entries.items():
        repositories = tuple(HubFiles(item["repo"], tuple(item["files"])) for item in entry.pop("repositories", ()))
        layout = entry.pop("layout", None)
        if layout is not None:
            question = layout.get("question", ())
            layout = Layout(**{**layout, "question": (question,) if isinstance(question, str) else tuple(question)})
        benchmarks[name] = KnownBenchmark(name, **entry, repositories=repositories, layout=layout)
    return benchmarks | {f"beir/{name}": _beir(name, entry) for name, entry in beir.items()}


def look_up(name: str) -> KnownBenchmark:
    """The benchmark of that name. Raises DataError if there is none."""
    if name.startswith("hub:"):
        repo = name.removeprefix("hub:")
        return KnownBenchmark(name, "tables", f"tables of {repo}", "", (HubFiles(repo, ("*",)),))
    if name not in known():
        raise DataError(
            f"no benchmark {name!r} is known; known are {', '.join(known())}, and hub:OWNER/NAME for a dataset on the "
            "Hub with tables of documents, questions and judgements."
        )
    return known()[name]


def _beir(name: str, entry: Mapping[str, object]) -> KnownBenchmark:
    return KnownBenchmark(
        name=f"beir/{name}",
        kind="tables",
        about=f"{entry['documents']:,} documents, {entry['questions']:,} {entry['split']} questions",
        licence=f"BEIR (Thakur et al. 2021); {entry['licence']}, as its authors report",
        repositories=(HubFiles(f"BeIR/{name}", _TABLES), HubFiles(f"BeIR/{name}-qrels", ("*.tsv",))),
        ignore_identical_ids=True,
        counts={name: int(str(entry[name])) for name in ("documents", "questions", "judgements")},
        split=str(entry["split"]),
    )
