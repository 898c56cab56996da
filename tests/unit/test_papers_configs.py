"""The packaged papers, their published figures, and what the command makes of its flags."""

import pytest
import yaml
from querylect.cli import main
from querylect.configs.paper import AVERAGE, PaperConfig, dump_paper, known_papers, load_paper
from querylect.data.published import published
from querylect.errors import ConfigError
from querylect.eval.papers.cases import case_rows
from querylect.eval.papers.records import PaperRecord
from querylect.eval.papers.results import Mean, PaperResults, PaperRow
from querylect.eval.papers.sweeps import sweep_systems
from querylect.eval.papers.tables import markdown
from querylect.methods.methods import method_settings

from ..raising import refused


@pytest.mark.parametrize("name", known_papers())
def test_a_packaged_paper_survives_a_round_trip_and_has_its_figures(name, tmp_path):
    paper = load_paper(name)
    (tmp_path / "again.yaml").write_text(dump_paper(paper))
    assert load_paper(str(tmp_path / "again.yaml")) == paper
    theirs = published(name)
    assert theirs.citation
    for system in {**paper.systems, **sweep_systems(paper)}.values():
        method_settings(system.method, system.settings)
    for table in paper.tables:
        own = [figure for figure in theirs.figures if figure.table == table.published]
        assert {figure.system for figure in own} & set(table.rows or paper.systems)
        places = {(figure.task, figure.metric) for figure in own}
        assert places & {(column.task, column.metric) for column in table.columns}
    for figure in theirs.figures:
        assert -100 < figure.value < 5000
        if figure.unit == "share":
            assert 0 <= figure.value <= 1


def test_averages_that_papers_print_are_those_of_their_own_rows():
    """A figure that was mistyped would show: means over generators or tasks agree to their last digit."""
    rows = {}
    for figure in published("hcqr").figures:
        rows.setdefault((figure.table, figure.task, figure.metric, figure.system), {})[figure.generator] = figure.value
    checked = [own for own in rows.values() if len(own) == 5]
    assert len(checked) == 54
    for own in checked:
        average = own.pop("Average")
        assert sum(own.values()) / 4 == pytest.approx(average, abs=0.11)
    chr_rows = {}
    for figure in published("chr").figures:
        if figure.metric == "accuracy":
            chr_rows.setdefault((figure.system, figure.generator), {})[figure.task] = figure.value
    assert len(chr_rows) == 18
    for own in chr_rows.values():
        average = own.pop(AVERAGE)
        assert sum(own.values()) / 3 == pytest.approx(average, abs=0.11)


def command(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["paper", *arguments])
    return ended.value.code or 0, *capsys.readouterr()


def test_the_command_resolves_its_settings(capsys):
    code, out, _ = command(
        capsys, "chr", "max_tokens=7", "--limit", "3", "--reader", "a/b", "--endpoint", "http://h/v1",
        "--task", "medqa", "--system", "hyde", "--system", "std_rag", "--dry-run",
    )  # fmt: skip
    settings = yaml.safe_load(out)
    assert (code, settings["limit"], settings["max_tokens"]) == (0, 3, 7)
    assert (settings["reader"]["model"], settings["reader"]["base_url"]) == ("a/b", "http://h/v1")
    assert (list(settings["tasks"]), list(settings["systems"])) == (["medqa"], ["std_rag", "hyde"])
    assert (settings["shifts"], settings["sweeps"]) == ([], [])
    assert [column["task"] for column in settings["tables"][0]["columns"]] == ["medqa", "average"]
    assert PaperConfig.model_validate(settings)
    elsewhere = yaml.safe_load(command(capsys, "chr", "--task", "bioasq", "--dry-run")[1])
    assert (elsewhere["sweeps"], elsewhere["shifts"]) == ([], [["chr", "hyde"]])
    for arguments, facts in (
        (["hqcr"], ["'hqcr'", "'hcqr'"]),
        (["chr", "--task", "nq"], ["'nq'", "mmlu_med, medqa, bioasq"]),
        (["chr", "tasks.nq.data=x"], ["'nq' in tasks"]),
        (["chr", "tasks.medqa.judges=[declined]"], ["'declined'", "'choice'"]),
        (["chr", "baseline=best"], ["baseline ", "'best'"]),
    ):
        code, _, err = command(capsys, *arguments, "--dry-run")
        assert code == 2
        assert [fact for fact in facts if fact not in err] == []


