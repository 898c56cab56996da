"""Finds questions that occur in two splits, so that no test question is trained on; near-duplicate texts by MinHash.

Three criteria, from strict to loose: the same id, the same words, nearly the same letters (`near_overlap`). The first
two are certain, and such questions are removed from the earlier split; the third is only reported, for a reader to
judge.
"""

import hashlib
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .types import Dataset, Document, Question, Split

_ORDER = ("train", "validation", "test")
_WORD = re.compile(r"\w+")


def overlap(dataset: Dataset) -> list[str]:
    """One sentence for each pair of splits that share a question id or a question text.

    Texts are compared by their words, without case and punctuation.
    """
    messages = []
    for first, second in combinations([name for name in _ORDER if name in dataset.splits], 2):
        pair = dataset.splits[first].questions, dataset.splits[second].questions
        ids = set.intersection(*({question.id for question in questions} for questions in pair))
        texts = set.intersection(*({words(question.text) for question in questions} for questions in pair))
        if ids or texts:
            messages.append(
                f"{dataset.name}: {len(ids)} question ids and {len(texts)} question texts stand in both {first} and "
                f"{second} (for instance {min(ids or texts)!r}): figures for {second} are not held out."
            )
    return messages


def overlap_with_train(name: str, split: str, questions: Sequence[Question], train: Sequence[Question]) -> list[str]:
    """`overlap` of the questions of `split` with the training questions."""
    return overlap(Dataset(name, (), {"train": Split(train, {}), split: Split(questions, {})}))


def near_overlap_with_train(
    name: str, split: str, questions: Sequence[Question], train: Sequence[Question]
) -> list[str]:
    """`near_overlap` of the questions of `split` with the training questions."""
    return near_overlap(Dataset(name, (), {"train": Split(train, {}), split: Split(questions, {})}))


def near_overlap(dataset: Dataset) -> list[str]:
    """One sentence for each pair of splits with near-duplicate questions, without those that `overlap` finds."""
    messages = []
    for first, second in combinations([name for name in _ORDER if name in dataset.splits], 2):
        pairs = near_questions(dataset.splits[first].questions, dataset.splits[second].questions)
        if pairs:
            left, right = pairs[0]
            messages.append(
                f"{dataset.name}: {len(pairs)} of {len(dataset.splits[second].questions)} questions of {second} are "
                f"nearly the same as one of {first} (for instance {right.text!r} and {left.text!r}; similarity of "
                f"letters {THRESHOLD} or more): look at them before you call {second} held out."
            )
    return messages


def near_questions(left: Sequence[Question], right: Sequence[Question]) -> list[tuple[Question, Question]]:
    """(left, right) for each question of `right` that nearly, but not exactly, repeats one of `left`."""
    texts, ids = {words(question.text) for question in left}, {question.id for question in left}
    remaining = [question for question in right if question.id not in ids and words(question.text) not in texts]
    near = near_duplicates([question.text for question in left], [question.text for question in remaining])
    return [(left[pair.left], remaining[pair.right]) for pair in near]


def without_leaks(name: str, splits: Mapping[str, Split], near: bool = False) -> tuple[dict[str, Split], list[str]]:
    """The splits without training questions that are in validation or test, and validation questions that are in test.

    The test split is unchanged. Questions are equal by id or by words; with `near` also by nearly the same letters.
    Notes say how many were removed. A split without remaining questions is dropped.
    """
    cleaned: dict[str, Split] = {}
    notes: list[str] = []
    later: list[Question] = []
    for split in reversed([split for split in _ORDER if split in splits]):
        questions = list(splits[split].questions)
        ids, texts = {question.id for question in later}, {words(question.text) for question in later}
        near_ids = {question.id for _, question in near_questions(later, questions)} if near and later else set()
        remaining = [q for q in questions if q.id not in ids and words(q.text) not in texts and q.id not in near_ids]
        if len(remaining) < len(questions):
            notes.append(
                f"{name}: {len(questions) - len(remaining)} of {len(questions)} questions of {split} are taken out: "
                f"they stand in a later split{', or nearly so' if near else ''}."
            )
        if remaining:
            cleaned[split] = Split(
                tuple(remaining), {question.id: splits[split].qrels[question.id] for question in remaining}
            )
        later += questions
    return {split: cleaned[split] for split in _ORDER if split in cleaned}, notes


def words(text: str) -> str:
    """The words of a text, case-folded and without punctuation."""
    return " ".join(_WORD.findall(text.casefold()))


def fingerprint(document: Document) -> bytes:
    """MD5 (16 bytes) of title and text as one string; the id does not count."""
    return hashlib.md5(document.contents.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def unique(documents: Iterable[Document]) -> tuple[Document, ...]:
    """The documents without repeated passages; the first of each is kept."""
    by_fingerprint: dict[bytes, Document] = {}
    for document in documents:
        by_fingerprint.setdefault(fingerprint(document), document)
    return tuple(by_fingerprint.values())


THRESHOLD = 0.8
_PIECE = 5
_BANDS, _ROWS = 16, 4

Pieces = npt.NDArray[np.uint32]


class Near(NamedTuple):
    """A text of `right` and the most similar text of `left`, by index."""

    left: int
    right: int
    similarity: float
    """Jaccard similarity of their pieces, in [0, 1]."""


def near_duplicates(left: Sequence[str], right: Sequence[str], threshold: float = THRESHOLD) -> list[Near]:
    """For each text of `right` that has one, the most similar of `left` at `threshold` or above (ties: the first)."""
    pieces = [_pieces(text) for text in left]
    buckets: dict[bytes, list[int]] = defaultdict(list)
    for index, piece_set in enumerate(pieces):
        for band in _bands(piece_set):
            buckets[band].append(index)
    near: list[Near] = []
    for index, text in enumerate(right):
        query = _pieces(text)
        candidates = sorted({candidate for band in _bands(query) for candidate in buckets.get(band, ())})
        best = max(((jaccard(pieces[candidate], query), -candidate) for candidate in candidates), default=(0.0, 0))
        if candidates and best[0] >= threshold:
            near.append(Near(-best[1], index, best[0]))
    return near


def jaccard(left: Pieces, right: Pieces) -> float:
    """|A ∩ B| / |A ∪ B| of two sorted sets of pieces."""
    shared = len(np.intersect1d(left, right, assume_unique=True))
    return shared / (len(left) + len(right) - shared)


def _pieces(text: str) -> Pieces:
    normalised = words(text).encode("utf-8", "surrogatepass")
    hashes = [zlib.crc32(normalised[start : start + _PIECE]) for start in range(max(1, len(normalised) - _PIECE + 1))]
    return np.unique(np.array(hashes, dtype=np.uint32))


def _multipliers() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    constants = np.random.default_rng(20210417).integers(0, 2**64, size=(2, _BANDS * _ROWS, 1), dtype=np.uint64)
    return constants[0] | np.uint64(1), constants[1]


_MULTIPLIER, _OFFSET = _multipliers()


def _bands(pieces: Pieces) -> list[bytes]:
    """LSH bucket keys of a text, one per band: four MinHash values each, by multiply-shift hashing."""
    hashed = (_MULTIPLIER * pieces.astype(np.uint64) + _OFFSET) >> np.uint64(32)
    minima = hashed.min(axis=1).astype(np.uint32).reshape(_BANDS, _ROWS)
    return [bytes([band]) + row.tobytes() for band, row in enumerate(minima)]
