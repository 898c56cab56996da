"""Questions that a language model writes for the passages of a corpus, as a dataset to train and to test on.

For each planned question the writer sees its passage, or two; the judge says whether they answer what it wrote, and
then reads the most similar other passages of the same split, of which those that answer it are relevant too (Â). What
is left is a BEIR folder with splits by document. The reply cache resumes a call that was killed.
"""

import logging
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ..configs.llm import SyntheticConfig
from ..configs.schema import DatasetConfig, EnvironmentConfig, QuestionsConfig
from ..data.beir import (
    judging,
    link_corpus,
    load_beir,
    name_and_licence,
    new_beir_folder,
    question_line,
    refuse_existing,
    write_meta,
    write_qrels,
)
from ..data.corpus import open_corpus
from ..data.documents.corpus import documents_of_passages
from ..data.documents.passages import word_count
from ..data.leakage import Leak, exact_leaks, near_leaks, without, words, write_leaks
from ..data.types import Dataset, Document, Question, Split, relevant
from ..errors import DataError
from ..logs import Progress
from ..storage import write_lines
from .build import documents_of, open_writer
from .drafting import AnsweredQuestion, CorpusPassages, DraftingSession
from .plan import SPLITS, Partition, divide
from .quality import StyleQuality, WrittenQuestion, quality_by_style, quality_lines, write_quality
from .styles import VERSION, joined

log = logging.getLogger(__name__)

LEAKS = "leaks.jsonl"


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """What was written."""

    folder: Path
    questions: Mapping[str, int]
    """Questions by split."""
    quality: Sequence[StyleQuality]
    leaks: Sequence[Leak]
    """Questions that were left out because a later split, such as users' test questions, has them or nearly so."""
    notes: Sequence[str]
    """What reading the users' questions found."""

    def lines(self) -> list[str]:
        """As lines for a reader."""
        splits = ", ".join(f"{count:,} {split}" for split, count in self.questions.items())
        lines = [*quality_lines(self.quality), f"{self.folder}: {splits} questions"]
        if self.leaks:
            lines.append(
                f"{len(self.leaks)} questions are left out, because a later split has them or nearly so: "
                f"{self.folder / LEAKS} (for instance {self.leaks[0].question.text!r} and {self.leaks[0].other.text!r})"
            )
        return [*lines, *self.notes]


def write_training_set(
    config: QuestionsConfig,
    synthetic: SyntheticConfig,
    env: EnvironmentConfig,
    corpus: Path,
    target: Path,
    test: Path | None = None,
    progress: Progress | None = None,
) -> TrainingSet:
    """Write the BEIR folder `target`: the passages of the folder `corpus` with questions, judgements and splits.

    `env` names the retriever, and its index of `corpus`, by which similar passages are found. With `test`, a BEIR
    folder of users' questions judged with ids of `corpus`, its test split is that of the new folder; documents that are
    relevant there get no question.

    Raises DataError for an unusable corpus or test folder, for too few documents, if no training question is left, and
    if `target` exists; IndexFolderError for an unusable index; IncompleteError where replies are missing (nothing is
    written then, and the same call asks for those again); and as `Llm.ask`.
    """
    target = target.expanduser()
    refuse_existing(target)
    dataset = open_corpus(DatasetConfig(kind="beir", path=str(corpus)))
    by_id = {document.id: document for document in documents_of(dataset)}
    passages = CorpusPassages(corpus, env, by_id, documents_of_passages(corpus))
    users = _users_questions(test, by_id) if test is not None else None
    partition = _divided(passages, synthetic, users)
    with open_writer(config) as writer:
        session = DraftingSession(config, synthetic, passages, partition, writer, progress)
        rows = session.questions()
        level = users.relevance_level if users is not None else 1
        taken_ids = {question.id for question in users.splits["test"].questions} if users is not None else set[str]()
        usable = [row if row.text and (row.answerable is True or not synthetic.judge) else None for row in rows]
        splits, ids = _splits(usable, level, taken_ids)
        if users is not None:
            splits["test"] = users.splits["test"]
        splits, leaks = _without_leaks(splits)
        if missing := [split for split in SPLITS if split not in splits]:
            failures = Counter(row.draft.failure for row in rows if row.draft.failure)
            failed = "".join(f" {count} failed: {failure}." for failure, count in failures.most_common(1))
            raise DataError(
                f"of {len(rows)} questions that were asked for, {len(ids)} are answerable and distinct, and none is "
                f"left for {' and '.join(missing)}.{failed} Ask another model (questions.writer.model), request more "
                "(synthetic.count), or keep what the judge rejects (synthetic.judge=false)."
            )
        quality = quality_by_style(
            _outcome(row, ids.get(number), splits, config.words) for number, row in enumerate(rows)
        )
        models = {
            "writer": writer.identity["writer"],
            "judge": writer.identity["judge"] if synthetic.judge else None,
            "prompts": VERSION,
        }
        provenance = {**models, "synthetic": synthetic.model_dump(mode="json"), "costs": session.costs()}
        with new_beir_folder(target) as folder:
            _write(folder, corpus, splits, {name: rows[number] for number, name in ids.items()})
            write_quality(folder, quality)
            if leaks:
                write_leaks(folder / LEAKS, (leak.record() for leak in leaks))
            name, licence = name_and_licence(corpus)
            sources = {"made_from": str(corpus), "test": None if test is None else str(test)}
            about_judgements = judging(users) if users is not None else {}
            write_meta(folder, {"name": name, "licence": licence, **about_judgements, **sources, **provenance})
    counts = {split: len(content.questions) for split, content in splits.items()}
    notes = users.notes if users is not None else ()
    return TrainingSet(target, counts, quality, leaks, notes)


