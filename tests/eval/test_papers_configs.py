"""The packaged papers, their published figures, and what the command makes of its flags."""

from dataclasses import replace

import pytest
import yaml
from querylect.configs.paper import dump_paper, known_papers, load_paper
from querylect.data.published import published
from querylect.envs.presets import preset_of
from querylect.errors import ConfigError
from querylect.eval.papers.knowledge_bases import environment_of, rows_of, sources_of
from querylect.eval.papers.records import PaperRecord
from querylect.eval.papers.results import COSTS, Mean, PaperResults, PaperRow, tabulate_paper
from querylect.eval.papers.sweeps import draw_sweep, sweep_systems
from querylect.eval.papers.tables import PaperPage
from querylect.eval.tasks.judges import JudgeScore
from querylect.methods.methods import method_settings

from ..command import end
from ..raising import refused

NO_FACTS = {"reader": {}, "writer": {}, "judge": None, "questions": {}}


@pytest.mark.parametrize("name", known_papers())
def test_a_packaged_paper_survives_a_round_trip_and_has_its_figures(name, tmp_path):
    paper = load_paper(name)
    (tmp_path / "again.yaml").write_text(dump_paper(paper))
    assert load_paper(str(tmp_path / "again.yaml")) == paper
    paper_figures = published(name)
    assert paper_figures.citation
    for system in {**paper.systems, **sweep_systems(paper)}.values():
        method_settings(system.method, system.settings)
    for figure in paper_figures.figures:
        assert -100 < figure.value < 5000
        if figure.unit == "share":
            assert 0 <= figure.value <= 1


def command(capsys, *arguments):
    return end("paper", *arguments), *capsys.readouterr()


def test_a_dry_run_of_environment_aware_shows_the_rows_of_warm_starts(tmp_path, capsys):
    (tmp_path / "warm_start").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "warm_start" / name).write_text("{}")
    chosen = ["--system", "explore", f"systems.explore.run={tmp_path}", "run_baselines=[warm_start]"]
    code, out, _ = command(capsys, "environment_aware", *chosen, "--dry-run")
    assert code == 0
    systems = yaml.safe_load(out)["systems"]
    checkpoints = {name: system["checkpoint"] for name, system in systems.items()}
    assert checkpoints == {"explore-warm-start": "warm_start", "explore": None}
    _, out, _ = command(capsys, "environment_aware", *chosen[:-1], "run_baselines=[]", "--dry-run")
    assert list(yaml.safe_load(out)["systems"]) == ["explore"]


def test_a_sweep_changes_one_setting_at_its_place():
    systems = sweep_systems(load_paper("chr"))
    assert len(systems) == 7
    swept = systems["chr[penalty=0.2]"]
    assert (swept.settings["penalty"], swept.settings["k"], swept.tasks) == (0.2, 5, ["medqa"])
    assert load_paper("chr").systems["chr"].settings["penalty"] == 1.0


def test_a_sweep_shares_a_value_among_the_settings_of_a_system():
    paper = load_paper("misknow")
    systems = sweep_systems(paper)
    assert len(systems) == 4 * 5, "two figures of the same systems are of the same runs"
    ours = systems["misknow_qa[first_k+second_k=6]"]
    assert (ours.settings["first_k"], ours.settings["second_k"], ours.tasks) == (3, 3, ["huatuo"])
    assert systems["std_wiki[k=6]"].settings["k"] == 6
    costs = dict.fromkeys(COSTS, Mean(1.0, 4))
    rows = [
        PaperRow("huatuo", name, 4, 4, {}, 0, 0, {}, {}, 0, 0, {"rouge1": Mean(value, 4), **costs})
        for name, value in (("std_wiki[k=2]", 0.0), ("misknow_qa[first_k+second_k=2]", 0.1))
    ]
    page = PaperPage(paper, paper.systems, PaperResults(rows)).text(NO_FACTS, {})
    assert "by k or first_k+second_k, huatuo: ROUGE-1" in page
    assert "| 2 | 0.0 (4) | – | – | 10.0 (4) |" in page
    assert "misknow_qa" in draw_sweep(paper.sweeps[1], PaperResults(rows))
    assert draw_sweep(paper.sweeps[0], PaperResults(rows)) is None, "no context recall"
    page = PaperPage(load_paper("chr"), {}, PaperResults(())).text(NO_FACTS, {})
    assert "| 1 | – | 53.1 |" in page, "the paper's own values beside ours"


