"""The figures of a paper that is run again, beside those that it prints: results.md, results.json and curves.

One DataFrame has a row for each answer and a column for each value: metrics, verdicts, costs. A value that is missing
is in no mean and no pair, and is never 0.
"""

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ...configs.paper import AVERAGE, POOLED, PaperConfig, Sweep
from ...data.published import PublishedFigure, published
from ...markdown_tables import markdown_table
from ...methods.misknow import DRAFT_KEPT
from ...storage import write_text
from ..records import EvalRecord
from ..statistics import compare_exactly, holm
from ..table import ALPHA, decimal, p_cell, percentage
from ..tasks.judges import BY_SOURCE, LABELS
from ..tasks.metrics import TITLES
from ..tasks.shift import retrieval_shift

COSTS = ("calls", "searches", "prompt_tokens", "tokens", "reader_prompt_tokens", "reader_tokens")
LOWER_IS_BETTER = ("declined",)
SHIFT_K = 5
"""Top documents of two rankings that a retrieval shift compares (the CHR paper, section 4.4)."""
CUT_OFTEN = 0.1
"""From this share of questions with a text that was cut at its token limit on, the page warns."""
CHECK = (
    "**What these figures are.** The columns *here* are what the models named below did on the questions counted "
    "below; all others are the paper's, with its models, corpus and questions. A run by a smaller model, over another "
    "corpus or over few questions checks that the machinery works. It does not repeat the paper's measurement, and the "
    "order of systems in it says nothing about the methods.\n\n"
    "A cell is a mean and, in brackets, the number of questions that it is of. Where some questions have no answer, "
    "*x of N* follows: the mean over all N questions, those without an answer counted as 0."
)
TESTS = (
    "One-sided in the direction that is better: the exact binomial test on discordant pairs for yes and no, Wilcoxon's "
    "signed-rank test for other values. Of the metrics of an answer the first is tested, since the others depend on "
    f"it, and each judge. Holm's correction runs over all lines. § p (Holm) < {ALPHA}."
)
NAMES = {
    **TITLES,
    "dur": "DUR",
    "reader_tokens": "reader: tokens written",
    "reader_prompt_tokens": "reader: tokens read",
    "prompt_tokens": "tokens read",
    "tokens": "tokens written",
}
_DIGITS = {"share": 2, "number": 1}


