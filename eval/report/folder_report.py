"""`querylect report`: one self-contained page about evaluations, drift and training runs.

All figures come from the files in the folders. The page loads nothing; its only script is allowed by its hash and reads
the questions from embedded JSON, so text from a question, a document or a model is never interpreted as markup.
"""

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2.utils import htmlsafe_json_dumps

from ...configs.evaluation import RAW
from ..pages.templates import page_environment
from ..records import now, write_text
from ..text import TRANSFER_EXPLAINED
from . import parts, reproduce
from .browse import (
    KINDS,
    DatasetEnvironment,
    KnownDocuments,
    SystemTurn,
    as_data,
    choose,
    documents_of,
    missed,
    unchanged_of,
)
from .curves import write_curves
from .documents import judgements, titles
from .lengths import Lengths, lengths_by_turn, totals
from .sources import EvaluationFolder, Material, read_folders

LARGEST = 5_000_000
"""Maximum bytes of a page; the question browser is reduced to stay below it."""


@dataclass(slots=True)
class _Collected:
    """Data collected from the question records of all evaluations."""

    groups: list[SystemTurn] = field(default_factory=list)
    envs: dict[tuple[str, str, str], DatasetEnvironment] = field(default_factory=dict)
    document_info: dict[tuple[str, str], KnownDocuments] = field(default_factory=dict)
    costs: list[dict[str, object]] = field(default_factory=list)
    lengths: dict[tuple[str, str], dict[str, dict[int, Lengths]]] = field(default_factory=dict)
    """By evaluation and environment, then by system and turn."""


def write_report(folders: Sequence[Path], output: Path | None, questions: int) -> Path:
    """Write the page about `folders` and return its path; if all are training runs, it is the page of their curves.

    The default path is report.html in the evaluation's folder, or in the common parent folder of several evaluations;
    without an evaluation, drift folders take their role. `questions`: how many gains, and how many losses, the question
    browser shows per system and turn. Raises ConfigError for a folder of another kind, DataError for files that cannot
    be read, StorageError if the page cannot be written.
    """
    material = read_folders(folders)
    if not material.evaluations and not material.drifts:
        return write_curves(folders, output)
    source_folders = [source.folder for source in material.evaluations or material.drifts]
    target = output or (
        source_folders[0]
        if len(source_folders) == 1
        else Path(os.path.commonpath([folder.resolve() for folder in source_folders]))
    )
    if target.is_dir():
        target = target / "report.html"
    command = reproduce.of_report(material.folders, target, questions)
    created = now()
    write_text(target, render(material, questions, command, created))
    return target


def render(material: Material, questions: int, command: str, created: str, largest: int = LARGEST) -> str:
    """The page as HTML, kept below `largest` bytes by showing fewer questions, if that suffices.

    `command` is the command that made the page; `created` is the time, as text.
    """
    names = parts.evaluation_names(material.evaluations)
    collected = _Collected()
    for name, evaluation in zip(names, material.evaluations, strict=True):
        _collect_records(collected, name, evaluation, questions)
    environment = page_environment()
    script = environment.get_template("browse.js.j2").render()
    spec_names = [evaluation.results.name for evaluation in material.evaluations]
    values = {
        "title": " · ".join(dict.fromkeys(spec_names)) or f"Drift between {', '.join(material.drifts[0].names)}",
        "evaluations": [
            parts.evaluation_part(number, name, evaluation)
            for number, (name, evaluation) in enumerate(zip(names, material.evaluations, strict=True))
        ],
        "drifts": [parts.drift_part(number, drift) for number, drift in enumerate(material.drifts)],
        "lengths": parts.length_parts(collected.lengths),
        "costs": collected.costs,
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
    for browse in _browsers(collected, questions):
        page = template.render(**values, browse=browse)
        if len(page.encode()) <= largest:
            break
    return page


def _collect_records(collected: _Collected, name: str, evaluation: EvaluationFolder, questions: int) -> None:
    """Read the records of an evaluation cell by cell, and keep only what the page shows."""
    metric = evaluation.spec.metrics[0]
    groups: list[SystemTurn] = []
    for cell in sorted(evaluation.results.cells, key=lambda cell: cell.system != RAW):
        system, dataset, environment = cell.system, cell.dataset, cell.environment
        records = evaluation.records(cell)
        if not records:
            continue
        key = name, dataset, environment
        env = collected.envs.setdefault(key, DatasetEnvironment(*key))
        collected.costs.append(parts.cost_row(key, system, totals(records)))
        if system == RAW:
            env.raw = {record.question_id: record for record in records}
            continue
        groups += choose(env, system, records, cell.samples or 1, metric, questions)
        for turn, lengths in lengths_by_turn(records).items():  # none of a baseline, which writes no rewrites
            turns = collected.lengths.setdefault((name, environment), {}).setdefault(system, {})
            turns[turn] = turns.get(turn, Lengths()) + lengths
    for dataset in dict.fromkeys(group.env.dataset for group in groups):
        of_dataset = [group for group in groups if group.env.dataset == dataset]
        qrels = judgements(evaluation, dataset)
        ranked = documents_of(of_dataset)
        question_ids = {pick.question_id for group in of_dataset for picks in group.picks.values() for pick in picks}
        document_ids = ranked.union(*(missed((qrels or {}).get(question, {}), ranked) for question in question_ids))
        collected.document_info[name, dataset] = KnownDocuments(titles(evaluation, dataset, document_ids), qrels)
    collected.groups += groups


def _browsers(collected: _Collected, questions: int) -> Iterator[dict[str, object] | None]:
    """Data of the question browser, with fewer and fewer questions; None if there is nothing to show."""
    if not any(picks for group in collected.groups for picks in group.picks.values()):
        yield None
        return
    tries = [questions]
    while tries[-1] > 1:
        tries.append(tries[-1] // 2)
    for every_turn in (True, False):
        for per_kind in tries:
            yield _browse(collected, per_kind, questions, every_turn)
    yield {
        "data": None,
        "rule": "",
        "left_out": "There are too many comparisons for one page; none is shown.",
        "groups": [],
    }


def _browse(collected: _Collected, per_kind: int, requested: int, every_turn: bool) -> dict[str, object]:
    data = as_data(collected.groups, collected.document_info, per_kind, every_turn)
    rule = (
        "Chosen by a fixed rule, not by hand: of every dataset, environment, system and turn the questions that gained "
        f"most over the raw question ({per_kind}), those that lost most ({per_kind}), and unchanged ones at even "
        f"distances through the split ({unchanged_of(per_kind)}); equal values in the order of the split. A question "
        "that either side has no score for is in none of them."
    )
    left_out = []
    if per_kind < requested:
        left_out.append(f"To keep the page small, {per_kind} of each are shown and not {requested}.")
    if not every_turn:
        left_out.append("To keep the page small, only the last turn of every system is here.")
    compared = sum(group.counts[kind] for group in collected.groups for kind in KINDS)
    left_out.append(f"Shown are {len(data['items']):,} of {compared:,} comparisons; the others stand in questions/.")
    text = htmlsafe_json_dumps(data, ensure_ascii=False, separators=(",", ":"))
    return {"data": text, "rule": rule, "left_out": " ".join(left_out), "groups": data["groups"]}
