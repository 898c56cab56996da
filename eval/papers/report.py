"""The files of a paper that was run again: results.json, results.md, and a curve for each sweep."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...configs.paper import PaperConfig, PaperSystem
from ...llms.structured import version_in
from ..provenance import versions
from ..records import write_text
from ..tasks import generator
from ..tasks.items import Items
from ..tasks.judges import JUDGES
from .records import PaperRecord
from .results import tabulate_paper
from .sweeps import draw_sweep
from .tables import markdown


def write_results(
    folder: Path,
    paper: PaperConfig,
    systems: Mapping[str, PaperSystem],
    tasks: Mapping[str, Items],
    records: Sequence[PaperRecord],
    facts: Mapping[str, Any],
) -> Path:
    """Write results.json, results.md and the curves of sweeps; return the path of results.md."""
    results = tabulate_paper(paper, records)
    curves: dict[int, str] = {}
    for number, sweep in enumerate(paper.sweeps, start=1):
        curve = draw_sweep(sweep, results)
        if curve is not None:
            curves[number] = f"sweep-{number}.svg"
            write_text(folder / curves[number], curve)
    details = {
        **facts,
        "form": paper.form,
        "generator": generator.VERSION,
        "judges": {
            name: version_in(JUDGES[name].version, paper.form)
            for name in dict.fromkeys(name for task in paper.tasks.values() for name in task.judges)
            if paper.judging
        },
        "questions": {
            name: {
                "asked": len(items.items),
                "skipped": items.skipped,
                "sample": asdict(items.sample) if items.sample else None,
            }
            for name, items in tasks.items()
        },
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
    }
    content = {
        "paper": paper.name,
        "rows": [asdict(row) for row in results.rows],
        "comparisons": [
            {**asdict(comparison), "significant": comparison.significant} for comparison in results.comparisons
        ],
        "shifts": [asdict(row) for row in results.shifts],
        "cases": [asdict(row) for row in results.cases],
        **details,
        "settings": paper.model_dump(mode="json"),
    }
    write_text(folder / "results.json", json.dumps(content, ensure_ascii=False, indent=2, default=str) + "\n")
    write_text(folder / "results.md", markdown(paper, systems, results, details, curves))
    return folder / "results.md"
