"""What each retriever is asked: the successful rewrites of an evaluation, or a file of queries.

A source is an eval.jsonl (or a folder that holds one), of which one system at one turn is taken and of that what
succeeded; or a plain file of queries, a text with one on every line or JSON lines, which is taken whole. Two queries
belong to one question where id and text of the question are equal; without a question each query stands for its own.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...configs.methods import TRAINING_FREE
from ...data.jsonl import read_lines, text_of
from ...errors import ConfigError, DataError
from ..records import HYDE, METRICS, RAW, TRAINED, UNTRAINED, EvalRecord, read_records

MAIN_METRIC = METRICS[0]
_EXPECTED = 'a JSON string, or an object with "query", "rewrite" or "text", or with a list "rewrites"'


Key = tuple[str, str, str]
"""What a question is known by: its id and text; for a query without a question what no other query has."""


@dataclass(frozen=True, slots=True)
class Query:
    """One text that a retriever was asked."""

    text: str
    question_id: str = ""
    question: str = ""
    """The question behind it; "" where it is not known."""


@dataclass(frozen=True, slots=True)
class Success:
    """Which rewrites count as successful."""

    name: str
    said: str
    """The definition, to stand after "successful:"."""
    needs_raw: bool
    holds: Callable[[float, float], bool]
    """Of the score of the rewrite and of the raw question."""


@dataclass(frozen=True, slots=True)
class System:
    """The queries of one retriever, in an order that does not depend on that of the file, and what was left out."""

    name: str
    source: str
    said: str
    """Which part of the source was taken."""
    queries: tuple[Query, ...]
    answers: int | None = None
    """Answers looked at; None for a plain file, whose queries are all taken."""
    wrong_format: int = 0
    unscorable: int = 0
    """Answers without a score of their own or, where success is measured by it, of the raw question."""
    successful: int | None = None

    @property
    def keys(self) -> list[Key]:
        """The question of each query, in their order: equal for queries of one question, also of another system."""
        return [
            (query.question_id, query.question, "")
            if query.question_id or query.question
            else ("", "", f"{self.name} {number:09d}")
            for number, query in enumerate(self.queries)
        ]

    @property
    def questions(self) -> int:
        """Different questions behind the queries."""
        return len(set(self.keys))


def success_of(name: str) -> Success:
    """The definition by its name: gain, keep, all, or the least score as a number. Raises ConfigError for another."""
    if name == "gain":
        return Success(name, "nDCG@10 above that of the raw question", True, lambda score, raw: score > raw)
    if name == "keep":
        return Success(
            name,
            "nDCG@10 above 0 and at least that of the raw question",
            True,
            lambda score, raw: score > 0 and score >= raw,
        )
    if name == "all":
        return Success(name, "any score, also 0", False, lambda score, raw: True)
    try:
        least = float(name)
    except ValueError:
        least = math.nan
    if not 0 < least <= 1:
        raise ConfigError(
            f"--success is {name!r}; expected gain (above the raw question), keep (at least the raw question and above "
            "0), all, or a least nDCG@10 above 0 and up to 1, as 0.5."
        )
    return Success(name, f"nDCG@10 of at least {least:g}", False, lambda score, raw: score >= least)


def read_system(name: str, path: Path, success: Success, system: str | None = None, turn: int | None = None) -> System:
    """The queries of one source. `system` None takes the trained one, or the only one that the file has beside the raw
    questions; `turn` None the last one that the system has.

    Raises DataError for a source that cannot be read, without that system or turn, or in which nothing succeeded.
    """
    file = path / "eval.jsonl" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise DataError(f"{name}: {path} holds no eval.jsonl. Run `querylect eval` on it, or name a file of queries.")
    if _holds_records(file):
        return _of_records(name, file, read_records(file), success, system, turn)
    queries = list(_of_json(file) if file.suffix == ".jsonl" else _of_text(file))
    if not queries:
        raise DataError(f"{name}: {file} holds no query; expected one on each line.")
    return System(name, str(file), "every query of the file", _in_order(queries))


def _holds_records(file: Path) -> bool:
    if file.suffix != ".jsonl":
        return False
    for _, line in read_lines(file, "evaluation records or queries"):
        return line.lstrip().startswith("{") and all(f'"{key}"' in line for key in ("system", "turn", "rewrites"))
    return False


def _of_records(
    name: str, file: Path, records: Sequence[EvalRecord], success: Success, asked_for: str | None, turn: int | None
) -> System:
    system = _system(name, file, records, asked_for)
    found = [record for record in records if record.system == system]
    turns = sorted({record.turn for record in found})
    chosen = turns[-1] if turn is None else turn
    if chosen not in turns:
        raise DataError(
            f"{name}: {system} has no turn {chosen} in {file}; it has {', '.join(map(str, turns))}. Change --turn."
        )
    found = [record for record in found if record.turn == chosen]
    raw = _raw_scores(name, file, records, system, success)
    asked = [record for record in found if record.format_ok]
    scored: list[tuple[EvalRecord, float, float]] = []
    for record in asked:
        score, base = record.metrics.get(MAIN_METRIC), raw.get(record.question_id)
        if score is not None and (base is not None or not success.needs_raw):
            scored.append((record, score, 0.0 if base is None else base))
    good = [record for record, score, base in scored if success.holds(score, base)]
    for record in good:
        if not all(text.strip() for text in record.rewrites):
            raise DataError(
                f"{name}: question {record.question_id!r} in {file} has an empty rewrite. Evaluate it again."
            )
    queries = [Query(text, record.question_id, record.question) for record in good for text in record.rewrites]
    if not queries:
        raise DataError(
            f"{name}: none of {len(found)} answers of {system} at turn {chosen} in {file} was successful "
            f"({success.said}): {len(found) - len(asked)} not in the asked format, "
            f"{len(asked) - len(scored)} unscorable, {len(scored)} scored. Give another --success, --system or --turn."
        )
    return System(
        name=name,
        source=str(file),
        said=f"{system}, turn {chosen}",
        queries=_in_order(queries),
        answers=len(found),
        wrong_format=len(found) - len(asked),
        unscorable=len(asked) - len(scored),
        successful=len(good),
    )


def _system(name: str, file: Path, records: Sequence[EvalRecord], asked_for: str | None) -> str:
    """The system that is asked for; else the trained one, else the only one that there is."""
    systems = list(dict.fromkeys(record.system for record in records))
    baselines = {RAW, *TRAINING_FREE, *([HYDE] if UNTRAINED in systems else [])}
    written = [system for system in systems if system not in baselines]
    if asked_for in systems:
        return str(asked_for)
    if asked_for is None and TRAINED in systems:
        return TRAINED
    if asked_for is None and len(written) == 1:
        return written[0]
    seen = f"no system {asked_for!r}" if asked_for else "no system that goes without saying"
    raise DataError(
        f"{name}: {file} has {seen}; it has {', '.join(systems) or 'none'}. Give one of them with --system."
    )


def _raw_scores(
    name: str, file: Path, records: Sequence[EvalRecord], system: str, success: Success
) -> dict[str, float | None]:
    """nDCG@10 of the raw questions, from the records or from the cell of the raw questions beside a grid's cell."""
    if not success.needs_raw:
        return {}
    if system == RAW:
        raise ConfigError(
            f"--success {success.name} compares with the raw question, and --system is {RAW}. Give --success all "
            "or a number."
        )
    parts = file.stem.split(".")
    beside = [file.with_name(f"{'.'.join(parts[:end])}.{RAW}.jsonl") for end in range(len(parts) - 1, 0, -1)]
    raw = [record for record in records if record.system == RAW]
    if not raw and (cell := next((cell for cell in beside if cell.is_file()), None)):
        raw = [record for record in read_records(cell) if record.system == RAW]
    if not raw:
        raise DataError(
            f"{name}: {file} has no scores of the raw questions, with which --success {success.name} compares. "
            "Evaluate with them, or give --success all or a number."
        )
    return {record.question_id: record.metrics.get(MAIN_METRIC) for record in raw}


