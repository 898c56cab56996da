"""Questions to browse: where a rewrite helped or hurt most against the raw question, with both rankings.

Chosen by a rule that leaves no room for taste: of every dataset, environment, system and turn the largest gains and the
largest losses by the first metric, and unchanged questions at even distances. What would make the page too large is
left out by the same rule, with fewer questions of each, and then without earlier turns; the page says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...envs.plan import SearchPlan
from ..grid.table import answers_of
from ..records import EvalRecord
from .examples import by_change, change, spread

KINDS = ("helped", "hurt", "unchanged")
PLACES = 10
"""Places of a ranking that are shown."""
MISSED = 5
"""Relevant documents that stand in no ranking and are named all the same."""
QUESTION, REWRITE, THINK, REWRITES = 12_000, 4_000, 2_000, 12
"""Characters shown of each, and rewrites of one answer."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One question and what the system did with it."""

    question_id: str
    score: float
    """Of several samples their mean."""
    raw: float
    record: EvalRecord
    """Of several samples the one whose score is nearest to the mean."""
    samples: int


@dataclass(frozen=True, slots=True)
class Group:
    """One system at one turn in one environment on one dataset."""

    evaluation: str
    dataset: str
    environment: str
    system: str
    turn: int
    metric: str
    last: bool
    """Whether it is the system's last turn."""
    counts: Mapping[str, int]
    """Questions by kind, of all that both have a score for."""
    picks: Mapping[str, Sequence[Pick]]
    """The most of each kind, the most telling first."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known on this machine about the documents of a dataset."""

    titles: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]] | None
    """Grades of relevant documents by question; None where the judgements are not here."""


@dataclass(slots=True)
class Place:
    """One environment on one dataset: the raw questions there."""

    evaluation: str
    dataset: str
    environment: str
    raw: Mapping[str, EvalRecord] = field(default_factory=dict)
    """By question."""


def choose(
    place: Place, system: str, records: Sequence[EvalRecord], samples: int, metric: str, shown: int
) -> list[Group]:
    """The groups of one system, a group for each turn, with `shown` picks of gains and of losses at most."""
    by_turn: dict[tuple[int, str], list[EvalRecord]] = {}
    for record in records:
        by_turn.setdefault((record.turn, record.question_id), []).append(record)
    found = answers_of(list(place.raw), records, samples)
    groups = []
    for turn, answers in found.items():
        scores = {question: answers.values[question].get(metric) for question in place.raw}
        both = {
            question: (score, before)
            for question, score in scores.items()
            if score is not None and (before := place.raw[question].metrics[metric]) is not None
        }
        kinds = by_change({question: change(*pair) for question, pair in both.items()})
        gained, lost, same = kinds
        taken = gained[:shown], lost[:shown], spread(same, unchanged_of(shown))
        groups.append(
            Group(
                place.evaluation,
                place.dataset,
                place.environment,
                system,
                turn,
                metric,
                turn == max(found),
                {kind: len(questions) for kind, questions in zip(KINDS, kinds, strict=True)},
                {
                    kind: [_pick(question, *both[question], by_turn[turn, question], metric) for question in questions]
                    for kind, questions in zip(KINDS, taken, strict=True)
                },
            )
        )
    return groups


