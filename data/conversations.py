"""TopiOCQA (Adlakha et al. 2022) and QReCC (Anantha et al. 2021) in their published forms: questions of conversations.

A file is a JSON list of objects, or one object a line (.jsonl); the split is the one that its name says.
`Conversation_no` and `Turn_no` name the question, `Context` holds the questions and answers before it in turn.

The passages lie beside the questions: `corpus.jsonl` in BEIR's form, else the files in `collection/` as they are
published, JSON lines with `id` and `contents`, or tab-separated lines of id, text and title. Without them, the corpus
of TopiOCQA is the gold passages of all questions, which is far easier to search.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..storage import parse_json
from .beir import read_corpus
from .benchmark import Benchmark, splits_of
from .history import alternating
from .jsonl import plain_or_gzipped, read_lines, read_records
from .rows import FETCH, id_of, string_of, title_of
from .types import Document, Question

TOPIOCQA_LICENCE = (
    "TopiOCQA, CC BY-NC-SA 4.0 as its card says. Cite: Adlakha et al. TopiOCQA: Open-domain Conversational Question "
    "Answering with Topic Switching. TACL 2022."
)
QRECC_LICENCE = (
    "QReCC, CC BY-SA 3.0 as its repository says. Cite: Anantha et al. Open-Domain Question Answering Goes "
    "Conversational via Question Rewriting. NAACL 2021."
)
_SPLITS = {"train": "train", **dict.fromkeys(("dev", "valid", "validation"), "validation"), "test": "test"}
_Row = tuple[Path, int, str, Mapping[str, Any]]
"""File, number from 1, split, fields."""


def open_topiocqa(path: str | Path) -> Benchmark:
    """Read a folder with `topiocqa_train.json` and `topiocqa_dev.json`; relevant is the `Gold_passage` of a question.

    Raises DataError for a missing file, and for a row without id, question or a list of texts before it.
    """
    folder = _folder(path)
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    gold: dict[str, Document] = {}
    for row in _rows(folder, "topiocqa"):
        file, number, split, fields = row
        question = _question(row, fields.get("Context") or ())
        questions[question.id] = question
        if passage := fields.get("Gold_passage"):
            title, text = title_of(passage, file, number), string_of(passage, "text", file, number)
            document = Document(id_of(passage, "id", file, number), title, text)
            gold.setdefault(document.id, document)
            qrels.setdefault(split, {})[question.id] = {document.id: 1}
    files = _passage_files(folder)
    notes = [] if files else [f"topiocqa: the corpus is the {len(gold)} gold passages; {folder} has no others."]
    splits = splits_of("topiocqa", questions, qrels, notes)
    origin = {"kind": "topiocqa", "passages": [file.name for file in files] or "gold passages"}
    return Benchmark(
        "topiocqa",
        lambda: _passages(files) if files else iter(gold.values()),
        splits,
        origin,
        tuple(notes),
        TOPIOCQA_LICENCE,
    )


def open_qrecc(path: str | Path) -> Benchmark:
    """Read a folder with files such as `qrecc_train.json` or `scai-qrecc21-test-ground-truth.json`.

    Relevant are the `Truth_passages` that the SCAI-QReCC shared task judged. The rewrite by a person is `Rewrite`, or
    `Truth_rewrite` in the files of the task. Where a row has no `Context`, the questions and answers of the rows before
    it in its conversation are its history. Raises DataError as `open_topiocqa`, and where no row says which passages
    are relevant.
    """
    folder = _folder(path)
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    conversations: dict[tuple[str, str], list[str]] = {}
    for row in _rows(folder, "qrecc"):
        file, number, split, fields = row
        before = conversations.setdefault((split, id_of(fields, "Conversation_no", file, number)), [])
        context = before if fields.get("Context") is None else fields["Context"]
        question = _question(row, context, _text(row, "Truth_rewrite", "Rewrite"))
        questions[question.id] = question
        before += [question.text, _text(row, "Truth_answer", "Answer")]
        if relevant := fields.get("Truth_passages"):
            qrels.setdefault(split, {})[question.id] = dict.fromkeys(relevant, 1)
    if not qrels:
        raise DataError(
            f"{folder}: no row has Truth_passages, the ids of relevant passages. Use the files of the SCAI-QReCC "
            "shared task, which have them."
        )
    files = _passage_files(folder)
    if not files:
        raise DataError(f"{folder} holds no passages; expected corpus.jsonl, or .jsonl or .tsv files in collection/.")
    notes: list[str] = []
    splits = splits_of("qrecc", questions, qrels, notes)
    origin = {"kind": "qrecc", "passages": [file.name for file in files]}
    return Benchmark("qrecc", lambda: _passages(files), splits, origin, tuple(notes), QRECC_LICENCE)


def _folder(path: str | Path) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist. Give the folder with the published files.")
    return folder


def _rows(folder: Path, stem: str) -> Iterator[_Row]:
    """The rows of the files of `folder` whose name contains `stem`."""
    files = [
        path
        for path in sorted(folder.iterdir())
        if stem in path.name.lower() and path.name.endswith((".json", ".jsonl", ".jsonl.gz"))
    ]
    if not files:
        raise DataError(f"{folder} holds no file *{stem}*.json; expected the published files of that name. {FETCH}")
    for path in files:
        words = path.name.lower().replace("-", "_").replace(".", "_").split("_")
        split = next((_SPLITS[word] for word in words if word in _SPLITS), "test")
        for number, fields in _records(path):
            yield path, number, split, fields


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if ".jsonl" in path.suffixes:
        yield from read_records(path, "questions of conversations, one a line")
        return
    try:
        yield from enumerate(parse_json(path.read_text(encoding="utf-8")), start=1)
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error}). {FETCH}") from error


def _question(row: _Row, context: Sequence[str], rewrite: str = "") -> Question:
    file, number, split, fields = row
    text = _text(row, "Question")
    if not text:
        raise DataError(f"{file}, row {number}: 'Question' is empty; expected a text. Correct or remove the row.")
    conversation, turn = (id_of(fields, column, file, number) for column in ("Conversation_no", "Turn_no"))
    return Question(f"{split}-{conversation}_{turn}", text, history=alternating(context), reference_rewrite=rewrite)


def _text(row: _Row, *columns: str) -> str:
    """The first of these columns that the row has, without surrounding blanks; "" without any."""
    file, number, _, fields = row
    column = next((column for column in columns if fields.get(column) is not None), None)
    return "" if column is None else string_of(fields, column, file, number).strip()


def _passage_files(folder: Path) -> list[Path]:
    """The files with passages, in the order of their names; empty if there are none."""
    corpus = plain_or_gzipped(folder / "corpus.jsonl")
    if corpus.is_file():
        return [corpus]
    suffixes = (".jsonl", ".tsv", ".jsonl.gz", ".tsv.gz")
    return sorted(path for path in (folder / "collection").rglob("*") if path.name.endswith(suffixes))


def _passages(files: list[Path]) -> Iterator[Document]:
    """Yield the passages of all files. Raises DataError for a line that is none."""
    for path in files:
        if path.name.startswith("corpus.jsonl"):
            yield from (document for _, document in read_corpus(path))
        elif ".jsonl" in path.suffixes:
            for number, row in read_records(path, "passages, one a line"):
                text = string_of(row, "contents" if "contents" in row else "text", path, number)
                yield Document(id_of(row, "id", path, number), title_of(row, path, number), text)
        else:
            for number, line in read_lines(path, "passages, one a line"):
                identifier, text, *title = line.split("\t")
                if number > 1 or identifier != "id":  # a header
                    yield Document(identifier, title[0] if title else "", text)
