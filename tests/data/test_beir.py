"""BEIR folders: what is read, what is refused, what is written."""

import gzip
from dataclasses import replace

import pytest
from querylect.configs.schema import DatasetConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.corpus import Corpus
from querylect.data.types import Dataset, Document, Question, Split, Utterance
from querylect.errors import DataError

from ..jsonl import jsonl
from ..raising import refused

HEADER = "query-id\tcorpus-id\tscore\n"
CORPUS = [
    {"_id": "d1", "title": "Short stature", "text": "Height below the norm."},
    {"_id": "d2", "text": "No title here."},
    {"_id": 3, "title": "Läppchen", "text": ""},
]
QUESTIONS = [{"_id": "q1", "text": "small person"}, {"_id": "q2", "text": "which?", "options": ["a", "b"]}]


@pytest.fixture
def folder(tmp_path):
    """A small valid folder; tests break one of its files."""
    root = tmp_path / "set"
    (root / "qrels").mkdir(parents=True)
    (root / "corpus.jsonl").write_text(jsonl(CORPUS), encoding="utf-8")
    (root / "queries.jsonl").write_text(jsonl(QUESTIONS), encoding="utf-8")
    (root / "qrels" / "test.tsv").write_text(HEADER + "q1\td1\t2\nq1\t3\t1\nq2\td2\t1\n", encoding="utf-8")
    return root


def refuses(folder, *facts):
    with refused(DataError, *facts):
        load_beir(folder)


def test_reads_documents_questions_grades_and_options(folder):
    dataset = load_beir(folder)
    assert (dataset.name, dataset.notes, dataset.licence) == ("set", (), "")
    assert list(dataset.corpus) == [
        Document("d1", "Short stature", "Height below the norm."),
        Document("d2", "", "No title here."),
        Document("3", "Läppchen", ""),
    ]
    questions = (Question("q1", "small person"), Question("q2", "which?", ("a", "b")))
    assert dataset.splits == {"test": Split(questions, {"q1": {"d1": 2, "3": 1}, "q2": {"d2": 1}})}
    (folder / "meta.json").write_text('{"name": "lay", "license": "CC BY 4.0", "relevance_level": 2}')
    dataset = load_beir(folder)
    assert (dataset.name, dataset.licence, dataset.relevance_level) == ("lay", "CC BY 4.0", 2)


def test_grades_up_to_zero_are_kept_and_questions_with_no_others_skipped(folder):
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\td1\t0\nq2\td2\t1\nq2\td1\t0\nq2\t3\t-1\n")
    dataset = load_beir(folder)
    assert dataset.splits["test"].qrels == {"q2": {"d2": 1, "d1": 0, "3": -1}}
    assert dataset.notes == ("set: 1 of 2 questions have no relevant document and are skipped.",)
    save_beir(dataset, folder.with_name("copy"))
    assert load_beir(folder.with_name("copy")).splits == dataset.splits


def test_gzipped_files_are_read_in_blocks_too(folder):
    expected = load_beir(folder)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        file = folder / name
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert load_beir(folder) == expected
    corpus = Corpus(DatasetConfig(path=str(folder)))
    blocks, lines = corpus.blocks(40)
    assert (len(blocks) > 3, lines) == (True, 3)
    assert tuple(document for block in blocks for document in corpus.read(block)) == expected.corpus
    compressed = (folder / "corpus.jsonl.gz").read_bytes()
    (folder / "corpus.jsonl.gz").write_bytes(compressed[:-12])
    with refused(DataError, "corpus.jsonl.gz"):
        corpus.blocks(40)


@pytest.mark.parametrize(
    ("qrels", "header"),
    [
        ("qrels/test.txt", ""),
        ("qrels/test.qrels.gz", "query-id iter corpus-id score\n"),
        ("qrels/test.tsv", "qid\tQ0\tdocid\trel\n"),
    ],
)
def test_qrels_of_trec_are_read(folder, qrels, header):
    (folder / "qrels" / "test.tsv").unlink()
    judged = f"{header}q1 0 d1 2.0\nq1 Q0 3 1\nq2\t0\td2\t1.\nq2 0 d1 0\n".encode()
    (folder / qrels).write_bytes(gzip.compress(judged) if qrels.endswith(".gz") else judged)
    assert load_beir(folder).splits["test"].qrels == {"q1": {"d1": 2, "3": 1}, "q2": {"d2": 1, "d1": 0}}


