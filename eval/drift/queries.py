"""The queries of each retriever: the successful rewrites of an evaluation, or a file of queries.

A source is an eval.jsonl (or a folder with one), from which the successful rewrites of one system at one turn are
taken; or a plain file of queries (one per line, or JSON lines), which is taken completely. Two queries have the same
question where its id and text are equal; a query without a question counts as a separate question.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...configs.evaluation import UNWRITTEN
from ...configs.methods import TRAINING_FREE
from ...data.jsonl import read_lines, text_of
from ...errors import ConfigError, DataError
from ...storage import parse_json
from ..records import HYDE, METRICS, RAW, TRAINED, UNTRAINED, EvalRecord, read_records

MAIN_METRIC = METRICS[0]
_EXPECTED = 'a JSON string, or an object with "query", "rewrite" or "text", or with a list "rewrites"'

QuestionKey = tuple[str, str, str]
"""Key of a question: its id and text; for a query without a question, a unique value."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query text for a retriever."""

    text: str
    question_id: str = ""
    question: str = ""
    """The question behind it; "" where unknown."""


@dataclass(frozen=True, slots=True)
class Success:
    """Which rewrites count as successful."""

    name: str
    said: str
    """The definition, to stand after "successful:"."""
    needs_raw: bool
    holds: Callable[[float, float], bool]
    """Takes the scores of the rewrite and of the raw question."""


@dataclass(frozen=True, slots=True)
class RetrieverQueries:
    """The queries of one retriever, in an order independent of the file, and the counts of what was left out."""

    name: str
    source: str
    said: str
    """The part of the source that was taken, in words."""
    queries: tuple[Query, ...]
    answers: int | None = None
    """Number of answers considered; None for a plain file, whose queries are all taken."""
    wrong_format: int = 0
    failed_searches: int = 0
    """Answers without a score, or without one of the raw question where success needs it."""
    successful: int | None = None

    @property
    def keys(self) -> list[QuestionKey]:
        """The question key of each query; queries of one question have equal keys, also across systems."""
        return [
            (query.question_id, query.question, "")
            if query.question_id or query.question
            else ("", "", f"{self.name} {number:09d}")
            for number, query in enumerate(self.queries)
        ]

    @property
    def questions(self) -> int:
        """Number of distinct questions."""
        return len(set(self.keys))


def success_of(name: str) -> Success:
    """The definition by name: gain, keep, all, or a minimum score. Raises ConfigError for any other."""
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
        minimum = float(name)
    except ValueError:
        minimum = math.nan
    if not 0 < minimum <= 1:
        raise ConfigError(
            f"--success is {name!r}; expected gain (above the raw question), keep (at least the raw question and above "
            "0), all, or a least nDCG@10 above 0 and up to 1, as 0.5."
        )
    return Success(name, f"nDCG@10 of at least {minimum:g}", False, lambda score, raw: score >= minimum)


def read_system(
    name: str, path: Path, success: Success, system: str | None = None, turn: int | None = None
) -> RetrieverQueries:
    """The queries of one source. `system` defaults to the trained system, or the only one besides the raw questions;
    `turn` defaults to the system's last turn.

    Raises DataError for a source that cannot be read, lacks that system or turn, or has no success.
    """
    file = path / "eval.jsonl" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise DataError(f"{name}: {path} holds no eval.jsonl. Run `querylect eval` on it, or name a file of queries.")
    if _holds_records(file):
        return _from_records(name, file, read_records(file), success, system, turn)
    queries = list(_from_json(file) if file.suffix == ".jsonl" else _from_text(file))
    if not queries:
        raise DataError(f"{name}: {file} holds no query; expected one on each line.")
    return RetrieverQueries(name, str(file), "every query of the file", _in_order(queries))


def _holds_records(file: Path) -> bool:
    if file.suffix != ".jsonl":
        return False
    for _, line in read_lines(file, "evaluation records or queries"):
        return line.lstrip().startswith("{") and all(f'"{key}"' in line for key in ("system", "turn", "rewrites"))
    return False


