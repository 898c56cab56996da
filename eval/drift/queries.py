"""The queries of each retriever: the successful rewrites of an evaluation, or a file of queries.

A source is an eval.jsonl (or a folder with one), from which the successful rewrites of one system at one turn are
taken, in the environment of the retriever's name where it has several; or a plain file of queries (one per line, or
JSON lines), which is taken completely. Two queries have the same question where its id and text are equal; a query
without a question counts as a separate question.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...configs.evaluation import UNWRITTEN
from ...configs.methods import TRAINING_FREE
from ...data.jsonl import read_lines
from ...errors import ConfigError, DataError
from ...storage import parse_json
from ..records import HYDE, METRICS, RAW, TRAINED, UNTRAINED, EvalRecord, read_records

SUCCESS = {
    "gain": "nDCG@10 above that of the raw question",
    "keep": "nDCG@10 above 0 and at least that of the raw question",
    "all": "any score, also 0",
}
"""Definitions of success; any other is a least nDCG@10."""

Query = tuple[str, str, str]
"""Id and text of the question ("" where unknown), and the query."""


@dataclass(frozen=True, slots=True)
class RetrieverQueries:
    """The queries of one retriever, sorted."""

    name: str
    source: str
    counts: str
    """What was taken of the source, in words."""
    queries: Sequence[Query]

    @property
    def questions(self) -> list[tuple[str, ...]]:
        """The question of each query; equal across systems for queries of one question."""
        return [
            (key, question) if key or question else (self.name, "", str(number))
            for number, (key, question, _) in enumerate(self.queries)
        ]


def described_success(name: str) -> str:
    """The definition of success in words. Raises ConfigError for one that is neither named nor in (0, 1]."""
    if name in SUCCESS:
        return SUCCESS[name]
    try:
        minimum = float(name)
    except ValueError:
        minimum = 0.0
    if not 0 < minimum <= 1:
        raise ConfigError(f"--success is {name!r}; expected {', '.join(SUCCESS)}, or a least nDCG@10 in (0, 1].")
    return f"nDCG@10 of at least {minimum:g}"


def read_system(
    name: str, source: str, success: str, system: str | None = None, turn: int | None = None
) -> RetrieverQueries:
    """The queries of one source, `PATH` or `PATH:SYSTEM`. `system` defaults to the trained system, or the only one
    besides baselines; `turn` defaults to the system's last turn.

    Raises DataError for a source that cannot be read, lacks that system or turn, or has no success.
    """
    path = Path(source).expanduser()
    if not path.exists() and ":" in path.name:
        system = path.name.rpartition(":")[2]
        path = Path(str(path).removesuffix(f":{system}"))
    file = path / "eval.jsonl" if path.is_dir() else path
    lines = list(read_lines(file, "evaluation records or queries"))
    json_lines = file.suffix == ".jsonl"
    if json_lines and lines and all(f'"{key}"' in lines[0][1] for key in ("system", "turn", "rewrites")):
        counts, queries = _successful(f"{name}: {file}", _of_environment(name, file), success, system, turn)
    elif json_lines:
        queries = [query for number, line in lines for query in _from_json(line, f"{file}, line {number}")]
        counts = f"all {len(queries)} queries of the file"
    else:
        queries = [("", "", line.strip()) for _, line in lines]
        counts = f"all {len(queries)} queries of the file"
    if not queries:
        raise DataError(f"{name}: {file} has no successful query ({counts}); --success is {success!r}.")
    return RetrieverQueries(name, str(file), counts, sorted(queries))


def _of_environment(name: str, file: Path) -> list[EvalRecord]:
    records = read_records(file)
    environments = {record.environment for record in records}
    if len(environments) > 1 and name not in environments:
        raise DataError(f"{file} has the environments {', '.join(sorted(environments))}; call the retriever like one.")
    return [record for record in records if len(environments) == 1 or record.environment == name]


def _successful(
    source: str, records: Sequence[EvalRecord], success: str, requested: str | None, turn: int | None
) -> tuple[str, list[Query]]:
    """What was counted, and the successful queries; those without a score, or a raw one to compare with, are not."""
    system = requested or _main_system(source, records)
    turns = {record.turn for record in records if record.system == system}
    if not turns or turn not in {None, *turns}:
        arms = sorted({(record.system, record.turn) for record in records})
        raise DataError(f"{source} has no answers of {system!r}, turn {turn}; it has (system, turn) {arms}.")
    turn = max(turns) if turn is None else turn
    answers = [record for record in records if (record.system, record.turn) == (system, turn)]
    raw = {
        (record.dataset, record.question_id): record.metrics.get(METRICS[0])
        for record in records
        if record.system == RAW
    }
    relative = success in ("gain", "keep")
    if relative and (not raw or system == RAW):
        raise DataError(f"{source}: --success {success} needs the scores of raw questions beside those of {system}.")
    in_format = [record for record in answers if record.format_ok]
    scored, successful = 0, []
    for record in in_format:
        score, base = record.metrics.get(METRICS[0]), raw.get((record.dataset, record.question_id))
        if score is None or (relative and base is None):
            continue
        scored += 1
        higher = score > (base or 0.0) or (success == "keep" and score == base and score > 0)
        if higher if relative else success == "all" or score >= float(success):
            successful.append(record)
    counts = (
        f"{system}, turn {turn}: {len(successful)} of {len(answers)} answers successful "
        f"({len(answers) - len(in_format)} not in the asked format, {len(in_format) - scored} without a score)"
    )
    return counts, [(record.question_id, record.question, text) for record in successful for text in record.rewrites]


def _main_system(source: str, records: Sequence[EvalRecord]) -> str:
    """The trained system, else the only one that is no baseline."""
    systems = list(dict.fromkeys(record.system for record in records))
    baselines = {*UNWRITTEN, *TRAINING_FREE, *([HYDE] if UNTRAINED in systems else [])}
    candidates = [TRAINED] if TRAINED in systems else [system for system in systems if system not in baselines]
    if len(candidates) != 1:
        raise DataError(f"{source} has the systems {', '.join(systems)}. Choose one with --system.")
    return candidates[0]


def _from_json(line: str, location: str) -> Iterator[Query]:
    """Queries of a JSON line: a string, or an object, such as one of the output of `querylect rewrite`."""
    try:
        row = parse_json(line)
    except ValueError as error:
        raise DataError(f"{location}: not valid JSON ({error}). Correct or remove the line.") from error
    row = row if isinstance(row, dict) else {"query": row}
    texts = row.get("rewrites") or [row.get("query") or row.get("rewrite") or row.get("text")]
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            expected = 'a text, or an object with "query", "rewrite" or "text", or with a list "rewrites"'
            raise DataError(f"{location}: no query in {line[:80]}; expected {expected}.")
        yield str(row.get("question_id") or ""), str(row.get("question") or ""), text
