"""QB-RAG as a retriever: a query ranks questions, and the questions map to contents that answer them.

A question index is a folder that `querylect index questions` (questions/) writes: `corpus.jsonl` holds the questions in
BEIR form, so that any retriever can index them like documents; `answers.jsonl` the answerability matrix, one pair of a
question and a content per line; `contents.jsonl` the contents that were asked about, in corpus order. `questions.json`
describes them and holds the sha256 of every file.

The questions are ranked by any retriever with an index of its own, which is built and verified with this one, like the
members of a hybrid. That retriever ranks the whole probe, including negative weights, so a search plan keeps its
meaning. A content without a question is never retrieved.

From ranked questions to contents it is algorithm 1 of the paper (sections 4.3.1 and 4.3.2): questions are processed
from the most similar on; each adds the contents that answer it and are not in the ranking yet, until there are k. The
paper's tie rules order the contents of a question: newer content first, then the content that answers more questions,
then at random. The random order is fixed for each pair of a question and a content, so that a ranking depends on
nothing but its query. The paper's pseudocode is ambiguous if the matrix is not sparse. Here a question adds all its
contents in this order, as columns of equal similarity would.
"""

import hashlib
import json
import logging
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ...configs.environment import EnvironmentConfig
from ...configs.section import Strict
from ...data.beir import documents_of
from ...data.corpus import corpus_hash, document_record
from ...data.rows import Row, read_rows
from ...data.types import Document
from ...errors import IndexFolderError
from ...storage import data_sha256, text_sha256
from ..index import Documents, mapped, offsets_of, read_description, verify_files
from ..plan import Probe
from ..presets import RetrieverPreset, preset_of
from .base import NOTHING, SPARE, Retriever, RetrieverFactory, Scored, SearchedIndex

log = logging.getLogger(__name__)

DESCRIPTION = "questions.json"
QUESTIONS, ANSWERS, CONTENTS = "corpus.jsonl", "answers.jsonl", "contents.jsonl"
_ENDS, _CONTENTS = "answers.ends.npy", "answers.contents.npy"
_GROWTH = 4

Integers = npt.NDArray[np.int64]
Source = Literal["written", "vetted"]
"""Why a content is taken to answer a question: it was written for it, or people say so."""


class AnswerabilityEntry(Strict):
    """One entry of the answerability matrix."""

    question: str
    """Id of the question."""
    content: str
    """Id of the content that answers it."""
    source: Source


class Content(Strict):
    """One content of the corpus that the questions are about."""

    id: str
    hash: str
    """sha256 of id, title and text."""
    round: int = 0
    """The call that added it, from 0: that of a later one is newer."""


class _Vetted(Row):
    question: Annotated[str, Field(pattern=r"\S")]
    contents: Annotated[list[str], Field(min_length=1)]


class Description(Strict):
    """The description of a question index."""

    dataset: str
    licence: str
    corpus_hash: str
    """That of an index of the corpus; if `limit` left contents out, that of the contents asked about."""
    questions_hash: str
    """The corpus hash that an index of the questions must have."""
    questions: int
    asked: dict[str, object]
    """Models and prompt versions; {} where nothing was asked."""
    settings: dict[str, object]
    """Those of `questions`."""
    counts: dict[str, int]
    costs: dict[str, int | None]
    """Calls and tokens behind all answers that are kept; None where an endpoint did not say."""
    rounds: int
    """How many calls have brought new contents."""
    files: dict[str, str]
    """sha256 of each file."""

    @property
    def hash(self) -> str:
        """sha256 of everything that a ranking depends on."""
        return data_sha256([self.files[name] for name in (QUESTIONS, ANSWERS, CONTENTS)])


@dataclass(frozen=True, slots=True)
class QuestionIndex:
    """An opened question index."""

    path: Path
    description: Description

    def questions(self) -> list[Document]:
        """The questions in order, as documents without a title."""
        return list(documents_of(self.path))

    def answers(self) -> list[AnswerabilityEntry]:
        """The answerability matrix, in the order of the questions."""
        return [row for _, row in read_rows(self.path / ANSWERS, AnswerabilityEntry)]

    def contents(self) -> dict[str, Content]:
        """The contents by id, in corpus order."""
        return {row.id: row for _, row in read_rows(self.path / CONTENTS, Content)}


