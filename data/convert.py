"""Question sets and corpora of the papers, whose columns are in known.yaml.

`pairs`: questions, each with a passage that answers it. `passages`: a corpus without questions. `answers`: questions
with right answers, which become a folder with one JSON-lines file for each split (docs/answers.md), or beside a corpus
a BEIR folder without judgements, to train on (docs/answers_reward.md).
"""

import json
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..storage import parse_json, write_lines
from .beir import beir_folder, link_corpus, name_and_licence, new_beir_folder, write_meta, write_questions
from .benchmark import Benchmark
from .known import KnownBenchmark, Layout
from .rows import document_id, read_rows
from .sampling import draw
from .types import Document, Question, Split

Record = dict[str, Any]
"""A question with its right answer: `_id`, `question` and either `answers`, or `options` by letter and `answer`."""


def open_pairs(name: str, folder: Path, layout: Layout) -> Benchmark:
    """Questions of a test split, each with its passages. Raises DataError where there are none."""
    documents: dict[str, Document] = {}
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, int]] = {}
    skipped = 0
    for _, _, row in _rows(name, folder, layout, "test"):
        text = _question(row, layout)
        passages = [passage for passage in _texts(row.get(layout.answer)) if text]
        skipped += not passages
        for passage in passages:
            document = documents.setdefault(passage, Document(document_id(passage), "", passage))
            question = questions.setdefault(text, Question(f"q{document_id(text)}", text))
            qrels.setdefault(question.id, {})[document.id] = 1
    splits = {"test": Split(tuple(questions.values()), qrels)}
    notes = [f"{name}: {skipped} rows without question or answer are left out."]
    return Benchmark(name, documents.values, splits, notes=notes)


def open_passages(name: str, folder: Path, layout: Layout) -> Benchmark:
    """A corpus, read on demand; rows without text are left out."""

    def documents() -> Iterator[Document]:
        for identifier, _, row in _rows(name, folder, layout, "corpus"):
            if text := _text(row.get(layout.text)):
                yield Document(identifier, _text(row.get(layout.title)), text)

    return Benchmark(name, documents, {})


def write_answers(
    benchmark: KnownBenchmark, folder: Path, target: Path, corpus: Path | None = None, validation: int = 0
) -> list[str]:
    """Write the new folder `target` with the questions and right answers; return a report.

    With `corpus`, a BEIR folder, it is one too, and `validation` of the training questions, but at most half of them,
    become the split dev. Raises DataError for a missing file, an invalid row, and a set without usable rows.
    """
    assert benchmark.layout is not None, "known.yaml describes the layout of every set of answers"
    records: dict[str, list[Record]] = {}
    skipped = 0
    for split in benchmark.layout.splits:
        answers = list(_answers(benchmark.name, folder, benchmark.layout, split))
        records[split] = [record for record in answers if record is not None]
        skipped += len(answers) - len(records[split])
        if len({record["_id"] for record in records[split]}) < len(records[split]) or not records[split]:
            raise DataError(f"{folder}: {split} of {benchmark.name} has no question with an answer, or repeats an id.")
    licence = benchmark.licence
    if corpus is not None:
        records = _with_validation(records, validation)
        licence += f"; the corpus {': '.join(filter(None, name_and_licence(beir_folder(corpus))))}"
    with new_beir_folder(target) as new:
        if corpus is None:
            for split, rows in records.items():
                write_lines(new / f"{split}.jsonl", (json.dumps(record, ensure_ascii=False) for record in rows))
        else:
            link_corpus(beir_folder(corpus), new)
            splits = {split: [_as_question(record) for record in rows] for split, rows in records.items()}
            fields = {question.id: more for rows in splits.values() for question, more in rows}
            unjudged = {
                split: Split([question for question, _ in rows], {question.id: {} for question, _ in rows})
                for split, rows in splits.items()
            }
            write_questions(new, unjudged, fields)
        write_meta(new, {"name": benchmark.name, "licence": licence, "made_from": str(folder)})
    counts = ", ".join(f"{len(rows):,} {split}" for split, rows in records.items())
    left_out = f", {skipped} rows without question or answer left out"
    return [f"{benchmark.name}: questions: {counts}{left_out}", f"licence: {licence}"]


