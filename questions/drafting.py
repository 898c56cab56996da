"""Writes planned questions: asks the writer, then the judge, then the judge about similar passages (Â).

Every answer is in a journal before the next is asked for, so that a killed call goes on.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ..configs.schema import DatasetConfig, EnvironmentConfig, QuestionsConfig
from ..configs.synthetic import SyntheticConfig
from ..data.corpus import open_corpus
from ..data.leakage import words
from ..data.sampling import in_batches
from ..data.types import Document
from ..envs.index.open import open_index
from ..envs.plan import Probe, Term, is_unicode
from ..envs.retrievers.open import check_corpus, open_retriever
from ..errors import IncompleteError
from ..llms.base import SamplingParams
from ..llms.structured import FormPrompt, ask_structured
from ..logs import Progress
from ..storage import KeyedJournal, data_sha256
from .asking import AskedPair, LineCost, Pair, QuestionWriter, cost_of, total_cost
from .build import write_down
from .plan import Partition, PlannedQuestion, drawn_passages, neighbours, plan_questions
from .prompts import OneQuestion
from .styles import EXAMPLES, joined, style_prompt, with_typos

log = logging.getLogger(__name__)

DRAFTS = "written.jsonl"
_BATCH = 32
_SEARCHED_AT_ONCE = 256
_SIMILAR = 20
"""Similar passages among which those of the same split are looked for."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The writer's answer to one prompt."""

    key: str
    """Hash of the prompt, the passages and everything about the writer that the answer depends on."""
    text: str
    """The question; "" if the answer did not have the required form."""
    failure: str
    spent: LineCost