def _users_questions(test: Path, by_id: Mapping[str, Document]) -> Dataset:
    """The test split of a folder, judged with passages of this corpus."""
    try:
        return load_beir(test, ["test"], by_id)
    except DataError as error:
        names = ", ".join(list(by_id)[:2])
        raise DataError(
            f"most judgements of {test} name documents that are no passages of the corpus, whose ids are such as "
            f"{names}. Judge these passages, or give the judged corpus.jsonl in place of files: it is not cut."
        ) from error


def _divided(passages: CorpusPassages, synthetic: SyntheticConfig, users: Dataset | None) -> Partition:
    """The passages that can get a question, divided by document."""
    judged = users.splits["test"].qrels.values() if users is not None else ()
    taken = {passages.document_of[name] for grades in judged for name in relevant(grades)}
    usable = [
        passage
        for passage in passages.by_id.values()
        if passages.document_of[passage.id] not in taken and word_count(passage.text) >= synthetic.min_words
    ]
    if taken:
        log.info("%d documents are relevant to test questions of users; no question is written for them", len(taken))
    return divide(usable, passages.document_of, synthetic, with_test=users is None)


def _splits(
    rows: Sequence[AnsweredQuestion | None], grade: int, taken_ids: Container[str]
) -> tuple[dict[str, Split], dict[int, str]]:
    """The splits, and the id of each row that became a question of one; None are dropped rows.

    `grade` is that of every judgement, and `taken_ids` are those of other questions. Rows of one split with the same
    words are one question, relevant to the passages of all; of two splits the first one keeps it.
    """
    first: dict[str, tuple[int, str]] = {}
    ids: dict[int, str] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    questions: dict[str, list[Question]] = {}
    numbers = count(1)
    for number, row in enumerate(rows):
        if row is None:
            continue
        split = row.planned.split
        earlier, earlier_split = first.setdefault(words(row.text), (number, split))
        if earlier_split != split:
            continue
        if earlier == number:
            names = (f"{row.planned.style}-{count_so_far}" for count_so_far in numbers)
            ids[number] = next(name for name in names if name not in taken_ids)
            questions.setdefault(split, []).append(Question(ids[number], row.text))
        relevant_ids = [*(passage.id for passage in row.planned.passages), *row.also]
        qrels.setdefault(split, {}).setdefault(ids[earlier], {}).update(dict.fromkeys(relevant_ids, grade))
    return {split: Split(content, qrels[split]) for split, content in questions.items()}, ids


def _without_leaks(splits: Mapping[str, Split]) -> tuple[dict[str, Split], list[Leak]]:
    """The splits without questions that a later one has, exactly or nearly, and these."""
    leaks = [*exact_leaks(splits), *near_leaks(splits)]
    distinct = list({(leak.split, leak.question.id): leak for leak in leaks}.values())
    return without(splits, ((leak.split, leak.question.id) for leak in distinct)), distinct


def _outcome(
    row: AnsweredQuestion, identifier: str | None, splits: Mapping[str, Split], words_shown: int
) -> WrittenQuestion:
    split = splits.get(row.planned.split)
    judged = split.qrels.get(identifier, {}) if split is not None and identifier is not None else {}
    contents = joined(row.planned.passages, words_shown).text
    return WrittenQuestion(row.planned.style, row.text, contents, row.answerable, len(judged))


def _write(folder: Path, corpus: Path, splits: Mapping[str, Split], rows: Mapping[str, AnsweredQuestion]) -> None:
    link_corpus(corpus, folder)
    lines = []
    for question in (question for split in splits.values() for question in split.questions):
        row = rows.get(question.id)
        style = (
            {"style": row.planned.style, "written_for": [passage.id for passage in row.planned.passages]} if row else {}
        )
        lines.append(question_line(question, style))
    write_lines(folder / "queries.jsonl", lines)
    write_qrels(folder, splits)
