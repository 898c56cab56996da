"""Full RAG (Yuan et al., appendix D): a reader answers each question from the documents that each system found.

Every system is shown next to two baselines: no retrieval, and the raw question's ranking. A missing reply or ranking is
counted and left out, never treated as a wrong answer. Answers are written to disk after every batch, and a restarted
run only requests the missing ones.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...configs.llm import AnswersConfig
from ...configs.mix import only
from ...configs.schema import EvalConfig, RunConfig
from ...data.sampling import draw, sampled
from ...data.types import Document, Question
from ...envs.client.base import EnvironmentApi
from ...envs.client.connect import open_environment
from ...envs.schemas import EnvironmentInfo
from ...errors import DataError
from ...llms.access import Llm
from ...llms.base import LlmResponse, Prompt, SamplingParams, Text
from ...llms.prose import without_thinking
from ...logs import progress_bar
from ...provenance import versions
from ...rollouts.llms import open_llm
from ...storage import KeyedJournal, only_command, write_text
from ..identity import digest
from ..leakage import SAMPLE_SEED, held_out_questions, refuse_training_split, with_near, without_trained
from ..placement import refuse_other
from ..records import NO_RAG, EvalRecord, now, write_json
from ..table import Arm
from ..tasks.gold import Gold, GoldSet, gold_answers
from ..tasks.reader import ANSWERS_VERSION, reader_prompt
from ..tasks.records import keyed_records, open_journal, reader_name, refuse_silence
from .sources import Contexts, Searches, known_questions, raw_searches, recorded_ndcg, recorded_searches
from .table import OPEN_METRICS, SCORES, AnswerRecord, RowKey, markdown, tabulate_answers

PROMPTS_AT_ONCE = 256
"""Approximate number of prompts searched, asked and written together."""


def answer_questions(
    config: RunConfig, records: Path | None, output: Path | None = None, overwrite: bool = False
) -> Path:
    """Let the reader of `answers.reader` answer, and return the path of answers.md.

    `records` is an eval.jsonl; None searches the raw questions of `answers.gold`, or of the split without that file.
    Writes answers.jsonl, answers.json and answers.md into `output`. The default is answers/READER next to the records,
    or in the run's output folder where there are none.

    Raises ConfigError where the folder holds answers to other questions or of other systems (unless `overwrite`, which
    replaces their tables), for the training split, a mix and unusable settings; DataError where no question has a right
    answer; EnvironmentUnavailableError, EngineUnavailableError or ModelError where the environment or the reader fails,
    after which the same command resumes.
    """
    refuse_training_split(config.eval)
    config = only(config, None)
    base = records.parent if records is not None else config.run_folder.with_name(f"{config.name}-untrained")
    folder = output or base / "answers" / reader_name(config.answers.reader.model)
    gold = gold_answers(config.env, config.answers)
    with (
        only_command(folder),
        open_environment(config.env, config.client) as client,
        open_llm(config.answers.reader) as reader,
    ):
        info = client.info()
        if records is not None:
            searches = recorded_searches(records)
        else:
            searches = raw_searches(_raw_questions(client, info, config.eval, config.answers, gold))
        searched = {name for by_id in searches.values() for name in by_id}
        contexts = Contexts(max(config.answers.top), client, known_questions(client, config.eval.split, searched))
        journal = open_journal(folder / "answers.jsonl", AnswerRecord)
        answering = Answering(config, reader, gold, searches, contexts, journal)
        refuse_other(folder / "answers.json", answering.identity, overwrite)
        results = tabulate_answers(
            answering.all(),
            "accuracy" if gold.choice else "f1",
            resamples=config.eval.bootstrap,
            permutations=config.eval.permutations,
            seed=config.seed,
        )
    facts = {
        "reader": json.dumps(reader.identity, ensure_ascii=False),
        "prompt": ANSWERS_VERSION,
        "right answers": gold.source,
        "environment": f"{info.name}, {info.retriever.get('name')}, index {info.index_hash[:12]}",
        "cost": json.dumps(reader.costs.to_dict()),
        "created": now(),
    }
    notes = answering.notes()
    content = {
        "metric": results.metric,
        "questions": results.questions,
        "systems": [asdict(row) for row in results.rows],
        "comparisons": [
            {**asdict(row), "top": int(row.environment), "significant": row.significant} for row in results.comparisons
        ],
        "notes": notes,
        "settings": config.answers.model_dump(mode="json"),
        "seed": config.seed,
        "versions": versions(),
        **facts,
        "identity": answering.identity,
        "reader": reader.identity,
        "cost": reader.costs.to_dict(),
        "environment": info.model_dump(),
    }
    write_json(folder / "answers.json", content)
    write_text(folder / "answers.md", markdown(results, notes, facts))
    return folder / "answers.md"


@dataclass(frozen=True, slots=True)
class AnswerCase:
    """One prompt for the reader: a question with the documents of one system."""

    row: RowKey
    gold: Gold
    question: Question
    documents: Sequence[Document]
    ndcg: float | None
    prompt: Prompt


class Answering:
    """The questions that are asked, and the reader's answers for all systems."""

    def __init__(
        self,
        config: RunConfig,
        reader: Llm,
        gold: GoldSet,
        searches: Searches,
        contexts: Contexts,
        journal: KeyedJournal[AnswerRecord],
    ) -> None:
        self._config, self._reader, self._gold = config, reader, gold
        self._searches, self._contexts, self._journal = searches, contexts, journal
        self._first: dict[str, EvalRecord] = {}
        """The first search of every question, by its id, in the order of the evaluation."""
        for by_id in searches.values():
            for question, search in by_id.items():
                self._first.setdefault(question, search)
        self._answerable = [question for question in self._first if question in gold.by_id]
        self._selected = draw(self._answerable, config.answers.limit, SAMPLE_SEED, id_of=str)
        self._draw = SamplingParams(temperature=0.0, max_tokens=config.answers.max_tokens, seed=config.seed)

    @property
    def identity(self) -> dict[str, object]:
        """The identity of the tables: the questions and the systems."""
        systems = [f"{arm.system}, turn {arm.turn}" for arm in self._searches]
        questions = sorted(self._selected)
        return {"number of questions": len(questions), "question set": digest(questions), "systems": systems}

    def all(self) -> list[AnswerRecord]:
        """Answer all questions that have a right answer; return the records and write them to the journal.

        Raises DataError where there is no such question, EngineUnavailableError where every answer is missing.
        """
        if not self._selected:
            raise DataError(
                f"none of {len(self._first)} questions (the first is {next(iter(self._first))!r}) has a right answer "
                f"in {self._gold.source} (the first is {next(iter(self._gold.by_id))!r}). Give the file of this "
                "dataset."
            )
        step = max(1, PROMPTS_AT_ONCE // (1 + len(self._searches) * len(self._config.answers.top)))
        records: list[AnswerRecord] = []
        with progress_bar("answers") as advance:
            for start in range(0, len(self._selected), step):
                records += self._answers(self._selected[start : start + step])
                advance(min(start + step, len(self._selected)), len(self._selected))
        refuse_silence([record.answer is None for record in records], self._reader)
        rows = list(dict.fromkeys(record.row for record in records))
        records.sort(key=lambda record: rows.index(record.row))
        self._journal.rewrite(records)
        return records

    def notes(self) -> list[str]:
        """What was asked, and what a reader of the tables has to know about the documents."""
        count, gold = len(self._selected), self._gold
        notes = [
            f"{count} of {len(self._first)} questions were asked; {gold.skipped} lines of right answers are unusable."
        ]
        limit, seed = self._config.answers.limit, SAMPLE_SEED
        if sample := sampled(count, len(self._answerable), limit, seed):
            notes.append(f"The questions are a sample of those with a right answer: {sample}.")
        searches = [search for by_id in self._searches.values() for search in by_id.values()]
        if failed := sum(not search.format_ok for search in searches):
            notes.append(
                f"{failed} searches were never made (wrong format); their questions were read without documents."
            )
        if unsearched := sum(search.unsearched for search in searches):
            notes.append(
                f"{unsearched} times a policy stopped before any search (rewriter.stop: answer); its question was read "
                "without documents."
            )
        return notes

    def _answers(self, questions: Sequence[str]) -> list[AnswerRecord]:
        """The records of some questions for all systems."""
        cases = [(case, self._reader.key(case.prompt, self._draw)) for case in self._cases(questions)]
        return keyed_records(cases, self._journal, self._ask, _reused, PROMPTS_AT_ONCE)

    def _cases(self, questions: Sequence[str]) -> list[AnswerCase]:
        cases = [self._case((Arm(NO_RAG, 0), 0), self._first[question], [], None) for question in questions]
        searched = [
            (arm, by_id[question])
            for arm, by_id in self._searches.items()
            for question in questions
            if question in by_id
        ]
        contexts = self._contexts.of([search for _, search in searched])
        for top in self._config.answers.top:
            for (arm, search), documents in zip(searched, contexts, strict=True):
                cases.append(self._case((arm, top), search, documents[:top], recorded_ndcg(search)))
        return cases

    def _case(self, row: RowKey, search: EvalRecord, documents: Sequence[Document], ndcg: float | None) -> AnswerCase:
        gold = self._gold.by_id[search.question_id]
        question = Question(search.question_id, search.question, gold.question.options, search.history)
        prompt = reader_prompt(question, documents, self._config.answers.document_words)
        return AnswerCase(row, gold, question, documents, ndcg, prompt)

    def _ask(self, cases: Sequence[tuple[AnswerCase, str]]) -> list[AnswerRecord]:
        replies = self._reader.ask([case.prompt for case, _ in cases], self._draw)
        return [_record(case, key, reply) for (case, key), reply in zip(cases, replies, strict=True)]


def _record(case: AnswerCase, key: str, reply: LlmResponse | None) -> AnswerRecord:
    """The record of a case, with its scores; None is a missing reply."""
    arm, top = case.row
    answer = reply.texts[0].text if reply is not None else None
    text = without_thinking(answer).strip() if answer is not None else None
    return AnswerRecord(
        system=arm.system,
        turn=arm.turn,
        top=top,
        question_id=case.question.id,
        question=case.question.text,
        documents=tuple(document.id for document in case.documents),
        answer=answer,
        missing="" if answer is not None else "no reply",
        cut=reply is not None and not reply.texts[0].finished,
        chosen=case.gold.letter(text or ""),
        scores=dict.fromkeys(SCORES) | (case.gold.score(text, OPEN_METRICS) if text is not None else {}),
        ndcg=case.ndcg,
        prompt_tokens=reply.prompt_tokens if reply is not None else None,
        tokens=reply.tokens if reply is not None else None,
        key=key,
    )


def _reused(case: AnswerCase, cached: AnswerRecord) -> AnswerRecord:
    """The record of a case whose prompt was asked before, for this or another system."""
    if cached.answer is None:
        return _record(case, cached.key, None)
    text = Text(cached.answer, finished=not cached.cut)
    return _record(case, cached.key, LlmResponse((text,), cached.prompt_tokens, cached.tokens))


def _raw_questions(
    client: EnvironmentApi, info: EnvironmentInfo, evaluation: EvalConfig, answers: AnswersConfig, gold: GoldSet
) -> list[Question]:
    """The questions without records: those of the gold file if it has question texts, else those of the split."""
    questions = [entry.question for entry in gold.by_id.values() if entry.question.text.strip()]
    if answers.gold is None or not questions:
        return held_out_questions(client, info, evaluation).questions
    train = client.questions("train") if info.splits.get("train") else []
    held_out = without_trained(info.name, evaluation.split, questions, train)
    return with_near(info.name, evaluation.split, held_out, train).questions
