"""`querylect data check`: contents of a dataset folder, integrity of its files, overlap of its splits."""

from collections.abc import Iterator
from pathlib import Path

from ..configs.schema import DatasetConfig
from ..errors import DataError
from ..storage import writing
from .beir import load_beir, read_meta
from .benchmark import load_benchmark
from .convert import CONVERTED
from .fetched import changed_files, source_of
from .known import known
from .leakage import (
    exact_leaks,
    near_leaks,
    near_overlap,
    overlap,
    write_leaks,
)
from .load import open_benchmark
from .types import Dataset


def check(
    path: Path,
    config: DatasetConfig | None = None,
    leaks_file: Path | None = None,
) -> Iterator[str]:
    """Yield the lines of the report: files, counts, overlap of splits, notes.

    `path` is a BEIR folder or one that `data get` wrote; for any other folder `config` says how to read it.
    `leaks_file` gets one line for each leaking question.
    Raises DataError if the dataset is inconsistent or a file was changed after it was written, StorageError if the file
    cannot be written.
    """
    folder = path.expanduser()
    if not folder.is_dir():
        raise DataError(
            f"{folder} does not exist or is no folder; expected a dataset. Fetch one: querylect data get NAME."
        )
    source, meta = source_of(folder), read_meta(folder)
    recorded = meta.get("sha256")
    recorded = {str(name): str(value) for name, value in recorded.items()} if isinstance(recorded, dict) else {}
    checksums = source.files or recorded
    changed = changed_files(folder, checksums)
    if changed:
        raise DataError(
            f"{folder}: {len(changed)} of {len(checksums)} files are missing or were changed after they were written: "
            f"{', '.join(changed[:5])}. Remove the folder and fetch or prepare it again."
        )
    if checksums:
        yield f"{len(checksums)} files, each with the sha256 that was written down"
    if source.kind in CONVERTED:
        yield f"{source.name}: to be converted before it is checked: querylect data prepare {source.name} --to FOLDER"
        return
    if config is None and source.kind:
        config = DatasetConfig.model_validate({"kind": source.kind, "path": str(folder)})
    dataset = load_beir(folder) if config is None else load_benchmark(open_benchmark(config))
    yield from _counts(dataset)
    yield from _expected(dataset, folder)
    yield from overlap(dataset) or [f"{dataset.name}: no question stands in two splits, by id or by words"]
    leaks = [*exact_leaks(dataset.splits), *(near := near_leaks(dataset.splits))]
    yield from near_overlap(dataset, near)
    yield from dataset.notes
    if leaks_file is not None:
        with writing(leaks_file):
            write_leaks(leaks_file.expanduser(), (leak.record() for leak in leaks))
        yield f"{leaks_file}: {len(leaks)} pairs of questions; to leave them out: env.dataset.leave_out={leaks_file}"


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


def _expected(dataset: Dataset, folder: Path) -> Iterator[str]:
    entry = known().get(f"beir/{dataset.name}")
    split = dataset.splits.get(entry.split) if entry else None
    if entry is None or split is None:
        return
    counts = {
        "documents": len(dataset.corpus),
        "questions": len(split.questions),
        "judgements": split.relevant,
    }
    differences = [
        f"{counts[name]:,} {name}, not {count:,}" for name, count in entry.counts.items() if counts[name] != count
    ]
    comparison = "; ".join(differences) if differences else "as many documents, questions and judgements as published"
    yield f"beir/{dataset.name}, {entry.split}: {comparison}"