RECORDS = """<top>
<num> Number: q1 </num>
<title> tendon pain, < 90 mmHg </title>
<desc> Description:
Does it help?
</desc>
</top>
<TOP>
<num> Number: q2
<title> vinegar <b>lime</b> a<b
in a kettle
<desc> Does it?
</top>
"""
XML = """<topics>
<topic number="q1"><title>tendon <i>pain</i>, &lt; 90 mmHg</title><desc>no</desc></topic>
<topic number="q2"><query>vinegar <b>lime</b> a&lt;b
in a kettle</query><narrative>no</narrative></topic>
</topics>"""
LINES = "q1\ttendon pain, < 90 mmHg\nq2\tvinegar lime a<b in a kettle\n"


@pytest.mark.parametrize(
    ("title", "question"),
    [
        ("a<b and c>d here", "a<b and c>d here"),
        ("AT&amp;T &lt;5 &quot;q&quot; &#39;&eacute;", 'AT&T <5 "q" \'é'),
        ("AT&T R&D &copy x&lt5 &b&gt;", "AT&T R&D &copy x&lt5 &b>"),
        ('H<sub>2</sub>O <B>or</B> <a href="x y">a</a>', "H2O or a"),
        ("one<br/>two<p>three", "one two three"),
        ("Topic: Airbus", "Airbus"),
    ],
)
def test_only_inline_tags_are_taken_out_of_a_title_of_trec(folder, title, question):
    (folder / "queries.jsonl").unlink()
    head = "<top>\n<head> Tipster\n<num> Number: q1\n<dom> Domain: x\n<title> "
    (folder / "topics.txt").write_text(f"{head}{title}\n<desc> d\n</top>\n{head.replace('q1', 'q2')}b")
    assert load_beir(folder).splits["test"].questions[0].text == question


@pytest.mark.parametrize(("name", "text"), [("topics.txt", RECORDS), ("topics.xml", XML), ("topics.tsv", LINES)])
def test_topics_of_trec_are_read_whole(folder, name, text):
    (folder / "queries.jsonl").unlink()
    (folder / name).write_text(text)
    texts = [question.text for question in load_beir(folder).splits["test"].questions]
    assert texts == ["tendon pain, < 90 mmHg", "vinegar lime a<b in a kettle"]
    (folder / name).write_text(text.replace("q1", ""))
    refuses(folder, name, "topic 1")


def test_judged_documents_that_are_not_in_the_corpus_are_named_and_counted(folder):
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\tghost\t1\nq1\td1\t1\nq2\tother\t1\n")
    refuses(folder, "set, test", "'ghost'", "2 of 3")
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\tghost\t1\nq1\td1\t1\nq2\tother\t0\nq2\td2\t1\n")
    dataset = load_beir(folder)
    assert dataset.splits["test"].qrels == {"q1": {"d1": 1}, "q2": {"d2": 1}}
    assert dataset.notes[0].startswith("set, test: 2 of 4 judgements (1 of 3 above 0)")
    assert load_beir(folder, documents={"d1", "d2", "3"}).splits == dataset.splits
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\tghost\t1\nq2\td2\t1\n")
    assert [question.id for question in load_beir(folder).splits["test"].questions] == ["q2"]


