"""Full RAG (seed 003, appendix D): a reader answers each question from the documents that each system found.

Every system is shown next to two baselines: no retrieval, and the raw question's ranking. A missing reply or ranking is
counted and left out, never treated as a wrong answer. Answers are written to disk after every batch, and a restarted
run only requests the missing ones.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...configs.schema import RunConfig
from ...data.sampling import draw, sampled
from ...data.types import Document, Question
from ...envs.client.base import EnvironmentApi
from ...envs.client.connect import open_environment
from ...errors import DataError, EngineUnavailableError
from ...llms.access import Llm
from ...llms.base import LlmResponse, Prompt, SamplingParams
from ...llms.structured import without_thinking
from ...logs import progress_bar
from ...rollouts.llms import open_llm
from ..compare import held_out_questions, refuse_overlap, refuse_training_split
from ..identity import digest
from ..placement import refuse_other
from ..provenance import versions
from ..records import refuse_unwritable, write_text
from ..table import Arm
from .gold import Gold, GoldSet, gold_answers
from .log import AnswerLog, only_writer
from .metrics import chosen, letter
from .prompt import VERSION, reader_prompt
from .sources import Contexts, QuestionSearch, Searches, raw_searches, recorded_searches
from .table import NO_RAG, SCORES, AnswerRecord, AnswerResults, markdown, tabulate_answers

log = logging.getLogger(__name__)

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
    replaces their tables), for the training split and for unusable settings; DataError where no question has a right
    answer; EnvironmentUnavailableError, EngineUnavailableError or ModelError where the environment or the reader fails,
    after which the same command resumes.
    """
    refuse_training_split(config)
    base = records.parent if records is not None else Path(config.output) / f"{config.name}-untrained"
    folder = output or base / "answers" / reader_name(config)
    refuse_unwritable(folder)
    gold = gold_answers(config)
    with only_writer(folder), open_environment(config) as client, open_llm(config.answers.reader) as reader:
        info = client.environment().model_dump()
        searches = (
            recorded_searches(records)
            if records is not None
            else raw_searches(_raw_questions(client, info, config, gold))
        )
        contexts = Contexts(config, client, searches)
        identity = _identity(config, searches, gold)
        refuse_other(folder / "answers.json", identity, overwrite)
        done = Answering(config, reader, gold, contexts, AnswerLog(folder / "answers.jsonl")).all(searches)
        results = tabulate_answers(
            done,
            "accuracy" if gold.choice else config.answers.metric,
            resamples=config.eval.bootstrap,
            permutations=config.eval.permutations,
            seed=config.seed,
        )
        notes = _notes(config, searches, gold, results, contexts)
        facts = {
            "reader": json.dumps(reader.identity, ensure_ascii=False),
            "prompt": VERSION,
            "right answers": gold.source,
            "environment": f"{info['name']}, {info['retriever'].get('name')}, index {info['index_hash'][:12]}",
            "cost": json.dumps(reader.costs.to_dict()),
            "created": datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
        }
        details = {
            **facts,
            "identity": identity,
            "reader": reader.identity,
            "cost": reader.costs.to_dict(),
            "environment": info,
        }
    write_text(
        folder / "answers.json", json.dumps(_json(results, config, notes, details), ensure_ascii=False, indent=2) + "\n"
    )
    write_text(folder / "answers.md", markdown(results, notes, facts))
    return folder / "answers.md"


def reader_name(config: RunConfig) -> str:
    """The reader's folder name: the last part of the model's name in letters, digits, dots, - and _."""
    return named_after(config.answers.reader.model)


