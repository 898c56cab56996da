"""Question sets and corpora of the papers: rows in their published form, converted to what papers and answers read."""

import json

import pyarrow as pa
from pyarrow import parquet
from querylect.configs.schema import EnvironmentConfig
from querylect.data.beir import load_beir
from querylect.data.get import get, known_benchmarks
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.errors import DataError
from querylect.eval.tasks.gold import read_gold

from ..command import end
from ..jsonl import write_jsonl
from ..raising import refused

EXAM = {
    "question": "A 23-year-old pregnant woman has burning upon urination. Which of these is the best treatment?",
    "answer": "Nitrofurantoin",
    "options": {"A": "Ampicillin", "B": "Ceftriaxone", "C": "Doxycycline", "D": "Nitrofurantoin"},
    "meta_info": "step2&3",
    "answer_idx": "D",
    "metamap_phrases": ["23 year old", "burning"],
}
MIRAGE = ("mmlu", "medqa", "medmcqa", "pubmedqa", "bioasq")
SUBJECTS = ("anatomy", "clinical_knowledge", "college_biology", "college_medicine", "medical_genetics")


def table(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)


def convert(name, source, target):
    """The first line of the report."""
    report = get(name, target, source)
    assert json.loads((target / "meta.json").read_text())["licence"] == known_benchmarks()[name].licence != ""
    return report[0]


def corpus(folder):
    write_jsonl(folder / "corpus.jsonl", {"_id": "d", "title": "Nitrofurantoin", "text": "Treats cystitis."})
    (folder / "meta.json").write_text('{"name": "textbooks", "licence": "of its own"}')
    return folder


def test_beside_a_corpus_questions_with_right_answers_become_a_dataset_to_train_on(tmp_path, capsys):
    raw, books, folder = tmp_path / "raw", corpus(tmp_path / "books"), tmp_path / "medqa"
    train = [{**EXAM, "question": f"Question {number}?"} for number in range(5)]
    write_jsonl(raw / "phrases_no_exclude_train.jsonl", *train)
    write_jsonl(raw / "phrases_no_exclude_test.jsonl", EXAM, {**EXAM, "question": "Which?", "answer_idx": "A"})
    assert end("data", "get", "medqa", "--from", raw, "--corpus", books, "--to", folder) == 0
    assert end("data", "get", "medquad", "--from", raw, "--corpus", books, "--to", tmp_path / "other") == 2
    assert "--corpus" in capsys.readouterr().err
    dataset = load_beir(folder)
    assert [document.id for document in dataset.corpus] == ["d"]
    assert {split: len(content.questions) for split, content in dataset.splits.items()} == {
        "train": 3,
        "validation": 2,
        "test": 2,
    }, "half of the training questions at most"
    question = dataset.splits["test"].questions[0]
    assert (question.text, question.options) == (EXAM["question"], tuple(EXAM["options"].values()))
    gold = read_gold(folder / "queries.jsonl").by_id
    assert [gold[name].right for name in ("medqa-test-0000", "medqa-test-0001", "medqa-train-0000")] == [3, 0, 3]
    assert "textbooks: of its own" in dataset.licence
    assert known_benchmarks()["medqa"].licence in dataset.licence


def test_mmlu_med_takes_its_ids_from_the_subjects(tmp_path):
    choices = ["ulna", "tibia", "atlas", "sacrum"]
    row = {"question": "Which bone?", "subject": "anatomy", "choices": choices, "answer": 0}
    for subject in SUBJECTS:
        table(tmp_path / "raw" / subject / "test-00000-of-00001.parquet", row, {**row, "answer": 2})
    assert f"{2 * len(SUBJECTS)} test" in convert("mmlu-med", tmp_path / "raw", tmp_path / "out")
    gold = read_gold(tmp_path / "out/test.jsonl")
    assert list(gold.by_id)[:3] == ["anatomy-0000", "anatomy-0001", "clinical_knowledge-0000"]
    assert [entry.right for entry in gold.by_id.values()][:2] == [0, 2]


def test_mirage_and_its_questions_of_bioasq(tmp_path):
    choice = {"question": "Is it?", "options": {"A": "yes", "B": "no"}, "answer": "B"}
    sets = {name: {f"{name}-{n}": choice for n in range(2)} for name in MIRAGE}
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/benchmark.json").write_text(json.dumps(sets))
    convert("mirage", tmp_path / "raw", tmp_path / "mirage")
    file_names = {path.name for path in (tmp_path / "mirage").iterdir()}
    assert file_names == {"meta.json", *(f"{name}.jsonl" for name in sets)}
    convert("bioasq", tmp_path / "raw", tmp_path / "bioasq")
    gold = read_gold(tmp_path / "bioasq/bioasq.jsonl")
    assert {identifier: entry.right for identifier, entry in gold.by_id.items()} == {"bioasq-0": 1, "bioasq-1": 1}
    (tmp_path / "raw/benchmark.json").write_text(json.dumps({"mmlu": {}}))
    with refused(DataError, "benchmark.json", "'bioasq'"):
        convert("bioasq", tmp_path / "raw", tmp_path / "again")


