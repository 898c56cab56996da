"""Full RAG (Yuan et al., appendix D): a reader answers each question from the documents that each system found.

The records are those of an evaluation with answers, and the tables those of an evaluation whose columns are numbers of
documents. Two more systems are shown: no retrieval, and the raw question's ranking. A missing reply is counted and left
out, never treated as a wrong answer. Replies are cached, so a restarted command asks for the missing ones alone.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from ..configs.load import dump_config
from ..configs.schema import RunConfig, only
from ..data.sampling import draw, in_batches, sampled
from ..data.types import Document, Question
from ..envs.client.base import EnvironmentApi
from ..envs.client.connect import open_environment
from ..envs.plan import SearchPlan
from ..envs.schemas import Step
from ..errors import DataError, EnvironmentUnavailableError
from ..llms.access import Llm
from ..llms.base import SamplingParams, complete_sum
from ..logs import progress_bar
from ..provenance import versions
from ..rollouts.llms import open_llm
from ..storage import only_command
from .environments import SAMPLE_SEED
from .records import (
    METRICS,
    NO_RAG,
    RAW,
    RECORDS,
    EvalRecord,
    question_set,
    read_records,
    record_of_search,
    refuse_other,
    write_records,
)
from .results import EvalResults
from .table import Arm, Note, TableSpec, frame_of, tabulate
from .tasks.gold import GoldSet, gold_answers
from .tasks.reader import PROMPT_VERSION, reader_name, reader_prompt, refuse_silence, with_reply
from .text import write_results

PROMPTS_AT_ONCE = 256
"""Approximate number of prompts searched and asked together."""
MARKS = {RAW: ("†", "↓"), NO_RAG: ("‡", "⇓")}
LEGEND = [(*marks, name) for marks, name in zip(MARKS.values(), ("the raw question", "no retrieval"), strict=True)]
"""What the marks of the table mean."""
OPEN_METRICS = ("f1", "cover_em", "em")
FAMILY = (
    "Tested is the first metric: each system against the raw question's ranking, and that against no retrieval, with "
    "the same number of documents; two-sided paired permutation tests, Holm-corrected over all of them."
)


def answer_questions(
    config: RunConfig,
    records: Path,
    output: Path | None = None,
    overwrite: bool = False,
    environment: str | None = None,
) -> Path:
    """Let the reader of `answers.reader` answer from what the systems of an eval.jsonl found, in the `environment` if
    it has several, and return the path of tables.md.

    Writes the files of an evaluation into `output`, which is answers/READER next to the records by default.

    Raises ConfigError where the folder holds answers to other questions or of other systems (unless `overwrite`, which
    replaces their tables), for a mix and unusable settings; DataError where no question has a right
    answer; EnvironmentUnavailableError, EngineUnavailableError or ModelError where the environment or the reader fails,
    after which the same command resumes.
    """
    config, settings = only(config, None), config.answers
    folder = output or records.parent / "answers" / reader_name(settings.reader.model)
    gold = gold_answers(config.env, settings)
    with (
        only_command(folder),
        open_environment(config.env, config.client) as client,
        open_llm(settings.reader) as reader,
    ):
        info = client.info()
        searches = last_turns([r for r in read_records(records) if environment in (None, r.environment)])
        names = list(dict.fromkeys(search.question_id for search in searches))
        answerable = [name for name in names if name in gold.by_id]
        question_ids = draw(answerable, settings.limit, SAMPLE_SEED, id_of=str)
        if not question_ids:
            raise DataError(
                f"none of {len(names)} questions ({names[:1]}) has a right answer in {gold.source} "
                f"({list(gold.by_id)[:1]}). Give the file of this dataset."
            )
        arms = [Arm(NO_RAG, 0), *dict.fromkeys(Arm(search.system, search.turn) for search in searches)]
        identity = {
            "questions": question_set([gold.by_id[name].question for name in question_ids]),
            "systems": [f"{arm.system}, turn {arm.turn}" for arm in arms],
        }
        refuse_other(folder / "results.json", identity, overwrite)
        answered: list[EvalRecord] = []
        with progress_bar("answers") as advance:
            for batch in in_batches(question_ids, max(1, PROMPTS_AT_ONCE // (len(arms) * len(settings.top)))):
                answered += answers_of(config, client, reader, gold, [s for s in searches if s.question_id in batch])
                advance(len(answered), len(question_ids) * len(arms) * len(settings.top))
        refuse_silence(answered, reader)
        write_records(folder / RECORDS, answered)
        reading = {"identity": reader.identity, "cost": reader.costs.to_dict()}
    spec = TableSpec(
        metrics=_metrics(gold),
        environments=[f"top {top}" for top in settings.top],
        systems=list(dict.fromkeys(arm.system for arm in arms)),
        label=_label,
        pairs=_pairs,
        bootstrap=config.eval.bootstrap,
        permutations=config.eval.permutations,
        seed=config.seed,
        marks=MARKS,
    )
    table = tabulate(frame_of(answered, {info.name: question_ids}, spec.metrics), spec)
    notes = [*_notes(searches, answered, gold), *table.notes]
    if sample := sampled(len(question_ids), len(answerable), settings.limit, SAMPLE_SEED):
        notes.insert(
            0, Note("sample", sample.size, f"The questions are a sample of those with a right answer: {sample}.")
        )
    results = EvalResults(
        name=f"Answers of {settings.reader.model}",
        split=config.eval.split,
        metrics=list(spec.metrics),
        scores=table.scores,
        comparisons=table.comparisons,
        notes=notes,
        legend=LEGEND,
        family=FAMILY,
        facts={
            "reader": json.dumps(reading, ensure_ascii=False),
            "prompt": PROMPT_VERSION,
            "right answers": gold.source,
            "environment": f"{info.name}, {info.retriever.get('name')}, index {info.index_hash[:12]}",
        },
        config=dump_config(config),
        identity=identity,
        provenance={"versions": versions(), "environment": info.model_dump(), "seed": config.seed},
    )
    write_results(folder, results)
    return folder / "tables.md"


def last_turns(records: Sequence[EvalRecord]) -> list[EvalRecord]:
    """The records of every system's last turn, raw first; with sampled answers, the first sample."""
    turns: dict[str, int] = {}
    for record in records:
        turns[record.system] = max(record.turn, turns.get(record.system, 0))
    last = [record for record in records if not record.sample and record.turn == turns[record.system]]
    return sorted(last, key=lambda record: record.system != RAW)


