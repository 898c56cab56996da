"""Evaluation records in JSON lines, what every system did on every question, and the store that keeps them.

One record is one (dataset, environment, system, question, turn, sample); all tables and figures come from them. A
metric of None is a *failed search* (the environment did not answer before the deadline) or an answer that a model did
not give (`failure`), never 0.

A folder has two files: STORE, to which every answer is appended, so that nothing is asked twice and a killed command
loses at most a batch, and RECORDS, the answers of its tables. The key of an answer is the sha256 of everything that it
depends on: settings, prompts, decoding and weights of the system, index, judgements, versions, and the question.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..configs.evaluation import HISTORY as HISTORY
from ..configs.evaluation import RAW as RAW
from ..configs.evaluation import REFERENCE as REFERENCE
from ..configs.load import flat
from ..data.types import Question, Utterance
from ..envs.plan import SearchPlan
from ..envs.schemas import StepResult
from ..errors import ConfigError, DataError, in_one_line
from ..llms.base import LlmResponse, complete_sum
from ..rollouts.tree import Tree
from ..storage import (
    append,
    cut_off_half_a_line,
    data_sha256,
    json_object,
    only_command,
    parse_json,
    write_text,
    writing,
)

RECORDS = "eval.jsonl"
STORE = "store.jsonl"
RERUN = "run the same command again: finished answers are kept."
"""The end of a message about a command that stopped."""
METRICS = ("ndcg@10", "recall@10", "mrr@10")
"""Metrics of every ranking; significance is tested on the first one."""

NO_RAG = "no-rag"
"""The reader of `querylect answers` alone."""
UNTRAINED = "untrained"
"""Also as a checkpoint name: the policy of a run before training."""
TRAINED = "trained"
WARM_START = "warm-start"
"""The policy after the warm start and before GRPO."""
HYDE = "hyde"
"""HyDE by the untrained policy, at the cost of the run's own rewriter."""


@dataclass(frozen=True, slots=True)
class EvalRecord:
    """One system's answer to one question at one turn."""

    system: str
    """`raw`, `untrained`, `trained`, or another system's name."""
    turn: int
    """0 where no model wrote (the raw question, training-free baselines), else 1, 2, …"""
    question_id: str
    question: str
    think: str
    rewrites: tuple[str, ...]
    ranking: tuple[str, ...]
    """Document ids, best first."""
    metrics: Mapping[str, float | None]
    """Value by metric name; None where the search failed."""
    tokens: int | None
    """Tokens generated up to and including this turn, first stage included; None where an endpoint does not report
    them."""
    prompt_tokens: int | None
    """Prompt tokens of this turn, including the model's earlier turns and the documents shown, and at turn 1 those of a
    first stage. None where an endpoint does not report them."""
    searches: int
    """Search plans sent up to and including this turn; a turn whose format failed, or that stopped with an earlier
    ranking or without any (`unsearched`), sends none."""
    format_ok: bool
    scores: tuple[float, ...] = ()
    """Retriever scores of the ranked documents."""
    plan: dict[str, object] | None = None
    """The search plan as sent (envs/plan.py); None where the format failed or nothing was to be searched."""
    seconds: float = 0.0
    """Time of generation and search up to and including this turn: the batch's time, divided equally."""
    sample: int = 0
    """Index of the sampled answer, from 0."""
    cut: bool | None = None
    """Whether the answer was cut at its token limit; None where no model wrote."""
    calls: int = 0
    """Texts that models wrote up to and including this turn: each of several passages, an answer that was sent back,
    those of a first stage."""
    truncated: int | None = None
    """Texts of the plan that were longer than a query of the retriever may be, and were read only in part; None where
    nothing was searched."""
    hits: int | None = None
    """Documents that match a native query, counted up to HITS_BOUND, 0 where it was refused; None of any other."""
    history: tuple[Utterance, ...] = ()
    """The conversation before the question."""
    dataset: str = ""
    environment: str = ""
    key: str = ""
    """sha256 of everything that the answer depends on but turn and sample."""
    failure: str = ""
    """Why the model gave no answer; such a record counts in no table and is asked again."""
    answer: str | None = None
    """What the reader, or the method in its place, answered; None where nobody was asked, or no reply came."""
    text: str | None = None
    """All that the reader wrote around `answer`."""
    chosen: str = ""
    """Multiple choice: the letter of the option that the answer names; "" where it names none."""
    documents: tuple[str, ...] = ()
    """Ids of the documents in the reader's prompt, in order."""
    top: int = 0
    """The most documents that the reader was given; 0 without retrieval."""
    reader_prompt_tokens: int | None = None
    reader_tokens: int | None = None
    judged: Mapping[str, Any] = field(default_factory=dict)
    """Verdicts by judge."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What a method reports about its steps."""

    @property
    def unsearched(self) -> bool:
        """Whether the model stopped before any search (`rewriter.stop: answer`): the ranking is empty and scores 0."""
        return self.turn > 0 and self.format_ok and self.plan is None and not self.searches

    @property
    def display_text(self) -> str:
        """The question as pages show it: after what was said before it, on one line."""
        return " · ".join([*(utterance.text for utterance in self.history), self.question])

    def answers(self, question: Question | None) -> bool:
        """Whether it is the record of this question, in the words that it has now."""
        return question is not None and (self.question, self.history) == (question.text, question.history)


