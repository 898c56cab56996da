"""`querylect data …` on the command line."""

from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.load import load_dataset
from querylect.envs.build import build_index
from querylect.envs.environment import Environment, RankedHit

from ..command import end
from ..jsonl import write_jsonl
from .test_fetch import copy_of_scifact
from .test_ragbench import write


def test_get_prepare_and_check_one_after_another(tmp_path, capsys):
    copy, raw, folder = copy_of_scifact(tmp_path / "copy"), tmp_path / "raw", tmp_path / "scifact"
    assert end("data", "get", "beir/scifact", "--from", copy, "--to", raw) == 0
    assert f"env.dataset.kind=mteb env.dataset.path={raw}" in capsys.readouterr().out
    assert end("data", "prepare", "beir/scifact", "--from", raw, "--to", folder) == 0
    assert capsys.readouterr().out.startswith("scifact: 400 documents; questions: 1 test\n")
    assert end("data", "check", folder) == 0
    assert "documents with the id of a question are ignored" in capsys.readouterr().out
    (folder / "queries.jsonl").write_text("")
    assert end("data", "check", folder) == 2
    assert "1 of 3 files are missing or were changed" in capsys.readouterr().err


def test_beirs_msmarco_is_measured_from_grade_2_in_trec_dl_and_from_1_in_clicks(tmp_path):
    """From a copy that states nothing but its files; grade 1 is the only one of clicks, and "related" in TREC DL."""
    copy, folder = tmp_path / "copy", tmp_path / "folder"
    (copy / "qrels").mkdir(parents=True)
    texts = {"d1": "rain in spain", "d2": "rain on the plain", "d3": "dry land"}
    for name, entries in {"corpus": texts, "queries": {"q1": "rain", "q2": "land"}}.items():
        write_jsonl(copy / f"{name}.jsonl", *({"_id": key, "title": "", "text": text} for key, text in entries.items()))
    (copy / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t2\n")
    (copy / "qrels" / "validation.tsv").write_text("query-id\tcorpus-id\tscore\nq2\td3\t1\n")
    assert end("data", "prepare", "beir/msmarco", "--from", copy, "--to", folder) == 0
    dataset = DatasetConfig(path=str(folder))
    config = EnvironmentConfig(dataset=dataset, index=str(tmp_path / "index"))
    build_index(config)
    environment = Environment.open(config)
    rankings = {name: [RankedHit(name, 1.0)] for name in texts}
    recall = [environment.score(*searched, ["recall@1"])["recall@1"] for searched in (
        ("q1", rankings["d1"]), ("q1", rankings["d2"]), ("q2", rankings["d3"]),
    )]  # fmt: skip
    assert recall == [0, 1, 1]
    levels = {}
    for split in ("test", "validation"):
        levels[split] = load_dataset(dataset).splits[split].relevance_level(environment.info().relevance_level)
    assert levels == {"test": 2, "validation": 1}


def test_parts_and_kinds_are_passed_on(tmp_path, capsys):
    folder = write(tmp_path / "ragbench")
    assert end("data", "check", folder, "--kind", "ragbench", "--parts", "covidqa, emanual") == 0
    assert "ragbench[covidqa,emanual]: 5 documents" in capsys.readouterr().out
    assert end("data", "prepare", "ragbench", "--from", folder, "--to", tmp_path / "out", "--leaks", "none") == 2
    assert "--leaks is 'none'; expected text or near" in capsys.readouterr().err
    assert end("data", "prepare", "ragbench", "--to", tmp_path / "out", "--from", tmp_path / "absent") == 2
    assert "querylect data get ragbench" in capsys.readouterr().err
    assert end("data", "get", "nothing") == 2
    assert "no benchmark 'nothing' is known" in capsys.readouterr().err


def test_baselines_measures_and_compares(small_environment, tmp_path, capsys):
    config = tmp_path / "small.yaml"
    config.write_text(
        f"env:\n  index: {small_environment.index}\n  dataset: {{path: {small_environment.dataset.path}}}\n"
    )
    assert end("data", "baselines", config) == 0
    stdout = capsys.readouterr().out
    assert stdout.startswith("small/bm25: ndcg@10 0.")
    assert "over 3 test questions: no figure is published" in stdout
    assert end("data", "baselines", config, "--split", "absent") == 2
    assert "--split 'absent' is unknown" in capsys.readouterr().err