def open_question_index(path: str | Path) -> QuestionIndex:
    """Open a question index without reading its files. IndexFolderError if the folder holds none."""
    folder = Path(path).expanduser()
    remedy = f"Write the questions: querylect index questions CONFIG --to {shlex.quote(str(folder))}."
    return QuestionIndex(folder, read_description(folder / DESCRIPTION, Description, remedy))


def verify_question_index(path: str | Path) -> QuestionIndex:
    """Open a question index and compare the sha256 of every file. Raises IndexFolderError."""
    opened = open_question_index(path)
    verify_files(opened.path, opened.description.files, "Write it again: querylect index questions.")
    return opened


def write_rows(
    folder: Path, questions: Sequence[Document], answers: Sequence[AnswerabilityEntry], contents: Sequence[Content]
) -> str:
    """Write the three files that a ranking depends on. Returns the hash of the questions."""
    rows: dict[str, list[dict[str, object]]] = {
        QUESTIONS: [{"_id": question.id, "title": question.title, "text": question.text} for question in questions],
        ANSWERS: [answer.model_dump() for answer in answers],
        CONTENTS: [content.model_dump() for content in contents],
    }
    for name, lines in rows.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in lines)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return corpus_hash(questions)


def content_hash(document: Document) -> str:
    """sha256 of id, title and text of a content."""
    return hashlib.sha256(document_record(document)).hexdigest()


def question_id(text: str) -> str:
    """The id of a question: the same for texts that differ only in case and whitespace."""
    return f"q-{text_sha256(same_question(text))[:16]}"


def same_question(text: str) -> str:
    """The normalised text by which questions are compared: case-folded, with single spaces."""
    return " ".join(text.casefold().split())


def read_vetted(path: Path) -> list[tuple[str, list[str]]]:
    """Read vetted questions: lines of `{"question": TEXT, "contents": [ID, …]}`.

    Raises DataError naming a line of another form.
    """
    return [(row.question.strip(), list(dict.fromkeys(row.contents))) for _, row in read_rows(path, _Vetted)]


