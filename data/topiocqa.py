"""TopiOCQA (Adlakha et al. 2022) in its published form: questions of conversations that change their topic.

The relevant document of a question is its `Gold_passage`. The passages of Wikipedia are read from the folder; without
them, the corpus is the gold passages of all questions, which is far easier to search.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DataError
from .benchmark import Benchmark, splits_of
from .conversation_rows import ConversationRow, conversation_rows
from .passages import passage_files, published_folder, read_passages
from .rows import id_of, string_of, title_of
from .types import Document, Question

LICENCE = (
    "TopiOCQA, CC BY-NC-SA 4.0 as its card says. Cite: Adlakha et al. TopiOCQA: Open-domain Conversational Question "
    "Answering with Topic Switching. TACL 2022."
)


def open_topiocqa(path: str | Path) -> Benchmark:
    """Read the questions of a folder with `topiocqa_train.json` and `topiocqa_dev.json` (or other splits).

    Raises DataError for a missing file, and for a row without id, question or a list of texts before it.
    """
    folder = published_folder(path)
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    gold: dict[str, Document] = {}
    for row in conversation_rows(folder, "topiocqa"):
        questions[row.id] = Question(row.id, row.question, history=row.context or ())
        passage = _gold_passage(row)
        if passage is not None:
            gold.setdefault(passage.id, passage)
            qrels.setdefault(row.split, {})[row.id] = {passage.id: 1}
    files = passage_files(folder)
    notes = [] if files else [f"topiocqa: the corpus is the {len(gold)} gold passages; {folder} has no others."]
    splits = splits_of("topiocqa", questions, qrels, notes)

    def documents() -> Iterator[Document]:
        return read_passages(files) if files else iter(gold.values())

    origin = {"kind": "topiocqa", "passages": [file.name for file in files] or "gold passages"}
    return Benchmark("topiocqa", documents, splits, origin, tuple(notes), LICENCE)


def _gold_passage(row: ConversationRow) -> Document | None:
    passage: Any = row.fields.get("Gold_passage")
    if not passage:
        return None
    if not isinstance(passage, dict):
        raise DataError(
            f"{row.path}, row {row.number}: 'Gold_passage' is {passage!r}; expected an object with id, title and text."
        )
    return Document(
        id_of(passage, "id", row.path, row.number),
        title_of(passage, row.path, row.number),
        string_of(passage, "text", row.path, row.number),
    )
