"""The packaged papers, their published figures, and our figures beside them."""

import re
from dataclasses import replace

import pytest
from querylect.configs.load import known_configs
from querylect.configs.paper import PAPERS, dump_paper, load_paper
from querylect.data.published import published
from querylect.envs.presets import preset_of
from querylect.errors import ConfigError
from querylect.eval.paper import sweep_systems
from querylect.eval.paper_tables import (
    beside,
    comparisons_of,
    figures_of,
    retrieval_shift,
    values_of,
    write_results,
)
from querylect.eval.records import EvalRecord
from querylect.eval.statistics import holm
from querylect.methods.methods import method_settings
from scipy import stats

from ..raising import refused


@pytest.mark.parametrize("name", known_configs(PAPERS))
def test_a_packaged_paper_survives_a_round_trip_and_has_its_figures(name, tmp_path):
    paper = load_paper(name)
    (tmp_path / "again.yaml").write_text(dump_paper(paper))
    assert load_paper(str(tmp_path / "again.yaml")) == paper
    assert published(name).citation
    systems = {**paper.systems, **sweep_systems(paper)}
    for system in systems.values():
        method_settings(system.method, system.settings)
    assert all(preset_of(environment.env) for environment in paper.environments.values())
    pairs = {f"{a}/{b}" for a, b in paper.shifts}
    tasks = {*paper.tasks, "average", "pooled", "contents"}
    for figure in published(name).figures:
        assert figure.system in {*systems, *pairs} or figure.task == "contents"
        assert figure.task in tasks
        assert (0 <= figure.value <= 1) if figure.unit == "share" else (-100 < figure.value < 5000)


def test_a_name_that_the_paper_does_not_have_is_refused():
    with refused(ConfigError, "environment 'wiki_fr'"):
        load_paper("misknow", ["tasks.huatuo.environments.wiki=wiki_fr"])
    with refused(ConfigError, "utility", "choice"):
        load_paper("misknow", ["tasks.nq.judges=[utility]"])


def test_a_sweep_shares_a_value_among_the_settings_of_a_system():
    systems = sweep_systems(load_paper("chr"))
    assert len(systems) == 7
    swept = systems["chr[penalty=0.2]"]
    assert (swept.settings["penalty"], swept.settings["k"], swept.tasks) == (0.2, 5, ["medqa"])
    systems = sweep_systems(load_paper("misknow"))
    assert len(systems) == 4 * 5, "two figures of the same systems are of the same runs"
    ours = systems["misknow_qa[first_k+second_k=6]"]
    assert (ours.settings["first_k"], ours.settings["second_k"], ours.tasks) == (3, 3, ["huatuo"])


def answer(task, system, question, metrics, **changes):
    record = EvalRecord(
        system, 0, question, f"text of {question}", "", (), (), metrics, 2, 2, 1, format_ok=True, calls=2
    )
    return replace(record, dataset=task, answer="A", reader_tokens=0, reader_prompt_tokens=0, cut=False, **changes)


def answers(task, system, values, metric="accuracy", **changes):
    return [answer(task, system, f"q{number}", {metric: value}, **changes) for number, value in enumerate(values)]


def cells(paper, records, table):
    values = values_of(paper, records)
    printed = [figure for figure in published(paper.name).figures if figure.table == table]
    return beside(paper, figures_of(paper, values, records), printed).set_index("system")


def test_our_figures_stand_beside_the_papers():
    paper = load_paper("chr")
    shares = {"mmlu_med": 0.25, "medqa": 0.5, "bioasq": 0.75}
    records = [
        r
        for task, share in shares.items()
        for r in answers(task, "chr", [1] * int(4 * share) + [0] * int(4 - 4 * share))
    ]
    table = cells(paper, records, "table 1")
    assert list(table.loc["chr"]) == [
        *("25.0 (4)", "50.4", "59.4", "70.3", "50.0 (4)", "51.5", "49.2", "53.1", "75.0 (4)"),
        *table.loc["chr"].iloc[9:12],
        "50.0 (12)",
        *table.loc["chr"].iloc[13:],
    ]
    assert list(cells(paper, records, "table 3").loc["chr"]) == ["2.0 (8)", "1", "2.0 (8)", "303"]
    assert cells(paper, records[:8], "table 1").loc["chr"].iloc[12] == "–", "no average of some of the tasks"