def _from_records(
    name: str, file: Path, records: Sequence[EvalRecord], success: Success, requested: str | None, turn: int | None
) -> RetrieverQueries:
    system = _system(name, file, records, requested)
    answers = [record for record in records if record.system == system]
    turns = sorted({record.turn for record in answers})
    chosen = turns[-1] if turn is None else turn
    if chosen not in turns:
        raise DataError(
            f"{name}: {system} has no turn {chosen} in {file}; it has {', '.join(map(str, turns))}. Change --turn."
        )
    answers = [record for record in answers if record.turn == chosen]
    raw = _raw_scores(name, file, records, system, success)
    wrong_format = failed_searches = 0
    successful: list[EvalRecord] = []
    for record in answers:
        score, raw_score = record.metrics.get(MAIN_METRIC), raw.get(record.question_id)
        if not record.format_ok:
            wrong_format += 1
        elif score is None or (raw_score is None and success.needs_raw):
            failed_searches += 1
        elif success.holds(score, raw_score or 0.0):
            if not all(text.strip() for text in record.rewrites):
                raise DataError(
                    f"{name}: question {record.question_id!r} in {file} has an empty rewrite. Evaluate it again."
                )
            successful.append(record)
    queries = [Query(text, record.question_id, record.question) for record in successful for text in record.rewrites]
    if not queries:
        raise DataError(
            f"{name}: none of {len(answers)} answers of {system} at turn {chosen} in {file} was successful "
            f"({success.said}): {wrong_format} not in the asked format, {failed_searches} without a score, "
            f"{len(answers) - wrong_format - failed_searches} scored. Give another --success, --system or --turn."
        )
    return RetrieverQueries(
        name=name,
        source=str(file),
        said=f"{system}, turn {chosen}",
        queries=_in_order(queries),
        answers=len(answers),
        wrong_format=wrong_format,
        failed_searches=failed_searches,
        successful=len(successful),
    )


def _system(name: str, file: Path, records: Sequence[EvalRecord], requested: str | None) -> str:
    """The requested system, else the trained one, else the only candidate."""
    systems = list(dict.fromkeys(record.system for record in records))
    baselines = {*UNWRITTEN, *TRAINING_FREE, *([HYDE] if UNTRAINED in systems else [])}
    candidates = [system for system in systems if system not in baselines]
    if requested in systems:
        return str(requested)
    if requested is None and TRAINED in systems:
        return TRAINED
    if requested is None and len(candidates) == 1:
        return candidates[0]
    problem = f"no system {requested!r}" if requested else "no system that goes without saying"
    raise DataError(
        f"{name}: {file} has {problem}; it has {', '.join(systems) or 'none'}. Give one of them with --system."
    )


def _raw_scores(
    name: str, file: Path, records: Sequence[EvalRecord], system: str, success: Success
) -> dict[str, float | None]:
    """nDCG@10 of the raw questions, from the records or, next to a grid's cell, from the raw cell's file."""
    if not success.needs_raw:
        return {}
    if system == RAW:
        raise ConfigError(
            f"--success {success.name} compares with the raw question, and --system is {RAW}. Give --success all "
            "or a number."
        )
    parts = file.stem.split(".")
    raw_paths = [file.with_name(f"{'.'.join(parts[:end])}.{RAW}.jsonl") for end in range(len(parts) - 1, 0, -1)]
    raw = [record for record in records if record.system == RAW]
    if not raw and (cell := next((cell for cell in raw_paths if cell.is_file()), None)):
        raw = [record for record in read_records(cell) if record.system == RAW]
    if not raw:
        raise DataError(
            f"{name}: {file} has no scores of the raw questions, with which --success {success.name} compares. "
            "Evaluate with them, or give --success all or a number."
        )
    return {record.question_id: record.metrics.get(MAIN_METRIC) for record in raw}


def _from_text(file: Path) -> Iterator[Query]:
    for _, line in read_lines(file, "queries, one on each line"):
        yield Query(line.strip())


def _from_json(file: Path) -> Iterator[Query]:
    """Queries from JSON lines, such as the output of `querylect rewrite`."""
    for number, line in read_lines(file, "queries as JSON lines"):
        try:
            record = parse_json(line)
        except ValueError as error:
            raise DataError(f"{file}, line {number}: not valid JSON ({error}). Correct or remove the line.") from error
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
                raise DataError(f"{file}, line {number}: the query is empty. Correct or remove the line.")
            yield Query(query, identifier, question)


def _texts(record: dict[str, object]) -> list[object] | None:
    if isinstance(rewrites := record.get("rewrites"), list):
        return rewrites
    return next(([record[key]] for key in ("query", "rewrite", "text") if key in record), None)


def _in_order(queries: Sequence[Query]) -> tuple[Query, ...]:
    """Sort the queries: draws are by position, so results do not depend on the order in the file."""
    return tuple(sorted(queries, key=lambda query: (query.question_id, query.question, query.text)))
