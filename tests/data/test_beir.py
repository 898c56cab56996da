"""BEIR folders: what is read, what is refused, what is written."""

import gzip
from dataclasses import replace

import pytest
from querylect.configs.schema import DatasetConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.corpus import BeirCorpus, load_questions
from querylect.data.types import AllDocuments, Dataset, Document, Question, Split
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
    assert dataset.name == "set"
    assert list(dataset.corpus) == [
        Document("d1", "Short stature", "Height below the norm."),
        Document("d2", "", "No title here."),
        Document("3", "Läppchen", ""),
    ]
    assert list(dataset.splits) == ["test"]
    assert list(dataset.splits["test"].questions) == [
        Question("q1", "small person"),
        Question("q2", "which?", ("a", "b")),
    ]
    assert dataset.splits["test"].qrels == {"q1": {"d1": 2, "3": 1}, "q2": {"d2": 1}}
    assert dataset.notes == ()
    assert dataset.licence == ""


def test_meta_gives_name_and_licence(folder):
    (folder / "meta.json").write_text('{"name": "lay", "license": "CC BY 4.0", "size": 3}')
    dataset = load_beir(folder)
    assert (dataset.name, dataset.licence) == ("lay", "CC BY 4.0")
    (folder / "meta.json").write_text("{")
    refuses(folder, folder / "meta.json")


def test_dev_is_called_validation_and_splits_stand_in_order(folder):
    for name in ("dev", "train"):
        (folder / "qrels" / f"{name}.tsv").write_text(HEADER + "q2\td2\t1\n")
    assert list(load_beir(folder).splits) == ["train", "validation", "test"]
    chosen = load_beir(folder, splits=["test", "validation"])
    assert list(chosen.splits) == ["validation", "test"]
    assert [question.id for question in chosen.splits["validation"].questions] == ["q2"]


def test_grades_up_to_zero_are_kept_and_questions_with_no_others_skipped(folder):
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\td1\t0\nq2\td2\t1\nq2\td1\t0\nq2\t3\t-1\n")
    dataset = load_beir(folder)
    assert dataset.splits["test"].qrels == {"q2": {"d2": 1, "d1": 0, "3": -1}}
    assert [question.id for question in dataset.splits["test"].questions] == ["q2"]
    assert dataset.notes == ("set: 1 of 2 questions have no relevant document in test and are skipped.",)
    save_beir(dataset, folder.with_name("copy"))
    assert load_beir(folder.with_name("copy")).splits == dataset.splits


def test_the_relevance_level_is_kept_in_meta_json(folder, tmp_path):
    assert load_beir(folder).relevance_level == 1
    save_beir(replace(load_beir(folder), relevance_level=2), tmp_path / "again")
    assert load_beir(tmp_path / "again").relevance_level == 2


def test_grades_as_floats_titles_that_are_null_and_gzipped_files_are_read(folder):
    expected = load_beir(folder)
    (folder / "corpus.jsonl").write_text(jsonl([CORPUS[0], {**CORPUS[1], "title": None}, CORPUS[2]]), encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\td1\t2.0\nq1\t3\t1.\nq2\td2\t1\n")
    assert load_beir(folder) == expected
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        file = folder / name
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert load_beir(folder) == expected
    corpus = BeirCorpus(DatasetConfig(path=str(folder)))
    blocks, lines = corpus.blocks(40)
    assert (len(blocks) > 3, lines) == (True, 3)
    assert tuple(document for block in blocks for document in corpus.read(block)) == expected.corpus
    (folder / "corpus.jsonl").write_text(jsonl(CORPUS), encoding="utf-8")
    refuses(folder, "corpus.jsonl", "corpus.jsonl.gz")
    (folder / "corpus.jsonl").unlink()
    compressed = (folder / "corpus.jsonl.gz").read_bytes()
    (folder / "corpus.jsonl.gz").write_bytes(compressed[:-12])
    refuses(folder, "corpus.jsonl.gz")
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
    judged = f"{header}q1 0 d1 2\nq1 Q0 3 1\nq2\t0\td2\t1\nq2 0 d1 0\n".encode()
    (folder / qrels).write_bytes(gzip.compress(judged) if qrels.endswith(".gz") else judged)
    split = load_beir(folder).splits["test"]
    assert split.qrels == {"q1": {"d1": 2, "3": 1}, "q2": {"d2": 1, "d1": 0}}


def test_judged_documents_that_are_not_in_the_corpus_are_named_and_counted(folder):
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\tghost\t1\nq1\td1\t1\nq2\tother\t1\n")
    refuses(folder, "set, test", "'ghost'", "2 of 3")
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\tghost\t1\nq1\td1\t1\nq2\tother\t0\nq2\td2\t1\n")
    dataset = load_beir(folder)
    assert dataset.splits["test"].qrels == {"q1": {"d1": 1}, "q2": {"d2": 1}}
    assert dataset.notes[0].startswith("set, test: 2 of 4 judgements are dropped, 1 of them of relevant documents")
    assert load_beir(folder, documents={"d1", "d2", "3"}).splits == dataset.splits
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\tghost\t1\nq2\td2\t1\n")
    assert [question.id for question in load_beir(folder).splits["test"].questions] == ["q2"]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (HEADER + "q1 d1 1\n", ["line 2: 'q1 d1 1'", "'query-id<TAB>corpus-id<TAB>score'"]),
        (HEADER + "q1\td1\thigh\n", [" 2:", "'high'"]),
        (HEADER + "q1 0 d1 nan\n", [" 2:", "'nan'"]),
        ("q1\td1\t1\n" + HEADER, [" 2:", "'score'"]),
    ],
)
def test_a_broken_judgement_names_its_line(folder, text, facts):
    (folder / "qrels" / "test.tsv").write_text(text)
    refuses(folder, "test.tsv", *facts)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
