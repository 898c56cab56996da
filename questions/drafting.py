"""Writes planned questions: asks the writer, then the judge, then the judge about similar passages (Â).

The reply cache resumes a call that was killed.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ..configs.llm import SyntheticConfig
from ..configs.schema import DatasetConfig, EnvironmentConfig, QuestionsConfig
from ..data.corpus import open_corpus
from ..data.leakage import words
from ..data.sampling import Item, in_batches
from ..data.types import Document
from ..envs.index.meta import open_index
from ..envs.plan import Probe, Term, is_unicode
from ..envs.retrievers.open import check_corpus, open_retriever
from ..llms.base import LlmResponse, SamplingParams
from ..llms.structured import FormPrompt, ask_structured
from ..logs import Progress
from .asking import BATCH, Pair, QuestionWriter, cost_of, refuse_missing, total_cost
from .plan import Partition, PlannedQuestion, drawn_passages, neighbours, plan_questions
from .prompts import OneQuestion
from .styles import EXAMPLES, joined, style_prompt, with_typos

log = logging.getLogger(__name__)

_SEARCHED_AT_ONCE = 256
WIDEN = 4
"""Number of other passages, the most similar ones, that the judge reads for each question."""
_SIMILAR = 20
"""Similar passages among which those of the same split are looked for."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The writer's answer to one prompt."""

    text: str
    """The question; "" if the answer did not have the required form."""
    failure: str


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
    """The model calls of one command."""

    def __init__(
        self,
        config: QuestionsConfig,
        synthetic: SyntheticConfig,
        passages: CorpusPassages,
        partition: Partition,
        writer: QuestionWriter,
        progress: Progress | None,
    ) -> None:
        self._config, self._synthetic, self._passages = config, synthetic, passages
        self._partition, self._writer, self._progress = partition, writer, progress
        self._replies: list[LlmResponse] = []
        self._verdicts: dict[Pair, bool | None] = {}

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
        answered = [replace(row, answerable=judged.get((row.draft.text, self._content(row.planned)))) for row in rows]
        return self._widened(answered)

    def costs(self) -> dict[str, int | None]:
        """Calls and tokens of all answers, those from the reply cache included."""
        return total_cost([cost_of(self._replies)])

    def _content(self, planned: PlannedQuestion) -> Document:
        return joined(planned.passages, self._config.words)

    def _typed(self, planned: PlannedQuestion, draft: Draft) -> str:
        return with_typos(draft.text, f"0 {draft.text}") if planned.style == "typo" else draft.text

    def _prompt(self, planned: PlannedQuestion) -> FormPrompt:
        return style_prompt(planned.style, planned.passages, self._config.about, self._config.words)

    def _case(self, planned: PlannedQuestion) -> tuple[str, str]:
        """What a prompt asks and about which text: equal for a question with typing mistakes and one without."""
        prompt = self._prompt(planned)
        return prompt.task, prompt.case

    def _written(self, planned: Sequence[PlannedQuestion]) -> list[Draft]:
        """The drafts; raises IncompleteError if the writer did not reply to a prompt."""
        by_case = {self._case(question): self._prompt(question) for question in planned}
        prompts = list(by_case.values())
        log.info("%s: writing %d questions", self._passages.folder, len(prompts))
        config = self._config
        sampling = SamplingParams(max_tokens=config.max_tokens)
        drafts: dict[tuple[str, str], Draft] = {}
        for batch in self._batches(prompts):
            answers = ask_structured(self._writer.model, batch, OneQuestion, sampling, config.form)
            for prompt, answer in zip(batch, answers, strict=True):
                self._replies += answer.replies
                if not answer.missing:
                    drafts[prompt.task, prompt.case] = _draft(answer.value, answer.failure)
        refuse_missing(len(prompts) - len(drafts), len(prompts))
        return [drafts[self._case(question)] for question in planned]

    def _judged(self, pairs: Iterable[Pair]) -> dict[Pair, bool | None]:
        """Verdicts of these pairs and all earlier ones; raises IncompleteError if the judge did not reply to one."""
        pending = [pair for pair in dict.fromkeys(pairs) if pair not in self._verdicts]
        log.info("%s: judging %d pairs of a question and a passage", self._passages.folder, len(pending))
        missing = 0
        for batch in self._batches(pending):
            for pair, verdict in zip(batch, self._writer.verdicts(batch), strict=True):
                if verdict is None:
                    missing += 1
                else:
                    self._verdicts[pair] = verdict[0].answerable
                    self._replies += verdict[1]
        refuse_missing(missing, len(pending))
        return self._verdicts

    def _batches(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The items in batches; each one's end is told to the progress bar."""
        done = 0
        for batch in in_batches(items, BATCH):
            yield batch
            done += len(batch)
            if self._progress is not None:
                self._progress(done, len(items))

    def _widened(self, rows: Sequence[AnsweredQuestion]) -> list[AnsweredQuestion]:
        """The rows with the similar passages that, says the judge, answer their questions too."""
        passages = self._passages
        answerable = [number for number, row in enumerate(rows) if row.answerable]
        if not answerable:
            return list(rows)
        # one search for all: passages of other splits are left out, and so are a question's own
        rankings = nearest_passages([rows[number].draft.text for number in answerable], WIDEN + _SIMILAR, passages)
        pairs: dict[tuple[int, str], Pair] = {}
        for number, names in zip(answerable, rankings, strict=True):
            planned = rows[number].planned
            sources = {passage.id for passage in planned.passages}
            others = (
                name
                for name in names
                if name not in sources and self._partition.split_of.get(passages.document_of[name]) == planned.split
            )
            for name in islice(others, WIDEN):
                pairs[number, name] = (
                    rows[number].draft.text,
                    joined([passages.by_id[name]], self._config.words),
                )
        verdicts = self._judged(pairs.values())
        also: dict[int, list[str]] = {}
        for (number, name), pair in pairs.items():
            if verdicts[pair]:
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


def _draft(answer: OneQuestion | None, failure: str) -> Draft:
    text = " ".join(answer.question.split()) if answer is not None else ""
    if answer is not None and not (words(text) and is_unicode(text)):
        return Draft("", "the question has no words")
    if words(text) in EXAMPLES:
        return Draft("", f"it copies an example of the prompt: {text}")
    return Draft(text, failure)