def named_after(model: str) -> str:
    """A folder name from the name of a model."""
    last = re.split(r"[/:]", model.rstrip("/"))[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip(".-") or "reader"


@dataclass(frozen=True, slots=True)
class _Case:
    """One prompt for the reader: a question with the documents of one system."""

    row_key: tuple[str, int, int]
    gold: Gold
    question: Question
    documents: Sequence[Document] | None
    """None where the evaluation got no ranking."""
    ndcg: float | None


class Answering:
    """Asks the reader batch by batch."""

    def __init__(
        self, config: RunConfig, reader: Llm, gold: GoldSet, contexts: Contexts, answer_log: AnswerLog
    ) -> None:
        self._settings, self._reader, self._gold = config.answers, reader, gold
        self._contexts, self._answer_log = contexts, answer_log
        self._config = config
        self._draw = SamplingParams(temperature=0.0, max_tokens=self._settings.max_tokens, seed=config.seed)

    def all(self, searches: Searches) -> list[AnswerRecord]:
        """Answer all questions that have a right answer; return the records and write them to the log.

        Raises DataError where there is no such question, EngineUnavailableError where every answer is missing.
        """
        questions = _questions(searches)
        selected = _selected(self._config, searches, self._gold)
        if not selected:
            raise DataError(
                f"none of {len(questions)} questions (the first is {next(iter(questions))!r}) has a right answer in "
                f"{self._gold.source} (the first is {next(iter(self._gold.by_id))!r}). Give the file of this dataset."
            )
        per_question = 1 + len(searches) * len(self._settings.top)
        step = max(1, PROMPTS_AT_ONCE // per_question)
        records: list[AnswerRecord] = []
        with progress_bar("answers") as advance:
            for start in range(0, len(selected), step):
                records += self._batch(self._cases(searches, selected[start : start + step]))
                advance(min(start + step, len(selected)), len(selected))
        if all(record.answer is None for record in records):
            raise EngineUnavailableError(
                f"all {len(records)} answers are missing ({dict(self._reader.costs.missing)}); nothing was tabulated. "
                "Check the reader and run the same command again."
            )
        order = {key: number for number, key in enumerate(dict.fromkeys(_row_key(record) for record in records))}
        records.sort(key=lambda record: order[_row_key(record)])
        self._answer_log.finish(records)
        return records

    def _cases(self, searches: Searches, selected: Sequence[str]) -> list[_Case]:
        cases = []
        for question_id in selected:
            gold = self._gold.by_id[question_id]
            text = next(by_id[question_id].question for by_id in searches.values() if question_id in by_id)
            cases.append(_Case((NO_RAG, 0, 0), gold, _worded(gold, text), [], None))
        searched: list[tuple[Arm, str, QuestionSearch]] = [
            (arm, question_id, by_id[question_id])
            for arm, by_id in searches.items()
            for question_id in selected
            if question_id in by_id
        ]
        contexts = self._contexts.of([search for _, _, search in searched])
        for top in self._settings.top:
            for (arm, question_id, search), documents in zip(searched, contexts, strict=True):
                gold = self._gold.by_id[question_id]
                visible = documents[:top] if documents is not None else None
                cases.append(_Case((*arm, top), gold, _worded(gold, search.question), visible, search.ndcg))
        return cases

    def _batch(self, cases: Sequence[_Case]) -> list[AnswerRecord]:
        prompts = [reader_prompt(case.question, case.documents or [], self._settings.document_words) for case in cases]
        keys = [self._reader.key(prompt, self._draw) for prompt in prompts]
        new: dict[str, Prompt] = {
            key: prompt
            for case, key, prompt in zip(cases, keys, prompts, strict=True)
            if case.documents is not None and self._answer_log.known(key) is None
        }
        replies = dict(zip(new, self._reader.ask(list(new.values()), self._draw), strict=True))
        records = [self._record(case, key, replies.get(key)) for case, key in zip(cases, keys, strict=True)]
        self._answer_log.append(record for record in records if record.key in new)
        return records

    def _record(self, case: _Case, key: str, reply: LlmResponse | None) -> AnswerRecord:
        system, turn, top = case.row_key
        cached = self._answer_log.known(key) if case.documents is not None else None
        answer: str | None = None
        cut, prompt_tokens, tokens = False, None, None
        if reply is not None:
            answer, cut = reply.texts[0].text, not reply.texts[0].finished
            prompt_tokens, tokens = reply.prompt_tokens, reply.tokens
        elif cached is not None:
            answer, cut, prompt_tokens, tokens = cached.answer, cached.cut, cached.prompt_tokens, cached.tokens
        text = without_thinking(answer).strip() if answer is not None else ""
        option = chosen(text, case.question.options) if case.gold.right is not None else None
        return AnswerRecord(
            system=system,
            turn=turn,
            top=top,
            question_id=case.question.id,
            question=case.question.text,
            documents=tuple(document.id for document in case.documents or ()),
            answer=answer,
            missing="" if answer is not None else "no reply" if case.documents is not None else "no ranking",
            cut=cut,
            chosen=letter(option) if option is not None else "",
            scores=case.gold.score(text) if answer is not None else dict.fromkeys(SCORES),
            ndcg=case.ndcg,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            key=key,
        )


def _row_key(record: AnswerRecord) -> tuple[str, int, int]:
    return record.system, record.turn, record.top


def _worded(gold: Gold, text: str) -> Question:
    """The question with the text that was evaluated and the options of the gold answer."""
    return Question(gold.question.id, text, gold.question.options)


def _raw_questions(client: EnvironmentApi, info: Mapping[str, Any], config: RunConfig, gold: GoldSet) -> list[Question]:
    """The questions without records: those of the gold file if it has question texts, else those of the split."""
    if config.answers.gold is None:
        return held_out_questions(client, info, config)
    questions = [entry.question for entry in gold.by_id.values() if entry.question.text.strip()]
    if not questions:
        return held_out_questions(client, info, config)
    if info.get("splits", {}).get("train"):
        refuse_overlap(str(info.get("name", "environment")), config.eval.split, questions, client.questions("train"))
    return questions


def _questions(searches: Searches) -> list[str]:
    """The ids of all questions with a search."""
    return list(dict.fromkeys(question_id for by_id in searches.values() for question_id in by_id))


def _answerable(searches: Searches, gold: GoldSet) -> list[str]:
    """The ids of the questions that have a right answer."""
    return [question_id for question_id in _questions(searches) if question_id in gold.by_id]


def _selected(config: RunConfig, searches: Searches, gold: GoldSet) -> list[str]:
    """The ids of the questions to ask: all answerable ones, or a sample of `answers.limit`."""
    return draw(_answerable(searches, gold), config.answers.limit, config.eval.sample_seed, id_of=str)


def _identity(config: RunConfig, searches: Searches, gold: GoldSet) -> dict[str, Any]:
    """The identity of the tables: the questions and the systems."""
    selected = sorted(_selected(config, searches, gold))
    systems = [f"{arm.system}, turn {arm.turn}" for arm in searches]
    return {"number of questions": len(selected), "question set": digest(selected), "systems": systems}


def _notes(
    config: RunConfig, searches: Searches, gold: GoldSet, results: AnswerResults, contexts: Contexts
) -> list[str]:
    notes = [
        f"{results.questions} of {len(_questions(searches))} questions were asked; {gold.skipped} lines of right "
        "answers are unusable."
    ]
    limit, seed = config.answers.limit, config.eval.sample_seed
    if sample := sampled(results.questions, len(_answerable(searches, gold)), limit, seed):
        notes.append(f"The questions are a sample of those with a right answer: {sample}.")
    if contexts.moved:
        notes.append(
            f"{contexts.moved} rankings came back in another order than they were recorded: the environment or the "
            "depth of the search has changed."
        )
    failed = sum(search.failed for by_id in searches.values() for search in by_id.values())
    if failed:
        notes.append(f"{failed} searches were never made (wrong format); their questions were read without documents.")
    return notes


def _json(results: AnswerResults, config: RunConfig, notes: Sequence[str], extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "metric": results.metric,
        "questions": results.questions,
        "systems": [{**asdict(row), "label": row.label} for row in results.rows],
        "comparisons": [
            {
                "system": row.system,
                "turn": row.turn,
                "top": row.top,
                "against": row.against,
                **asdict(row.test),
                "p_holm": row.p_holm,
                "significant": row.significant,
            }
            for row in results.comparisons
        ],
        "notes": list(notes),
        "settings": config.answers.model_dump(mode="json"),
        "seed": config.seed,
        "versions": versions(),
        **extra,
    }
