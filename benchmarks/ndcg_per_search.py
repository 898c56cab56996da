"""nDCG@10 beside the mean number of searches, for each system and turn of some evaluated runs (docs/stop.md).

python benchmarks/ndcg_per_search.py RUN...

RUN is a run folder with `eval.jsonl`. Runs that differ in `reward.search_price` are the points of a curve.
"""

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean

from querylect.configs.load import load_config
from querylect.eval.records import EvalRecord, read_records
from querylect.markdown_tables import markdown_table

METRIC = "ndcg@10"
HEAD = ("run", "price of a search", "system, turn", METRIC, "searches per question")


def rows(folder: Path) -> list[list[str]]:
    """The rows of one run, in the order of its systems; questions without a score are left out."""
    price = load_config(str(folder / "config.yaml"), []).reward.search_price

    def system(record: EvalRecord) -> tuple[str, int]:
        return record.system, record.turn

    scored = [record for record in read_records(folder / "eval.jsonl") if record.metrics[METRIC] is not None]
    table = []
    for (name, turn), group in groupby(sorted(scored, key=system), key=system):
        records = list(group)
        score = fmean(record.metrics[METRIC] or 0.0 for record in records)
        searches = fmean(record.searches for record in records)
        table.append([folder.name, f"{price:g}", f"{name}, {turn}", f"{score:.3f}", f"{searches:.2f}"])
    return table


def main(arguments: Sequence[str]) -> None:
    table = [row for argument in arguments for row in rows(Path(argument))]
    print("\n".join(markdown_table(HEAD, table, "lrlrr")))


if __name__ == "__main__":
    main(sys.argv[1:])
