"""The reproduction of the paper's comparisons: its tiny mode from end to end, and its verdicts."""

import json
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.usefixtures("importable_benchmarks")]


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
    page.write_text((Path(__file__).parents[2] / "docs" / "reproduction.md").read_text())
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
