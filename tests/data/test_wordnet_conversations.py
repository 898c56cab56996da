"""The conversational set of WordNet: its questions, their answers, and that no word is in two splits."""

from querylect.data.types import Utterance
from querylect.data.wordnet_conversations import load_wordnet_conversations

from .test_wordnet import filler, write

SIZES = {"test_questions": 1, "validation_questions": 1, "training_questions": 9}
TOOL = ("tool", "n", ["tool"], "it is made to work with", 2, {})
POINTERS = {"@": ["n:tool"], "%p": ["n:head"], "~": ["n:maul"]}
HAMMER = ("hammer", "n", ["hammer", "striker"], 'a heavy head on a handle; "his hammer fell"', 3, POINTERS)
HEAD = ("head", "n", ["head"], "what strikes", 1, {})
MAUL = ("maul", "n", ["maul"], "the largest one of all", 0, {"@": ["n:hammer"]})
PAIRS = [
    entry
    for number in range(10, 14)
    for entry in (
        (*filler(number)[:5], {"@": [f"n:over{number}"]}),
        (f"over{number}", "n", [f"yy{number}yy"], f"above number {number}", 1, {}),
    )
]


def load(tmp_path, *entries):
    dataset = load_wordnet_conversations(write(tmp_path / "dict", *entries, *PAIRS), **SIZES)
    titles = {document.id: document.title for document in dataset.corpus}
    return {
        (question.history[0].text, question.text): (question, sorted(titles[d] for d in split.qrels[question.id]))
        for split in dataset.splits.values()
        for question in split.questions
    }


def test_follow_ups_ask_along_the_pointers_of_a_word(tmp_path):
    questions = load(tmp_path, TOOL, HAMMER, HEAD, MAUL)
    question, answers = questions["What does hammer mean?", "What is it a kind of?"]
    history = (Utterance("user", "What does hammer mean?"), Utterance("assistant", "a heavy head on a handle"))
    assert question.history == history
    assert question.reference_rewrite == "What is hammer a kind of?"
    assert answers == ["tool"]
    assert ("What does hammer mean?", "And what are its parts?") not in questions, "its definition names the head"
    assert ("What does hammer mean?", "Can you name a kind of it?") not in questions, "a maul is no document"
