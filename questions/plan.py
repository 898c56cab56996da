"""Which passages get a question, in which style and for which split. Pure functions.

Documents are divided between the splits, not questions: a passage of a test document is never a training judgement,
and a passage of another split neither is shown with it nor widens its judgements.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..configs.llm import Style, SyntheticConfig
from ..data.sampling import draw, sample_key
from ..data.types import Document
from ..errors import DataError

VALIDATION, TEST = 0.1, 0.2
"""Shares of the questions; no test questions are written where users have given some."""
SPLITS = ("train", "validation", "test")
"""All of which a training run and its evaluation need."""


@dataclass(frozen=True, slots=True)
class PlannedQuestion:
    """A question to be written."""

    split: str
    style: Style
    passages: tuple[Document, ...]
    """What it is about: one passage, or two for `multi_hop`."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The passages by split."""

    passages: Mapping[str, Sequence[Document]]
    """In the order of the corpus; only those that can get a question."""
    split_of: Mapping[str, str]
    """Split by document."""


Partner = Callable[[Document, str], Document | None]
"""Finds a second passage of the same split for a question about two, if there is one."""


def divide(
    passages: Sequence[Document], document_of: Mapping[str, str], config: SyntheticConfig, with_test: bool = True
) -> Partition:
    """Divide documents by their passages: the largest first, each to the split that lacks most of its share.

    Without `with_test` there is no test split. Raises DataError if there are fewer documents than splits.
    """
    shares = {"train": 1 - VALIDATION - TEST * with_test, "validation": VALIDATION}
    if with_test:
        shares["test"] = TEST
    of_document: dict[str, list[Document]] = {}
    for passage in passages:
        of_document.setdefault(document_of[passage.id], []).append(passage)
    if len(of_document) < len(shares):
        raise DataError(
            f"{len(of_document)} documents have a passage of {config.min_words} words or more, and {', '.join(shares)} "
            "need one each, because no document may be in two splits. Give more documents, divide a long one into "
            "several files, or lower synthetic.min_words."
        )
    order = sorted(of_document, key=lambda name: (-len(of_document[name]), sample_key(0, name)))
    lacking = {split: share * len(passages) for split, share in shares.items()}
    split_of: dict[str, str] = {}
    for number, name in enumerate(order):
        empty = [split for split in lacking if split not in split_of.values()]
        candidates = empty if len(order) - number <= len(empty) else list(lacking)
        split = max(candidates, key=lacking.__getitem__)
        split_of[name] = split
        lacking[split] -= len(of_document[name])
    by_split: dict[str, list[Document]] = {split: [] for split in shares}
    for passage in passages:
        by_split[split_of[document_of[passage.id]]].append(passage)
    return Partition(by_split, split_of)


def drawn_passages(partition: Partition, config: SyntheticConfig) -> dict[str, list[Document]]:
    """The passages of each split that get questions, in the order of the draw; all, if more questions are requested."""
    return {
        split: draw(passages, _count(split, partition, config), 0) for split, passages in partition.passages.items()
    }


def plan_questions(partition: Partition, config: SyntheticConfig, partner: Partner) -> list[PlannedQuestion]:
    """`config.count` questions, by the shares of the splits; styles in turn, every passage once before one is asked
    about twice, and never twice in one style.

    A passage without a second one for a question about two gets a question of the next style.
    """
    return [
        question
        for split, passages in drawn_passages(partition, config).items()
        for question in _of_split(split, passages, _count(split, partition, config), config.styles, partner)
    ]


def neighbours(passages: Sequence[Document], document_of: Mapping[str, str]) -> dict[str, Document]:
    """The next passage of the same document for each passage, for the last one the passage before it."""
    following: dict[str, Document] = {}
    for first, second in pairwise(passages):
        if document_of[first.id] == document_of[second.id]:
            following[first.id] = second
            following.setdefault(second.id, first)
    return following


def _count(split: str, partition: Partition, config: SyntheticConfig) -> int:
    validation = max(1, round(VALIDATION * config.count))
    test = max(1, round(TEST * config.count)) if "test" in partition.passages else 0
    return {"train": max(1, config.count - validation - test), "validation": validation, "test": test}[split]


def _of_split(
    split: str, drawn: Sequence[Document], count: int, styles: Sequence[Style], partner: Partner
) -> list[PlannedQuestion]:
    planned: dict[tuple[str, Style], PlannedQuestion] = {}
    for number in range(min(count, len(drawn) * len(styles))):
        turn, index = divmod(number, len(drawn))
        passage = drawn[index]
        for offset in range(len(styles)):
            style = styles[(index + turn + offset) % len(styles)]
            second = partner(passage, split) if style == "multi_hop" else None
            if (passage.id, style) in planned or (style == "multi_hop" and second is None):
                continue
            sources = (passage, second) if second is not None else (passage,)
            planned[passage.id, style] = PlannedQuestion(split, style, sources)
            break
    return list(planned.values())
