"""`querylect report`: one page about evaluations, drift and training runs, which needs nothing from elsewhere.

The figures are those of the folders' own files. The page loads nothing; its one script is allowed by its hash and reads
the questions from JSON beside it, so that no text from a question, a document or a model is ever taken for markup.
"""

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from ...configs.evaluation import RAW
from ..grid.text import TRANSFER_EXPLAINED
from ..pages.templates import page_environment
from ..records import write_text
from . import parts, reproduce
from .browse import KINDS, Group, Known, Place, as_data, choose, documents_of, missed, unchanged_of
from .curves import write_curves
from .documents import judgements, titles
from .lengths import Lengths, lengths_by_turn, totals
from .sources import Evaluation, Material, read_folders

LARGEST = 5_000_000
"""Bytes of a page; the browser of questions gives way."""


@dataclass(slots=True)
class _Read:
    """What the question records of all evaluations say."""

    groups: list[Group] = field(default_factory=list)
    places: dict[tuple[str, str, str], Place] = field(default_factory=dict)
    known: dict[tuple[str, str], Known] = field(default_factory=dict)
    costs: list[dict[str, Any]] = field(default_factory=list)
    lengths: dict[tuple[str, str], dict[str, dict[int, Lengths]]] = field(default_factory=dict)
    """By evaluation and environment, then by system and turn."""


def write_report(folders: Sequence[Path], output: Path | None, questions: int) -> Path:
    """Write the page about `folders` and return its path; of runs alone it is that of their training curves.

    By default it is report.html in the evaluation's folder; of several, in the folder above them all; without one, in
    that of the drift. `questions`: how many gains, and losses, of a system at a turn the browser of questions shows.
    Raises ConfigError for a folder of another kind, DataError for files that cannot be read, StorageError where the
    page cannot be written.
    """
    material = read_folders(folders)
    if not material.evaluations and not material.drifts:
        return write_curves(folders, output)
    homes = [one.folder for one in material.evaluations or material.drifts]
    target = output or (homes[0] if len(homes) == 1 else Path(os.path.commonpath([home.resolve() for home in homes])))
    if target.is_dir():
        target = target / "report.html"
    command = reproduce.of_report(material.folders, target, questions)
    created = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    write_text(target, render(material, questions, command, created))
    return target


def render(material: Material, questions: int, command: str, created: str, largest: int = LARGEST) -> str:
    """The page as HTML, below `largest` bytes as far as leaving out questions can make it so.

    `command` made the page, `created` is the time, as text.
    """
    names = parts.evaluation_names(material.evaluations)
    read = _Read()
    for name, evaluation in zip(names, material.evaluations, strict=True):
        _read_records(read, name, evaluation, questions)
    environment = page_environment()
    script = environment.get_template("browse.js.j2").render()
    named = [str(one.results["name"]) for one in material.evaluations]
    values = {
        "title": " · ".join(dict.fromkeys(named)) or f"Drift between {', '.join(material.drifts[0].names)}",
        "evaluations": [
            parts.evaluation_part(number, name, one)
            for number, (name, one) in enumerate(zip(names, material.evaluations, strict=True))
        ],
        "drifts": [parts.drift_part(number, drift) for number, drift in enumerate(material.drifts)],
        "lengths": parts.length_parts(read.lengths),
        "costs": read.costs,
        "training": parts.training_part(material.runs),
        "commands": parts.commands(material, command),
        "versions": parts.versions_part(material),
        "created": created,
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "transfer_explained": TRANSFER_EXPLAINED,
    }
    template = environment.get_template("folder_report.html.j2")
    page = ""
    for browse in _browsers(read, questions):
        page = template.render(**values, browse=browse)
        if len(page.encode()) <= largest:
            break
    return page


def _read_records(read: _Read, name: str, evaluation: Evaluation, questions: int) -> None:
    """Go through the records of an evaluation, cell by cell; only what the page shows is kept."""
    metric = evaluation.plan.metrics[0]
    groups: list[Group] = []
    for cell in sorted(evaluation.cells, key=lambda cell: cell["system"] != RAW):
        system, dataset, environment = cell["system"], cell["dataset"], cell["environment"]
        records = evaluation.records(cell)
        if not records:
            continue
        key = name, dataset, environment
        place = read.places.setdefault(key, Place(*key))
        calls = 1 if system == RAW else evaluation.plan.systems[system].passages
        read.costs.append(parts.cost_row(key, system, totals(records, calls)))
        if system == RAW:
            place.raw = {record.question_id: record for record in records}
            continue
        groups += choose(place, system, records, cell["samples"] or 1, metric, questions)
        turns = read.lengths.setdefault((name, environment), {}).setdefault(system, {})
        for turn, found in lengths_by_turn(records).items():
            turns[turn] = turns.get(turn, Lengths()) + found
    for dataset in dict.fromkeys(group.dataset for group in groups):
        of_dataset = [group for group in groups if group.dataset == dataset]
        qrels = judgements(evaluation, dataset)
        shown = documents_of(of_dataset, read.places)
        asked = {pick.question_id for group in of_dataset for picks in group.picks.values() for pick in picks}
        wanted = shown.union(*(missed((qrels or {}).get(question, {}), shown) for question in asked))
        read.known[name, dataset] = Known(titles(evaluation, dataset, wanted), qrels)
    read.groups += groups


def _browsers(read: _Read, questions: int) -> Iterator[dict[str, Any] | None]:
    """What the page says of questions, with ever fewer of them; None where there is nothing to show."""
    if not any(picks for group in read.groups for picks in group.picks.values()):
        yield None
        return
    tries = [questions]
    while tries[-1] > 1:
        tries.append(tries[-1] // 2)
    for every_turn in (True, False):
        for shown in tries:
            yield _browse(read, shown, questions, every_turn)
    yield {
        "data": None,
        "rule": "",
        "left_out": "There are too many comparisons for one page; none is shown.",
        "groups": [],
    }


def _browse(read: _Read, shown: int, wanted: int, every_turn: bool) -> dict[str, Any]:
    data = as_data(read.groups, read.places, read.known, shown, every_turn)
    rule = (
        "Chosen by a fixed rule, not by hand: of every dataset, environment, system and turn the questions that gained "
        f"most over the raw question ({shown}), those that lost most ({shown}), and unchanged ones at even distances "
        f"through the split ({unchanged_of(shown)}); equal values in the order of the split. A question that either "
        "side has no score for is in none of them."
    )
    left_out = []
    if shown < wanted:
        left_out.append(f"To keep the page small, {shown} of each are shown and not {wanted}.")
    if not every_turn:
        left_out.append("To keep the page small, only the last turn of every system is here.")
    compared = sum(group.counts[kind] for group in read.groups for kind in KINDS)
    left_out.append(f"Shown are {len(data['items']):,} of {compared:,} comparisons; the others stand in questions/.")
    text = htmlsafe_json_dumps(data, ensure_ascii=False, separators=(",", ":"))
    return {"data": text, "rule": rule, "left_out": " ".join(left_out), "groups": data["groups"]}
