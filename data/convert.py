"""Question sets and corpora in their published form, converted to files that papers and answers read.

`answers`: questions with right answers become a folder with one JSON-lines file for each split (docs/answers.md).
`pairs`: questions, each with a passage that answers it, become a BEIR folder. `passages`: a corpus without questions
becomes a BEIR folder with nothing but `corpus.jsonl`. The layout of each set is in known.yaml.

With a corpus, `answers` become a BEIR folder without judgements, to train on (docs/answers_reward.md).
"""

import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import DataError
from ..storage import file_sha256, parse_json, write_lines
from .beir import (
    beir_folder,
    corpus_file,
    document_line,
    link_corpus,
    name_and_licence,
    new_beir_folder,
    no_document,
    question_line,
    read_corpus,
    to_json,
    write_meta,
    write_qrels,
)
from .fetched import source_of
from .known import KnownBenchmark, Layout
from .rows import FETCH, document_id, read_rows
from .sampling import draw
from .types import Document, Question, Split

CONVERTED = ("answers", "pairs", "passages")
"""Kinds that have to be converted before anything else reads them."""
Record = dict[str, object]
"""A question with its right answer: `_id`, `question` and either `answers` or `options` and `answer`."""


def convert(
    benchmark: KnownBenchmark, source: Path, target: Path, corpus: Path | None = None, validation: int = 0
) -> list[str]:
    """Write the new folder `target` from the published files in `source`; return a report, one line for each fact.

    Questions of kind `answers` are written beside the corpus of the BEIR folder `corpus`, if it is given; then
    `validation` of the training questions, but at most half of them, become the split dev. Rows without a question or
    an answer are counted and left out.

    Raises DataError for a missing file or folder, an invalid row, a set without usable rows, and if `target` exists;
    StorageError if the files cannot be written.
    """
    source, layout = source.expanduser(), benchmark.layout
    assert layout is not None, "known.yaml describes the layout of every set of these kinds"
    licence, searched = benchmark.licence, dict[str, str]()
    if corpus is not None:
        corpus = beir_folder(corpus)
        if next(read_corpus(corpus_file(corpus)), None) is None:
            raise no_document(corpus_file(corpus))
        searched = {"corpus": str(corpus)}
        licence += f"; the corpus {': '.join(filter(None, name_and_licence(corpus)))}"
    with new_beir_folder(target) as folder:
        if benchmark.kind == "answers":
            records, counts = _read_answers(benchmark.name, source, layout)
            if corpus is None:
                for split, rows in records.items():
                    write_lines(folder / f"{split}.jsonl", map(to_json, rows))
            else:
                records = _with_validation(records, validation)
                write_lines(folder / "queries.jsonl", _query_lines(records))
                link_corpus(corpus, folder)
            counts |= {f"questions of {split}": len(rows) for split, rows in records.items()}
        elif benchmark.kind == "pairs":
            counts = _write_pairs(benchmark.name, source, layout, folder)
        else:
            counts = _write_passages(benchmark.name, source, layout, folder)
        if not any((folder / "qrels").iterdir()):
            (folder / "qrels").rmdir()
        digests = {path.relative_to(folder).as_posix(): file_sha256(path) for path in sorted(folder.rglob("*.*"))}
        meta: dict[str, object] = {
            "name": benchmark.name,
            "licence": licence,
            "made_from": {"kind": benchmark.kind, "path": str(source), **source_of(source).about, **searched},
            "counts": counts,
            "sha256": digests,
        }
        write_meta(folder, meta)
    return [
        f"{benchmark.name}: {', '.join(f'{count:,} {name}' for name, count in counts.items())}",
        f"licence: {licence}",
    ]


def _read_answers(name: str, source: Path, layout: Layout) -> tuple[dict[str, list[Record]], dict[str, int]]:
    """The records by split, and how many rows were left out."""
    counts = {"rows without question or answer": 0}
    by_split: dict[str, list[Record]] = {}
    for split, pattern in layout.splits.items():
        rows = list(_answers(name, source, layout, split, pattern))
        by_split[split] = [record for record in rows if record is not None]
        counts["rows without question or answer"] += len(rows) - len(by_split[split])
        if not by_split[split]:
            raise DataError(f"{source}: {pattern} of {name} has no question with an answer. {FETCH}")
    return by_split, counts


