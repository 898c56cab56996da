"""The paper on environment-aware retrieval: an evaluation spec, and its figures beside those of the paper's tables.

Its systems are rewriters, untrained or trained, and not methods that answer questions; so it is an evaluation
(eval/spec.py) with one more file, results.md.
"""

from collections.abc import Sequence
from pathlib import Path

from ...configs.evaluation import SpecConfig
from ...configs.paper import ENVIRONMENT_AWARE
from ...data.published import Published, published
from ...errors import QuerylectError
from ...storage import write_text
from ..spec import evaluate_spec
from ..table import Table, TableScore, percentage
from ..text import Page, table_notes
from .tables import HERE, table

THEIRS = "paper"
CHECK = (
    "**What these figures are.** Rows *here* are of the models named below, each cell a mean in percent and, in "
    "brackets, the number of questions that it is of. Rows *paper* are of policies that were trained for hundreds of "
    "steps, with the paper's corpora and all questions. Prompted models, small ones, other corpora or few questions "
    "check that the machinery works; they do not repeat the paper's measurement."
)


def run_environment_aware(
    spec: SpecConfig, output: Path | None = None, overwrite: bool = False
) -> tuple[Path, QuerylectError | None]:
    """Evaluate the spec and write results.md beside its files; return its path, and the error if cells failed.

    Raises what `evaluate_spec` raises.
    """

    def write_page(folder: Path, evaluated: Page) -> None:
        text = results_page(spec, evaluated.tables, evaluated.notes, published(ENVIRONMENT_AWARE))
        write_text(folder / "results.md", text)

    path, failed = evaluate_spec(spec, output, overwrite, beside=write_page)
    return path.with_name("results.md"), failed


def results_page(spec: SpecConfig, tables: Sequence[Table], notes: Sequence[str], theirs: Published) -> str:
    """The whole page; `tables` are those of the evaluation."""
    parts = ["# Environment-aware retrieval", theirs.citation, CHECK, _models(spec)]
    whole = [result for result in tables if result.dataset and not spec.has_parts(result.dataset)]
    groups = [(dataset, [result for result in tables if result.dataset == dataset]) for dataset in spec.datasets]
    groups = [(dataset, group) for dataset, group in groups if group and spec.has_parts(dataset)]
    for title, group in [*groups, (", ".join(result.dataset for result in whole), whole)]:
        for environment in spec.environments:
            columns = [result for result in group if environment in result.environments]
            if columns:
                parts += [f"## {title}: {spec.metrics[0]}, {environment}", _table(columns, environment, spec, theirs)]
    parts.append("\n".join(f"- {note}" for note in (*theirs.notes, *notes, *table_notes(tables))))
    return "\n\n".join(part for part in parts if part) + "\n"


def _models(spec: SpecConfig) -> str:
    asked = {
        name: system.run or (system.llm or system.policy or spec.policy).model
        for name, system in spec.systems.items()
        if system.training_free is None
    }
    return f"Models: {', '.join(f'{name}: {model}' for name, model in asked.items()) or 'none'}."


def _table(columns: Sequence[Table], environment: str, spec: SpecConfig, theirs: Published) -> str:
    """Our rows, then the paper's; a column for each dataset, or for each part of one and their average."""
    metric = spec.metrics[0]
    tasks = [f"{column.dataset}/{column.part}" if column.part else column.dataset for column in columns]
    figures = {
        (figure.system, figure.task): figure.value
        for figure in theirs.figures
        if (figure.generator, figure.metric) == (environment, metric)
    }
    rows = []
    for row in columns[-1].rows:
        scores = [column.score(row.arm, environment) for column in columns]
        if any(scores):
            rows.append([HERE, row.label, *(_cell(score, metric) for score in scores)])
    for system in dict.fromkeys(system for system, task in figures if task in tasks):
        values = [figures.get((system, task)) for task in tasks]
        rows.append([THEIRS, system, *("" if value is None else f"{value:g}" for value in values)])
    names = [column.part or ("average" if spec.has_parts(column.dataset) else column.dataset) for column in columns]
    return table(["", "system", *names], rows)


def _cell(score: TableScore | None, metric: str) -> str:
    return "–" if score is None else f"{percentage(score.metrics[metric])} ({score.n})"
