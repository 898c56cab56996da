"""QReCC (Anantha et al. 2021) in its published form, with the passages that the SCAI-QReCC shared task judged relevant.

Questions come with a rewrite by a person: `Rewrite`, or `Truth_rewrite` in the files of the shared task. Relevant are
the passages of `Truth_passages`; a question without any is skipped and counted. Where a row has no `Context`, the
questions and answers of the rows before it in its conversation are its history.
"""

from pathlib import Path

from ..errors import DataError
from .benchmark import Benchmark, splits_of
from .conversation_rows import ConversationRow, conversation_rows
from .history import alternating
from .passages import needed_passages, published_folder, read_passages
from .types import Question

LICENCE = (
    "QReCC, CC BY-SA 3.0 as its repository says. Cite: Anantha et al. Open-Domain Question Answering Goes "
    "Conversational via Question Rewriting. NAACL 2021."
)


def open_qrecc(path: str | Path) -> Benchmark:
    """Read the questions of a folder with files such as `qrecc_train.json` or `scai-qrecc21-test-ground-truth.json`.

    Raises DataError for a missing file, for a row without id, question or a list of texts before it, and where no row
    says which passages are relevant.
    """
    folder = published_folder(path)
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    conversations: dict[str, list[str]] = {}
    for row in conversation_rows(folder, "qrecc"):
        before = conversations.setdefault(row.conversation, [])
        history = row.context if row.context is not None else alternating(before)
        rewrite = row.text("Truth_rewrite", "Rewrite")
        questions[row.id] = Question(row.id, row.question, history=history, reference_rewrite=rewrite)
        before += [row.question, row.text("Truth_answer", "Answer")]
        if relevant := _relevant(row):
            qrels.setdefault(row.split, {})[row.id] = dict.fromkeys(relevant, 1)
    if not qrels:
        raise DataError(
            f"{folder}: no row has Truth_passages, the ids of relevant passages. Use the files of the SCAI-QReCC "
            "shared task, which have them."
        )
    files = needed_passages(folder)
    notes: list[str] = []
    splits = splits_of("qrecc", questions, qrels, notes)
    origin = {"kind": "qrecc", "passages": [file.name for file in files]}
    return Benchmark("qrecc", lambda: read_passages(files), splits, origin, tuple(notes), LICENCE)


def _relevant(row: ConversationRow) -> list[str]:
    passages = row.fields.get("Truth_passages") or []
    if not isinstance(passages, list) or not all(isinstance(passage, str) for passage in passages):
        raise DataError(
            f"{row.path}, row {row.number}: 'Truth_passages' is {passages!r}; expected a list of ids of passages. "
            "Correct or remove the row."
        )
    return passages