def _with_validation(records: Mapping[str, list[Record]], validation: int) -> dict[str, list[Record]]:
    """The splits train, dev and test; sets with names of their own are test questions."""
    train = records.get("train", [])
    dev = draw(train, min(validation, len(train) // 2), 0, lambda record: str(record["_id"]))
    drawn = {record["_id"] for record in dev}
    splits = {
        "train": [record for record in train if record["_id"] not in drawn],
        "dev": dev,
        "test": [record for split, rows in records.items() if split != "train" for record in rows],
    }
    return {split: rows for split, rows in splits.items() if rows}


def _query_lines(records: Mapping[str, list[Record]]) -> Iterator[str]:
    """Lines of queries.jsonl with a right answer; of multiple choice, a list of options and the letter of one."""
    for split, rows in records.items():
        for record in rows:
            fields = {"_id": record["_id"], "text": record["question"], "split": split}
            if isinstance(options := record.get("options"), dict):
                letters, texts = list(options), list(options.values())
                right = (
                    letters.index(record["answer"]) if record["answer"] in options else texts.index(record["answer"])
                )
                yield to_json({**fields, "options": texts, "answer": string.ascii_uppercase[right]})
            else:
                yield to_json({**fields, "answers": record["answers"]})


def _answers(name: str, source: Path, layout: Layout, split: str, pattern: str) -> Iterator[Record | None]:
    """The records of a split; None for a row without question or answer. Raises DataError for a repeated id."""
    ids: set[str] = set()
    for identifier, path, number, row in _rows(name, source, layout, pattern, split):
        if identifier in ids:
            raise DataError(f"{path}, row {number}: a second question has the id {identifier!r}. {FETCH}")
        ids.add(identifier)
        text = next(filter(None, (_text(row.get(column)) for column in layout.question)), "")
        answers = list(_texts(row.get(layout.answer)))
        options = row.get(layout.options) if layout.options else None
        if not text or not answers:
            yield None
        elif options:
            yield {"_id": identifier, "question": text, **_choice(options, row.get(layout.answer), path, number)}
        else:
            yield {"_id": identifier, "question": text, "answers": answers}


def _write_pairs(name: str, source: Path, layout: Layout, folder: Path) -> dict[str, int]:
    documents: dict[str, Document] = {}
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, int]] = {}
    skipped = 0
    for _, _, _, row in _rows(name, source, layout, layout.splits["test"], "test"):
        text = next(filter(None, (_text(row.get(column)) for column in layout.question)), "")
        passages = [passage for passage in _texts(row.get(layout.answer)) if text]
        skipped += not passages
        for passage in passages:
            document = documents.setdefault(passage, Document(document_id(passage), "", passage))
            question = questions.setdefault(text, Question(f"q{document_id(text)}", text))
            qrels.setdefault(question.id, {})[document.id] = 1
    if not documents:
        raise DataError(f"{source}: {name} has no question with a passage. {FETCH}")
    write_lines(folder / "corpus.jsonl", map(document_line, documents.values()))
    write_lines(folder / "queries.jsonl", map(question_line, questions.values()))
    write_qrels(folder, {"test": Split(tuple(questions.values()), qrels)})
    return {"documents": len(documents), "questions": len(questions), "rows without question or answer": skipped}


def _write_passages(name: str, source: Path, layout: Layout, folder: Path) -> dict[str, int]:
    counts = {"documents": 0, "rows without text": 0}
    ids: set[str] = set()

    def lines() -> Iterator[str]:
        for identifier, path, number, row in _rows(name, source, layout, layout.splits["corpus"], "corpus"):
            text = _text(row.get(layout.text))
            if not text:
                counts["rows without text"] += 1
                continue
            if identifier in ids:
                raise DataError(f"{path}, row {number}: a second passage has the id {identifier!r}. {FETCH}")
            ids.add(identifier)
            counts["documents"] += 1
            yield document_line(Document(identifier, _text(row.get(layout.title)), text))

    write_lines(folder / "corpus.jsonl", lines())
    if not counts["documents"]:
        raise DataError(f"{source}: {name} has no passage with a text. {FETCH}")
    return counts


def _rows(
    name: str, source: Path, layout: Layout, pattern: str, split: str
) -> Iterator[tuple[str, Path, int, Mapping[str, object]]]:
    """(id, file, row number, row) of a split. An id is that of the row, else its file's folder and its number."""
    files = sorted(source.glob(pattern))
    if not files:
        raise DataError(f"{source} has no file {pattern} of {name}; expected its published files. {FETCH}")
    counts: Counter[str] = Counter()
    for path in files:
        prefix = path.parent.name if pattern.startswith("*/") else f"{name}-{split}"
        nested = path.suffix == ".json"
        for number, row in _nested(path, name, split) if nested else read_rows(path, layout.columns, f"rows of {name}"):
            record_id = row.get(layout.id) if layout.id else None
            yield (f"{prefix}-{counts[prefix]:04d}" if record_id in (None, "") else str(record_id)), path, number, row
            counts[prefix] += 1


def _nested(path: Path, name: str, split: str) -> Iterator[tuple[int, dict[str, object]]]:
    """The questions of one set in a JSON file of several: set → id → question."""
    try:
        sets = parse_json(path.read_text(encoding="utf-8"))
        questions = sets[split].items()
        for number, (identifier, row) in enumerate(questions, start=1):
            yield number, {"_id": identifier, **row}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(
            f"{path} is not the published file of {name} ({error!r}); expected a JSON object with {split!r}: "
            f"{{id: {{question, options, answer}}}}. {FETCH}"
        ) from error


def _choice(options: object, answer: object, path: Path, number: int) -> dict[str, object]:
    """`options` and the letter or text of the right one; a number counts the options from 0."""
    texts = list(options.values()) if isinstance(options, Mapping) else options
    letters = list(options) if isinstance(options, Mapping) else list(string.ascii_uppercase)
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{path}, row {number}: the options are {options!r}; expected texts. {FETCH}")
    letters = letters[: len(texts)]
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(texts):
        answer = letters[answer]
    if answer not in letters and texts.count(answer) != 1:
        raise DataError(
            f"{path}, row {number}: the answer is {answer!r}; expected one of {', '.join(map(str, letters))}, the text "
            f"of an option, or its number from 0. {FETCH}"
        )
    return {"options": dict(zip(letters, texts, strict=True)), "answer": answer}


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
