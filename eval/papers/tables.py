"""results.md: each table of the paper with our figures beside the paper's own, and what the paper has no table for."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ...configs.paper import AVERAGE, POOLED, PaperConfig, PaperSystem, Sweep
from ...data.published import PublishedFigure, published
from ...data.sampling import sample_of
from ...markdown_tables import markdown_table
from ..table import CUT_OFTEN, cut_warning, decimal, p_cell, percentage
from ..tasks.metrics import TITLES
from .results import ALL, COSTS, CUT_AT_LIMIT, DUR, NOTHING, Mean, PaperResults, PaperRow, mean_of
from .sweeps import setting_label, sweep_points, swept

HERE = "here"
CHECK = (
    "**What these figures are.** The columns *here* are what the models named below did on the questions counted "
    "below; all others are the paper's, with its models, corpus and questions. A run by a smaller model, over another "
    "corpus or over few questions checks that the machinery works. It does not repeat the paper's measurement, and the "
    "order of systems in it says nothing about the methods."
)
LEGEND = (
    "A cell is a mean and, in brackets, the number of questions that it is of. Where some questions have no value, "
    "*x of N* follows: the mean over all N questions, those without a value counted as 0."
)
NAMES = {
    **TITLES,
    DUR: "DUR",
    "reader_tokens": "reader: tokens written",
    "reader_prompt_tokens": "reader: tokens read",
    "prompt_tokens": "tokens read",
    "tokens": "tokens written",
}


Unit = Callable[[float | None], str]
"""Writes a figure."""
_number: Unit = partial(decimal, digits=1)
_UNITS: Mapping[str, Unit] = {"percent": percentage, "share": partial(decimal, digits=2), "number": _number}


class PaperPage:
    """The sections of results.md."""

    def __init__(self, paper: PaperConfig, systems: Mapping[str, PaperSystem], results: PaperResults) -> None:
        self.paper, self.systems, self.results = paper, list(systems), results
        self.reference = published(paper.name)

    def text(self, facts: Mapping[str, Any], curves: Mapping[int, str]) -> str:
        """The whole page; `curves` has the file of each sweep's curve, by the number of the sweep."""
        parts = [f"# {self.paper.name}", self.reference.citation, CHECK, _models(facts), LEGEND]
        parts += self._tables()
        parts += self._missing()
        parts += self._shift()
        for i, sweep in enumerate(self.paper.sweeps, start=1):
            parts += self._sweep(sweep, curves.get(i))
        parts += self._costs()
        parts += self._tests()
        parts += [self._provenance(facts)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _tables(self) -> list[str]:
        """The paper's tables, our figures beside its own; then all of our figures, task by task."""
        tasks = {*self.paper.tasks, AVERAGE, POOLED}
        by_table: dict[str, list[PublishedFigure]] = {}
        for figure in self.reference.figures:
            if figure.system in self.systems and figure.task in tasks and not figure.metric.startswith("sweep:"):
                by_table.setdefault(figure.table, []).append(figure)
        sections = [part for name, figures in by_table.items() for part in self._published_table(name, figures)]
        for task in self.paper.tasks:
            rows = [row for row in self.results.rows if row.task == task]
            metrics = dict.fromkeys(
                name
                for row in rows
                for name in row.means
                if name not in (*COSTS, CUT_AT_LIMIT) and not name.endswith(f":{ALL}")
            )
            cells = [[row.system, *(self._measured(row.system, task, name) for name in metrics)] for row in rows]
            sections += [f"## Every figure of {task} (%)", table(["system", *map(_name, metrics)], cells)]
        return sections

    def _published_table(self, name: str, figures: Sequence[PublishedFigure]) -> list[str]:
        values = {(figure.task, figure.metric, figure.system, figure.generator): figure for figure in figures}
        columns = {(figure.task, figure.metric): figure for figure in figures}
        head = ["system"]
        lines = {system: [system] for system in self.systems if any(f.system == system for f in figures)}
        for (task, metric), first in columns.items():
            generators = dict.fromkeys(f.generator for f in figures if (f.task, f.metric) == (task, metric))
            head += [f"{task} {_name(metric)}: {HERE}", *generators]
            for system, line in lines.items():
                line.append(self._measured(system, task, metric, _UNITS[first.unit], first.of))
                line += [_published(values.get((task, metric, system, generator))) for generator in generators]
        settings = dict.fromkeys(figure.setting for figure in figures if figure.setting)
        source = [f"Paper: {'; '.join(settings)}."] if settings else []
        return [f"## {name[0].upper()}{name[1:]}", table(head, lines.values()), *source]

    def _measured(
        self, system: str, task: str, metric: str, unit: Unit = percentage, averaged: Sequence[str] = ()
    ) -> str:
        """Our figure; an average only where every task of it has one."""
        if task == POOLED:
            return _cell(self.results.pooled(system, metric), unit=unit)
        tasks = (averaged or self.paper.tasks) if task == AVERAGE else [task]
        figure, over_all = (
            _average([self.results.figure(of_task, system, name) for of_task in tasks])
            for name in (metric, f"{metric}:{ALL}")
        )
        return _cell(figure, over_all, unit)

    def _missing(self) -> list[str]:
        judges = list(dict.fromkeys(name for row in self.results.rows for name in row.off_format))
        head = ["task", "system", "questions", "answered", "no answer", "cut", "no choice", "draft kept", "queries cut"]
        head.append("cut at limit %")
        head += [f"{name}: n / off format / no reply" for name in judges]
        lines = []
        for row in self.results.rows:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in row.reasons.items())
            line = [row.task, row.system, str(row.questions), str(row.answered), reasons or "0"]
            counts = (row.cut, row.no_choice, row.draft_kept, row.truncated)
            line += [*map(str, counts), _cell(row.means.get(CUT_AT_LIMIT, NOTHING))]
            lines.append([*line, *(_judge_cell(row, judge) for judge in judges)])
        return [
            "## What is missing",
            table(head, lines),
            "None of these is a 0: what has no answer or no verdict is left out of the means. An answer that names no "
            "option is a wrong one. *Draft kept*: the judgement of the method could not be read, and its draft is the "
            "answer. *Cut*: answers that ended at their token limit. *Queries cut*: texts that the retriever read only "
            "up to its limit (`query_max_length`). *Cut at limit*: questions for which any text of the method or the "
            "reader ended at its token limit.",
            "\n".join(f"- {note}" for row in self.results.rows for note in self._warning(row)),
        ]

    def _warning(self, row: PaperRow) -> list[str]:
        share, label = row.means.get(CUT_AT_LIMIT, NOTHING).value, f"{row.system} in {row.task}"
        remedy = "Raise the limits of tokens in its settings, method_max_tokens if set, or max_tokens of the reader."
        return [f"{label}: {cut_warning(share)} {remedy}"] if (share or 0) >= CUT_OFTEN else []

    def _shift(self) -> list[str]:
        if not self.results.shifts:
            return []
        figures = {(figure.task, figure.metric): figure for figure in self.reference.figures}
        lines = []
        for row in self.results.shifts:
            shift, right = row.shift, row.only == "right"
            paper = [figures.get((row.task, f"shift:{name}")) if right else None for name in ("n", "zero", "mean")]
            lines.append(
                [
                    row.task,
                    f"{row.system} / {row.against}",
                    "first right, second wrong" if right else "all",
                    str(shift.n),
                    str(shift.empty),
                    percentage(shift.zero_overlap),
                    decimal(shift.mean_overlap, 2),
                    decimal(shift.mean_shared, 2),
                    " · ".join(_published(cell) for cell in paper if cell),
                ]
            )
        head = ["task", "systems", "questions", "n", "empty", "zero overlap %", "mean overlap", "mean shared"]
        return ["## Retrieval shift", table([*head, "paper: n · zero · mean"], lines)]

    def _sweep(self, sweep: Sweep, curve: str | None) -> list[str]:
        theirs = {
            figure.system: figure
            for figure in self.reference.figures
            if (figure.task, figure.metric) == (sweep.task, f"sweep:{sweep.metric}")
        }
        names = {
            (system, value): swept(system, sweep.settings_of(system), value)
            for system in sweep.systems
            for value in sweep.values
        }
        printed = [system for system in sweep.systems if any(names[system, value] in theirs for value in sweep.values)]
        points = {system: dict(sweep_points(sweep, system, self.results)) for system in sweep.systems}
        rows = [
            [
                f"{value:g}",
                *(_cell(points[system][value]) for system in sweep.systems),
                *(_published(theirs.get(names[system, value])) for system in printed),
            ]
            for value in sweep.values
        ]
        setting = setting_label(sweep)
        head = [
            setting,
            *(f"{system}: {HERE}" for system in sweep.systems),
            *(f"{name}: paper" for name in printed),
        ]
        return [
            f"## {', '.join(sweep.systems)} by {setting}, {sweep.task}: {_name(sweep.metric)}",
            table(head, rows),
            f"![{setting}]({curve})" if curve is not None else "",
        ]

    def _costs(self) -> list[str]:
        lines = [
            [row.task, row.system, *(_cell(row.means[name], unit=_number) for name in COSTS)]
            for row in self.results.rows
        ]
        return ["## Cost of a question", table(["task", "system", *map(_name, COSTS)], lines)]

    def _tests(self) -> list[str]:
        if not self.results.comparisons:
            return []
        lines = [
            [
                row.task,
                _name(row.metric),
                f"{row.system} / {row.baseline}",
                str(row.test.n),
                f"{percentage(row.test.mean_a)} / {percentage(row.test.mean_b)}",
                f"{row.test.higher} / {row.test.lower}",
                row.test.test,
                p_cell(row.test.p),
                p_cell(row.p_holm),
                "†" * row.significant,
            ]
            for row in self.results.comparisons
        ]
        head = ["task", "metric", "systems", "n", "means %", "higher / lower", "test", "p", "p (Holm)", ""]
        return [
            "## Tests",
            table(head, lines),
            "One-sided in the direction that is better: the exact binomial test on discordant pairs for yes and no, "
            "Wilcoxon's signed-rank test for other values. Holm's correction runs over all lines. † p (Holm) < 0.05.",
        ]

    def _provenance(self, facts: Mapping[str, Any]) -> str:
        lines = [f"- {note}" for note in self.reference.notes]
        lines += [
            f"- {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            for name, value in facts.items()
            if value is not None and name != "identity"
        ]
        return "\n".join(["## Provenance", "", *lines])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with left-aligned columns."""
    return "\n".join(markdown_table(head, rows, "l" * len(head)))


def _models(facts: Mapping[str, Any]) -> str:
    counts = ", ".join(
        f"{name} n = {sample_of(count.get('sample')) or count['asked']}" for name, count in facts["questions"].items()
    )
    judge = json.dumps(facts["judge"], ensure_ascii=False) if facts["judge"] else "none"
    reader, writer = (json.dumps(facts[name], ensure_ascii=False) for name in ("reader", "writer"))
    return f"Reader {reader}; methods ask {writer}; judge {judge}. Questions: {counts}."


def _average(figures: Sequence[Mean]) -> Mean:
    """The mean over tasks, of all their questions together; only where every task has one."""
    values = [figure.value for figure in figures]
    complete = None not in values
    return Mean(mean_of(values).value if complete else None, sum(figure.n for figure in figures) if complete else 0)


def _cell(figure: Mean, over_all: Mean = NOTHING, unit: Unit = percentage) -> str:
    """A mean and its number of questions; with the mean over all questions where that is of more."""
    if figure.value is None and not over_all.n:
        return unit(None)
    more = f"; {unit(over_all.value)} of {over_all.n}" if over_all.n > figure.n else ""
    return f"{unit(figure.value)} ({figure.n}{more})"


def _judge_cell(row: PaperRow, judge: str) -> str:
    if judge not in row.off_format:
        return ""
    n = row.means[DUR if judge == "utility" else judge].n
    return f"{n} / {row.off_format[judge]} / {row.unjudged[judge]}"


def _published(figure: PublishedFigure | None) -> str:
    """As the paper prints it."""
    return f"{figure.value:g}" if figure is not None else ""


def _name(metric: str) -> str:
    return NAMES.get(metric, metric.replace("_", " "))