_RECORD = TypeAdapter(EvalRecord)


def records_of_trees(
    system: str, trees: Iterable[Tree], metrics: Sequence[str] = METRICS, seconds: Sequence[float] = ()
) -> list[EvalRecord]:
    """One record per turn of each path; a path is one sample. One that stopped, or whose search failed, has the record
    of its last turn for every later turn, too; one whose model did not answer has none.

    `seconds` are those of one path, by turn. Raises ValueError for a tree with branches below its first turn: an
    evaluation never selects among answers.
    """
    records = []
    for tree in trees:
        paths = list(tree.paths())
        if len({path[0].number for path in paths}) < len(paths):
            raise ValueError(f"the tree of question {tree.question.id!r} has branches below its first turn")
        for path in paths:
            searches, spent = 0, 0.0
            for node in path:
                searches += node.searched
                spent += seconds[node.turn - 1] if seconds else 0.0
                failed, scored = bool(node.rewrite.failure), node.reward is not None
                records.append(
                    EvalRecord(
                        system=system,
                        turn=node.turn,
                        question_id=tree.question.id,
                        question=tree.question.text,
                        think=node.rewrite.think,
                        rewrites=tuple(node.rewrite.rewrites),
                        ranking=tuple(hit.id for hit in node.ranking),
                        metrics=_metrics_of(node.metrics, metrics, unsearched=failed, scored=scored),
                        tokens=complete_sum([turn.tokens for turn in path[: node.turn]]),
                        prompt_tokens=node.prompt_tokens,
                        searches=searches,
                        format_ok=not failed,
                        scores=tuple(hit.score for hit in node.ranking),
                        plan=node.rewrite.plan.model_dump(mode="json") if node.rewrite.plan is not None else None,
                        seconds=spent,
                        sample=path[0].number,
                        cut=not node.finished,
                        calls=sum(turn.calls for turn in path[: node.turn]),
                        truncated=node.truncated,
                        hits=node.hits,
                        history=tree.question.history,
                    )
                )
            if not path[-1].grows:
                later = range(path[-1].turn + 1, tree.turns + 1)
                records += [replace(records[-1], turn=turn) for turn in later]
    return records


def with_first_stage(record: EvalRecord, replies: Sequence[LlmResponse]) -> EvalRecord:
    """The record with the costs of what the first stage said; of several samples, which share it, only the first."""
    if record.sample or not replies:
        return record
    prompt_tokens = [reply.prompt_tokens for reply in replies] if record.turn == 1 else []
    return replace(
        record,
        tokens=complete_sum([record.tokens, *(reply.tokens for reply in replies)]),
        prompt_tokens=complete_sum([record.prompt_tokens, *prompt_tokens]),
        calls=record.calls + sum(len(reply.texts) for reply in replies),
    )


def record_of_search(
    system: str,
    question: Question,
    rewrites: Sequence[str],
    plan: SearchPlan | None,
    result: StepResult | None,
    metrics: Sequence[str],
    *,
    searches: int = 1,
    format_ok: bool = True,
    seconds: float = 0.0,
    notes: Mapping[str, Any] | None = None,
) -> EvalRecord:
    """The record of one search, as where no model writes: turn 0, no tokens.

    `result` is None where there is none: scored 0 where nothing was to be searched, because the format failed or the
    model stopped before any search (no `plan` and no `searches`), else None.
    """
    hits = result.ranking if result is not None else []
    values = result.metrics if result is not None else {}
    unsearched = not format_ok or (plan is None and not searches)
    return EvalRecord(
        system=system,
        turn=0,
        question_id=question.id,
        question=question.text,
        think="",
        rewrites=tuple(rewrites),
        ranking=tuple(hit.id for hit in hits),
        metrics=_metrics_of(values, metrics, unsearched=unsearched, scored=unsearched or result is not None),
        tokens=0,
        prompt_tokens=0,
        searches=searches,
        format_ok=format_ok,
        scores=tuple(hit.score for hit in hits),
        plan=plan.model_dump(mode="json") if plan is not None else None,
        seconds=seconds,
        truncated=result.truncated if result is not None else None,
        hits=result.hits if result is not None else None,
        history=question.history,
        notes=notes or {},
    )


