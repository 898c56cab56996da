"""results.md: each table of the paper with our figures beside the paper's own, and what the paper has no table for."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...configs.paper import AVERAGE, PaperConfig, PaperSystem, PaperTable, TableColumn
from ...data.published import Published, PublishedFigure, published
from ...data.sampling import sample_of
from ..table import format_p
from .cases import HEAD as CASE_HEAD
from .cases import case_lines
from .results import COSTS, PaperResults, PaperRow
from .sweeps import sweep_points

HERE = "here"
CHECK = (
    "**What these figures are.** The columns *here* are what the models named below did on the questions counted "
    "below; all others are the paper's, with its models, corpus and questions. A run by a smaller model, over another "
    "corpus or over few questions checks that the machinery works. It does not repeat the paper's measurement, and the "
    "order of systems in it says nothing about the methods."
)
NAMES = {
    "accuracy": "accuracy",
    "dur": "DUR",
    "em": "EM",
    "f1": "F1",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "reader_tokens": "reader: tokens written",
    "reader_prompt_tokens": "reader: tokens read",
    "prompt_tokens": "tokens read",
    "tokens": "tokens written",
}


def markdown(
    paper: PaperConfig,
    systems: Mapping[str, PaperSystem],
    results: PaperResults,
    facts: Mapping[str, Any],
    curves: Mapping[int, str],
) -> str:
    """The page."""
    reference = published(paper.name)
    labels = {name: system.label or name for name, system in systems.items()}
    parts = [f"# {paper.title or paper.name}", reference.citation, CHECK, _models_line(facts)]
    for table in paper.tables:
        parts += [f"## {table.title}", *_table(paper, table, results, reference, labels)]
    for case in paper.cases:
        steps = case_lines(case, HERE, results.cases, reference.cases)
        parts += [f"## {case.title}", _grid(CASE_HEAD, [[a, labels.get(b, b), *cells] for a, b, *cells in steps])]
    parts += ["## What is missing", *_missing(paper, results, labels)]
    parts += _utility(results, labels)
    parts += _shift(results, reference, labels)
    for number, sweep in enumerate(paper.sweeps, start=1):
        points = sweep_points(sweep, results)
        by_value = {figure.system: figure for figure in reference.figures if figure.metric == f"sweep:{sweep.setting}"}
        rows = [
            [f"{value:g}", _percent(figure), str(n), _published(by_value.get(f"{value:g}"))]
            for value, figure, n in points
        ]
        parts += [
            f"## {labels[sweep.system]} by {sweep.setting}, {sweep.task}",
            _grid([sweep.setting, f"{_name(sweep.metric)} {HERE}", "n", "paper"], rows),
            *([f"![{sweep.setting}]({curves[number]})"] if number in curves else []),
        ]
    parts += ["## Cost of a question", _costs(results, labels)]
    parts += _tests(results, labels)
    parts += [_facts(facts, reference)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _models_line(facts: Mapping[str, Any]) -> str:
    counts = ", ".join(
        f"{name} n = {sample_of(count.get('sample')) or count['asked']}" for name, count in facts["questions"].items()
    )
    judge = json.dumps(facts["judge"], ensure_ascii=False) if facts["judge"] else "none"
    reader, writer = (json.dumps(facts[name], ensure_ascii=False) for name in ("reader", "writer"))
    form = "labelled lines" if facts["form"] == "lines" else "JSON"
    return (
        f"Reader {reader}; methods ask {writer}; judge {judge}. Answers of a fixed form: {form}. Questions: {counts}."
    )


def _table(
    paper: PaperConfig, table: PaperTable, results: PaperResults, reference: Published, labels: Mapping[str, str]
) -> list[str]:
    rows = table.rows or list(paper.systems)
    figures = {
        (figure.task, figure.metric, figure.generator, figure.system): figure
        for figure in reference.figures
        if figure.table == table.published
    }
    settings = dict.fromkeys(figure.setting for figure in figures.values() if figure.setting)
    if table.generators == "down":
        grid = _generators_as_rows(table, rows, results, figures, labels)
    else:
        grid = _generators_as_columns(paper, table, rows, results, figures, labels)
    source = [f"Paper: {table.published}; {'; '.join(settings)}."] if settings else []
    return [grid, *source]


Figures = Mapping[tuple[str, str, str, str], PublishedFigure]


def _generators_as_columns(
    paper: PaperConfig,
    table: PaperTable,
    rows: Sequence[str],
    results: PaperResults,
    figures: Figures,
    labels: Mapping[str, str],
) -> str:
    """Generators side by side within each column, ours first."""
    columns = [(column, _generators(figures, column)) for column in table.columns]
    head = ["system"]
    for column, generators in columns:
        task = paper.tasks[column.task].title if column.task in paper.tasks else ""
        head.append(f"{task or column.task} {_name(column.metric)}: {HERE}")
        head += generators
    lines = []
    for row in rows:
        line = [labels.get(row, row)]
        for column, generators in columns:
            line.append(_figure(_measured(table, results, row, column), table.unit))
            line += [_published(figures.get((column.task, column.metric, generator, row))) for generator in generators]
        lines.append(line)
    return _grid(head, lines)


def _generators_as_rows(
    table: PaperTable, rows: Sequence[str], results: PaperResults, figures: Figures, labels: Mapping[str, str]
) -> str:
    """A block of rows for each generator, ours first."""
    generators = list(
        dict.fromkeys(generator for column in table.columns for generator in _generators(figures, column))
    )
    head = ["generator", "system", *(f"{column.task} {_name(column.metric)}" for column in table.columns)]
    lines = [
        [
            HERE,
            labels.get(row, row),
            *(_figure(_measured(table, results, row, column), table.unit) for column in table.columns),
        ]
        for row in rows
    ]
    lines += [
        [
            generator,
            labels.get(row, row),
            *(_published(figures.get((column.task, column.metric, generator, row))) for column in table.columns),
        ]
        for generator in generators
        for row in rows
    ]
    return _grid(head, lines)


def _generators(figures: Figures, column: TableColumn) -> list[str]:
    names = (key[2] for key in figures if key[:2] == (column.task, column.metric))
    return list(dict.fromkeys(names))


def _measured(table: PaperTable, results: PaperResults, system: str, column: TableColumn) -> float | None:
    if column.task != AVERAGE:
        return results.mean(column.task, system, column.metric)
    tasks = [
        candidate.task for candidate in table.columns if candidate.task != AVERAGE and candidate.metric == column.metric
    ]
    values = [results.mean(task, system, column.metric) for task in tasks or _tasks(results)]
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present and len(present) == len(values) else None


def _tasks(results: PaperResults) -> list[str]:
    return list(dict.fromkeys(row.task for row in results.rows))


def _missing(paper: PaperConfig, results: PaperResults, labels: Mapping[str, str]) -> list[str]:
    judges = list(dict.fromkeys(name for row in results.rows for name in row.off_format))
    head = ["task", "system", "questions", "answered", "no answer", "cut", "no choice"]
    head += [f"{name}: n / off format / no reply" for name in judges]
    lines = []
    for row in results.rows:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in row.reasons.items())
        counts = [row.questions, row.answered]
        line = [row.task, labels.get(row.system, row.system), *map(str, counts)]
        lines.append(
            [*line, reasons or "0", str(row.cut), str(row.no_choice), *(_judge_cell(row, judge) for judge in judges)]
        )
    return [
        _grid(head, lines),
        "None of these is a 0: what has no answer or no verdict is left out of the means. An answer that names no "
        "option is a wrong one.",
    ]


def _judge_cell(row: PaperRow, judge: str) -> str:
    if judge not in row.off_format:
        return ""
    n = row.means["dur" if judge == "utility" else judge].n
    return f"{n} / {row.off_format[judge]} / {row.unjudged[judge]}"


def _utility(results: PaperResults, labels: Mapping[str, str]) -> list[str]:
    rows = [row for row in results.rows if "accuracy:entailed" in row.means]
    if not rows:
        return []
    lines = []
    for row in rows:
        cells = []
        for label in ("entailed", "useful", "not_useful"):
            accuracy, gain = row.means[f"accuracy:{label}"], row.means[f"gain:{label}"]
            cells += [
                _percent(row.means[label].value),
                f"{_percent(accuracy.value)} / {_points(gain.value)} ({gain.n})",
            ]
        lines.append([row.task, labels.get(row.system, row.system), *cells])
    head = ["task", "system"]
    for label in ("ENTAILED", "USEFUL", "NOT USEFUL"):
        head += [f"{label} %", "accuracy / gain over no retrieval (n)"]
    return ["## Contexts by label", _grid(head, lines)]


def _shift(results: PaperResults, reference: Published, labels: Mapping[str, str]) -> list[str]:
    if not results.shifts:
        return []
    figures = {
        (figure.task, figure.metric): figure for figure in reference.figures if figure.metric.startswith("shift:")
    }
    lines = []
    for row in results.shifts:
        shift = row.shift
        questions = "all" if row.only == "all" else "first right, second wrong"
        paper = [
            figures.get((row.task, f"shift:{name}")) if row.only == "right" else None for name in ("n", "zero", "mean")
        ]
        lines.append(
            [
                row.task,
                f"{labels[row.system]} / {labels[row.against]}",
                questions,
                str(shift.n),
                _percent(shift.zero_overlap),
                _number(shift.mean_overlap),
                _number(shift.mean_shared),
                " · ".join(_published(cell) for cell in paper if cell),
            ]
        )
    head = [
        "task",
        "systems",
        "questions",
        "n",
        "zero overlap %",
        "mean overlap",
        "mean shared",
        "paper: n · zero · mean",
    ]
    return ["## Retrieval shift", _grid(head, lines)]


def _costs(results: PaperResults, labels: Mapping[str, str]) -> str:
    head = ["task", "system", *(_name(name) for name in COSTS)]
    lines = [
        [row.task, labels.get(row.system, row.system), *(_number(row.means[name].value, 1) for name in COSTS)]
        for row in results.rows
    ]
    return _grid(head, lines)


def _tests(results: PaperResults, labels: Mapping[str, str]) -> list[str]:
    if not results.comparisons:
        return []
    lines = []
    for comparison in results.comparisons:
        test = comparison.test
        ps = [format_p(p).removeprefix("= ") for p in (test.p, comparison.p_holm)]
        lines.append(
            [
                comparison.task,
                _name(comparison.metric),
                f"{labels[comparison.system]} / {labels[comparison.baseline]}",
                str(test.n),
                f"{_percent(test.mean_a)} / {_percent(test.mean_b)}",
                f"{test.higher} / {test.lower}",
                test.test,
                *ps,
                "†" * comparison.significant,
            ]
        )
    head = ["task", "metric", "systems", "n", "means %", "higher / lower", "test", "p", "p (Holm)", ""]
    return [
        "## Tests",
        _grid(head, lines),
        "One-sided in the direction that is better: the exact binomial test on discordant pairs for yes and no, "
        "Wilcoxon's signed-rank test for other values. Holm's correction runs over all lines. † p (Holm) < 0.05.",
    ]


def _facts(facts: Mapping[str, Any], reference: Published) -> str:
    lines = [f"- {note}" for note in reference.notes]
    lines += [
        f"- {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in facts.items()
        if value is not None and name != "identity"
    ]
    return "\n".join(["## Provenance", "", *lines])


def _published(figure: PublishedFigure | None) -> str:
    """As the paper prints it."""
    return f"{figure.value:g}" if figure is not None else ""


def _figure(value: float | None, unit: str) -> str:
    if unit == "percent":
        return _percent(value)
    return _number(value, 2 if unit == "share" else 1)


def _percent(value: float | None) -> str:
    return f"{100 * value:.1f}" if value is not None else "–"


def _points(value: float | None) -> str:
    return f"{100 * value:+.1f}".replace("-", "−") if value is not None else "–"


def _number(value: float | None, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if value is not None else "–"


def _name(metric: str) -> str:
    return NAMES.get(metric, metric.replace("_", " "))


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
