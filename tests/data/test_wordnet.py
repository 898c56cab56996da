"""The reverse dictionary: parsing by hand-written database files, and the real files' facts."""

import hashlib
from pathlib import Path

import pytest
from querylect.data.wordnet import Gloss, answers_of, load_wordnet, read_gloss

NOTICE = ("This software is pro-  ", "vided to you.  ", "  ", "WordNet 3.0 Copyright 2006  ")
TYPES = {"n": "1", "v": "2", "a": "3", "s": "5", "r": "4"}


def write(folder: Path, *entries, ends: str = "\r\n") -> Path:
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
        (folder / name).write_bytes(files[kind].replace("\n", ends).encode())
    (folder / "index.sense").write_bytes("".join(senses).replace("\n", ends).encode())
    return folder


def filler(number: int):
    """A synset with a question, which has no word in common with another one."""
    numeral = "".join(chr(ord("a") + int(digit)) for digit in str(number))
    gloss = f"{numeral * 4} distinct {numeral * 7} meaning {numeral * 5} here"
    return (f"filler{number}", "n", [f"zz{number}zz"], gloss, 1, {})


FILLERS = tuple(filler(number) for number in range(10, 16))


@pytest.fixture
def load(tmp_path):
    """Write entries beside fillers and load them with one test and one validation question."""

    def loaded(*entries, **sizes):
        folder = write(tmp_path / "dict", *entries, *FILLERS)
        return load_wordnet(folder, **({"test_questions": 1, "validation_questions": 1} | sizes))

    return loaded


def answers_by_question(dataset):
    """The questions besides those of the fillers, and their answers' titles."""
    titles = {document.id: document.title for document in dataset.corpus}
    return {
        question.text: {titles[answer] for answer in split.qrels[question.id]}
        for split in dataset.splits.values()
        for question in split.questions
        if " distinct " not in question.text
    }


def document(dataset, title):
    (match,) = [document for document in dataset.corpus if document.title == title]
    return match


DEFINITION = "a lorry whose contents can be emptied without handling; the bed tilts"
GLOSS = f'{DEFINITION}; "the dumper tipped its load"; "a big one!"'
POINTERS = {"@": ["n:vehicle"], "+": ["v:empty"], "!": ["a:full"], ";u": ["r:quickly"]}
TRUCK = ("truck", "n", ["dump truck", "dumper"], GLOSS, 3, POINTERS)
VEHICLE = ("vehicle", "n", ["motor vehicle", "automotive vehicle"], "it has wheels", 0, {"~": ["n:truck"]})
EMPTY = ("empty", "v", ["empty", "dumper"], "take it all out", 0, {})
FULL = ("full", "s", ["full(p)"], "nothing more goes in", 0, {})


def test_documents_and_questions_of_synsets_with_a_tagged_sense(load):
    """A document is words, examples, hypernyms and related words without the gloss, which is the question."""
    dataset = load(TRUCK, VEHICLE, EMPTY, FULL)
    truck = document(dataset, "dump truck, dumper")
    assert truck.text == (
        "the dumper tipped its load. a big one! Kind of: motor vehicle, automotive vehicle. Related: empty, full."
    )
    assert truck.id.startswith("n0")
    assert answers_by_question(dataset) == {DEFINITION: {"dump truck, dumper"}}
    assert {document.title for document in dataset.corpus} == {truck.title, *(entry[2][0] for entry in FILLERS)}


@pytest.mark.parametrize(
    ("terms", "gloss", "is_question"),
    [
        (["tar"], "made dirty with something sticky", True),
        (["tar"], "four words of gloss", False),
        (["Tar"], "made dirty with sticky tar", False),
        (["tar"], "smeared with tarlike sticky stuff", False),
        (["sticky stuff"], "smeared with black sticky stuff", False),
        (["sticky stuff"], "smeared with stuff so very sticky", True),
    ],
)
def test_a_definition_needs_five_words_and_none_of_its_own_terms(load, terms, gloss, is_question):
    assert list(answers_by_question(load(("it", "n", terms, gloss, 1, {})))) == [gloss] * is_question


@pytest.mark.parametrize(
    ("gloss", "parts"),
    [
        ("the only part", Gloss("the only part")),
        ('one; two; "ex a"; "ex b; c"', Gloss("one; two", ("ex a", "ex b; c"))),
        ('beset: "by quotes"; "twice"', Gloss("beset", ("by quotes", "twice"))),
        ('bring forth, "it bore fruit" or "so"', Gloss("bring forth", ("it bore fruit", "so"))),
        ('meet a need; e.g., "like so"', Gloss("meet a need", ("like so",))),
        ('a setting; "a stage"--Shakespeare; "once again"', Gloss("a setting", ("a stage", "once again"))),
        ('progress (as in "make strides"); "they made it"', None),
        ('worsted yarns "he wore it"', None),
        ('a hint; "drop a hint"; drop names"', None),
    ],
)  # fmt: skip
def test_a_gloss_is_parted_at_its_quotation_marks(gloss, parts):
    assert read_gloss(gloss) == parts


def test_no_word_of_a_held_out_answer_is_a_word_of_an_answer_before(tmp_path):
    entries = []
    for n in range(42):
        shared, gloss = f"{'Shared' if n % 2 else 'shared'}{n % 7}", hashlib.md5(str(n).encode()).hexdigest()
        entries.append((f"s{n}", "n", [f"own{n}", shared], f"{gloss} in five words here", 1, {}))
    dataset = load_wordnet(write(tmp_path / "dict", *entries), test_questions=2, validation_questions=3)
    assert [len(dataset.splits[name].questions) for name in ("validation", "test")] == [3, 2]
    no_shared_words(dataset)
    assert sum(len(split.questions) for split in dataset.splits.values()) <= 42 - 5


def test_the_set_depends_neither_on_line_ends_nor_on_the_order_of_synsets(tmp_path):
    entries = (TRUCK, VEHICLE, EMPTY, FULL, *FILLERS)
    sizes = {"test_questions": 2, "validation_questions": 2}
    lf, crlf = (load_wordnet(write(tmp_path / name, *entries, ends=name), **sizes) for name in ("\n", "\r\n"))
    assert (lf.corpus, lf.splits) == (crlf.corpus, crlf.splits)
    turned = load_wordnet(write(tmp_path / "turned", *reversed(FILLERS), TRUCK, VEHICLE, EMPTY, FULL), **sizes)
    assert {name: split.questions for name, split in turned.splits.items()} == {
        name: split.questions for name, split in lf.splits.items()
    }


def test_the_words_of_a_definition_are_its_right_answers(load):
    dataset = load(TRUCK, VEHICLE, EMPTY, FULL)
    (question,) = (q.id for split in dataset.splits.values() for q in split.questions if q.text == DEFINITION)
    assert answers_of(dataset)[question] == {"answers": ["dump truck", "dumper"]}


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
