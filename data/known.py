"""What `querylect data get` knows: where a benchmark is published, in which form, under which licence.

`ragbench`, `finagentbench` and `beir/NAME` stand in known.yaml. `mteb/NAME` is looked up in the library mteb, an
optional extra; `hub:OWNER/NAME` is any dataset on the Hub with tables of documents, questions and judgements.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..errors import DataError

_BEIR_LICENCE = "BEIR (Thakur et al. 2021); {}, as its authors report"
_TABLES = ("README.md", "corpus*", "corpus/*", "queries*", "queries/*")


@dataclass(frozen=True, slots=True)
class Repository:
    """Files of one repository on the Hub."""

    repo: str
    files: tuple[str, ...]
    """Patterns (fnmatch) of the paths to take."""
    folder: str = ""
    """Where they are put, below the folder of the benchmark."""
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """One benchmark."""

    name: str
    kind: str
    """`dataset.kind` of the published form."""
    about: str
    licence: str
    repositories: tuple[Repository, ...] = ()
    files: tuple[str, ...] = ("*",)
    """What to take of a local copy."""
    by_hand: str = ""
    """How to get it where no program may."""
    ignore_identical_ids: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    """Documents, and questions and judgements above 0 of `split`, where they are known beforehand."""
    split: str = "test"
    """The split that tables of results are about."""


def known() -> dict[str, Known]:
    """Every benchmark that has a name here."""
    said = _read("known.yaml")
    found = {name: _plain(name, entry) for name, entry in said.items() if name != "beir"}
    return found | {f"beir/{name}": _beir(name, entry) for name, entry in said["beir"].items()}


def look_up(name: str) -> Known:
    """The benchmark of that name. Raises DataError where there is none, or the library that knows it is missing."""
    found = known().get(name)
    if found is not None:
        return found
    if name.startswith("mteb/"):
        return _mteb(name)
    if name.startswith("hub:"):
        repo = name.removeprefix("hub:")
        return Known(name, "mteb", f"tables of {repo}", "", (Repository(repo, ("*",)),))
    raise DataError(
        f"no benchmark {name!r} is known; known are {', '.join(known())}, mteb/NAME for a retrieval task of MTEB, and "
        "hub:OWNER/NAME for a dataset on the Hub with tables of documents, questions and judgements."
    )


def listed() -> Iterator[tuple[str, str, str]]:
    """Name, what it is, licence note: the lines of `querylect data list`."""
    for entry in known().values():
        yield entry.name, entry.about, entry.licence
    yield "mteb/NAME", "any retrieval task of MTEB by name (needs the extra mteb)", "as the task's metadata say"
    yield "hub:OWNER/NAME", "tables of documents, questions and judgements on the Hub", "as its card says"
    yield (
        "ir_datasets ID",
        "any id of ir_datasets (the extra of that name): prepare and dataset.kind",
        "as its page says",
    )


def _plain(name: str, entry: Mapping[str, Any]) -> Known:
    repositories = tuple(Repository(each["repo"], tuple(each["files"])) for each in entry.get("repositories", ()))
    files = tuple(entry["files"]) if "files" in entry else tuple(p for each in repositories for p in each.files)
    return Known(
        name, entry["kind"], entry["about"], entry["licence"], repositories, files, by_hand=entry.get("by_hand", "")
    )


def _beir(name: str, entry: Mapping[str, Any]) -> Known:
    return Known(
        name=f"beir/{name}",
        kind="mteb",
        about=f"{entry['documents']:,} documents, {entry['questions']:,} {entry['split']} questions",
        licence=_BEIR_LICENCE.format(entry["licence"]),
        repositories=(
            Repository(f"BeIR/{name}", _TABLES),
            Repository(f"BeIR/{name}-qrels", ("*.tsv",), "qrels"),
        ),
        files=(*_TABLES, "qrels/*"),
        ignore_identical_ids=True,
        counts={name: entry[name] for name in ("documents", "questions", "judgements")},
        split=entry["split"],
    )


def _mteb(name: str) -> Known:
    try:
        import mteb
    except ImportError as error:
        raise DataError(
            f"{name!r} is looked up in the library mteb, which is not installed. Install it: pip install "
            "'querylect[mteb]'; or name the repository yourself: querylect data get hub:OWNER/NAME."
        ) from error
    wanted = name.removeprefix("mteb/")
    try:
        task = mteb.get_task(wanted)
    except (KeyError, ValueError) as error:
        raise DataError(f"MTEB has no task {wanted!r} ({error}). Its tasks: `mteb available-tasks`.") from error
    said = task.metadata
    if said.type not in ("Retrieval", "InstructionRetrieval") or "text" not in said.modalities:
        raise DataError(f"the MTEB task {wanted!r} is of type {said.type}; expected a retrieval task over texts.")
    return Known(
        name=name,
        kind="mteb",
        about=said.description,
        licence=f"{said.license or 'no licence stated'}, as MTEB reports; {said.reference or ''}".rstrip("; "),
        repositories=(Repository(said.dataset["path"], ("*",), revision=said.dataset.get("revision")),),
        ignore_identical_ids=bool(getattr(task, "ignore_identical_ids", False)),
    )


@cache
def _read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8")))