def write_results(folder: Path, paper: PaperConfig, records: Sequence[EvalRecord], facts: Mapping[str, Any]) -> Path:
    """Write results.json, results.md and the curves of each sweep; return the path of results.md."""
    values = values_of(paper, records)
    figures, tests, notes = figures_of(paper, values, records), comparisons_of(paper, values), notes_of(records, values)
    reference = published(paper.name)
    parts = [f"# {paper.name}", reference.citation, CHECK]
    for name in dict.fromkeys(figure.table for figure in reference.figures):
        printed = [figure for figure in reference.figures if figure.table == name]
        if len(table := beside(paper, figures, printed)):
            settings = "; ".join(dict.fromkeys(figure.setting for figure in printed if figure.setting))
            parts += [f"## {name.capitalize()}", markdown(table), f"Paper: {settings}." if settings else ""]
    for task in paper.tasks:
        parts += [f"## Every figure of {task}", markdown(_every(figures, task))]
    for number, sweep in enumerate(paper.sweeps, start=1):
        curves = curves_of(sweep, figures)
        if curves.notna().any(axis=None):
            write_text(folder / f"sweep-{number}.svg", drawn(sweep, curves, figures))
            parts += [f"## {_name(sweep.metric)} of {sweep.task}", f"![curves](sweep-{number}.svg)"]
    if tests:
        parts += ["## Tests", markdown(pd.DataFrame(map(_test_row, tests))), TESTS]
    lines = [*notes, *reference.notes]
    lines += [f"{name}: {json.dumps(fact, ensure_ascii=False)}" for name, fact in facts.items() if name != "identity"]
    parts.append("\n".join(f"- {line}" for line in lines))
    content = {
        "paper": paper.name,
        "figures": figures[figures["n"] > 0].reset_index().drop(columns="asked").to_dict("records"),
        "tests": tests,
        "notes": notes,
        **facts,
        "settings": paper.model_dump(mode="json"),
    }
    write_text(folder / "results.json", json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    write_text(folder / "results.md", "\n\n".join(part for part in parts if part) + "\n")
    return folder / "results.md"


def values_of(paper: PaperConfig, records: Sequence[EvalRecord]) -> pd.DataFrame:
    """The values of each answer by task, system and question: metrics and verdicts in [0, 1], and costs."""
    frame = pd.DataFrame(
        {"task": record.dataset, "system": record.system, "question": record.question_id, **_values(record)}
        for record in records
    )
    frame = frame.set_index(["task", "system", "question"]).astype(float)
    if paper.alone in frame.index.get_level_values("system"):
        alone = frame["accuracy"].xs(paper.alone, level="system").reindex(frame.index.droplevel("system")).to_numpy()
        for label in [label for label in LABELS.values() if f"accuracy:{label}" in frame]:
            frame[f"gain:{label}"] = frame[f"accuracy:{label}"] - alone
    return frame


def _values(record: EvalRecord) -> dict[str, float | None]:
    values = dict(record.metrics)
    for judge, verdict in record.judged.items():
        value, label = verdict["value"], verdict["label"]
        values["dur" if judge == "utility" else judge] = value
        if judge == "utility":
            values |= {name: None if value is None else float(label == name) for name in LABELS.values()}
        if label:
            values[f"accuracy:{label}"] = record.metrics.get("accuracy")
        values |= {f"{judge}:{source}": share for source, share in verdict["said"].get(BY_SOURCE, {}).items()}
    if "accuracy" in record.metrics and record.answer is not None:
        values["no choice"] = not record.chosen
    values |= {"cut": record.cut, "queries cut": None if record.truncated is None else record.truncated > 0}
    return values | ({} if record.failure else {name: getattr(record, name) for name in COSTS})


def figures_of(paper: PaperConfig, values: pd.DataFrame, records: Sequence[EvalRecord]) -> pd.DataFrame:
    """`value` (a mean), `n` (questions that it is of) and `asked` (questions of the task; NaN for all but metrics of
    answers) by task (also POOLED), system and metric. A retrieval shift is of a system A/B: `shift` over the questions
    that A answers rightly and B wrongly, `shift of all`."""
    pooled = values.rename(index=dict.fromkeys(paper.tasks, POOLED), level="task")
    grouped = pd.concat([values, pooled]).groupby(["task", "system"], sort=False)
    figures = pd.DataFrame({"value": grouped.mean().stack(), "n": grouped.count().stack()})
    figures = figures.rename_axis(["task", "system", "metric"])
    scores = {name for record in records for name in record.metrics}
    sizes = grouped.size().reindex(figures.index.droplevel("metric"))
    figures["asked"] = sizes.where(figures.index.get_level_values("metric").isin(scores), float("nan")).to_numpy()
    figures = figures[(figures["n"] > 0) | figures["asked"].notna()]
    rankings: dict[tuple[str, str], dict[str, Sequence[str] | None]] = {}
    for record in records:
        ranking = record.documents if record.searches and not record.failure else None
        for task in (record.dataset, POOLED):
            rankings.setdefault((task, record.system), {})[f"{record.dataset}/{record.question_id}"] = ranking
    shifted = []
    for a, b in paper.shifts:
        right = {
            f"{record.dataset}/{record.question_id}"
            for record in records
            if record.system == a
            and record.metrics.get("accuracy") == 1
            and values["accuracy"].get((record.dataset, b, record.question_id)) == 0
        }
        for task in [task for task in (*paper.tasks, POOLED) if {(task, a), (task, b)} <= rankings.keys()]:
            first, second = rankings[task, a], rankings[task, b]
            won = {question: ranking for question, ranking in first.items() if question in right}
            for name, compared in (("shift", won), ("shift of all", first)):
                shift = retrieval_shift(compared, second, SHIFT_K)
                shifted += [(task, f"{a}/{b}", f"{name}:{key}", value, shift["n"]) for key, value in shift.items()]
    more = pd.DataFrame(shifted, columns=["task", "system", "metric", "value", "n"])
    return pd.concat([figures, more.set_index(["task", "system", "metric"])])


def comparisons_of(paper: PaperConfig, values: pd.DataFrame) -> list[dict[str, Any]]:
    """Every system against its baseline, on the first metric of its answers and on each judge."""
    tests: list[dict[str, Any]] = []
    arms = {arm: rows.droplevel(["task", "system"]) for arm, rows in values.groupby(["task", "system"], sort=False)}
    for task, system in arms:
        baseline = (paper.systems[system].baseline if system in paper.systems else "") or paper.baseline
        if system == baseline or system not in paper.systems or (task, baseline) not in arms:
            continue
        ours, theirs = arms[task, system], arms[task, baseline]
        judges = ["dur" if judge == "utility" else judge for judge in paper.tasks[task].judges]
        for metric in (paper.tasks[task].answer_metrics[0], *judges):
            if metric in values:
                pair = ours[metric].tolist(), theirs[metric].reindex(ours.index).tolist()
                if test := compare_exactly(*pair, "less" if metric in LOWER_IS_BETTER else "greater"):
                    row = {"task": task, "metric": metric, "system": system, "baseline": baseline}
                    tests.append(row | test)
    adjusted = holm([test["p"] for test in tests])
    return [test | {"p_holm": p, "significant": p < ALPHA} for test, p in zip(tests, adjusted, strict=True)]


def notes_of(records: Sequence[EvalRecord], values: pd.DataFrame) -> list[str]:
    """What is missing, by system and reason; none of it is a 0."""
    counts = Counter[tuple[str, str]]()
    for record in records:
        arm = f"{record.system} in {record.dataset}"
        counts[arm, record.failure and f"without an answer: {record.failure}"] += 1
        counts[
            arm, "answered by a draft, as the judgement could not be read" if DRAFT_KEPT in record.notes else ""
        ] += 1
        for judge, verdict in record.judged.items():
            counts[arm, verdict["failure"] and f"without a verdict of {judge}: {verdict['failure']}"] += 1
    notes = [f"{arm}: {count} {reason}." for (arm, reason), count in counts.items() if reason]
    cut = values["cut"].groupby(level=["task", "system"], sort=False).mean()
    return notes + [
        f"{system} in {task}: {percentage(share)} % of questions have a text that was cut at its token limit. Raise "
        "the limits of tokens in its settings, or max_tokens of the reader."
        for (task, system), share in cut.items()
        if share >= CUT_OFTEN
    ]


def beside(paper: PaperConfig, figures: pd.DataFrame, printed: Sequence[PublishedFigure]) -> pd.DataFrame:
    """One table of the paper for the systems that were run: our figures, and a column for each of its generators."""
    rows: dict[str, dict[str, str]] = {}
    for figure in printed:
        tasks = [figure.task] if figure.task != AVERAGE else list(figure.of or paper.tasks)
        if (figure.task not in {*paper.tasks, AVERAGE, POOLED}) or figure.system not in figures.index.levels[1]:
            continue
        row, column = rows.setdefault(figure.system, {"system": figure.system}), f"{figure.task} {_name(figure.metric)}"
        row.setdefault(f"{column}: here", _cell(figures, tasks, figure.system, figure.metric, figure.unit))
        row[f"{column}: {figure.generator}"] = f"{figure.value:g}"
    return pd.DataFrame(rows.values()).fillna("")


def _every(figures: pd.DataFrame, task: str) -> pd.DataFrame:
    """All figures of a task."""
    rows: dict[str, dict[str, str]] = {}
    for _, system, metric in figures.index[figures.index.get_level_values("task") == task]:
        unit = "number" if metric in COSTS or metric.endswith((":n", ":shared")) else "percent"
        row = rows.setdefault(system, {"system": system})
        row[_name(metric)] = _cell(figures, [task], system, metric, unit)
    return pd.DataFrame(rows.values()).fillna("")


def _cell(figures: pd.DataFrame, tasks: Sequence[str], system: str, metric: str, unit: str) -> str:
    """The mean over tasks, only where every one has it, and the number of questions."""
    rows = figures.reindex([(task, system, metric) for task in tasks])
    text_of = percentage if unit == "percent" else partial(decimal, digits=_DIGITS[unit])
    n, questions = int(rows["n"].sum()), rows["asked"].sum()
    value = None if rows["value"].isna().any() else float(rows["value"].mean())
    if value is None and (n or not questions):
        return text_of(None)
    over_all = f"; {text_of((value or 0.0) * n / questions)} of {questions:.0f}" if n < questions else ""
    return f"{text_of(value)} ({n}{over_all})"


def curves_of(sweep: Sweep, figures: pd.DataFrame) -> pd.DataFrame:
    """The metric of each system by the value of its setting."""
    return pd.DataFrame(
        {
            system: [
                figures["value"].get((sweep.task, swept(system, settings, value), sweep.metric))
                for value in sweep.values
            ]
            for system, settings in sweep.systems.items()
        },
        index=sweep.values,
        dtype=float,
    )


def swept(system: str, settings: Sequence[str], value: float) -> str:
    """The name of a system with another value of some settings."""
    return f"{system}[{'+'.join(settings)}={value:g}]"


def drawn(sweep: Sweep, curves: pd.DataFrame, figures: pd.DataFrame) -> str:
    """The curves as an SVG document, with a level line for each system beside them."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "querylect"}):
        figure = Figure(figsize=(5.2, 2.9), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(curves.index, curves, "o-", label=list(curves))
        for name, dash in zip(sweep.beside, ("--", ":", "-.") * len(sweep.beside), strict=False):
            if (level := figures["value"].get((sweep.task, name, sweep.metric))) is not None:
                axes.axhline(level, linestyle=dash, color="#777777", label=name)
        axes.set_xlabel(" or ".join(dict.fromkeys("+".join(settings) for settings in sweep.systems.values())))
        axes.set_ylabel(f"{sweep.metric}, {sweep.task}")
        axes.legend(frameon=False, fontsize=8)
        image = io.StringIO()
        figure.savefig(image, format="svg", metadata={"Date": None, "Creator": None})
    return image.getvalue()


def _test_row(test: Mapping[str, Any]) -> dict[str, str]:
    return {
        "task": test["task"],
        "metric": _name(test["metric"]),
        "systems": f"{test['system']} / {test['baseline']}",
        "n": str(test["n"]),
        "means %": f"{percentage(test['mean_a'])} / {percentage(test['mean_b'])}",
        "higher / lower": f"{test['higher']} / {test['lower']}",
        "test": test["test"],
        "p": p_cell(test["p"]),
        "p (Holm)": p_cell(test["p_holm"]) + "§" * test["significant"],
    }


def markdown(table: pd.DataFrame) -> str:
    """A table of texts."""
    return "\n".join(markdown_table(list(table.columns), table.to_numpy().tolist(), "l" * len(table.columns)))


def _name(metric: str) -> str:
    return NAMES.get(metric, metric.replace("_", " "))
