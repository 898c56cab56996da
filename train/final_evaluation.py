"""The final evaluation in the summary of the Weights & Biases run of its run folder.

An upload of an offline run replaces the summary, so it is written whole: the last figures of training, too, and every
environment of a mix.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..configs.mix import environments
from ..configs.schema import RunConfig
from ..storage import parse_json


def track_evaluation(config: RunConfig, run: Path, report: Path) -> None:
    """Put the results of an evaluated run into the summary of the W&B run of its folder `run`.

    Does nothing if W&B did not track the run, or if `report` (report.html) is not of the run itself but of other
    questions or another checkpoint.
    """
    if not (run / "tracking_id").is_file():
        return
    from transformers.integrations.integration_utils import rewrite_logs

    from ..eval.run import report_folder
    from .run_folder import RunFolder
    from .tracking import finish_wandb, open_wandb, wandb_mode

    folders = {name: report_folder(run, name) if config.mix is not None else run for name in environments(config)}
    if wandb_mode(config.tracking) == "disabled" or report.parent not in folders.values():
        return
    folder = RunFolder(run)
    last: dict[str, float | str] = {}
    for prefix, file in (("eval_", folder.validation), ("", folder.metrics)):
        for record in folder.read(file)[-1:]:
            last |= {f"{prefix}{name}": value for name, value in record.items() if name != "step"}
    summary = dict(rewrite_logs(last))
    for name, results in ((name, path / "results.json") for name, path in folders.items()):
        if results.is_file():
            content = parse_json(results.read_text(encoding="utf-8"))
            summary |= dict(_final_figures(content, f"final/{name}/" if name else "final/"))
    open_wandb(config, run, config.model_dump(mode="json")).summary.update(summary)
    finish_wandb()


def _final_figures(results: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float | str]]:
    """Names and values of the summary: the questions, and every metric of every system."""
    yield f"{prefix}split", results["split"]
    yield f"{prefix}questions", results["questions"]
    for row in results["systems"]:
        system = row["system"] + (f"/turn{row['turn']}" if row["turn"] else "")
        for metric, value in row["metrics"].items():
            yield f"{prefix}{system}/{metric}", value