def test_a_sweep_changes_one_setting_at_its_place():
    systems = sweep_systems(load_paper("chr"))
    assert len(systems) == 7
    swept = systems["chr[penalty=0.2]"]
    assert (swept.settings["penalty"], swept.settings["k"], swept.tasks) == (0.2, 5, ["medqa"])
    assert load_paper("chr").systems["chr"].settings["penalty"] == 1.0


def test_our_figures_stand_beside_the_papers():
    paper = load_paper("chr")
    rows = [
        PaperRow(task, "chr", 10, 10, {}, 0, 0, {}, {}, {"accuracy": Mean(value, 10), **costs}, ())
        for task, value in (("mmlu_med", 0.25), ("medqa", 0.5), ("bioasq", 0.75))
        for costs in [
            {
                name: Mean(2.0, 10)
                for name in ("calls", "prompt_tokens", "tokens", "searches", "reader_prompt_tokens", "reader_tokens")
            }
        ]
    ]
    results = PaperResults(rows)
    facts = {
        "reader": {"model": "small"},
        "writer": {},
        "judge": None,
        "form": "json",
        "questions": {"medqa": {"asked": 10}},
    }
    page = markdown(paper, paper.systems, results, facts, {})
    assert "| here | CHR | 25.0 | 50.0 | 75.0 | 50.0 |" in page
    assert "| Gemma-2-9B-It | CHR | 70.3 | 53.1 | 80.7 | 68.1 |" in page
    assert "| here | HyDE (H+ only) | – | – | – | – |" in page
    assert "| CHR | 2.0 | 1 | 2.0 | 303 |" in page, "generators across"
    assert "MedCPT over MedCorp" in page
    assert '{"model": "small"}' in page
    two = PaperResults(rows[:2])
    page = markdown(paper, paper.systems, two, facts, {})
    assert "| here | CHR | 25.0 | 50.0 | – | – |" in page, "no average of some of the tasks"


def test_a_case_study_shows_the_first_question_that_all_its_systems_answered():
    paper = load_paper("misknow")
    judged = {"judge": True, "missing_knowledge": ["when | where"]}
    notes = {"drafts": ["a draft"], "judgements": [judged, {"judge": False, "missing_knowledge": ["not asked for"]}]}

    def record(system, question, answer):
        plain = {key: {} for key in ("documents", "scores", "judged", "prompts", "spent")}
        rest = {"searched": True, "failure": "", "text": None, "chosen": "", "cut": False, "key": "", "task": "nq"}
        names = {"system": system, "question_id": question, "question": f"text of {question}"}
        return PaperRecord(**names, answer=answer, notes=notes, **plain, **rest)

    answers = {"misknow_wiki": (None, "x", "y"), "misknow_qa": ("u", "v" * 999, "w")}
    cells = {
        ("nq", system): {name: record(system, name, said) for name, said in zip("abc", own, strict=True)}
        for system, own in answers.items()
    }
    rows = case_rows(paper, cells)
    assert [(row.system, row.question, row.first, row.missing) for row in rows] == [
        ("misknow_wiki", "text of b", "a draft", ["when | where"]),
        ("misknow_qa", "text of b", "a draft", ["when | where"]),
    ]
    facts = {"reader": {}, "writer": {}, "judge": None, "form": "json", "questions": {}}
    page = markdown(paper, paper.systems, PaperResults((), cases=rows), facts, {})
    assert "| here | Misknow-RAG wiki | text of b | a draft | when \\| where | x |" in page
    assert f"| {'v' * 300}… |" in page
    assert "| paper | Misknow-RAG QA pairs | Who has the most all star mvp awards? (right: Bob Pettit, Kobe" in page
    assert case_rows(paper, {}) == []


def test_unknown_papers_and_a_setting_that_is_gone_are_told(tmp_path):
    with refused(ConfigError, "unknown-paper", tmp_path / "none.yaml", "hcqr"):
        load_paper(str(tmp_path / "none.yaml"))
    (tmp_path / "own.yaml").write_text(f"method: chr\n{dump_paper(load_paper('chr'))}")
    with refused(ConfigError, "invalid-setting", f"{tmp_path / 'own.yaml'}: method"):
        load_paper(str(tmp_path / "own.yaml"))
