"""docs/own-corpus.md as it is: every file that it shows is written, every command is run, in order.

It covers all steps of a user: corpus, index, service, training, evaluation, export, each a process of its own. The
section with the table encodes a corpus, and is slow. Only the model and the corpus are smaller than the page's, by the
variables that the page names.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pandas
import pytest

from ..forked_commands import forked_commands
from ..pages import blocks
from ..several import free_port

pytestmark = pytest.mark.timeout(1800)  # on a machine with ten times more work than processors it took nine minutes

TABLE = "8. A table for a paper"
"""The section that is run after the others."""


@pytest.fixture(scope="module")
def page_run(tmp_path_factory, tiny_policy):
    """The folder in which the page's commands ran, their stdout, and the port of the service."""
    folder = tmp_path_factory.mktemp("own-corpus")
    for block in blocks("own-corpus.md"):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
    assert shutil.which("curl"), "the page asks the service with curl, which is not installed"
    port = free_port()
    script = "".join(_commands_of_page(table=False))
    script += f'\nprintf %s "$QUERYLECT_TOKEN" > {shlex.quote(str(folder.with_name("token")))}\n'
    with forked_commands(folder / ".bin"):
        yield folder, _run(script, folder, {"PORT": str(port), "MODEL": str(tiny_policy), "EVERY": "3"}), port


@pytest.fixture(scope="module")
def table_run(page_run):
    """The folder of the evaluation in the section TABLE, and the stdout of its commands."""
    folder, _, _ = page_run
    printed = _run("".join(_commands_of_page(table=True)), folder, {})
    return folder / "evaluations/table", printed


def _run(script: str, folder: Path, variables: dict[str, str]) -> str:
    """The stdout of a shell in the folder; the shell and its children have ended when this returns."""
    surroundings = {
        **os.environ,
        "PATH": f"{folder / '.bin'}:{os.environ['PATH']}",
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        **variables,
    }
    shell = subprocess.Popen(
        ["bash", "-c", f"set -euo pipefail\n{script}"],
        cwd=folder,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = shell.communicate()
    except BaseException:
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    service = folder / "service.log"
    assert shell.returncode == 0, f"{stdout}\n{stderr}\n{service.read_text() if service.exists() else ''}"
    return stdout


def test_the_page_can_be_followed_from_start_to_end(page_run):
    folder, stdout, _ = page_run
    assert "no question stands in two splits, by id or by words" in stdout
    assert '{"status":"ready"}' in stdout
    results = json.loads((folder / "runs/mine/results.json").read_text())
    assert results
    assert "<html" in (folder / "runs/mine/report.html").read_text()
    assert len((folder / "runs/mine/metrics.jsonl").read_text().splitlines()) == 3


def test_the_rewrite_of_a_question_is_printed(page_run):
    _, stdout, _ = page_run
    lines = [json.loads(line) for line in stdout.splitlines() if line.startswith("{") and '"rewrites"' in line]
    assert lines[-1]["question"] == "Delete a folder with everything in it"
    assert {"question", "rewrites", "think", "plan"} <= set(lines[-1])


def test_the_service_of_the_page_ends_with_its_shell(page_run):
    _, _, port = page_run
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_token_is_written_nowhere(page_run):
    folder, stdout, _ = page_run
    token = folder.with_name("token").read_text()
    assert len(token) == 32
    assert token not in stdout
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if token.encode() in path.read_bytes()] == []


def test_a_policy_can_be_exported(page_run):
    folder, _, _ = page_run
    assert json.loads((folder / "exported" / "querylect.json").read_text())["run"]["name"] == "mine"


@pytest.mark.slow
def test_the_table_has_the_systems_of_the_page_on_two_retrievers(table_run):
    folder, _ = table_run
    table = json.loads((folder / "results.json").read_text())["tables"][0]
    assert table["environments"] == ["bm25", "minilm"]
    systems = {row["system"] for row in table["rows"]} - {"best_training_free"}
    assert systems == {"raw", "first_titles", "rm3", "weighted_words", "mine", "mine-warm-start"}
    for row in table["rows"]:
        assert [score["n"] for score in row["scores"].values()] == [40, 40]


