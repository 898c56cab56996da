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
from ..results import Results
from ..spec import evaluate_spec
from ..table import MEAN, Score, percentage
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

    def write_page(folder: Path, results: Results) -> None:
        write_text(folder / "results.md", results_page(spec, results, published(ENVIRONMENT_AWARE)))

    path, failed = evaluate_spec(spec, output, overwrite, beside=write_page)
    return path.with_name("results.md"), failed


def results_page(spec: SpecConfig, results: Results, theirs: Published) -> str:
    """The whole page."""
    parts = ["# Environment-aware retrieval", theirs.citation, CHECK, _models(spec)]
    with_parts = [dataset for dataset in results.datasets if dataset in spec.datasets and spec.has_parts(dataset)]
    groups = {dataset: [(dataset, part) for part in results.parts(dataset)] for dataset in with_parts}
    rest = [dataset for dataset in results.datasets if dataset != MEAN and dataset not in with_parts]
    groups[", ".join(rest)] = [(dataset, "") for dataset in rest]
    for title, columns in groups.items():
        for environment in results.environments if columns else ():
            parts += [f"## {title}: {spec.metrics[0]}, {environment}", _table(results, columns, environment, theirs)]
    parts.append("\n".join(f"- {note}" for note in (*theirs.notes, *(note.text for note in results.notes))))
    return "\n\n".join(part for part in parts if part) + "\n"


def _models(spec: SpecConfig) -> str:
    asked = {
        name: system.run or (system.llm or system.policy or spec.policy).model
        for name, system in spec.systems.items()
        if system.training_free is None
    }
    return f"Models: {', '.join(f'{name}: {model}' for name, model in asked.items()) or 'none'}."


def _table(results: Results, columns: Sequence[tuple[str, str]], environment: str, theirs: Published) -> str:
    """Our rows, then the paper's; a column for each dataset, or for each part of one and their average ("")."""
    metric = results.metrics[0]
    figures = {
        (figure.system, figure.task): figure.value
        for figure in theirs.figures
        if (figure.generator, figure.metric) == (environment, metric)
    }
    rows = []
    for arm in dict.fromkeys(score.arm for score in results.scores):
        scores = [results.score(arm, dataset, environment, part) for dataset, part in columns]
        if any(scores):
            rows.append([HERE, results.label(arm), *(_cell(score) for score in scores)])
    tasks = [f"{dataset}/{part}" if part else dataset for dataset, part in columns]
    for system in dict.fromkeys(system for system, task in figures if task in tasks):
        values = [figures.get((system, task)) for task in tasks]
        rows.append([THEIRS, system, *("" if value is None else f"{value:g}" for value in values)])
    averaged = any(part for _, part in columns)
    return table(["", "system", *(part or ("average" if averaged else dataset) for dataset, part in columns)], rows)


def _cell(score: Score | None) -> str:
    return "–" if score is None else f"{percentage(score.mean)} ({score.n})"
