"""The sets made from WordNet, by hand-written database files; envs/test_whole_collections.py has the real ones."""

from pathlib import Path

import pytest
from querylect.data.types import Utterance
from querylect.data.wordnet import answers_of, load_wordnet, load_wordnet_conversations, read_gloss

NOTICE = ("This software is pro-  ", "vided to you.  ", "  ", "WordNet 3.0 Copyright 2006  ")
TYPES = {"n": "1", "v": "2", "a": "3", "s": "5", "r": "4"}


def write(folder: Path, *entries) -> Path:
    """Database files of entries (name, part of speech, words, gloss, tag count, pointers {symbol: names}).

    Offsets are what wndb(5WN) says they are: bytes with LF line ends.
    """
    folder.mkdir(exist_ok=True)
    header = "".join(f"  {number} {line}\n" for number, line in enumerate(NOTICE, start=1))
    files = {"n": header, "v": header, "a": header}
    offsets: dict[str, str] = {}
    for _ in range(2):  # the first pass finds out the offsets that the second writes
        files = {"n": header, "v": header, "a": header}
        senses = []
        for name, kind, terms, gloss, tagged, pointers in entries:
            file = "a" if kind == "s" else kind
            offset = f"{len(files[file]):08d}"
            offsets[name] = offsets.get(name, offset)
            targets = [(symbol, *target.split(":")) for symbol, names in pointers.items() for target in names]
            relations = "".join(f"{symbol} {offsets.get(to, '0' * 8)} {pos} 0000 " for symbol, pos, to in targets)
            listed = "".join(f"{word.replace(' ', '_')} 0 " for word in terms)
            files[file] += f"{offset} 03 {kind} {len(terms):02x} {listed}{len(targets):03d} {relations}| {gloss}  \n"
            for position, word in enumerate(terms):
                key = f"{word.replace(' ', '_').lower()}%{TYPES[kind]}:03:00::"
                senses.append(f"{key} {offset} 1 {tagged if position == 0 else 0}\n")
    for kind, name in (("n", "data.noun"), ("v", "data.verb"), ("a", "data.adj")):
        (folder / name).write_bytes(files[kind].replace("\n", "\r\n").encode())
    (folder / "index.sense").write_bytes("".join(senses).replace("\n", "\r\n").encode())
    return folder


ALL = {"test": 0, "validation": 0, "train": None}


DEFINITION = "a lorry whose contents can be emptied without handling; the bed tilts"
GLOSS = f'{DEFINITION}; "the dumper tipped its load"; "a big one!"'
POINTERS = {"@": ["n:vehicle"], "+": ["v:empty"], "!": ["a:full"], ";u": ["r:quickly"]}
TRUCK = ("truck", "n", ["dump truck", "dumper"], GLOSS, 3, POINTERS)
VEHICLE = ("vehicle", "n", ["motor vehicle", "automotive vehicle"], "it has wheels", 0, {"~": ["n:truck"]})
EMPTY = ("empty", "v", ["empty", "dumper"], "take it all out", 0, {})
FULL = ("full", "s", ["full(p)"], "nothing more goes in", 0, {})


def test_documents_and_questions_of_synsets_with_a_tagged_sense(tmp_path):
    """A document is words, examples, hypernyms and related words without the gloss, which is the question."""
    glosses = ("four words of gloss", "made dirty with sticky tar", "smeared with tarlike sticky stuff")
    others = [(f"it{n}", "n", ["Tar"], gloss, 1, {}) for n, gloss in enumerate(glosses)]
    dataset = load_wordnet(write(tmp_path / "dict", TRUCK, VEHICLE, EMPTY, FULL, *others), ALL)
    truck, *rest = dataset.corpus
    assert [document.title for document in rest] == ["Tar"] * 3
    assert (truck.id[:2], truck.title) == ("n0", "dump truck, dumper")
    assert truck.text == (
        "the dumper tipped its load. a big one! Kind of: motor vehicle, automotive vehicle. Related: empty, full."
    )
    (question,) = dataset.splits["train"].questions
    assert question.text == DEFINITION, "others are too short, or have one of their own words"
    assert dataset.splits["train"].qrels == {question.id: {truck.id: 1}}
    assert answers_of(dataset) == {question.id: {"answers": ["dump truck", "dumper"]}}


@pytest.mark.parametrize(
    ("gloss", "parts"),
    [
        ("the only part", ("the only part", ())),
        ('one; two; "ex a"; "ex b; c"', ("one; two", ("ex a", "ex b; c"))),
        ('beset: "by quotes"; "twice"', ("beset", ("by quotes", "twice"))),
        ('bring forth, "it bore fruit" or "so"', ("bring forth", ("it bore fruit", "so"))),
        ('meet a need; e.g., "like so"', ("meet a need", ("like so",))),
        ('a setting; "a stage"--Shakespeare; "once again"', ("a setting", ("a stage", "once again"))),
        ('progress (as in "make strides"); "they made it"', ("", ())),
        ('worsted yarns "he wore it"', ("", ())),
        ('a hint; "drop a hint"; drop names"', ("", ())),
    ],
)  # fmt: skip
def test_a_gloss_is_parted_at_its_quotation_marks(gloss, parts):
    assert read_gloss(gloss) == parts


def answer_words(dataset):
    """Lower-case words of the answers by split."""
    titles = {document.id: document.title for document in dataset.corpus}
    return {
        name: {
            word.lower() for grades in split.qrels.values() for answer in grades for word in titles[answer].split(", ")
        }
        for name, split in dataset.splits.items()
    }


def no_shared_words(dataset):
    """No word of an answer is one of an answer in another split."""
    train, validation, test = (answer_words(dataset)[name] for name in ("train", "validation", "test"))
    assert not train & (validation | test)
    assert not validation & test


TOOL = ("tool", "n", ["tool"], "it is made to work with", 2, {})
RELATED = {"@": ["n:tool"], "%p": ["n:head"], "~": ["n:maul"]}
HAMMER = ("hammer", "n", ["hammer", "striker"], 'a heavy head on a handle; "his hammer fell"', 3, RELATED)
HEAD = ("head", "n", ["head"], "what strikes", 1, {})
MAUL = ("maul", "n", ["maul"], "the largest one of all", 0, {"@": ["n:hammer"]})


def test_follow_ups_ask_along_the_pointers_of_a_word(tmp_path):
    folder = write(tmp_path / "dict", TOOL, HAMMER, HEAD, MAUL)
    split = load_wordnet_conversations(folder, ALL).splits["train"]
    (question,) = (entry for entry in split.questions if entry.history[0].text == "What does hammer mean?")
    assert question.text == "What is it a kind of?", "the definition names the head, and a maul is no document"
    assert question.history[1] == Utterance("assistant", "a heavy head on a handle")
    assert question.reference_rewrite == "What is hammer a kind of?"
    assert len(split.qrels[question.id]) == 1