@pytest.mark.slow
def test_pandas_reads_the_scores_as_they_are_in_the_latex_table(table_run):
    folder, printed = table_run
    scores = pandas.read_csv(folder / "scores.csv")
    assert {name: scores[name].dtype.kind for name in ("turn", "mean", "low", "high", "n", "of")} == {
        "turn": "i", "mean": "f", "low": "f", "high": "f", "n": "i", "of": "i",
    }  # fmt: skip
    ndcg = scores[scores.metric == "ndcg@10"]
    means = ndcg.pivot(index="label", columns="environment", values="mean")
    table_rows = _latex_rows((folder / "tables.tex").read_text())
    assert table_rows == {label: [f"{row[name]:.3f}" for name in ("bm25", "minilm")] for label, row in means.iterrows()}
    assert all(label in printed for label in table_rows)
    assert ((ndcg.low <= ndcg["mean"]) & (ndcg["mean"] <= ndcg.high)).all()


@pytest.mark.slow
def test_pandas_reads_the_comparisons(table_run):
    folder, _ = table_run
    tests, scores = (pandas.read_csv(folder / f"{name}.csv") for name in ("comparisons", "scores"))
    numbers = ["difference", "low", "high", "p", "p_holm", "effect_size"]
    assert [tests[name].dtype.kind for name in numbers] == ["f"] * len(numbers)
    assert [tests[name].dtype.kind for name in ("n", "wins", "ties", "losses")] == ["i"] * 4
    assert tests.significant.dtype == bool
    assert ((tests.wins + tests.ties + tests.losses) == tests.n).all()
    assert (tests.p <= tests.p_holm).all()
    assert {"raw", "weighted_words"} <= set(tests.against)
    keys = ["environment", "system", "turn", "metric"]
    joined = tests.merge(scores[[*keys, "mean"]], on=keys)
    assert len(joined) == len(tests)
    assert (joined.mean_a - joined["mean"]).abs().max() < 1e-12


@pytest.mark.slow
def test_latex_compiles_the_table(table_run):
    folder, _ = table_run
    if shutil.which("pdflatex") is None:
        pytest.skip("there is no pdflatex (on Debian: apt-get install texlive-latex-recommended)")
    (block,) = [block for block in blocks("own-corpus.md") if block.section == TABLE and block.language == "sh"]
    home = folder.parents[1]
    done = subprocess.run(
        [*shlex.split(block.text), "-interaction=nonstopmode", "-halt-on-error"],
        cwd=home,
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout
    assert (home / "paper.pdf").read_bytes().startswith(b"%PDF")
    assert "Overfull" not in done.stdout
    assert "undefined" not in done.stdout


def _latex_rows(text: str) -> dict[str, list[str]]:
    """Figures of each row of the first float by label, without bold and marks. Every environment is closed, every row
    has all columns."""
    assert re.findall(r"\\begin{([\w*]+)}", text) == ["table", "tabular", "table*", "tabular"]
    assert re.findall(r"\\end{([\w*]+)}", text) == ["tabular", "table", "tabular", "table*"]
    assert text.isascii()
    text = text.partition("\\end{table}")[0]
    body = text.partition("\\midrule")[2].partition("\\bottomrule")[0]
    rows = [line.removesuffix(r" \\").split(" & ") for line in body.strip().splitlines()]
    columns = re.search(r"begin{tabular}{(\w+)}", text)
    assert columns is not None
    assert {len(row) for row in rows} == {len(columns[1])}
    return {
        label.replace("\\_", "_"): [re.search(r"\d\.\d+", figure)[0] for figure in figures] for label, *figures in rows
    }


def _commands_of_page(table: bool) -> list[str]:
    """The shell blocks of the section TABLE, or of all others."""
    commands = [
        block.text
        for block in blocks("own-corpus.md")
        if block.language == "bash" and (block.section == TABLE) == table
    ]
    assert len(commands) >= (2 if table else 6)
    return commands
