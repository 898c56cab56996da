"""`querylect data check`: contents of a BEIR folder, integrity of its files, overlap of its splits."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from ..storage import file_sha256, writing
from .beir import beir_folder, load_beir, read_meta
from .known import known
from .leakage import exact_leaks, near_leaks, near_overlap, overlap, write_leaks
from .types import Dataset


def check(path: Path, leaks_file: Path | None = None) -> Iterator[str]:
    """Yield the lines of the report: files, counts, overlap of splits, notes.

    `leaks_file` gets one line for each leaking question. Raises DataError if the dataset is inconsistent or a file was
    changed after it was written, StorageError if the file cannot be written.
    """
    folder = beir_folder(path)
    recorded = read_meta(folder).get("sha256")
    digests = recorded if isinstance(recorded, dict) else {}
    files = {name: folder / name for name in digests}
    changed = [name for name, file in files.items() if not file.is_file() or file_sha256(file) != digests[name]]
    if changed:
        raise DataError(
            f"{folder}: {len(changed)} of {len(files)} files are missing or were changed after they were written: "
            f"{', '.join(changed[:5])}. Remove the folder and get or prepare it again."
        )
    if files:
        yield f"{len(files)} files, each with the sha256 that was written down"
    dataset = load_beir(folder)
    yield from _counts(dataset)
    yield from _expected(dataset)
    leaks, near = exact_leaks(dataset.splits), near_leaks(dataset.splits)
    yield from overlap(dataset.name, leaks) or [f"{dataset.name}: no question stands in two splits, by id or by text"]
    yield from near_overlap(dataset.name, dataset.splits, near)
    yield from dataset.notes
    if leaks_file is not None:
        with writing(leaks_file):
            write_leaks(leaks_file.expanduser(), (leak.record() for leak in (*leaks, *near)))
        count = len(leaks) + len(near)
        yield f"{leaks_file}: {count} pairs of questions; to leave them out: env.dataset.leave_out={leaks_file}"


def _counts(dataset: Dataset) -> Iterator[str]:
    ids = ", documents with the id of a question are ignored in its ranking" if dataset.ignore_identical_ids else ""
    yield f"{dataset.name}: {len(dataset.corpus):,} documents{ids}"
    for name, split in dataset.splits.items():
        irrelevant = sum(map(len, split.qrels.values())) - split.relevant
        grades = sorted({grade for judged in split.qrels.values() for grade in judged.values()})
        yield (
            f"{name}: {len(split.questions):,} questions, {split.relevant:,} judgements above 0 "
            f"({split.relevant / len(split.questions):.2f} a question; grades {', '.join(map(str, grades))})"
            + (f", {irrelevant:,} others" if irrelevant else "")
        )


def _expected(dataset: Dataset) -> Iterator[str]:
    """How the counts differ from the published ones, for a dataset of BEIR."""
    entry = known().get(f"beir/{dataset.name}")
    split = dataset.splits.get(entry.split) if entry else None
    if entry is None or split is None:
        return
    counts = {"documents": len(dataset.corpus), "questions": len(split.questions), "judgements": split.relevant}
    differences = [
        f"{counts[name]:,} {name}, not {count:,}" for name, count in entry.counts.items() if counts[name] != count
    ]
    comparison = "; ".join(differences) if differences else "as many documents, questions and judgements as published"
    yield f"beir/{dataset.name}, {entry.split}: {comparison}"
