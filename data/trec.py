"""Judgements as in BEIR's qrels or in those of TREC."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from .jsonl import read_lines

JUDGEMENT_COLUMNS = ("query-id", "corpus-id", "score")
_ITERATION = {"0", "q0", "iter", "iteration", "iter_id", "unused"}
_GRADE = {"score", "rel", "relevance", "label", "grade"}
"""What a header line of TREC's form may call its second and fourth column."""


def read_judgements(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """Yield (line number, (question, document, grade)): three fields with tabs, or TREC's four with any white space.

    The first line may be a header. Raises DataError for a missing or unreadable file and for another line.
    """
    first = True
    for number, line in read_lines(path, "judgements, one per line"):
        fields, trec = line.split("\t"), line.split()
        names, first = [field.lower() for field in trec] if first else [], False
        if tuple(names) == JUDGEMENT_COLUMNS or (len(names) == 4 and names[1] in _ITERATION and names[3] in _GRADE):
            continue
        if len(fields) == 3:
            yield number, (fields[0], fields[1], fields[2])
        elif len(trec) == 4:
            yield number, (trec[0], trec[2], trec[3])
        else:
            raise DataError(
                f"{path}, line {number}: {line!r}; expected 'query-id<TAB>corpus-id<TAB>score' (a header may only be "
                "the first line), or TREC's 'query-id 0 corpus-id score'. Correct the line."
            )