@pytest.mark.parametrize(
    ("record", "facts"),
    [
        ('{"_id": "x", "text": "cut of', []),
        ('["x"]', [" list;"]),
        ('{"text": "no id"}', ["'_id'", None]),
        ('{"_id": "x"}', ["'text'", None]),
        ('{"_id": "x", "text": 7}', ["'text'", 7]),
        ('{"_id": "x", "text": "\\ud800"}', ["'text'"]),
        pytest.param("[" * 100_000, ["nested too deeply"], id="brackets"),
    ],
)
def test_a_broken_line_names_file_and_line(folder, name, record, facts):
    file = folder / name
    first, *later_lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([first, record, *later_lines]), encoding="utf-8")
    refuses(folder, f"{file}, line 2", *facts)


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("corpus.jsonl", b"\n", []),
        ("corpus.jsonl", b'{"_id": "d1", "text": "x"}\n{"_id": "d4", "text": "\xe9"}\n', ["line 2"]),
        ("corpus.jsonl", None, []),
        ("queries.jsonl", None, []),
        ("queries.jsonl", b'{"_id": "q1", "text": " "}\n', ["line 1", "'q1'"]),
        ("qrels/test.tsv", HEADER.encode() + b"q1\td1\t0\n", []),
        ("qrels/test.tsv", b"", []),
    ],
)
def test_a_file_that_is_missing_or_says_too_little_is_named(folder, name, content, facts):
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    refuses(folder, name.rpartition("/")[2], *facts)


def test_without_qrels_questions_that_name_their_split_are_not_judged(folder):
    (folder / "qrels" / "test.tsv").unlink()
    (folder / "qrels").rmdir()
    splits = {"q1": "dev", "q2": "train", "q3": "train", "q4": None}
    rows = [{"_id": name, "text": f"what is {name}?", "split": split} for name, split in splits.items()]
    (folder / "queries.jsonl").write_text(jsonl(rows))
    dataset = load_beir(folder)
    names = {name: [question.id for question in split.questions] for name, split in dataset.splits.items()}
    assert names == {"train": ["q2", "q3"], "validation": ["q1"]}
    assert [split.qrels for split in dataset.splits.values()] == [{"q2": {}, "q3": {}}, {"q1": {}}]
    assert "no judgements" in dataset.notes[0]
    assert len(dataset.corpus) == 3
    (folder / "queries.jsonl").write_text(jsonl([{"_id": "q", "text": "?", "split": "all"}]))
    refuses(folder, "line 1", "'all'", "train")
    (folder / "queries.jsonl").write_text(jsonl([{"_id": "q", "text": "?", "split": ["train"]}]))
    refuses(folder, "line 1", "['train']", "train")
    (folder / "queries.jsonl").write_text(jsonl(QUESTIONS))
    refuses(folder, folder, "split")


def test_what_is_saved_is_read_back_equal(tmp_path):
    first, second = Question("q1", "Zeile\nzwei »é«"), Question("q2", "which?", ("a", "b"))
    dataset = Dataset(
        name="tiny",
        corpus=(Document("d 1", "", "tab\tand\nline"), Document("d2", "T", "")),
        splits={
            "train": Split((second, first), {"q1": {"d 1": 1}, "q2": {"d2": 3, "d 1": 1}}),
            "validation": Split((first,), {"q1": {"d2": 1}}),
        },
        licence="CC0",
    )
    save_beir(dataset, tmp_path / "deep" / "tiny")
    assert (tmp_path / "deep" / "tiny" / "qrels" / "dev.tsv").read_text() == HEADER + "q1\td2\t1\n"
    assert load_beir(tmp_path / "deep" / "tiny") == dataset
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["tiny"]


def with_document(identifier):
    return Dataset("t", [Document(identifier, "", "x")], {"test": Split([Question("q", "x")], {"q": {identifier: 1}})})


def test_saving_never_overwrites_and_refuses_ids_that_a_qrel_file_cannot_hold(tmp_path):
    save_beir(with_document("d"), tmp_path / "t")
    with refused(DataError, tmp_path / "t"):
        save_beir(with_document("e"), tmp_path / "t")
    assert load_beir(tmp_path / "t").corpus[0].id == "d"
    with refused(DataError, repr("a\tb")):
        save_beir(with_document("a\tb"), tmp_path / "u")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t"]


def test_questions_that_were_read_stand_for_an_index_of_the_same_dataset(folder):
    config = DatasetConfig(path=str(folder))
    loaded = load_questions(config, {"d1", "d2", "3"})
    assert loaded.current(config) is loaded.dataset
    assert loaded.current(config.model_copy(update={"path": str(folder.parent)})) is None
    unfiltered = load_questions(config, AllDocuments())
    assert unfiltered.current(config) is None, "its judgements may be of documents that an index does not have"
