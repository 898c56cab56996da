"""Data for the question browser: where a rewrite helped or hurt most against the raw question, with both rankings.

Questions are chosen by a fixed rule: for every dataset, environment, system and turn, the largest gains and losses on
the first metric, and unchanged questions at even distances. If the page would be too large, the rule is applied with
fewer questions of each kind, then without earlier turns; the page says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from ...data.sampling import spread
from ...data.types import relevant
from ...envs.plan import SearchPlan
from ..records import EvalRecord
from ..tabulate import answers_of
from .examples import by_change, change

KINDS = ("helped", "hurt", "unchanged")
PLACES = 10
"""Ranks of a ranking that are shown."""
MISSED = 5
"""How many relevant documents are listed that no shown ranking contains."""
QUESTION, REWRITE, THINK, REWRITES = 12_000, 4_000, 2_000, 12
"""Maximum characters of a question, a rewrite and a think part; maximum rewrites per answer."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One question and the system's answer to it."""

    question_id: str
    score: float
    """Mean over samples."""
    raw: float
    record: EvalRecord
    """The sample whose score is nearest to the mean."""
    samples: int


@dataclass(frozen=True, slots=True)
class SystemTurn:
    """One system at one turn in one environment on one dataset."""

    env: "DatasetEnvironment"
    system: str
    turn: int
    metric: str
    last: bool
    """Whether it is the system's last turn."""
    counts: Mapping[str, int]
    """Number of questions by kind, of those that both system and raw question have a score for."""
    picks: Mapping[str, Sequence[Pick]]
    """Questions by kind, the largest changes first."""


@dataclass(frozen=True, slots=True)
class KnownDocuments:
    """Titles and judgements of a dataset's documents, as far as they are on this machine."""

    titles: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]] | None
    """Grades of relevant documents by question; None if the judgements are not on this machine."""


@dataclass(slots=True)
class DatasetEnvironment:
    """One environment on one dataset, with the records of its raw questions."""

    evaluation: str
    dataset: str
    environment: str
    raw: Mapping[str, EvalRecord] = field(default_factory=dict)
    """By question."""


def choose(
    env: DatasetEnvironment, system: str, records: Sequence[EvalRecord], samples: int, metric: str, per_kind: int
) -> list[SystemTurn]:
    """The groups of one system, one per turn, with at most `per_kind` gains and `per_kind` losses."""
    by_turn: dict[tuple[int, str], list[EvalRecord]] = {}
    for record in records:
        by_turn.setdefault((record.turn, record.question_id), []).append(record)
    answers_by_turn = answers_of(list(env.raw), records, samples)
    groups = []
    for turn, answers in answers_by_turn.items():
        scores = {question: answers.values[question].get(metric) for question in env.raw}
        score_pairs = {
            question: (score, raw_score)
            for question, score in scores.items()
            if score is not None and (raw_score := env.raw[question].metrics[metric]) is not None
        }
        kinds = by_change({question: change(*pair) for question, pair in score_pairs.items()})
        gained, lost, unchanged = kinds
        selected = gained[:per_kind], lost[:per_kind], spread(unchanged, unchanged_of(per_kind))
        counts = dict(zip(KINDS, map(len, kinds), strict=True))
        picks = {
            kind: [_pick(question, *score_pairs[question], by_turn[turn, question], metric) for question in questions]
            for kind, questions in zip(KINDS, selected, strict=True)
        }
        groups.append(SystemTurn(env, system, turn, metric, turn == max(answers_by_turn), counts, picks))
    return groups