def test_a_task_has_the_knowledge_bases_of_its_language():
    paper = load_paper("misknow")
    searched = {
        (task, environment_of(paper, task, source))
        for task, _, system in rows_of(paper, paper.systems)
        for source in sources_of(paper, task, system)
    }
    kinds = ("wiki", "pairs", "merged")
    assert searched == {*(("nq", name) for name in kinds), *(("huatuo", f"{name}_zh") for name in kinds)}
    for environment in paper.environments.values():
        assert preset_of(environment.env).similarity == "cos"
    with refused(ConfigError, "tasks.huatuo.environments", "'wiki_fr'"):
        load_paper("misknow", ["tasks.huatuo.environments.wiki=wiki_fr"])


def test_our_figures_stand_beside_the_papers():
    paper = load_paper("chr")
    costs = dict.fromkeys(COSTS, Mean(2.0, 10))
    rows = [
        PaperRow(task, "chr", 10, 10, {}, 0, 0, {}, {}, 0, 3, {"accuracy": Mean(value, 10), **costs})
        for task, value in (("mmlu_med", 0.25), ("medqa", 0.5), ("bioasq", 0.75))
    ]
    results = PaperResults(rows)
    facts = {**NO_FACTS, "reader": {"model": "small"}, "questions": {"medqa": {"asked": 10}}}
    page = PaperPage(paper, paper.systems, results).text(facts, {})
    theirs = ("50.4 | 59.4 | 70.3", "51.5 | 49.2 | 53.1")
    assert f"| chr | 25.0 (10) | {theirs[0]} | 50.0 (10) | {theirs[1]} | 75.0 (10) |" in page
    assert "| hyde | – |" in page
    assert "| chr | 2.0 (20) | 1 | 2.0 (20) | 303 |" in page, "generators across, the mean of the paper's two tasks"
    assert "MedCPT over MedCorp" in page
    assert '{"model": "small"}' in page
    assert "| medqa | chr | 10 | 10 | 0 | 0 | 0 | 0 | 3 |" in page, "three queries were cut"
    two = PaperResults(rows[:2])
    page = PaperPage(paper, paper.systems, two).text(facts, {})
    (line,) = [line for line in page.splitlines() if line.startswith("| chr | 25.0 (10) | 50.4")]
    assert line.split(" | ")[9::4] == ["–", "–"], "no average of some of the tasks"


def recorded(task, system, question, answer, accuracy=None, notes=None, judged=None, **changes):
    plain = {"documents": {}, "spent": {}, "judged": judged or {}}
    plain |= {"searched": True, "failure": "", "text": None, "chosen": "", "cut": False, "key": ""}
    scores = {} if accuracy is None else {"accuracy": accuracy}
    names = {"task": task, "system": system, "question_id": question, "question": f"text of {question}"}
    return PaperRecord(**{**plain, **names, "answer": answer, "scores": scores, "notes": notes or {}, **changes})


def test_accuracy_by_the_quality_of_the_mimic_is_over_both_tasks():
    paper = load_paper("chr")
    records = [
        recorded(task, "chr", name, "A", right, judged={"mimic": JudgeScore(value=0.0, label=label)}, documents=("d",))
        for task, answers in {
            "mmlu_med": (("a", 1, "good"), ("b", 0, "good"), ("c", 1, "excellent")),
            "medqa": (("a", 0, "good"), ("b", 1, "invalid")),
        }.items()
        for name, right, label in answers
    ]
    records = [replace(record, spent={**dict.fromkeys(COSTS, 1), "cut": 0}) for record in records]
    hyde = [replace(record, system="hyde", scores={"accuracy": 0}, documents=("e",)) for record in records]
    results = tabulate_paper(paper, [*records, *hyde])
    assert results.pooled("chr", "accuracy:good") == Mean(pytest.approx(1 / 3), 3)
    page = PaperPage(paper, paper.systems, results).text(NO_FACTS, {})
    assert "| chr | 100.0 (1) | 66.7 | 33.3 (3) | 40 | – | 37.5 |" in page
    pooled = {row.only: row.shift for row in results.shifts if row.task == "pooled"}
    assert (pooled["all"].n, pooled["right"].n, pooled["right"].zero_overlap) == (5, 3, 1.0)
    assert "587" in page, "beside the paper's"