def answers_of(
    config: RunConfig, client: EnvironmentApi, reader: Llm, gold: GoldSet, searches: Sequence[EvalRecord]
) -> list[EvalRecord]:
    """The records of some questions: without retrieval, then from the documents of each search, for each number of
    documents. Raises as the client and the reader."""
    settings, dataset = config.answers, client.info().name
    first = {search.question_id: search for search in reversed(searches)}.values()
    alone = [record_of_search(NO_RAG, _question(search), [], None, None, (), searches=0) for search in first]
    contexts = [*([] for _ in alone), *documents_of(client, searches, max(settings.top))]
    records, prompts = [], []
    for top, (search, documents) in product(settings.top, zip([*alone, *searches], contexts, strict=True)):
        question = replace(_question(search), options=gold.by_id[search.question_id].question.options)
        prompts.append(reader_prompt(question, documents[:top], settings.document_words))
        document_ids = tuple(document.id for document in documents[:top])
        records.append(
            replace(search, dataset=dataset, environment=f"top {top}", top=top, documents=document_ids, cut=None)
        )
    draw = SamplingParams(max_tokens=settings.max_tokens, seed=config.seed)
    replies = reader.ask(prompts, draw)
    answered = [
        with_reply(record, gold.by_id[record.question_id].question, reply)
        for record, reply in zip(records, replies, strict=True)
    ]
    return [_scored(record, gold) for record in answered]


def _scored(record: EvalRecord, gold: GoldSet) -> EvalRecord:
    """The record of an answer with its metrics, and the reader's costs beside the system's."""
    right, names = gold.by_id[record.question_id], _metrics(gold)[:-1]
    ndcg = {METRICS[0]: record.metrics.get(METRICS[0])}
    if record.answer is None:
        return replace(record, metrics=dict.fromkeys(names) | ndcg)
    return replace(
        record,
        chosen=right.letter(record.answer),
        calls=record.calls + 1,
        prompt_tokens=complete_sum([record.prompt_tokens, record.reader_prompt_tokens]),
        tokens=complete_sum([record.tokens, record.reader_tokens]),
        metrics=right.score(record.answer, names) | ndcg,
    )


def documents_of(client: EnvironmentApi, searches: Sequence[EvalRecord], k: int) -> list[list[Document]]:
    """The top `k` documents of each recorded plan; none where nothing was searched.

    Raises EnvironmentUnavailableError where the environment does not answer.
    """
    steps = [
        Step(question_id=s.question_id, plan=SearchPlan.model_validate(s.plan).model_copy(update={"k": k}))
        for s in searches
        if s.plan
    ]
    results = [result for result in client.step(steps, with_text=True) if result] if steps else []
    if len(results) < len(steps):
        raise EnvironmentUnavailableError(
            "a search got no answer before client.deadline. Check the service and run the command again."
        )
    rankings = iter(result.ranking for result in results)
    return [[hit.document for hit in next(rankings)] if search.plan else [] for search in searches]


def _question(search: EvalRecord) -> Question:
    return Question(search.question_id, search.question, history=search.history)


def _metrics(gold: GoldSet) -> list[str]:
    """Those of answers, the first of which is tested, and that of the ranking."""
    return [*(("accuracy",) if gold.choice else OPEN_METRICS), METRICS[0]]


def _label(arm: Arm) -> str:
    names = {NO_RAG: "no retrieval", RAW: "raw question"}
    return names.get(arm.system, f"{arm.system}, turn {arm.turn}" if arm.turn else arm.system)


def _pairs(arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    """Raw with no retrieval, and every other system with raw."""
    alone, raw = Arm(NO_RAG, 0), Arm(RAW, 0)
    pairs = [(arm, alone if arm == raw else raw) for arm in arms if arm != alone]
    return [(arm, baseline) for arm, baseline in pairs if baseline in arms]


def _notes(searches: Sequence[EvalRecord], answered: Sequence[EvalRecord], gold: GoldSet) -> list[Note]:
    """What was counted; those of the searches and of the answers are over all systems and numbers of documents."""
    replied = [record for record in answered if record.answer is not None]
    counts = {
        "lines of right answers are unusable.": gold.skipped,
        "answers are missing: no reply came. The same command asks for them again.": len(answered) - len(replied),
        "answers name no option, which counts as wrong.": sum(gold.choice and not record.chosen for record in replied),
        "questions were read without documents, as nothing was searched (wrong format, or stopped).": sum(
            not search.plan for search in searches
        ),
    }
    return [Note("answers", count, f"{count} {text}") for text, count in counts.items() if count]