def unchanged_of(per_kind: int) -> int:
    """How many unchanged questions go with `per_kind` gains and losses: a third, but at least one."""
    return max(1, per_kind // 3) if per_kind else 0


def _pick(question: str, score: float, raw: float, records: Sequence[EvalRecord], metric: str) -> Pick:
    nearest = min(records, key=lambda record: (abs((record.metrics[metric] or 0.0) - score), record.sample))
    return Pick(question, score, raw, nearest, len(records))


def documents_of(groups: Iterable[SystemTurn]) -> set[str]:
    """Ids of the documents in the rankings that these groups show."""
    document_ids: set[str] = set()
    for group in groups:
        raw = group.env.raw
        for picks in group.picks.values():
            for pick in picks:
                document_ids.update(pick.record.ranking[:PLACES], raw[pick.question_id].ranking[:PLACES])
    return document_ids


def missed(qrels: Mapping[str, int], ranked: set[str]) -> list[str]:
    """The first relevant documents that are not in `ranked`, the highest grade first, then by id."""
    return sorted(
        (document for document in relevant(qrels) if document not in ranked), key=lambda doc: (-qrels[doc], doc)
    )[:MISSED]


def as_data(
    groups: Sequence[SystemTurn],
    document_info: Mapping[tuple[str, str], KnownDocuments],
    per_kind: int,
    every_turn: bool,
) -> "BrowserData":
    """The data for the page's script: `per_kind` questions of each kind, of all turns or only of the last ones."""
    table = _SharedRows(document_info)
    listed: list[dict[str, object]] = []
    items: list[dict[str, object]] = []
    for group in groups:
        if not (every_turn or group.last):
            continue
        env = group.env
        for kind in KINDS:
            limit = unchanged_of(per_kind) if kind == "unchanged" else per_kind
            chosen = group.picks[kind]
            if kind == "unchanged" and limit < len(chosen):
                chosen = spread(chosen, limit)
            for pick in chosen[:limit]:
                items.append({"group": len(listed), "kind": kind, **table.item(env, pick, group.metric)})
        env_fields = {"evaluation": env.evaluation, "dataset": env.dataset, "environment": env.environment}
        system_fields = {"system": group.system, "turn": group.turn, "metric": group.metric}
        listed.append({**env_fields, **system_fields, **group.counts})
    questions, documents = table.questions_with_judgements(), table.document_rows
    return {"groups": listed, "items": items, "questions": questions, "documents": documents, "raw": table.raw_rows}


class BrowserData(TypedDict):
    """What browse.js reads. Questions, documents and raw rankings are stored once; items refer to them by number."""

    groups: list[dict[str, object]]
    items: list[dict[str, object]]
    questions: list[dict[str, object]]
    documents: list[list[str]]
    """Id and, if it is known, title."""
    raw: list[dict[str, object]]


class _SharedRows:
    """Questions, documents and raw rankings, numbered so that several items can refer to them."""

    def __init__(self, document_info: Mapping[tuple[str, str], KnownDocuments]) -> None:
        self.document_info = document_info
        self.document_numbers: dict[tuple[str, str, str], int] = {}
        self.question_numbers: dict[tuple[str, str, str], int] = {}
        self.raw_numbers: dict[tuple[str, str, str, str], int] = {}
        self.document_rows: list[list[str]] = []
        self.question_rows: list[dict[str, object]] = []
        self.raw_rows: list[dict[str, object]] = []
        self.rankings: list[set[str]] = []
        """The documents of all rankings of a question, by question number."""

    def item(self, env: DatasetEnvironment, pick: Pick, metric: str) -> dict[str, object]:
        """The data of a pick: scores, rewrites and ranking."""
        record, raw_record = pick.record, env.raw[pick.question_id]
        key = env.evaluation, env.dataset, pick.question_id
        if key not in self.question_numbers:
            self.question_numbers[key] = len(self.question_rows)
            self.question_rows.append({"id": pick.question_id, "text": cut(raw_record.display_text, QUESTION)})
            self.rankings.append(set())
        number = self.question_numbers[key]
        self.rankings[number].update(record.ranking[:PLACES], raw_record.ranking[:PLACES])
        raw_key = (*key, env.environment)
        if raw_key not in self.raw_numbers:
            self.raw_numbers[raw_key] = len(self.raw_rows)
            self.raw_rows.append({"score": pick.raw, "ranking": self._ranking(env, raw_record)})
        item: dict[str, object] = {
            "question": number,
            "raw": self.raw_numbers[raw_key],
            "score": pick.score,
            "change": change(pick.score, pick.raw),
            "rewrites": [cut(text, REWRITE) for text in record.rewrites[:REWRITES]] if record.format_ok else None,
            "ranking": self._ranking(env, record),
        }
        if record.think:
            item["think"] = cut(record.think, THINK)
        if (plan := plan_lines(record)) is not None:
            item["plan"] = [cut(line, REWRITE) for line in plan[: REWRITES + 1]]
        if pick.samples > 1:
            item["sample"] = {"number": record.sample + 1, "of": pick.samples, "score": record.metrics[metric]}
        return item

    def questions_with_judgements(self) -> list[dict[str, object]]:
        """The questions with their relevant documents as [document, grade] pairs; None if they are unknown."""
        for (evaluation, dataset, question), number in self.question_numbers.items():
            qrels = self.document_info[evaluation, dataset].qrels
            if qrels is None:
                self.question_rows[number]["relevant"] = None
                continue
            grades, ranked = relevant(qrels.get(question, {})), self.rankings[number]
            shown = [document for document in grades if document in ranked] + missed(grades, ranked)
            self.question_rows[number]["relevant"] = [
                [self._document(evaluation, dataset, n), grades[n]] for n in shown
            ]
            self.question_rows[number]["judged"] = len(grades)
        return self.question_rows

    def _ranking(self, env: DatasetEnvironment, record: EvalRecord) -> list[int]:
        return [self._document(env.evaluation, env.dataset, document) for document in record.ranking[:PLACES]]

    def _document(self, evaluation: str, dataset: str, document: str) -> int:
        key = evaluation, dataset, document
        if key not in self.document_numbers:
            self.document_numbers[key] = len(self.document_rows)
            title = self.document_info[evaluation, dataset].titles.get(document, "")
            self.document_rows.append([document, title] if title else [document])
        return self.document_numbers[key]


def plan_lines(record: EvalRecord) -> list[str] | None:
    """The search plan, one line per probe; None if there is no plan or it is just the unchanged rewrites."""
    if record.plan is None:
        return None
    plan = SearchPlan.model_validate(record.plan)
    texts = [[(term.text, term.weight) for term in probe.terms] for probe in plan.probes]
    plain = all(probe.k is None and probe.source is None for probe in plan.probes)
    if plain and texts == [[(text, 1.0)] for text in record.rewrites]:
        return None
    lines = []
    for probe in plan.probes:
        query = "  +  ".join(f"{term.weight:g} × {term.text}" for term in probe.terms)
        limits = [f"first {probe.k}"] if probe.k is not None else []
        limits += [f"in {probe.source}"] if probe.source is not None else []
        lines.append(query + (f"  ({', '.join(limits)})" if limits else ""))
    return [*lines, f"fused by {plan.fuse}"] if len(lines) > 1 else lines


def cut(text: str, length: int) -> str:
    """The text, truncated to `length` characters with a note on how many were removed."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text) - length:,} more characters)"