def _with_validation(records: Mapping[str, list[Record]], validation: int) -> dict[str, list[Record]]:
    """The splits train, validation and test; sets with names of their own are test questions."""
    train = records.get("train", [])
    drawn = draw(train, min(validation, len(train) // 2), 0, lambda record: str(record["_id"]))
    splits = {
        "train": [record for record in train if record not in drawn],
        "validation": drawn,
        "test": [record for split, rows in records.items() if split != "train" for record in rows],
    }
    return {split: rows for split, rows in splits.items() if rows}


def _as_question(record: Record) -> tuple[Question, dict[str, object]]:
    """The question, and its right answers; of multiple choice the letter of one."""
    options: Mapping[str, str] = record.get("options", {})
    question = Question(record["_id"], record["question"], tuple(options.values()))
    if not options:
        return question, {"answers": record["answers"]}
    right = list(options if record["answer"] in options else options.values()).index(record["answer"])
    return question, {"answer": string.ascii_uppercase[right]}


def _answers(name: str, folder: Path, layout: Layout, split: str) -> Iterator[Record | None]:
    """The records of a split; None for a row without question or answer."""
    for identifier, line, row in _rows(name, folder, layout, split):
        text, answers = _question(row, layout), list(_texts(row.get(layout.answer)))
        options = row.get(layout.options) if layout.options else None
        if not text or not answers:
            yield None
        elif options:
            yield {"_id": identifier, "question": text, **_choice(options, row.get(layout.answer), line)}
        else:
            yield {"_id": identifier, "question": text, "answers": answers}


def _rows(name: str, folder: Path, layout: Layout, split: str) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """(id, file and row, row) of a split. An id is that of the row, else its file's folder and its number."""
    pattern = layout.splits[split]
    files = sorted(folder.glob(pattern))
    if not files:
        raise DataError(f"{folder} has no file {pattern} of {name}; expected its published files.")
    counts: Counter[str] = Counter()
    for path in files:
        prefix = path.parent.name if pattern.startswith("*/") else f"{name}-{split}"
        rows = _nested(path, split) if path.suffix == ".json" else read_rows(path, (), layout.columns)
        for number, row in rows:
            if not any(column in row for column in layout.columns):
                raise DataError(f"{path}, row {number}: none of the columns {', '.join(layout.columns)} of {name}.")
            record_id = row.get(layout.id) if layout.id else None
            identifier = f"{prefix}-{counts[prefix]:04d}" if record_id in (None, "") else str(record_id)
            yield identifier, f"{path}, row {number}", row
            counts[prefix] += 1


def _nested(path: Path, split: str) -> Iterator[tuple[int, dict[str, object]]]:
    """The questions of one set in a JSON file of several: set → id → question."""
    try:
        questions = parse_json(path.read_text(encoding="utf-8"))[split].items()
        yield from enumerate(({"_id": identifier, **row} for identifier, row in questions), start=1)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{path}: expected a JSON object with {split!r}: {{id: question}} ({error!r}).") from error


def _choice(options: object, answer: object, line: str) -> dict[str, object]:
    """`options` and the letter or text of the right one; a number counts the options from 0."""
    texts = list(options.values()) if isinstance(options, Mapping) else options
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{line}: the options are {options!r}; expected texts.")
    letters = (list(options) if isinstance(options, Mapping) else list(string.ascii_uppercase))[: len(texts)]
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(texts):
        answer = letters[answer]
    if answer not in letters and texts.count(answer) != 1:
        raise DataError(
            f"{line}: the answer is {answer!r}; expected one of {', '.join(map(str, letters))}, the text of an option, "
            "or its number from 0."
        )
    return {"options": dict(zip(letters, texts, strict=True)), "answer": answer}


def _question(row: Mapping[str, object], layout: Layout) -> str:
    return next(filter(None, (_text(row.get(column)) for column in layout.question)), "")


def _texts(value: object) -> Iterator[str]:
    """The texts in an answer: a text, a number, a list of answers, or an object with the text under ANSWER."""
    if isinstance(value, Mapping):
        yield from _texts(value.get("ANSWER"))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif (isinstance(value, str) and value.strip()) or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield str(value).strip()


def _text(value: object) -> str:
    return next(_texts(value), "")