def _of_text(file: Path) -> Iterator[Query]:
    for _, line in read_lines(file, "queries, one on each line"):
        yield Query(line.strip())


def _of_json(file: Path) -> Iterator[Query]:
    """Queries of JSON lines, for instance what `querylect rewrite` prints."""
    for number, line in read_lines(file, "queries as JSON lines"):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{file}, line {number}: not valid JSON ({error}). Mend or remove the line.") from error
        if isinstance(record, str):
            record = {"query": record}
        texts = _texts(record) if isinstance(record, dict) else None
        if texts is None:
            raise DataError(f"{file}, line {number}: no query in {line[:80]}; expected {_EXPECTED}.")
        identifier = str(record.get("question_id") or "")
        question = text_of({"question": record.get("question") or ""}, "question", file, number, None)
        for text in texts:
            query = text_of({"query": text}, "query", file, number, None)
            if not query.strip():
                raise DataError(f"{file}, line {number}: the query is empty. Mend or remove the line.")
            yield Query(query, identifier, question)


def _texts(record: dict[str, Any]) -> list[Any] | None:
    if isinstance(record.get("rewrites"), list):
        return list(record["rewrites"])
    return next(([record[key]] for key in ("query", "rewrite", "text") if key in record), None)


def _in_order(queries: Sequence[Query]) -> tuple[Query, ...]:
    """Every draw is by position: the same queries give the same numbers, whatever their order in the file."""
    return tuple(sorted(queries, key=lambda query: (query.question_id, query.question, query.text)))