def test_accuracy_by_the_quality_of_the_mimic_and_shift_are_over_all_tasks():
    paper = load_paper("chr")
    judged = {
        "mmlu_med": [(1, "good"), (0, "good"), (1, "excellent")],
        "medqa": [(0, "good"), (1, "invalid")],
    }
    records = [
        replace(record, judged={"mimic": {"value": 0.0, "label": label, "said": {}, "failure": ""}}, documents=("d",))
        for task, rows in judged.items()
        for record, (_, label) in zip(answers(task, "chr", [right for right, _ in rows]), rows, strict=True)
    ]
    hyde = [replace(record, system="hyde", metrics={"accuracy": 0.0}, documents=("e",)) for record in records]
    table = cells(paper, [*records, *hyde], "table 4")
    assert list(table.loc["chr"]) == ["100.0 (1)", "66.7", "33.3 (3)", "40", "–", "37.5"]
    figures = figures_of(paper, values_of(paper, [*records, *hyde]), [*records, *hyde])["value"]
    found = [figures["pooled", "chr/hyde", name] for name in ("shift of all:n", "shift:n", "shift:zero")]
    assert found == [5, 3, 1.0]
    assert cells(paper, [*records, *hyde], "table 2").loc["chr/hyde", "pooled shift:n: pooled"] == "587"


def test_one_sided_comparisons_of_metric_and_judges_are_corrected_together():
    """Of `qb_rag`: exact recovery by the binomial test, the guideline by Wilcoxon's; lower is better for declined."""
    paper = load_paper("qb_rag")
    rows = {"naive_rag": ([0] * 6, 0.5), "qa_rag": ([1] * 5 + [0], 0.25), "hyde": ([0] * 5 + [1], 0.75)}
    records = []
    for name, (recovered, score) in rows.items():
        for number, record in enumerate(answers("medquad", name, recovered, "exact_recovery")):
            verdicts = {"declined": 1.0 - recovered[number], "guideline": score + number / 100 * (score > 0.5)}
            judged = {judge: {"value": v, "label": "", "said": {}, "failure": ""} for judge, v in verdicts.items()}
            records.append(replace(record, judged=judged))
    tests = {(test["system"], test["metric"]): test for test in comparisons_of(paper, values_of(paper, records))}
    assert len(tests) == 2 * 3
    assert tests["qa_rag", "exact_recovery"]["p"] == stats.binomtest(5, 5, alternative="greater").pvalue
    assert tests["qa_rag", "declined"]["p"] == tests["qa_rag", "exact_recovery"]["p"]
    above = [0.25 + number / 100 for number in range(6)]
    assert tests["hyde", "guideline"]["p"] == stats.wilcoxon(above, alternative="greater").pvalue
    assert tests["qa_rag", "guideline"]["p"] > 0.9, "worse is no evidence"
    assert [test["p_holm"] for test in tests.values()] == holm([test["p"] for test in tests.values()])


def test_a_sweep_is_drawn_beside_the_systems_that_stand_still(tmp_path):
    paper = load_paper("chr")
    swept = {0.2: [0, 1], 1.0: [1, 1]}
    records = [r for value, row in swept.items() for r in answers("medqa", f"chr[penalty={value:g}]", row)]
    records += answers("medqa", "hyde", [0, 1])
    figures = figures_of(paper, values_of(paper, records), records)
    assert figures["value"]["medqa", "chr[penalty=1]", "accuracy"] == 1.0
    page = write_results(tmp_path, paper, records, {}).read_text()
    assert "![curves](sweep-1.svg)" in page
    assert all(name in (tmp_path / "sweep-1.svg").read_text() for name in ("chr", "hyde", "penalty", "0.2"))
    assert re.search(r"\| chr\[penalty=1\] +\| 100.0 \(2\) +\| 53.1 ", page), "the paper's own values beside ours"


def test_overlap_by_hand():
    assert retrieval_shift([("ab", "abc")], 5) == {"n": 1, "zero": 0, "mean": 2 / 3, "shared": 2}
    rankings = [("abcde", "vwxyz"), ("abcde", "abxyz"), ("abcde", "abcde"), ("", ""), ("abcde", "")]
    expected = {"n": 3, "zero": 1 / 3, "mean": 1.4 / 3, "shared": 7 / 3}
    assert retrieval_shift(rankings) == pytest.approx(expected), "without documents there is no overlap"
    assert retrieval_shift([]) == {"n": 0}
