"""TREC CAsT 2019 to 2022 and TREC iKAT in their published forms: topics as JSON, judgements as TREC qrels.

A topic is a conversation; its turns are in the order in which they were said, or, in the trees of CAsT 2022, each names
its `parent`. The id of a question is TOPIC_TURN, as in the qrels. The rewrite by a person is the reference rewrite:
`manual_rewritten_utterance` (CAsT), in 2019 a file `*resolved*.tsv` of ids and texts, or `resolved_utterance` (iKAT).
A turn without the system's answer, as in CAsT 2019 and 2020, leaves only the user's utterances in the history.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import DataError
from .benchmark import Benchmark, splits_of
from .conversation_rows import read_json
from .passages import needed_passages, published_folder, read_passages
from .rows import FETCH, grade_of, id_of
from .trec import read_judgements, read_topics
from .types import Question, Utterance


@dataclass(frozen=True, slots=True)
class _TopicKeys:
    """The keys of one track's topics; of several, the first that a turn has."""

    turns: str
    number: str
    question: tuple[str, ...]
    rewrite: tuple[str, ...]
    answer: tuple[str, ...]
    licence: str


_KEYS: Mapping[str, _TopicKeys] = {
    "cast": _TopicKeys(
        "turn",
        "number",
        ("raw_utterance", "utterance"),
        ("manual_rewritten_utterance",),
        ("response", "passage"),
        "TREC CAsT: no licence is stated with its topics. Cite: Dalton et al. TREC CAsT 2019: The Conversational "
        "Assistance Track Overview. 2020, and the overview of the year that is used.",
    ),
    "ikat": _TopicKeys(
        "turns",
        "turn_id",
        ("utterance",),
        ("resolved_utterance",),
        ("response",),
        "TREC iKAT: no licence is stated with its topics. Cite: Aliannejadi et al. TREC iKAT 2023: The Interactive "
        "Knowledge Assistance Track Overview. 2024, or the overview of the year that is used.",
    ),
}


def open_trec_conversations(path: str | Path, track: Literal["cast", "ikat"]) -> Benchmark:
    """Read a folder with `*topics*.json`, `*qrel*` and passages. A file with "train" in its name is the training split.

    Raises DataError for a missing file, for a topic or turn of another form, and for one id with two texts.
    """
    folder = published_folder(path)
    keys = _KEYS[track]
    questions: dict[str, Question] = {}
    split_of: dict[str, str] = {}
    for file in _files(folder, "*topics*.json"):
        for question in _questions(file, keys):
            previous = questions.setdefault(question.id, question)
            if previous.text != question.text:
                raise DataError(
                    f"{file}: turn {question.id!r} is {question.text!r}, and {previous.text!r} before. Keep the "
                    "files of one year."
                )
            questions[question.id] = max(previous, question, key=_completeness)
            split_of[question.id] = "train" if "train" in file.name.lower() else "test"
    for file in sorted(folder.glob("*resolved*.tsv")):
        for _, identifier, text in read_topics(file):
            if identifier in questions:
                questions[identifier] = replace(questions[identifier], reference_rewrite=text)
    notes: list[str] = []
    splits = splits_of(track, questions, _qrels(_files(folder, "*qrel*"), split_of), notes)
    files = needed_passages(folder)
    origin = {"kind": track, "passages": [file.name for file in files]}
    return Benchmark(track, lambda: read_passages(files), splits, origin, tuple(notes), keys.licence)


def _files(folder: Path, pattern: str) -> list[Path]:
    files = sorted(path for path in folder.glob(pattern) if path.is_file())
    if not files:
        raise DataError(f"{folder} holds no file {pattern}; expected the published topics and judgements. {FETCH}")
    return files


def _qrels(files: Sequence[Path], split_of: Mapping[str, str]) -> dict[str, dict[str, dict[str, int]]]:
    """Split → question id → document id → grade; a question that no topic has counts as one of test."""
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    for file in files:
        for number, (question, document, grade) in read_judgements(file):
            judged = qrels.setdefault(split_of.get(question, "test"), {}).setdefault(question, {})
            judged[document] = max(grade_of(grade, file, number), judged.get(document, 0))
    return qrels


def _questions(file: Path, keys: _TopicKeys) -> Iterator[Question]:
    topics = read_json(file)
    if not isinstance(topics, list):
        raise DataError(f"{file} is no JSON list of topics. It may be a file of something else.")
    for position, topic in enumerate(topics, start=1):
        turns = topic.get(keys.turns) if isinstance(topic, dict) else None
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise DataError(
                f"{file}, topic {position}: no list {keys.turns!r} of turns; expected a topic with number and "
                f"{keys.turns}. It may be of another track."
            )
        number = id_of(topic, "number", file, position)
        conversations: dict[str, tuple[Utterance, ...]] = {}
        last: tuple[Utterance, ...] = ()
        for turn in turns:
            name = id_of(turn, keys.number, file, position)
            before = last
            if turn.get("parent") is not None:
                parent = str(turn["parent"])
                if parent not in conversations:
                    raise DataError(
                        f"{file}, topic {number}: turn {name} follows {parent!r}, and no turn before it has that "
                        "number. Correct the topic."
                    )
                before = conversations[parent]
            text, answer = _text(turn, keys.question), _text(turn, keys.answer)
            if text and turn.get("participant", "User") == "User":
                yield Question(f"{number}_{name}", text, (), before, _text(turn, keys.rewrite))
            last = (*before, *([Utterance("user", text)] if text else []))
            last = (*last, *([Utterance("assistant", answer)] if answer else []))
            conversations[name] = last


def _text(turn: Mapping[str, Any], names: Sequence[str]) -> str:
    texts = (turn[name].strip() for name in names if isinstance(turn.get(name), str))
    return next(filter(None, texts), "")


def _completeness(question: Question) -> tuple[int, bool]:
    """Of one turn in several files, the one with most of its conversation, and with a rewrite, is taken."""
    return len(question.history), bool(question.reference_rewrite)