@dataclass(frozen=True, slots=True)
class CorpusPassages:
    """The passages of the corpus, and the document of each."""

    folder: Path
    env: EnvironmentConfig
    """The environment whose retriever ranks the corpus."""
    by_id: Mapping[str, Document]
    document_of: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A planned question and its answers."""

    planned: PlannedQuestion
    draft: Draft
    text: str
    """As users would type it: with mistakes, if that is its style."""
    answerable: bool | None = None
    also: tuple[str, ...] = ()
    """Ids of further passages that answer it."""


class DraftingSession:
    """The model calls of one command; each answer is in a journal before the next is asked for."""

    def __init__(
        self,
        config: QuestionsConfig,
        synthetic: SyntheticConfig,
        passages: CorpusPassages,
        partition: Partition,
        writer: QuestionWriter,
        parts: Path,
        progress: Progress | None,
    ) -> None:
        self._config, self._synthetic, self._passages = config, synthetic, passages
        self._partition, self._writer, self._progress = partition, writer, progress
        remedy = f"Remove {parts} to ask everything again."
        self._drafts = KeyedJournal(parts / DRAFTS, Draft, remedy)
        self._verdicts = KeyedJournal(parts / "verdicts.jsonl", AskedPair, remedy)
        self._salt = data_sha256([writer.identity["writer"], config.max_tokens, config.writer_temperature, config.seed])

    def questions(self) -> list[AnsweredQuestion]:
        """Every planned question with its draft, its verdict and the further passages that answer it."""
        planned = plan_questions(
            self._partition, self._synthetic, Partners(self._passages, self._partition, self._synthetic)
        )
        drafts = self._written(planned)
        rows = [
            AnsweredQuestion(question, draft, self._typed(question, draft))
            for question, draft in zip(planned, drafts, strict=True)
        ]
        if not self._synthetic.judge:
            return rows
        judged = self._judged([(row.draft.text, self._content(row.planned)) for row in rows if row.draft.text])
        answered = [
            replace(row, answerable=judged[self._pair_key(row.draft.text, self._content(row.planned))])
            if row.draft.text
            else row
            for row in rows
        ]
        return self._widened(answered)

    def costs(self) -> dict[str, int | None]:
        """Calls and tokens of all answers, those of interrupted calls included."""
        spent = [*(draft.spent for draft in self._drafts.by_key.values())]
        spent += [pair.spent for pair in self._verdicts.by_key.values()]
        return total_cost(spent)

    def _content(self, planned: PlannedQuestion) -> Document:
        return joined(planned.passages, self._config.words)

    def _typed(self, planned: PlannedQuestion, draft: Draft) -> str:
        return with_typos(draft.text, f"0 {draft.key}") if planned.style == "typo" else draft.text

    def _prompt(self, planned: PlannedQuestion) -> FormPrompt:
        return style_prompt(planned.style, planned.passages, self._config.about, self._config.words)

    def _draft_key(self, planned: PlannedQuestion) -> str:
        prompt = self._prompt(planned)
        return data_sha256([self._salt, prompt.version, self._config.form, prompt.task, prompt.case])

    def _written(self, planned: Sequence[PlannedQuestion]) -> list[Draft]:
        """The drafts; raises IncompleteError if the writer did not reply to a prompt."""
        by_key = {self._draft_key(question): question for question in planned}
        pending = [key for key in by_key if self._drafts.get(key) is None]
        if pending:
            log.info("%s: writing %d questions", self._passages.folder, len(pending))
        config = self._config
        sampling = SamplingParams(temperature=config.writer_temperature, max_tokens=config.max_tokens, seed=config.seed)

        def batches() -> Iterable[list[Draft | None]]:
            for keys in in_batches(pending, _BATCH):
                chosen = [by_key[key] for key in keys]
                prompts = [self._prompt(question) for question in chosen]
                answers = ask_structured(self._writer.model, prompts, OneQuestion, sampling, config.form)
                yield [
                    None if answer.missing else _draft(key, answer.value, answer.failure, cost_of(answer.replies))
                    for key, answer in zip(keys, answers, strict=True)
                ]

        _refuse_missing(write_down(batches(), self._drafts, len(pending), self._progress), len(planned))
        drafts = self._drafts.by_key
        return [drafts[self._draft_key(question)] for question in planned]

    def _pair_key(self, question: str, content: Document) -> str:
        return self._writer.pair_key(question, content)

    def _judged(self, pairs: Iterable[Pair]) -> dict[str, bool | None]:
        """Verdicts by key of the pair; raises IncompleteError if the judge did not reply to one."""
        by_key = {self._pair_key(*pair): pair for pair in pairs}
        pending = [pair for key, pair in by_key.items() if self._verdicts.get(key) is None]
        if pending:
            log.info("%s: judging %d pairs of a question and a passage", self._passages.folder, len(pending))
        missing = write_down(self._writer.pairs(pending, _BATCH), self._verdicts, len(pending), self._progress)
        _refuse_missing(missing, len(by_key))
        verdicts = self._verdicts.by_key
        return {key: verdicts[key].judged.answerable for key in by_key}

    def _widened(self, rows: Sequence[AnsweredQuestion]) -> list[AnsweredQuestion]:
        """The rows with the similar passages that, says the judge, answer their questions too."""
        count, passages = self._synthetic.widen, self._passages
        answerable = [number for number, row in enumerate(rows) if row.answerable]
        if not count or not answerable:
            return list(rows)
        # one search for all: passages of other splits are left out, and so are a question's own
        rankings = nearest_passages([rows[number].draft.text for number in answerable], count + _SIMILAR, passages)
        pairs: dict[tuple[int, str], Pair] = {}
        for number, names in zip(answerable, rankings, strict=True):
            planned = rows[number].planned
            sources = {passage.id for passage in planned.passages}
            others = (
                name
                for name in names
                if name not in sources and self._partition.split_of.get(passages.document_of[name]) == planned.split
            )
            for name in islice(others, count):
                pairs[number, name] = (
                    rows[number].draft.text,
                    joined([passages.by_id[name]], self._config.words),
                )
        verdicts = self._judged(pairs.values())
        also: dict[int, list[str]] = {}
        for (number, name), pair in pairs.items():
            if verdicts[self._pair_key(*pair)]:
                also.setdefault(number, []).append(name)
        return [replace(row, also=tuple(also.get(number, ()))) for number, row in enumerate(rows)]


class Partners:
    """Second passages for questions about two: the neighbour in the document, else the most similar passage."""

    def __init__(self, passages: CorpusPassages, partition: Partition, synthetic: SyntheticConfig) -> None:
        self._passages, self._partition, self._synthetic = passages, partition, synthetic
        by_document = sorted(
            (passage for of_split in partition.passages.values() for passage in of_split),
            key=lambda passage: passages.document_of[passage.id],
        )
        self._following = neighbours(by_document, passages.document_of)
        self._eligible = {passage.id for passage in by_document}
        self._similar: dict[str, list[str]] | None = None

    def __call__(self, passage: Document, split: str) -> Document | None:
        if passage.id in self._following:
            return self._following[passage.id]
        if self._similar is None:
            self._similar = self._ranked()
        split_of, document_of = self._partition.split_of, self._passages.document_of
        names = (name for name in self._similar[passage.id] if name != passage.id)
        return next((self._passages.by_id[name] for name in names if split_of[document_of[name]] == split), None)

    def _ranked(self) -> dict[str, list[str]]:
        """The passages most similar to each drawn one that has no neighbour, searched with its first words."""
        drawn = drawn_passages(self._partition, self._synthetic).values()
        alone = [passage for of_split in drawn for passage in of_split if passage.id not in self._following]
        queries = [joined([passage], 32).text for passage in alone]
        rankings = nearest_passages(queries, _SIMILAR, self._passages)
        return {
            passage.id: [name for name in names if name in self._eligible]
            for passage, names in zip(alone, rankings, strict=True)
        }


def nearest_passages(queries: Sequence[str], depth: int, passages: CorpusPassages) -> list[list[str]]:
    """The ids of the first `depth` passages for every query, by the retriever of the environment.

    Raises IndexFolderError if the index is missing or of another corpus.
    """
    index = open_index(passages.env.index_folder)
    check_corpus(index, open_corpus(DatasetConfig(kind="beir", path=str(passages.folder))))
    retriever = open_retriever(index, passages.env)
    rankings: list[list[str]] = []
    for part in in_batches(queries, _SEARCHED_AT_ONCE):
        probes = [Probe(terms=(Term(text=query),)) for query in part]
        ranked = retriever.rank(probes, [min(depth, len(index.documents))] * len(probes))
        rankings += [list(map(index.documents.id, ranking.documents.tolist())) for ranking in ranked]
    return rankings


def _draft(key: str, answer: OneQuestion | None, failure: str, spent: LineCost) -> Draft:
    text = " ".join(answer.question.split()) if answer is not None else ""
    if answer is not None and not (words(text) and is_unicode(text)):
        return Draft(key, "", "the question has no words", spent)
    if words(text) in EXAMPLES:
        return Draft(key, "", f"it copies an example of the prompt: {text}", spent)
    return Draft(key, text, failure, spent)


def _refuse_missing(missing: int, total: int) -> None:
    if missing:
        raise IncompleteError(
            f"{missing} of {total} replies are missing, and no dataset was written. Give the same command again: "
            "replies that came are kept."
        )