def record_of_failure(
    system: str, question: Question, turn: int, sample: int, reason: str, metrics: Sequence[str]
) -> EvalRecord:
    """The record of an answer that the model did not give."""
    record = record_of_search(system, question, (), None, None, metrics, format_ok=False)
    unknown = dict.fromkeys(metrics)
    return replace(record, turn=turn, sample=sample, metrics=unknown, searches=0, failure=reason)


def now() -> str:
    """The time in UTC, as results say when they were made."""
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds")


def write_records(path: Path, records: Iterable[EvalRecord]) -> None:
    """Write JSON lines atomically. Raises StorageError."""
    write_text(path, "".join(map(record_line, records)))


def record_line(record: EvalRecord) -> str:
    """One record as a line of JSON without fields at their defaults."""
    return _RECORD.dump_json(record, exclude_defaults=True).decode() + "\n"


def read_records(path: Path) -> list[EvalRecord]:
    """Read a file of records. Raises DataError."""
    try:
        with path.open("rb") as file:
            return [_RECORD.validate_json(line, extra="forbid") for line in file]
    except (OSError, ValidationError) as error:
        raise DataError(
            f"{path} holds no evaluation records ({in_one_line(error)}). Run `querylect eval` again."
        ) from error


def write_json(path: Path, content: object) -> None:
    """Write plain data as JSON, as `write_text`."""
    write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def _metrics_of(
    values: Mapping[str, float], names: Sequence[str], *, unsearched: bool, scored: bool
) -> dict[str, float | None]:
    """The metrics `names`: all None where the search failed, 0 where nothing was to be searched (`unsearched`).

    Raises ValueError where a scored ranking lacks a metric.
    """
    if not scored:
        return dict.fromkeys(names)
    missing = [name for name in names if name not in values]
    if missing and not unsearched:
        raise ValueError(f"the environment scored {sorted(values)}; expected {', '.join(missing)} as well")
    return {name: float(values.get(name, 0.0)) for name in names}


class RecordStore:
    """The answers of a folder, which this process alone writes (`open_store`)."""

    def __init__(self, folder: Path) -> None:
        """Raises DataError for a complete line that is not a record, StorageError for a file that cannot be mended."""
        self._folder, self._path = folder, folder / STORE
        self._by_key: dict[str, dict[tuple[int, int], EvalRecord]] = {}
        if self._path.is_file():
            with writing(self._path):
                cut_off_half_a_line(self._path)
            self._keep(read_records(self._path))

    def get(self, key: str) -> list[EvalRecord]:
        """The records of one question's answer, of all its turns and samples; [] if it was never asked."""
        return list(self._by_key.get(key, {}).values())

    def add(self, records: Iterable[EvalRecord]) -> None:
        """Append records. Each replaces an earlier one of its key, turn and sample, and drops later turns, which
        followed an earlier attempt. Raises StorageError."""
        records = list(records)
        with writing(self._path):
            append(self._path, "".join(map(record_line, records)))
        self._keep(records)

    def publish(self, records: Iterable[EvalRecord]) -> None:
        """Make these the records of the tables. Raises StorageError."""
        write_records(self._folder / RECORDS, records)

    def _keep(self, records: Iterable[EvalRecord]) -> None:
        for record in records:
            answers = self._by_key.setdefault(record.key, {})
            answers[record.turn, record.sample] = record
            later = record.turn + 1
            while answers.pop((later, record.sample), None):
                later += 1


@contextmanager
def open_store(folder: Path) -> Iterator[RecordStore]:
    """The store of a folder, locked until the end of the block. Raises StorageError where another command has it."""
    with only_command(folder):
        yield RecordStore(folder)


def answer_key(settings: str, question: Question, grades: Mapping[str, int] | None = None) -> str:
    """The key of a question's answer. `settings` is a sha256 of all else that it depends on, `grades` are those of the
    question's judged documents."""
    return data_sha256([settings, asdict(question), grades])


def question_set(questions: Sequence[Question]) -> str:
    """A hash of a set of questions, independent of order."""
    return data_sha256(sorted(json.dumps(asdict(question)) for question in questions))


def refuse_other(path: Path, identity: Mapping[str, object], overwrite: bool = False) -> None:
    """Raise ConfigError where the results in `path` differ from `identity` in an entry that both have, such as the
    questions of a dataset or the weights of a system: no command replaces other results in silence."""
    previous = (json_object(path) or {}).get("identity")
    if overwrite or not isinstance(previous, dict):
        return
    new, old = dict(flat(parse_json(json.dumps(identity)))), dict(flat(previous))
    changes = [f"{key}: {old[key]!s:.16} → {new[key]!s:.16}" for key in old if key in new and old[key] != new[key]]
    if changes:
        raise ConfigError(
            f"{path} holds other results, which this would replace ({'; '.join(changes[:3])}). Give another folder "
            "with -o, or replace them with --overwrite."
        )