def unchanged_of(shown: int) -> int:
    """Unchanged questions beside `shown` gains and losses: a third, and at least one."""
    return max(1, shown // 3) if shown else 0


def _pick(question: str, score: float, raw: float, records: Sequence[EvalRecord], metric: str) -> Pick:
    nearest = min(records, key=lambda record: (abs((record.metrics[metric] or 0.0) - score), record.sample))
    return Pick(question, score, raw, nearest, len(records))


def documents_of(groups: Iterable[Group], places: Mapping[tuple[str, str, str], Place]) -> set[str]:
    """Ids of the documents in the rankings that these groups show."""
    found: set[str] = set()
    for group in groups:
        raw = places[group.evaluation, group.dataset, group.environment].raw
        for picks in group.picks.values():
            for pick in picks:
                found.update(pick.record.ranking[:PLACES], raw[pick.question_id].ranking[:PLACES])
    return found


def missed(qrels: Mapping[str, int], shown: set[str]) -> list[str]:
    """The first relevant documents that no shown ranking holds: the highest grade first, then by id."""
    return sorted((document for document in qrels if document not in shown), key=lambda one: (-qrels[one], one))[
        :MISSED
    ]


def as_data(
    groups: Sequence[Group],
    places: Mapping[tuple[str, str, str], Place],
    known: Mapping[tuple[str, str], Known],
    shown: int,
    every_turn: bool,
) -> dict[str, Any]:
    """What the page's script reads: `shown` of each kind, of all turns or of the last ones alone.

    Questions, documents and raw rankings stand once, and items name them by their number.
    """
    table = _Tables(known)
    listed: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    for group in groups:
        if not (every_turn or group.last):
            continue
        place = places[group.evaluation, group.dataset, group.environment]
        for kind in KINDS:
            limit = unchanged_of(shown) if kind == "unchanged" else shown
            chosen = group.picks[kind]
            if kind == "unchanged" and limit < len(chosen):
                chosen = spread(chosen, limit)
            for pick in chosen[:limit]:
                items.append({"group": len(listed), "kind": kind, **table.item(place, pick, group.metric)})
        where = {"evaluation": group.evaluation, "dataset": group.dataset, "environment": group.environment}
        of = {"system": group.system, "turn": group.turn, "metric": group.metric}
        listed.append({**where, **of, **group.counts})
    return {"groups": listed, "items": items, **table.content()}


class _Tables:
    """What several items name by its number."""

    def __init__(self, known: Mapping[tuple[str, str], Known]) -> None:
        self.known = known
        self.documents: dict[tuple[str, str, str], int] = {}
        self.questions: dict[tuple[str, str, str], int] = {}
        self.raw: dict[tuple[str, str, str, str], int] = {}
        self.of_documents: list[list[str]] = []
        self.of_questions: list[dict[str, Any]] = []
        self.of_raw: list[dict[str, Any]] = []
        self.rankings: list[set[str]] = []
        """By question the documents of all its rankings."""

    def item(self, place: Place, pick: Pick, metric: str) -> dict[str, Any]:
        """A pick, its rewrites and its ranking."""
        record, before = pick.record, place.raw[pick.question_id]
        key = place.evaluation, place.dataset, pick.question_id
        if key not in self.questions:
            self.questions[key] = len(self.of_questions)
            self.of_questions.append({"id": pick.question_id, "text": cut(before.question, QUESTION)})
            self.rankings.append(set())
        number = self.questions[key]
        self.rankings[number].update(record.ranking[:PLACES], before.ranking[:PLACES])
        at = (*key, place.environment)
        if at not in self.raw:
            self.raw[at] = len(self.of_raw)
            self.of_raw.append({"score": pick.raw, "ranking": self._ranking(place, before)})
        found: dict[str, Any] = {
            "question": number,
            "raw": self.raw[at],
            "score": pick.score,
            "change": change(pick.score, pick.raw),
            "rewrites": [cut(text, REWRITE) for text in record.rewrites[:REWRITES]] if record.format_ok else None,
            "ranking": self._ranking(place, record),
        }
        if record.think:
            found["think"] = cut(record.think, THINK)
        if (plan := plan_lines(record)) is not None:
            found["plan"] = [cut(line, REWRITE) for line in plan[: REWRITES + 1]]
        if pick.samples > 1:
            found["sample"] = {"number": record.sample + 1, "of": pick.samples, "score": record.metrics[metric]}
        return found

    def content(self) -> dict[str, Any]:
        """The tables themselves; a question's relevant documents as [document, grade], None where they are unknown."""
        for (evaluation, dataset, question), number in self.questions.items():
            qrels = self.known[evaluation, dataset].qrels
            if qrels is None:
                self.of_questions[number]["relevant"] = None
                continue
            grades, seen = qrels.get(question, {}), self.rankings[number]
            named = [one for one in grades if one in seen] + missed(grades, seen)
            self.of_questions[number]["relevant"] = [[self._document(evaluation, dataset, n), grades[n]] for n in named]
            self.of_questions[number]["judged"] = len(grades)
        return {"questions": self.of_questions, "documents": self.of_documents, "raw": self.of_raw}

    def _ranking(self, place: Place, record: EvalRecord) -> list[int]:
        return [self._document(place.evaluation, place.dataset, document) for document in record.ranking[:PLACES]]

    def _document(self, evaluation: str, dataset: str, document: str) -> int:
        key = evaluation, dataset, document
        if key not in self.documents:
            self.documents[key] = len(self.of_documents)
            title = self.known[evaluation, dataset].titles.get(document, "")
            self.of_documents.append([document, title] if title else [document])
        return self.documents[key]


def plan_lines(record: EvalRecord) -> list[str] | None:
    """What was searched, a line for each probe; None where that is the rewrites as they stand, or nothing."""
    if record.plan is None:
        return None
    plan = SearchPlan.model_validate(record.plan)
    texts = [[(term.text, term.weight) for term in probe.terms] for probe in plan.probes]
    plain = all(probe.k is None and probe.source is None for probe in plan.probes)
    if plain and texts == [[(text, 1.0)] for text in record.rewrites]:
        return None
    lines = []
    for probe in plan.probes:
        said = "  +  ".join(f"{term.weight:g} × {term.text}" for term in probe.terms)
        limits = [f"first {probe.k}"] if probe.k is not None else []
        limits += [f"in {probe.source}"] if probe.source is not None else []
        lines.append(said + (f"  ({', '.join(limits)})" if limits else ""))
    return [*lines, f"fused by {plan.fuse}"] if len(lines) > 1 else lines


def cut(text: str, length: int) -> str:
    """The text, or its beginning and how much was left out."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text) - length:,} more characters)"
