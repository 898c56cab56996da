"""The figures of a paper that is run again, beside those that it prints: results.md, results.json and curves.

One DataFrame has a row for each answer and a column for each value: metrics, verdicts, costs. A value that is missing
is in no mean and no pair, and is never 0.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from ..configs.paper import AVERAGE, POOLED, PaperConfig, Sweep
from ..data.published import PublishedFigure, published
from ..methods.misknow import DRAFT_KEPT
from ..storage import write_text
from .records import EvalRecord, write_json
from .statistics import compare_exactly, holm
from .table import ALPHA, decimal, percentage
from .tasks.judges import BY_SOURCE, LABELS

COSTS = ("calls", "searches", "prompt_tokens", "tokens", "reader_prompt_tokens", "reader_tokens")
LOWER_IS_BETTER = ("declined",)
SHIFT_K = 5
"""Top documents of two rankings that a retrieval shift compares (the CHR paper, section 4.4)."""
CHECK = (
    "**What these figures are.** What is marked *here* was done by the models named below on the questions counted "
    "below; everything else is the paper's, with its models, corpus and questions. A run by a smaller "
    "model, over another corpus or over few questions checks that the machinery works. It does not repeat the paper's "
    "measurement, and the order of systems in it says nothing about the methods.\n\n"
    "A cell is a mean and, in brackets, the number of questions that it is of: those with a value."
)
TESTS = (
    "One-sided in the direction that is better: the exact binomial test on discordant pairs for yes and no, Wilcoxon's "
    "signed-rank test for other values. Of the metrics of an answer the first is tested, since the others depend on "
    f"it, and each judge. Holm's correction runs over all lines; significant is p_holm < {ALPHA}."
)


def write_results(folder: Path, paper: PaperConfig, records: Sequence[EvalRecord], facts: Mapping[str, Any]) -> Path:
    """Write results.json, results.md and the curves of each sweep; return the path of results.md."""
    values = values_of(paper, records)
    figures, tests, notes = figures_of(paper, values, records), comparisons_of(paper, values), notes_of(records)
    reference = published(paper.name)
    parts = [f"# {paper.name}", reference.citation, CHECK]
    for name in dict.fromkeys(figure.table for figure in reference.figures):
        printed = [figure for figure in reference.figures if figure.table == name]
        if len(table := beside(paper, figures, printed)):
            settings = "; ".join(dict.fromkeys(figure.setting for figure in printed if figure.setting))
            parts += [f"## {name.capitalize()}", _markdown(table), f"Paper: {settings}." if settings else ""]
    for task in dict.fromkeys(record.dataset for record in records):
        parts += [f"## Every figure of {task}", _markdown(_every(figures, task))]
    for number, sweep in enumerate(paper.sweeps, start=1):
        if draw_sweep(folder / f"sweep-{number}.svg", sweep, figures):
            parts += [f"## {sweep.metric} of {sweep.task}", f"![curves](sweep-{number}.svg)"]
    if tests:
        parts += ["## Tests", pd.DataFrame(tests).to_markdown(index=False, floatfmt=".3g"), TESTS]
    parts.append(
        "\n".join(f"- {line}" for line in [*notes, *reference.notes, *(f"{k}: {v}" for k, v in facts.items())])
    )
    content = {
        "paper": paper.name,
        "figures": figures.reset_index().to_dict("records"),
        "tests": tests,
        "notes": notes,
        **facts,
        "settings": paper.model_dump(mode="json"),
    }
    write_json(folder / "results.json", content)
    write_text(folder / "results.md", "\n\n".join(filter(None, parts)) + "\n")
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
    """`value` (a mean) and `n` (questions that it is of) by task (also POOLED), system and metric. A retrieval shift is
    of a system A/B: `shift` over the questions that A answers rightly and B wrongly, `shift of all`."""
    pooled = values.rename(index=dict.fromkeys(paper.tasks, POOLED), level="task")
    grouped = pd.concat([values, pooled]).groupby(["task", "system"], sort=False)
    figures = pd.DataFrame({"value": grouped.mean().stack(), "n": grouped.count().stack()})
    figures = figures[figures["n"] > 0].rename_axis(["task", "system", "metric"])
    by_arm: dict[tuple[str, str], dict[str, EvalRecord]] = {}
    for record in records:
        for task in (record.dataset, POOLED):
            by_arm.setdefault((task, record.system), {})[f"{record.dataset}/{record.question_id}"] = record
    shifted = []
    for a, b in paper.shifts:
        for task in [task for task in (*paper.tasks, POOLED) if {(task, a), (task, b)} <= by_arm.keys()]:
            ours, theirs = by_arm[task, a], by_arm[task, b]
            pairs = [(ours[name], theirs[name]) for name in ours if name in theirs]
            won = [(x, y) for x, y in pairs if (x.metrics.get("accuracy"), y.metrics.get("accuracy")) == (1, 0)]
            for name, compared in (("shift", won), ("shift of all", pairs)):
                shift = retrieval_shift(
                    [(x.documents, y.documents) for x, y in compared if not (x.failure or y.failure)]
                )
                shifted += [(task, f"{a}/{b}", f"{name}:{key}", value, shift["n"]) for key, value in shift.items()]
    more = pd.DataFrame(shifted, columns=["task", "system", "metric", "value", "n"])
    return pd.concat([figures, more.set_index(["task", "system", "metric"])])


def retrieval_shift(rankings: Sequence[tuple[Sequence[str], Sequence[str]]], k: int = SHIFT_K) -> dict[str, float]:
    """Do two methods find the same documents (the CHR paper, section 4.4)? `n` pairs of rankings that both have
    documents; of them the share with `zero` overlap of their first k, the `mean` overlap ratio (by k, or the length of
    the longer ranking where both are shorter) and the mean number of documents `shared`; only `n` where it is 0.

    In the paper's table 2 the mean overlap ratio exceeds the share of questions with any overlap: it may be a mean
    number of shared documents, so both are reported.
    """
    tops = [(set(a[:k]), set(b[:k])) for a, b in rankings if a and b]
    if not tops:
        return {"n": 0}
    shared = [len(a & b) for a, b in tops]
    return {
        "n": len(tops),
        "zero": fmean(not count for count in shared),
        "mean": fmean(count / max(len(a), len(b)) for count, (a, b) in zip(shared, tops, strict=True)),
        "shared": fmean(shared),
    }


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


def notes_of(records: Sequence[EvalRecord]) -> list[str]:
    """What is missing, by system and reason; none of it is a 0."""
    counts = Counter[tuple[str, str]]()
    for record in records:
        reasons = [f"without an answer: {record.failure}"] if record.failure else []
        if DRAFT_KEPT in record.notes:
            reasons.append("answered by a draft, as the judgement could not be read")
        for judge, verdict in record.judged.items():
            reasons += [f"without a verdict of {judge}: {verdict['failure']}"] if verdict["failure"] else []
        counts.update((f"{record.system} in {record.dataset}", reason) for reason in reasons)
    return [f"{arm}: {count} {reason}." for (arm, reason), count in counts.items()]


def beside(paper: PaperConfig, figures: pd.DataFrame, printed: Sequence[PublishedFigure]) -> pd.DataFrame:
    """One table of the paper for the systems that were run: our figures, and a column for each of its generators."""
    rows: dict[str, dict[str, str]] = {}
    for figure in printed:
        tasks = [figure.task] if figure.task != AVERAGE else list(figure.of or paper.tasks)
        if (figure.task not in {*paper.tasks, AVERAGE, POOLED}) or figure.system not in figures.index.levels[1]:
            continue
        row, column = rows.setdefault(figure.system, {"system": figure.system}), f"{figure.task} {figure.metric}"
        row.setdefault(f"{column}: here", _cell(figures, tasks, figure.system, figure.metric, figure.unit))
        row[f"{column}: {figure.generator}"] = f"{figure.value:g}"
    return pd.DataFrame(rows.values()).fillna("")


def _every(figures: pd.DataFrame, task: str) -> pd.DataFrame:
    """All figures of a task."""
    rows: dict[str, dict[str, str]] = {}
    for _, system, metric in figures.index[figures.index.get_level_values("task") == task]:
        unit = "number" if metric in COSTS or metric.endswith((":n", ":shared")) else "percent"
        rows.setdefault(system, {"system": system})[metric] = _cell(figures, [task], system, metric, unit)
    return pd.DataFrame(rows.values()).fillna("")


def _cell(figures: pd.DataFrame, tasks: Sequence[str], system: str, metric: str, unit: str) -> str:
    """The mean over tasks, only where every one has it, and the number of questions."""
    rows = figures.reindex([(task, system, metric) for task in tasks])
    if rows["value"].isna().any():
        return "–"
    value = float(rows["value"].mean())
    text = percentage(value) if unit == "percent" else decimal(value, {"share": 2, "number": 1}[unit])
    return f"{text} ({rows['n'].sum():.0f})"


def swept(system: str, settings: Sequence[str], value: float) -> str:
    """The name of a system with another value of some settings."""
    return f"{system}[{'+'.join(settings)}={value:g}]"


def draw_sweep(path: Path, sweep: Sweep, figures: pd.DataFrame) -> bool:
    """Draw the metric of each system by the value of its setting, and a level line for each system beside them; False
    without a curve."""
    import matplotlib
    from matplotlib.figure import Figure

    def value(system: str) -> float | None:
        mean: float | None = figures["value"].get((sweep.task, system, sweep.metric))
        return mean

    curves = {name: [value(swept(name, s, v)) for v in sweep.values] for name, s in sweep.systems.items()}
    table = pd.DataFrame(curves, index=sweep.values, dtype=float).dropna(how="all")
    figure = Figure(figsize=(5.2, 2.9), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(table.index, table, "o-", label=list(table))
    for name, dash in zip(sweep.beside, ("--", ":", "-.") * len(sweep.beside), strict=False):
        if (level := value(name)) is not None:
            axes.axhline(level, linestyle=dash, color="#777777", label=name)
    axes.set_xlabel(" or ".join(dict.fromkeys("+".join(settings) for settings in sweep.systems.values())))
    axes.set_ylabel(f"{sweep.metric}, {sweep.task}")
    axes.legend(frameon=False, fontsize=8)
    if len(table):
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            figure.savefig(path, metadata={"Date": None})
    return bool(len(table))


def _markdown(table: pd.DataFrame) -> str:
    return str(table.to_markdown(index=False, disable_numparse=True))
