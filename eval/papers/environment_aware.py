"""The paper on environment-aware retrieval: an evaluation spec, and its figures beside those of the paper's tables.

Its systems are rewriters, untrained or trained, and not methods that answer questions; so it is an evaluation
(eval/spec.py) with one more file, results.md.
"""

from pathlib import Path

import pandas as pd

from ...configs.evaluation import SpecConfig
from ...configs.paper import ENVIRONMENT_AWARE
from ...data.published import Published, published
from ...errors import QuerylectError
from ...storage import write_text
from ..results import EvalResults
from ..spec import evaluate_spec
from ..table import MEAN, percentage
from .tables import markdown

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

    def write_page(folder: Path, results: EvalResults) -> None:
        write_text(folder / "results.md", results_page(spec, results, published(ENVIRONMENT_AWARE)))

    path, failed = evaluate_spec(spec, output, overwrite, beside=write_page)
    return path.with_name("results.md"), failed


def results_page(spec: SpecConfig, results: EvalResults, theirs: Published) -> str:
    """For each retriever, and dataset with parts, a table of our rows and the paper's."""
    metric = spec.metrics[0]
    rows = [
        {
            "": "here",
            "environment": score.environment,
            "dataset": score.dataset,
            "part": score.part,
            "system": score.label,
            "cell": f"{percentage(score.mean)} ({score.n})",
        }
        for score in results.scores
        if score.dataset != MEAN
    ]
    shown = {(row["environment"], row["dataset"], row["part"]) for row in rows}
    for figure in theirs.figures:
        dataset, _, part = figure.task.partition("/")
        if (figure.generator, dataset, part) in shown and figure.metric == metric:
            cell = {"": "paper", "dataset": dataset, "part": part, "system": figure.system, "cell": f"{figure.value:g}"}
            rows.append(cell | {"environment": figure.generator})
    frame = pd.DataFrame(rows)
    average = frame["dataset"].map(lambda name: "average" if name in spec.parts else name)
    frame["column"] = frame["part"].where(frame["part"] != "", average)
    frame["group"] = frame["dataset"].where(average == "average", "")
    models = [
        f"{name}: {system.run or (system.llm or system.policy or spec.policy).model}"
        for name, system in spec.systems.items()
        if system.training_free is None
    ]
    parts = ["# Environment-aware retrieval", theirs.citation, CHECK, f"Models: {', '.join(models) or 'none'}."]
    for (group, environment), cells in frame.groupby(["group", "environment"], sort=False):
        table = cells.pivot(index=["", "system"], columns="column", values="cell").fillna("–")
        ours = [*sorted(set(cells["column"]) - {"average"}, key=list(cells["column"]).index), "average"]
        table = table.reindex(cells.set_index(["", "system"]).index.unique())
        table = table.reindex(columns=[name for name in ours if name in table]).reset_index()
        datasets = ", ".join(dict.fromkeys(cells["dataset"]))
        parts += [f"## {group or datasets}: {metric}, {environment}", markdown(table)]
    parts.append("\n".join(f"- {note}" for note in (*theirs.notes, *(note.text for note in results.notes))))
    return "\n\n".join(part for part in parts if part) + "\n"
