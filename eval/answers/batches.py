"""One record per case, batch by batch: what `querylect answers` and `querylect paper` have in common.

A case whose key is in the journal keeps what was asked for it. The others are made in batches, each of which is on the
disk before the next begins, so the command that is given again after a kill goes on where it stopped.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from ...errors import EngineUnavailableError
from ...llms.access import Llm
from ...storage import KeyedJournal, Record

Case = TypeVar("Case")


def keyed_records(
    cases: Sequence[tuple[Case, str]],
    journal: KeyedJournal[Record],
    make: Callable[[Sequence[tuple[Case, str]]], Sequence[Record]],
    reuse: Callable[[Case, Record], Record],
    batch: int,
    advance: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """The record of each case with its key, in order.

    `make` answers some cases; of those with the same key, only the first is asked. `reuse` adapts a record to a case:
    to its name and to what is right, which are no part of the key. `advance` is called with the number of cases made
    so far and of all that have to be made.
    """
    known = {key: record for _, key in cases if (record := journal.get(key)) is not None}
    unknown: dict[str, Case] = {}
    for case, key in cases:
        if key not in known:
            unknown.setdefault(key, case)
    pending = [(case, key) for key, case in unknown.items()]
    for start in range(0, len(pending), batch):
        part = pending[start : start + batch]
        new = make(part)
        journal.append(new)
        known |= {key: record for (_, key), record in zip(part, new, strict=True)}
        if advance is not None:
            advance(start + len(part), len(pending))
    return [reuse(case, known[key]) for case, key in cases]


def refuse_silence(missing: Sequence[bool], reader: Llm) -> None:
    """Raise EngineUnavailableError where every reply is missing; `missing` has one entry for each."""
    if missing and all(missing):
        raise EngineUnavailableError(
            f"none of {len(missing)} questions got a reply ({dict(reader.costs.missing)}); nothing was tabulated. "
            "Check the reader and run the same command again.",
            code="no-replies",
        )


def reader_name(model: str) -> str:
    """The folder name of a reader: the last part of the model's name in letters, digits, dots, - and _."""
    last = re.split(r"[/:]", model.rstrip("/"))[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip(".-") or "reader"