class QuestionsFactory(RetrieverFactory):
    """An opened question index and the index over its questions."""

    def __init__(self, preset: RetrieverPreset, config: EnvironmentConfig, members: Sequence[SearchedIndex]) -> None:
        """Raises IndexFolderError if the question index is missing, or they do not match."""
        assert config.question_index is not None, "the settings of qb-rag name its question index"
        (self._member,) = members
        self._questions = open_question_index(config.question_index.folder)
        base = self._member.index.meta
        if base.corpus_hash != self._questions.description.questions_hash:
            raise IndexFolderError(
                f"index {self._member.config.index} does not hold the questions of {self._questions.path}. Build it "
                "again: querylect index build --overwrite."
            )
        if config.recipe is None or config.recipe.trained is None:
            trained = (
                f"QB-RAG, which does not compare a query with documents but with {base.documents} questions that were "
                "written for the documents beforehand; the most similar questions lead to the documents that answer "
                f"them. The questions are ranked by {preset_of(self._member.config).trained}"
            )
            preset = preset.model_copy(update={"trained": trained})
        super().__init__(preset, config, members)

    @property
    def fingerprint(self) -> str | None:
        """Hashes of the question index and of the index over its questions."""
        return f"answers of {self._questions.description.hash} by {self._member.index.meta.index_hash}"

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write which contents answer each question, in the order of the tie rules.

        Raises IndexFolderError if a content of the question index is not in the corpus or has another text there.
        """
        documents, contents = Documents(folder), self._questions.contents()
        for content in contents.values():
            indexed = content.id in documents
            if not indexed or content.hash != content_hash(documents.at(documents.position(content.id))):
                raise IndexFolderError(
                    f"the corpus has {'another text' if indexed else 'no content'} of the id {content.id!r}, which the "
                    f"questions of {self._questions.path} are about. Bring them up to date: querylect index questions."
                )
        order = in_tie_order(self._questions.answers(), contents)
        base = self._member.index.documents
        names = [base.id(position) for position in range(len(base))]
        ends, positions = matrix(order, names, {name: documents.position(name) for name in contents})
        np.save(folder / _ENDS, ends)
        np.save(folder / _CONTENTS, positions)
        unreachable = len(documents) - len(np.unique(positions))
        if unreachable:
            log.warning("%d of %d contents have no question and cannot be found", unreachable, len(documents))

    def load(self, folder: Path, documents: Documents) -> "QuestionRetriever":
        """Open the retriever of the questions and the arrays that `merge` wrote."""
        return QuestionRetriever(self._member.open(), mapped(folder / _ENDS), mapped(folder / _CONTENTS))


class QuestionRetriever(Retriever):
    """Ranks probes by algorithm 1 over ranked questions."""

    def __init__(self, questions: Retriever, ends: Integers, contents: Integers) -> None:
        """`questions` ranks the questions; `ends` and `contents` as in `first_contents`."""
        self._questions, self._ends, self._contents = questions, ends, contents

    def truncated(self, probe: Probe) -> int:
        """Those that the retriever of the questions reads only in part."""
        return self._questions.truncated(probe)

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] contents.

        More questions are ranked until there are enough contents or no questions left; in the latter case a ranking
        may be shorter than its limit.
        """
        rankings = [NOTHING] * len(probes)
        total = len(self._ends) - 1
        depths = {row: min(total, limit + SPARE) for row, limit in enumerate(limits)}
        while depths:
            ranked = self._questions.rank([probes[row] for row in depths], list(depths.values()))
            deeper: dict[int, int] = {}
            for (row, depth), ranking in zip(depths.items(), ranked, strict=True):
                rankings[row] = first_contents(ranking, self._ends, self._contents, limits[row])
                if len(rankings[row].documents) < limits[row] and len(ranking.documents) == depth < total:
                    deeper[row] = min(total, _GROWTH * depth)
            depths = deeper
        return rankings


def in_tie_order(answers: Iterable[AnswerabilityEntry], contents: Mapping[str, Content]) -> dict[str, list[str]]:
    """The contents of each question in the order of the tie rules, the preferred one first.

    The content of a later call is newer. The number of questions of a content is counted in `answers`.
    """
    pairs = {(answer.question, answer.content): None for answer in answers}
    questions = Counter(content for _, content in pairs)

    def preference(pair: tuple[str, str]) -> tuple[int, int, str]:
        question, content = pair
        return -contents[content].round, -questions[content], text_sha256(f"0\n{question}\n{content}")

    by_question: dict[str, list[str]] = {}
    for question, content in sorted(pairs, key=preference):
        by_question.setdefault(question, []).append(content)
    return by_question


def first_contents(ranked: Scored, ends: Integers, contents: Integers, k: int) -> Scored:
    """The first k distinct contents of ranked questions, each with the score of the first question that has it.

    `ranked` holds positions of questions, best first; the contents of question j are `contents[ends[j]:ends[j + 1]]` in
    tie order.
    """
    starts, sizes = ends[ranked.documents], ends[ranked.documents + 1] - ends[ranked.documents]
    offsets = np.cumsum(sizes) - sizes
    indices = np.repeat(starts - offsets, sizes) + np.arange(sizes.sum())
    candidates, scores = contents[indices], np.repeat(ranked.scores, sizes)
    first = np.sort(np.unique(candidates, return_index=True)[1])[:k]
    return Scored(candidates[first], scores[first])


def matrix(
    order: Mapping[str, Sequence[str]], questions: Sequence[str], positions: Mapping[str, int]
) -> tuple[Integers, Integers]:
    """`ends` and `contents` for `first_contents`; a question may have no contents. KeyError for unknown contents."""
    rows = [[positions[content] for content in order.get(question, ())] for question in questions]
    return offsets_of(map(len, rows)), np.array([position for row in rows for position in row], dtype=np.int64)
