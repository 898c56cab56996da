"""The reproduction of the paper's comparisons: its tiny mode from end to end, and its verdicts."""

import json
import shutil
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _importable():
    """The benchmarks, which are scripts beside each other."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def tiny(tmp_path, tiny_policy):
    """`tiny(what, …)` runs the command on a tiny model in a folder of its own."""
    from reproduction import main

    model = [f"policy.model={tiny_policy}", "policy.lora.last_layers=1", "rollout.max_prompt_tokens=2048"]

    def run(what, *arguments):
        return main([what, *model, "--tiny", "--folder", str(tmp_path / "repro"), *arguments])

    return run


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_tiny_runs_all_parts_and_continues_where_it_was_cut(tiny, tmp_path, capsys, monkeypatch):
    """All arms are trained, tested and compared; a repeat does nothing; what is cut off is made again as it was."""
    folder = tmp_path / "repro"
    tiny("run", "--seeds", "0")
    first = files(folder)

    def tokens(name):
        lines = (folder / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["tokens/sampled"] for line in lines]

    budget, spent = sum(tokens("trajectory-0")), tokens("turn-0")
    assert sum(spent) >= budget > sum(spent[:-1]), "4×4 is trained until it has sampled as much as 16×1"

    monkeypatch.setattr("reproduction.greedy_trees", lambda *_: pytest.fail("a finished evaluation is repeated"))
    monkeypatch.setattr("reproduction.train", lambda *_, **__: pytest.fail("a finished run is trained again"))
    tiny("run", "--seeds", "0")
    monkeypatch.undo()

    answers = folder / "answers" / "test-bm25-general-0-step2.jsonl"
    answers.unlink()
    shutil.rmtree(folder / "general-0" / "final")
    shutil.rmtree(folder / "general-0" / "checkpoints" / "checkpoint-2")
    tiny("run", "--only", "c", "--seeds", "0")
    assert (folder / "general-0" / "final").is_dir()
    rewrites = [json.loads(line)["rewrites"] for line in answers.read_text().splitlines()]
    original = first[answers.relative_to(folder)].decode()
    assert rewrites == [json.loads(line)["rewrites"] for line in original.splitlines()]

    page = tmp_path / "page.md"
    page.write_text((BENCHMARKS.parent / "docs" / "reproduction.md").read_text())
    capsys.readouterr()
    tiny("table", "--seeds", "0", "--page", str(page))
    table, page_text = capsys.readouterr().out, page.read_text()
    for part in table.strip().split("\n\n### "):
        assert part.strip() in page_text
    for part in ("a", "b", "c"):
        assert f"### ({part})" in table
        assert f"](page-{part}.svg)" in table
        assert (tmp_path / f"page-{part}.svg").exists()
    assert "Rewrites of seed 0" in table
    shutil.rmtree(folder / "general-0")
    tiny("table", "--seeds", "0", "--only", "c", "--page", str(page))
    assert page.read_text().startswith(page_text.partition("### (c)")[0]), "other parts stay"
    assert page.read_text() != page_text
    verdicts = [line.split(" | ")[1] for line in table.splitlines() if " here | " in line]
    assert set(verdicts) == {"not decidable here"}, "fewer than three seeds decide nothing"


def test_a_token_budget_is_approached_from_below():
    from reproduction import next_steps

    assert next_steps([], 1000, first=15) == 15
    assert next_steps([10] * 15, 1000, first=15) == 15 + 80
    assert next_steps([10] * 99, 1000, first=15) == 100
    assert next_steps([10] * 100, 1000, first=15) is None
    assert next_steps([2] * 15 + [10] * 10, 1000, first=15) == 25 + 82, "by the newest steps"


def test_a_killed_run_whose_logs_end_in_a_cut_line_goes_on(tmp_path):
    from reproduction_results import is_complete, sampled_tokens

    (tmp_path / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    steps = [{"step": step, "tokens/sampled": 5} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)) + '\n{"step": 3, "tok')
    (tmp_path / "validation.jsonl").write_text('{"step": 0}\n{"st')
    assert sampled_tokens(tmp_path) == [5, 5]
    assert not is_complete(tmp_path, 2)


def test_arms_of_a_part_differ_in_what_is_compared_alone(tmp_path):
    from querylect.configs.differences import flat
    from reproduction_arms import ARMS, Options

    options = Options(tmp_path)

    def different(first, second):
        a, b = (dict(flat(options.config(ARMS[name], 0).model_dump())) for name in (first, second))
        return {key for key in {*a, *b} if a.get(key) != b.get(key)} - {"name"}

    assert different("turn", "trajectory") == {"rollout.branching", "train.credit"}
    assert different("bm25", "minilm") == {"env.name", "env.retriever", "env.model", "env.index"}
    assert different("general", "explore") == different("general", "direct") == {"rewriter.prompt"}
    for name in ARMS:
        config = options.config(ARMS[name], 0)
        assert config.train.lr_schedule == "constant", "a run is continued to a number of tokens"
        assert config.train.steps >= 60
        assert config.env.dataset.kind == "wordnet"


def test_prompt_levels_show_the_same_questions_and_no_held_out_word():
    """Levels differ in guidance; their words are those of the packaged prompt, which a test holds against WordNet."""
    from querylect.rewriters.few_shot import load_prompt

    packaged = load_prompt("wordnet")
    names = ("general", "explore", "direct")
    levels = {name: load_prompt(str(BENCHMARKS / "prompts" / f"{name}.yaml")) for name in names}
    single = {
        word.strip() for example in packaged.examples for turn in example.turns for word in turn.rewrite.split(",")
    }
    for name, level in levels.items():
        assert [entry.question for entry in level.examples] == [entry.question for entry in packaged.examples]
        assert ("BM25" in level.system) == (name != "general")
        for example in level.examples:
            for word in (word.strip() for word in example.turns[0].rewrite.split(",")):
                assert word in single or len(word.split()) > 3
    assert levels["general"].examples == levels["explore"].examples


def compared(difference, low, high):
    from querylect.eval.statistics import PairedComparison

    return PairedComparison(9, 0, difference, 0, difference, low, high, 0.01, 0, 0, 0, None)


@pytest.mark.parametrize(
    ("difference", "low", "high", "p", "by_seed", "expected"),
    [
        (0.05, 0.03, 0.07, 0.01, [0.04, 0.05, 0.06], "confirmed here"),
        (0.05, 0.03, 0.07, 0.01, [0.14, 0.05, -0.01], "not decidable here"),
        (0.05, 0.03, 0.07, 0.01, [0.04, 0.05], "not decidable here"),
        (-0.05, -0.07, -0.03, 0.01, [-0.04, -0.05, -0.06], "refuted here"),
        (0.001, -0.008, 0.009, 0.7, [0.01, -0.01, 0.0], "refuted here"),
        (0.02, -0.01, 0.05, 0.2, [0.04, 0.01, 0.01], "not decidable here"),
    ],
)
def test_a_verdict_takes_significance_and_every_seed(difference, low, high, p, by_seed, expected):
    from reproduction_claims import verdict

    assert verdict(compared(difference, low, high), p, by_seed) == expected


def test_a_collapse_is_a_fall_from_the_best_validation():
    from reproduction_claims import collapse

    falling, rising = {0: 0.1, 15: 0.3, 30: 0.28}, {0: 0.1, 15: 0.28, 30: 0.3}
    assert collapse([falling] * 3, [rising] * 3).verdict == "confirmed here"
    assert collapse([rising] * 3, [falling] * 3).verdict == "refuted here"
    assert collapse([rising] * 3, [rising] * 3).verdict == "not decidable here", "the runs are shorter than the paper's"
    assert collapse([falling, rising, rising], [rising] * 3).verdict == "not decidable here"
    assert collapse([falling] * 2, [rising] * 2).verdict == "not decidable here"


def test_the_table_shows_how_the_policies_write_beside_their_scores(tmp_path):
    """By hand: untrained one of four rewrites repeats the question, three are cut, one has the wrong format."""
    from querylect.eval.records import EvalRecord, write_records
    from reproduction_arms import ARMS, Options
    from reproduction_results import Results
    from reproduction_tables import render

    options, arm = Options(tmp_path, seeds=(0, 1), parts=("c",)), ARMS["general"]

    def record(number, turn, score, rewrite, cut=None):
        metrics = {"ndcg@10": score, "recall@10": score, "mrr@10": score}
        rewrites = (rewrite,) if rewrite else ()
        return EvalRecord(
            "raw" if turn == 0 else "policy", turn, f"q{number}", f"question {number}", "", rewrites, (), metrics,
            4, 8, 1, format_ok=bool(rewrite), cut=cut,
        )  # fmt: skip

    raw = [record(number, 0, 0.5, f"question {number}") for number in range(4)]
    untrained = [
        record(0, 1, 0.5, "Question 0?", cut=False),
        record(1, 1, 0.25, "word", cut=True),
        record(2, 1, 0.25, "word", cut=True),
        record(3, 1, 0.0, None, cut=True),
    ]
    write_records(options.records(arm, 0, 0, "bm25"), [*raw, *untrained])
    for seed, score in ((0, 0.75), (1, 1.0)):
        folder = options.run_folder(arm, seed)
        (folder / "checkpoints" / "checkpoint-2").mkdir(parents=True)
        (folder / "metrics.jsonl").write_text('{"step": 1, "tokens/sampled": 8, "seconds/step": 1.0}\n')
        trained = [record(number, 1, score, "word", cut=seed == 1) for number in range(4)]
        write_records(options.records(arm, seed, 2, "bm25"), [*raw, *trained])
    head, _, row = next(
        part.splitlines() for part in render(Results(options), "c").split("\n\n") if "tested on" in part
    )  # fmt: skip
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert cells["untrained"] == "0.250"
    assert cells["repeats"] == "33% → 0%", "of the answers with a rewrite"
    assert cells["cut"] == "75% → 50%"
    assert cells["with fall-back"] == "0.375 → 0.875"
