"""The questions of a task with what is right for them: multiple choice, open questions, questions about contents.

Multiple choice and open questions are lines of right answers as `querylect answers` reads them (docs/answers.md). For
content questions a BEIR folder says which documents answer each of its test questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...configs.paper import TaskConfig
from ...data.beir import load_beir
from ...data.sampling import Sample, draw, sampled
from ...data.types import Document, Question
from ...errors import DataError
from ..answers.gold import Gold, read_gold
from ..answers.metrics import normalise


@dataclass(frozen=True, slots=True)
class Item:
    """One question of a task."""

    question: Question
    right: int | None = None
    """Multiple choice: the place of the right option."""
    answers: tuple[str, ...] = ()
    """Open questions: texts of which each is right."""
    contents: tuple[Document, ...] = ()
    """Content questions: the documents that answer it."""


@dataclass(frozen=True, slots=True)
class Items:
    """The questions of a task, and how many were passed over because nothing is right for them."""

    items: Sequence[Item]
    skipped: int
    sample: Sample | None = None
    """Where not all of them are asked."""


def read_items(name: str, task: TaskConfig, limit: int | None, seed: int) -> Items:
    """The questions of a task that can be asked; `limit` of them, drawn with `seed`, where it is given.

    Raises DataError where the data is missing (it says where it comes from), of another kind, or holds no question.
    """
    path = Path(task.data).expanduser()
    if not path.exists():
        about = f" {task.about.rstrip('.')}." if task.about else ""
        raise DataError(
            f"the data of the task {name!r} is missing: {path} does not exist.{about} Give its place with "
            f"tasks.{name}.data={'FOLDER' if task.kind == 'content' else 'FILE'}, or choose other tasks with --task."
        )
    found = _contents(path, task) if task.kind == "content" else _answers(name, path, task)
    if not found.items:
        raise DataError(f"{path} holds no question that can be asked ({found.skipped} were passed over).")
    asked = draw(found.items, limit, seed, id_of=lambda item: item.question.id)
    return Items(asked, found.skipped, sampled(len(asked), len(found.items), limit, seed))


def _answers(name: str, path: Path, task: TaskConfig) -> Items:
    gold = read_gold(path)
    items: list[Item] = []
    skipped = gold.skipped
    for one in gold.by_id.values():
        item = _with_options(one, task.options)
        if item is None or not one.question.text.strip():
            skipped += 1
            continue
        if (item.right is None) != (task.kind == "open"):
            kinds = ("multiple choice", "open questions")
            seen, wanted = kinds if task.kind == "open" else kinds[::-1]
            raise DataError(
                f"{path} holds {seen}, and tasks.{name}.kind is {task.kind!r}, which takes {wanted}. Change the kind, "
                "give another file, or name the options of all its questions with tasks.NAME.options."
            )
        items.append(item)
    return Items(items, skipped)


def _with_options(gold: Gold, options: Sequence[str]) -> Item | None:
    """The item of a line; None where its answer is none of the options that the task gives to all questions."""
    if gold.right is not None or not options:
        return Item(gold.question, gold.right, gold.answers)
    said = {normalise(answer) for answer in gold.answers}
    places = [place for place, option in enumerate(options) if normalise(option) in said]
    if len(places) != 1:
        return None
    return Item(Question(gold.question.id, gold.question.text, tuple(options)), places[0])


def _contents(path: Path, task: TaskConfig) -> Items:
    dataset = load_beir(path, ["test"])
    documents = {document.id: document for document in dataset.corpus}
    split = dataset.splits["test"]
    items = [
        Item(question, contents=tuple(documents[one] for one in split.qrels[question.id]))
        for question in split.questions
    ]
    return Items(items, 0)
