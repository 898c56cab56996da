"""The questions of a task with their gold answers: multiple choice, open questions and content questions.

Multiple choice and open questions come from files of right answers in the format of `querylect answers`
(docs/answers.md). For content questions, the qrels of a BEIR folder give the documents that answer each test question.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...configs.paper import TaskConfig
from ...data.beir import load_beir
from ...data.sampling import QuestionSample, draw, sampled
from ...data.types import relevant
from ...errors import DataError
from .gold import Gold, read_gold
from .metrics import normalise


@dataclass(frozen=True, slots=True)
class Items:
    """The questions of a task, and the number skipped for lack of a right answer."""

    items: Sequence[Gold]
    skipped: int
    sample: QuestionSample | None = None
    """Set where only a sample of them is asked."""


def read_items(name: str, task: TaskConfig, limit: int | None, seed: int) -> Items:
    """The usable questions of a task, or a sample of `limit` of them drawn with `seed`.

    Raises DataError where the data is missing (the message has its origin), of another kind, or without questions.
    """
    path = Path(task.data).expanduser()
    if not path.exists():
        hint = f" {task.about.rstrip('.')}." if task.about else ""
        raise DataError(
            f"the data of the task {name!r} is missing: {path} does not exist.{hint} Give its place with "
            f"tasks.{name}.data={'FOLDER' if task.kind == 'content' else 'FILE'}, or choose other tasks with --task."
        )
    available = _contents(path, task) if task.kind == "content" else _answers(name, path, task)
    if not available.items:
        raise DataError(f"{path} holds no question that can be asked ({available.skipped} were passed over).")
    selected = draw(available.items, limit, seed, id_of=lambda item: item.question.id)
    return Items(selected, available.skipped, sampled(len(selected), len(available.items), limit, seed))


def _answers(name: str, path: Path, task: TaskConfig) -> Items:
    gold = read_gold(path)
    kinds = ("multiple choice", "open questions")
    items: list[Gold] = []
    skipped = gold.skipped
    for entry in gold.by_id.values():
        item = _with_options(entry, task.options)
        if item is None or not entry.question.text.strip():
            skipped += 1
            continue
        if (item.right is None) != (task.kind == "open"):
            got, expected = kinds if task.kind == "open" else kinds[::-1]
            raise DataError(
                f"{path} holds {got}, and tasks.{name}.kind is {task.kind!r}, which takes {expected}. Change the kind, "
                "give another file, or name the options of all its questions with tasks.NAME.options."
            )
        items.append(item)
    return Items(items, skipped)


def _with_options(gold: Gold, options: Sequence[str]) -> Gold | None:
    """The question with the task's common options; None where the answer is not exactly one of them."""
    if gold.right is not None or not options:
        return gold
    answers = {normalise(answer) for answer in gold.answers}
    matches = [index for index, option in enumerate(options) if normalise(option) in answers]
    if len(matches) != 1:
        return None
    return Gold(replace(gold.question, options=tuple(options)), matches[0])


def _contents(path: Path, task: TaskConfig) -> Items:
    dataset = load_beir(path, ["test"])
    documents = {document.id: document for document in dataset.corpus}
    split = dataset.splits["test"]
    items = [
        Gold(question, contents=tuple(documents[document_id] for document_id in relevant(split.qrels[question.id])))
        for question in split.questions
    ]
    return Items(items, 0)
