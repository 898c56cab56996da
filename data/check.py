"""`querylect data check`: contents of a BEIR folder, integrity of its files, overlap of its splits."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from ..storage import file_sha256, writing
from .beir import beir_folder, load_beir, read_meta
from .leakage import described, exact_leaks, near_leaks
from .rows import write_rows


def check(path: Path, leaks_file: Path | None = None) -> Iterator[str]:
    """Yield the lines of the report: files, counts, overlap of splits, notes.

    `leaks_file` gets one line for each leaking question. Raises DataError if the dataset is inconsistent or a file was
    changed after it was written, StorageError if the file cannot be written.
    """
    folder = beir_folder(path)
    digests = read_meta(folder).sha256
    changed = [name for name, digest in digests.items() if _digest(folder / name) != digest]
    if changed:
        raise DataError(
            f"{folder}: {len(changed)} of {len(digests)} files are missing or were changed after they were written: "
            f"{', '.join(changed[:5])}. Remove the folder and get or prepare it again."
        )
    if digests:
        yield f"{len(digests)} files, each with the sha256 that was written down"
    dataset = load_beir(folder)
    ids = ", documents with the id of a question are ignored in its ranking" if dataset.ignore_identical_ids else ""
    yield f"{dataset.name}: {len(dataset.corpus):,} documents{ids}"
    for name, split in dataset.splits.items():
        grades = sorted({grade for judged in split.qrels.values() for grade in judged.values()})
        total = sum(map(len, split.qrels.values()))
        yield (
            f"{name}: {len(split.questions):,} questions, {total:,} judgements, {split.relevant:,} above 0 "
            f"({split.relevant / len(split.questions):.2f} a question; grades {', '.join(map(str, grades))})"
        )
    leaks = [*exact_leaks(dataset.splits), *near_leaks(dataset.splits)]
    yield from described(dataset.name, leaks) or [f"{dataset.name}: no question stands in two splits"]
    yield from dataset.notes
    if leaks_file is not None:
        with writing(leaks_file):
            write_rows(leaks_file.expanduser(), (leak.record() for leak in leaks))


def _digest(file: Path) -> str:
    return file_sha256(file) if file.is_file() else ""
