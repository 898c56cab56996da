"""The benchmark of dialects: its free rows and the repair on a small corpus, its decisions on made-up scores."""

import pandas as pd
import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan

from ..lessons import TEXTS

pytestmark = pytest.mark.usefixtures("importable_benchmarks")

TEST = Split(
    [
        Question("head", "the head aches"),
        Question("sugar", "too much sugar in the blood"),
        Question("gums", "weak gums"),
    ],
    {"head": {"triptan": 2, "aspirin": 1}, "sugar": {"insulin": 1}, "gums": {"citrus": 1}},
)
VALIDATION = Split([Question("fat", "cholesterol in the blood")], {"fat": {"statin": 1}})


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Five documents in FTS5."""
    folder = tmp_path_factory.mktemp("fts5")
    corpus = [Document(name, "", text) for name, text in TEXTS.items()]
    save_beir(Dataset("toy", corpus, {"validation": VALIDATION, "test": TEST}), folder / "data")
    dataset = DatasetConfig(path=str(folder / "data"))
    config = EnvironmentConfig(retriever="fts5", dataset=dataset, index=str(folder / "index"))
    build_index(config)
    return config


def scores(*by_seed):
    """Scores of 200 questions by seed: `value` for each, and a little more for every other one."""
    return {seed: [value, value + 0.001] * 100 for seed, value in enumerate(by_seed)}


def test_free_queries_know_how_rare_a_word_is_and_end_where_something_is_found(config):
    from dialects_queries import AND, CONTENT, DROPPING, ONE, OR, RAREST, TYPED, free_queries

    environment = Environment.open(config)
    rows = free_queries(
        "The pill stops a headache, yesterday?",
        lambda query: environment.rank([SearchPlan.of(query, 1, "native")])[0].hits,
    )
    assert rows[TYPED] == "The pill stops a headache, yesterday?"
    assert rows[AND] == '"The" AND "pill" AND "stops" AND "a" AND "headache" AND "yesterday"'
    assert rows[OR] == rows[AND].replace("AND", "OR")
    assert rows[CONTENT] == '"pill" OR "stops" OR "headache" OR "yesterday"'
    assert rows[ONE] == rows[RAREST.format(1)] == '"stops"', "one document has it; the rarer words are in none"
    assert rows[RAREST.format(5)] == '"stops" OR "headache"', "as stemmed in the index: two documents"
    assert rows[DROPPING.format("rarest")] == rows[DROPPING.format("most frequent")] == '"stops" AND "headache"'
    rows = free_queries(
        "scurvy insulin blood", lambda query: {'"scurvy"': 1, '"insulin"': 2, '"blood"': 3}.get(query, 0)
    )
    assert (rows[DROPPING.format("rarest")], rows[DROPPING.format("most frequent")]) == ('"blood"', '"scurvy"')


def test_a_repaired_rewrite_has_its_words_without_operators_joined_by_or(config):
    from dialects_queries import asked, joined

    environment = Environment.open(config)
    rewrite = 'headache, OR "vitamin c" NOT blo*'
    plans = [asked(way, rewrite, True, 10) for way in ("native", "repaired", "text")]
    plans.append(SearchPlan.of(joined("OR", ["headache", "vitamin", "c", "blo"]), 10, "native"))
    refused, repaired, text, written_out = environment.rank(plans)
    assert "syntax error" in refused.error
    assert {hit.id for hit in repaired} == {"aspirin", "triptan", "citrus"}
    assert repaired == written_out
    assert text == repaired, "no document has the words or, not"
    assert asked("native", rewrite, False, 10).texts == ["headache,    vitamin c    blo "]
    assert asked("text", rewrite, False, 10).texts == [rewrite]


def test_the_tables_show_what_is_there(config):
    from dialects_table import ANY, Results, render

    written = {"head": "headache", "sugar": "blood sugar", "gums": "gums, teeth"}
    policies = {"untrained": {ANY: written}, "fts5": {0: written, 1: written | {"gums": "scurvy OR gums"}}}
    policies |= {name: {} for name in ("fts5-date", "fts5-date-f3", "fts5-date-two", "fts5-date-two-turn1")}
    configs = {"fts5": config, "fts5-date": config.model_copy(update={"order": "date"})}
    results = Results(configs, "test", policies, {"fts5": {0: written}})
    page = render(results)
    cells = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert cells["fts5-date, native"] == "| fts5-date, native |  |  |  |  |"
    head, sugar, gums = results.scores("fts5, native", "fts5", "ndcg@10")[0]
    assert head > sugar == gums == 0, "no document has blood and sugar; a comma is refused"
    assert results.scores("fts5, native", "fts5", "ndcg@10")[1][2] == 1
    shares = "| fts5 | 1.7 | 17% | 0% | 0% | 0% | 0% | 17% | 33% | 1 |"
    assert shares in page
    assert "on FTS5, by date: fts5-date, native is better than fts5, repaired | not run yet |" in page
    assert "Native wins by ndcg@10: **not run yet**" in page


def test_decisions_follow_the_rule_of_the_protocol():
    from dialects_table import ANY, dialect, interval, judge, native_wins

    ahead, little, none = judge(
        [
            ("ahead", scores(0.3, 0.31, 0.32), {ANY: [0.2, 0.2] * 100}),
            ("equal", scores(0.3, 0.3, 0.301), scores(0.3, 0.3, 0.3)),
            ("missing", {}, scores(0.3, 0.3, 0.3)),
        ]
    )
    assert [row[1] for row in (ahead, little, none)] == ["confirmed here", "refuted here", "not run yet"]
    assert ahead[3] == pytest.approx([0.1005, 0.1105, 0.1205])
    low, high = interval(pd.DataFrame([[0.1] * 200, [0.2] * 200]).to_numpy())
    assert (low, high) == pytest.approx((0.1, 0.2)), "one seed may be drawn twice"
    assert native_wins([ahead, none]) == "confirmed here"
    assert native_wins([ahead, little]) == "refuted here"
    assert native_wins(judge([("two seeds", scores(0.3, 0.3), scores(0.1, 0.1))])) == "not run yet"
    frame = pd.DataFrame(
        [("structural", True, 1.0), ("structural", False, 2.0), ("semantic", True, 0.1), ("semantic", False, 0.2)],
        columns=["kind", "same", "value"],
    )
    assert dialect(frame)[0] == "confirmed here"
    frame.loc[0, "value"] = 2.5
    assert dialect(frame)[0] == "not decidable here"
    assert dialect(frame[frame["same"]])[0] == "not run yet"
