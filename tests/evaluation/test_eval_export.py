"""TREC files: other programs compute the same nDCG@10 from them."""

import json
import math

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st
from querylect.cli import main
from querylect.configs.schema import DatasetConfig, EnvironmentConfig, RunConfig
from querylect.data.types import Question, Split
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment, RankedHit
from querylect.envs.trec import falling, write_trec
from querylect.errors import ConfigError, DataError
from querylect.eval.export import export_trec
from querylect.eval.records import EvalRecord, write_records

from ..raising import refused


def pytrec(folder, name):
    """Mean nDCG@10 by pytrec_eval's own parsers, over the questions of the run."""
    with (folder / "qrels.txt").open() as file:
        qrels = pytrec_eval.parse_qrel(file)
    with (folder / f"{name}.run").open() as file:
        run = pytrec_eval.parse_run(file)
    values = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(run)
    return sum(value["ndcg_cut_10"] for value in values.values()) / len(values)


@pytest.fixture
def config(small_environment):
    return RunConfig(env=small_environment)


def record(system, turn, question, ranking, **more):
    values = dict.fromkeys(["ndcg@10", "recall@10", "mrr@10"], more.pop("value", 0.5))
    costs = {"tokens": 1, "prompt_tokens": 1, "searches": 1, "format_ok": True}
    costs["scores"] = tuple(float(place) for place in range(len(ranking), 0, -1))
    return EvalRecord(system, turn, question, "…", "", (), tuple(ranking), values, **costs)


@pytest.fixture
def evaluated(tmp_path):
    """A run folder with the records of an evaluation."""
    run = tmp_path / "run"
    run.mkdir()
    records = [
        record("raw", 0, "q-head", ["aspirin"]),
        record("trained", 1, "q-head", ["insulin", "triptan", "aspirin"]),
        record("trained", 1, "q-sugar", ["insulin"]),
        record("trained", 1, "q-hidden", []),
        record("trained", 2, "q-head", ["triptan"], value=None),
        record("trained", 2, "q-sugar", ["citrus", "insulin"]),
    ]
    write_records(run / "eval.jsonl", records)
    return run


def test_the_raw_run_is_worth_the_same_to_others(config, tmp_path):
    values = export_trec(config.env, None, "test", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "export.json",
        "qrels.txt",
        "raw.run",
        "topics.tsv",
    ]
    assert 0 < values["raw"] < 1
    assert pytrec(tmp_path / "out", "raw") == pytest.approx(values["raw"], abs=1e-9)
    assert (tmp_path / "out" / "topics.tsv").read_text().splitlines()[0] == "q-head\twhat helps when my head hurts"
    assert (tmp_path / "out" / "qrels.txt").read_text().splitlines()[:2] == ["q-head 0 triptan 2", "q-head 0 aspirin 1"]
    metadata = json.loads((tmp_path / "out" / "export.json").read_text())
    assert metadata["runs"] == {"raw": {"questions": 3, "ndcg@10": values["raw"]}}
    assert metadata["index_hash"] == Environment.open(config.env).index_hash


def test_an_evaluated_run_brings_its_systems(config, evaluated, tmp_path):
    values = export_trec(config.env, evaluated, "test", tmp_path / "out")
    assert values.keys() == {"raw", "trained-turn1", "trained-turn2"}
    second, third = 1 / math.log2(3), 0.5
    head = (2 * second + third) / (2 + second)
    assert values["trained-turn1"] == pytest.approx((head + 1) / 3)
    assert pytrec(tmp_path / "out", "trained-turn1") == pytest.approx(values["trained-turn1"], abs=1e-9)
    metadata = json.loads((tmp_path / "out" / "export.json").read_text())
    assert metadata["runs"]["trained-turn2"] == {"questions": 1, "ndcg@10": pytest.approx(second)}


def test_records_of_another_split_are_refused(config, evaluated, tmp_path):
    with refused(DataError, evaluated / "eval.jsonl", "'train'"):
        export_trec(config.env, evaluated, "train", tmp_path / "out")
    with refused(ConfigError, "'dev'", "train, test"):
        export_trec(config.env, None, "dev", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_scores_fall_strictly_in_single_precision_and_hardly_change(scores):
    scores = sorted(scores, reverse=True)
    values = np.array(falling(scores), dtype=np.float32)
    assert (np.diff(values) < 0).all()
    assert values.tolist() == falling(scores)
    np.testing.assert_allclose(values, scores, rtol=1e-5, atol=1e-5)


def test_equal_scores_keep_our_order(tmp_path):
    """trec_eval would put the last id first."""
    ranking = [RankedHit(name, 1.5) for name in ("a", "b", "c")]
    split = Split([Question("q", "x")], {"q": {"a": 1}})
    write_trec(tmp_path / "out", split, {"tied": {"q": ranking}}, {})
    assert pytrec(tmp_path / "out", "tied") == 1.0


@pytest.mark.parametrize("broken", ["a b", "", "x\ty", " a"])
def test_ids_with_white_space_are_refused(broken, tmp_path):
    for question, document in ((broken, "d"), ("q", broken)):
        split = Split([Question(question, "x")], {question: {document: 1}})
        with refused(DataError, repr(broken)):
            write_trec(tmp_path / "out", split, {}, {})
    split = Split([Question("q", "x")], {"q": {"d": 1}})
    with refused(DataError, repr(broken)):
        write_trec(tmp_path / "out", split, {"raw": {"q": [RankedHit(broken, 1.0)]}}, {})
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_what_each_run_is_worth(small_environment, tmp_path, capsys):
    data = small_environment.dataset.path
    arguments = [f"env.index={small_environment.index}", "env.dataset.kind=beir", f"env.dataset.path={data}"]
    with pytest.raises(SystemExit) as stop:
        main(
            ["env", "export-trec", "demo", *arguments, "--split", "test", "--to", str(tmp_path / "out"), "--depth", "2"]
        )
    assert not stop.value.code
    value = json.loads((tmp_path / "out" / "export.json").read_text())["runs"]["raw"]["ndcg@10"]
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'raw'}.run: ndcg@10 {value:.4f}\n"
    ranks = [line.split()[3] for line in (tmp_path / "out" / "raw.run").read_text().splitlines()]
    assert set(ranks) <= {"1", "2"}


def test_real_collections_are_worth_the_same_to_others(realdata, tmp_path):
    values = {}
    for collection in ("scifact", "cranfield"):
        env = EnvironmentConfig(
            dataset=DatasetConfig(kind="beir", path=str(realdata / collection)),
            index=str(tmp_path / "indexes" / collection),
        )
        build_index(env)
        values[collection] = export_trec(env, None, "test", tmp_path / collection, depth=100)["raw"]
    assert values["scifact"] == pytest.approx(0.679, abs=5e-4)
    assert [pytrec(tmp_path / name, "raw") for name in values] == pytest.approx(list(values.values()), abs=1e-9)
