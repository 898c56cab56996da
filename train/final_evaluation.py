"""The final evaluation in the Weights & Biases run of its run folder.

Training has closed that run when the evaluation begins, perhaps on another machine: it is opened once more under its
id. The figures go into its summary, by which W&B sorts and compares the runs of a group. An upload of an offline run
replaces the summary, so it is written whole: the last figures of training, too, and every environment of a mix.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..configs.mix import environments
from ..configs.schema import RunConfig
from ..errors import in_one_line
from ..storage import parse_json

log = logging.getLogger(__name__)


def track_evaluation(config: RunConfig, run: Path, report: Path) -> None:
    """Put the results of an evaluated run into the summary of the W&B run of its folder `run`.

    Does nothing if W&B is disabled or did not track the run, or if `report` (report.html) is not of the run itself but
    of other questions or another checkpoint. A failure is logged and changes nothing else.
    """
    if not (run / "tracking_id").is_file():
        return
    from ..eval.run import report_folder
    from .sync import credentials
    from .tracking import TrackedRun, open_wandb, wandb_mode  # which imports transformers

    mode = wandb_mode(config.tracking)
    folders = {name: report_folder(run, name) if config.mix is not None else run for name in environments(config)}
    if mode == "disabled" or report.parent not in folders.values():
        return
    try:
        summary = _last_of_training(run)
        for name, folder in folders.items():
            if (folder / "results.json").is_file():
                results = parse_json((folder / "results.json").read_text(encoding="utf-8"))
                summary |= dict(_final_figures(results, f"final/{name}/" if name else "final/"))
        online = mode == "online" and credentials() is not None
        provenance = run / "provenance.json"
        starts = parse_json(provenance.read_text(encoding="utf-8"))["starts"] if provenance.is_file() else [{}]
        tracked = TrackedRun.of(config, run, starts[-1])
        opened = open_wandb(tracked, online, tracked.joined, tracked.description)
        opened.summary.update(summary)
        opened.finish()
    except Exception as error:  # noqa: BLE001 (a failing tracker must not fail the evaluation)
        log.warning(
            "Weights & Biases does not get all of this evaluation (%s); %s has every figure",
            in_one_line(error), report.with_name("results.json"),
        )  # fmt: skip


def _final_figures(results: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float | str]]:
    """Names and values of the summary: the questions, and every metric of every system."""
    yield f"{prefix}split", results["split"]
    yield f"{prefix}questions", results["questions"]
    for row in results["systems"]:
        system = row["system"] + (f"/turn{row['turn']}" if row["turn"] else "")
        for metric, value in row["metrics"].items():
            yield f"{prefix}{system}/{metric}", value


def _last_of_training(run: Path) -> dict[str, float | str]:
    """The last step and the last validation, under the names that they have during training."""
    from transformers.integrations.integration_utils import rewrite_logs

    from .run_folder import RunFolder

    folder = RunFolder(run)
    last: dict[str, float] = {}
    for prefix, file in (("eval_", folder.validation), ("", folder.metrics)):
        for record in folder.read(file)[-1:]:
            last |= {f"{prefix}{name}": value for name, value in record.items() if name != "step"}
    return dict(rewrite_logs(last))