def test_open_questions(tmp_path):
    table(tmp_path / "nq/nq_open/train-00000-of-00001.parquet", {"question": "who?", "answer": ["Ann"]})
    table(
        tmp_path / "nq/nq_open/validation-00000-of-00001.parquet",
        {"question": "who got the first nobel prize in physics", "answer": ["Wilhelm Conrad Röntgen", "Röntgen"]},
        {"question": "unanswered", "answer": []},
    )
    assert "1 test, 1 rows without" in convert("nq-open", tmp_path / "nq", tmp_path / "nq-open")
    (entry,) = read_gold(tmp_path / "nq-open/test.jsonl").by_id.values()
    assert entry.answers == ("Wilhelm Conrad Röntgen", "Röntgen")
    live = {
        "QUESTION_ID": "TQ1",
        "ORIGINAL_QUESTION_SUBJECT": "Noonan syndrome",
        "ORIGINAL_QUESTION_MESSAGE": "What are the references with noonan syndrome?",
        "NIST_PARAPHRASE": "What is known about Noonan syndrome?",
        "NLM_SUMMARY": "What information is available?",
        "REFERENCE_ANSWERS": [{"ANSWER": "It is genetic.", "ANSWER_URL": "x"}, {"ANSWER": "It is common."}],
    }
    write_jsonl(tmp_path / "live/test.jsonl", live, {**live, "QUESTION_ID": "TQ2", "NIST_PARAPHRASE": " "})
    convert("liveqa", tmp_path / "live", tmp_path / "liveqa")
    gold = read_gold(tmp_path / "liveqa/test.jsonl").by_id
    assert gold["TQ1"].answers == ("It is genetic.", "It is common.")
    assert [entry.question.text for entry in gold.values()] == [live["NIST_PARAPHRASE"], live["NLM_SUMMARY"]]


def test_medquad_is_a_folder_of_questions_and_passages(tmp_path):
    rows = [
        {"document_id": "0000001", "question_id": "0000001-1", "question": "What is anthrax ?", "answer": "A disease."},
        {"document_id": "0000001", "question_id": "0000001-2", "question": "What is it ?", "answer": "A disease."},
        {"document_id": "0000002", "question_id": "0000002-1", "question": "Not answered ?", "answer": None},
    ]
    table(tmp_path / "raw/data/train-00000-of-00001-e36383d177026d53.parquet", *rows)
    assert convert("medquad", tmp_path / "raw", tmp_path / "medquad") == "medquad: 1 documents; questions: 2 test"
    dataset = load_beir(tmp_path / "medquad")
    assert [document.text for document in dataset.corpus] == ["A disease."]
    split = dataset.splits["test"]
    assert [question.text for question in split.questions] == ["What is anthrax ?", "What is it ?"]
    assert {grade for judged in split.qrels.values() for grade in judged.values()} == {1}


def test_a_corpus_without_questions_is_indexed_and_searched(tmp_path):
    passage = {"id": "Anatomy_Gray_0", "title": "Anatomy_Gray", "content": "What is anatomy?", "contents": "both"}
    aorta = {**passage, "id": "Anatomy_Gray_1", "content": "The aorta."}
    write_jsonl(tmp_path / "raw/chunk/Anatomy_Gray.jsonl", passage, aorta)
    write_jsonl(tmp_path / "raw/chunk/Cell.jsonl", {**passage, "id": "Cell_0", "content": " "})
    assert convert("textbooks", tmp_path / "raw", tmp_path / "textbooks") == "textbooks: 2 documents; questions: none"
    paths = (f"env.dataset.path={tmp_path / 'textbooks'}", f"env.index={tmp_path / 'index'}")
    assert end("index", "build", "demo", *paths) == 0
    dataset = {"path": str(tmp_path / "textbooks")}
    config = EnvironmentConfig.model_validate({"dataset": dataset, "index": str(tmp_path / "index")})
    environment = Environment.open(config)
    (hits,) = environment.rank([SearchPlan.of("aorta", k=1)])
    assert [hit.id for hit in hits] == ["Anatomy_Gray_1"]
    assert list(environment.info().splits) == []