@pytest.mark.parametrize(
    ("name", "line", "facts"),
    [
        ("qrels/test.tsv", "q1 d1 1", ["'q1 d1 1'"]),
        ("qrels/test.tsv", "q1\td1\thigh", ["'high'"]),
        ("qrels/test.tsv", "q1\td1\t1", ["'q1'", " 2 "]),
        ("qrels/test.tsv", HEADER.strip(), ["'score'"]),
        *(
            (name, record, facts)
            for name in ("corpus.jsonl", "queries.jsonl")
            for record, facts in (
                ('{"_id": "x", "text": "cut of', []),
                ('{"text": "no id"}', ["'_id'", None]),
                ('{"_id": "x", "text": 7}', ["'text'", 7]),
                ('{"_id": "x", "text": "\\ud800"}', ["hex escape"]),
            )
        ),
        ("queries.jsonl", '{"_id": "x", "text": " "}', ["'text'", "' '"]),
        ("queries.jsonl", '{"_id": "q1", "text": "again"}', ["'q1'"]),
    ],
)
def test_a_broken_line_names_file_and_line(folder, name, line, facts):
    file = folder / name
    first, *later_lines = file.read_text(encoding="utf-8").splitlines()
    number = 3 if name.startswith("qrels") else 2
    lines = [first, *later_lines[: number - 2], line, *later_lines[number - 2 :]]
    file.write_text("\n".join(lines), encoding="utf-8")
    refuses(folder, f"{file}, line {number}", *facts)


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("corpus.jsonl", b"\n", ["corpus.jsonl"]),
        ("corpus.jsonl", b'{"_id": "d1", "text": "x"}\n{"_id": "d4", "text": "\xe9"}\n', ["line 2"]),
        ("corpus.jsonl", b'{"_id": "d1", "text": "x"}\n' * 2, ["corpus.jsonl", "unique"]),
        ("queries.jsonl", None, ["queries.jsonl"]),
        ("qrels/test.tsv", HEADER.encode() + b"q1\td1\t0\n", ["set", "test"]),
        ("meta.json", b'{"relevance_level": "two"}', ["meta.json", "'two'"]),
    ],
)
def test_a_file_that_is_missing_or_says_too_little_is_named(folder, name, content, facts):
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    refuses(folder, *facts)


def test_without_qrels_questions_that_name_their_split_are_not_judged(folder):
    (folder / "qrels" / "test.tsv").unlink()
    splits = {"q1": "dev", "q2": "train", "q3": "train", "q4": None}
    rows = [{"_id": name, "text": f"what is {name}?", "split": split} for name, split in splits.items()]
    (folder / "queries.jsonl").write_text(jsonl(rows))
    dataset = load_beir(folder)
    names = {name: [question.id for question in split.questions] for name, split in dataset.splits.items()}
    assert names == {"train": ["q2", "q3"], "validation": ["q1"]}
    assert [split.qrels for split in dataset.splits.values()] == [{"q2": {}, "q3": {}}, {"q1": {}}]
    save_beir(dataset, folder.with_name("copy"))
    assert load_beir(folder.with_name("copy")).splits == dataset.splits
    (folder / "queries.jsonl").write_text(jsonl(QUESTIONS))
    assert load_beir(folder).splits == {}


def test_what_is_saved_is_read_back_equal(tmp_path):
    first = Question("q1", "Zeile\nzwei »é«", history=(Utterance("user", "hi"),), excluded=("d2",))
    second = Question("q2", "which?", ("a", "b"), reference_rewrite="which of them?")
    dataset = Dataset(
        name="tiny",
        corpus=(Document("d 1", "", "tab\tand\nline"), Document("d2", "T", "")),
        splits={
            "train": Split((second, first), {"q1": {"d 1": 1}, "q2": {"d2": 3, "d 1": 1}}),
            "validation": Split((first,), {"q1": {"d2": 1}}),
        },
        licence="CC0",
        ignore_identical_ids=True,
        relevance_level=2,
    )
    save_beir(dataset, tmp_path / "deep" / "tiny")
    assert (tmp_path / "deep" / "tiny" / "qrels" / "dev.tsv").read_text() == HEADER + "q1\td2\t1\n"
    assert load_beir(tmp_path / "deep" / "tiny") == dataset
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["tiny"]
    with refused(DataError, tmp_path / "deep" / "tiny"):
        save_beir(dataset, tmp_path / "deep" / "tiny")
    with refused(DataError, repr("a\tb")):
        save_beir(replace(dataset, corpus=(Document("a\tb", "", ""),)), tmp_path / "u")
    assert not (tmp_path / "u").exists()
