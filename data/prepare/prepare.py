"""Converts a published benchmark into a BEIR folder without near-duplicates.

The corpus is streamed: only its ids are in memory. The folder is written atomically; until then `.NAME.partial` beside
it holds the finished embeddings, with which a second call continues.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from ...configs.schema import DatasetConfig
from ...errors import DataError
from ...logs import Progress
from ...storage import file_sha256, storage, write_lines
from ..beir import document_line, question_line, refuse_existing, write_meta, write_qrels
from ..benchmark import Benchmark, moved_judgements, unique, within_corpus
from ..leakage import near_overlap, without_leaks
from ..load import document_record, open_benchmark
from ..types import Dataset, Split
from .near_duplicates import DocumentEncoder, embed, near_duplicates

Stage = Callable[[str], AbstractContextManager[Progress | None]]
"""Returns the progress of a stage of that title."""

_PLAN = "plan.json"
DUPLICATES = "duplicates.tsv"


class NearDuplicates(TypedDict):
    """How near-duplicates were found, and how many documents were removed."""

    encoder: str
    model: str
    max_length: int
    cosine_over: float
    removed: int


class PreparedMeta(TypedDict):
    """meta.json of a prepared folder; counts are by split, `judgements` also those of grade 0."""

    name: str
    licence: str
    ignore_identical_ids: bool
    relevance_level: int
    made_from: dict[str, object]
    documents: int
    questions: dict[str, int]
    judgements: dict[str, int]
    near_duplicates: NearDuplicates | None
    notes: list[str]
    sha256: dict[str, str]


def prepare(
    config: DatasetConfig,
    target: Path,
    encoder: Callable[[], DocumentEncoder] | None = None,
    duplicates: float = 0.99,
    near_leaks: bool = False,
    restart: bool = False,
    stage: Stage = lambda _: nullcontext(),
) -> PreparedMeta:
    """Write a published benchmark as the new BEIR folder `target`; return its meta.json.

    `encoder` opens the encoder of the documents. Of documents with a cosine over `duplicates` the first stays and
    inherits the judgements of the others; the higher grade wins. Without an encoder no document is removed.
    `near_leaks` also removes questions that nearly repeat one of a later split. `restart` discards the work of an
    interrupted call.

    Raises DataError as the reader does, if the target exists, or if an interrupted call had another corpus or encoder;
    StorageError if the files cannot be written.
    """
    target = target.expanduser()
    refuse_existing(target)
    staging = target.with_name(f".{target.name}.partial")
    if restart:
        shutil.rmtree(staging, ignore_errors=True)
    benchmark = open_benchmark(config)
    if near_leaks:
        splits, notes = without_leaks(benchmark.name, benchmark.splits, near=True)
        benchmark = replace(benchmark, splits=splits, notes=(*benchmark.notes, *notes))
    with storage(
        lambda error: (
            f"dataset {target} could not be written ({error}); the embeddings that are done are kept, and the same "
            "command goes on with them. Free some space or name another folder."
        )
    ):
        staging.mkdir(parents=True, exist_ok=True)
        removed, details = (
            ({}, None) if encoder is None else _duplicates(benchmark, encoder(), duplicates, staging, stage)
        )
        meta = _write(benchmark, config, removed, details, staging / "folder")
        (staging / "folder").rename(target)
        shutil.rmtree(staging)
    return meta


def _duplicates(
    benchmark: Benchmark, encoder: DocumentEncoder, threshold: float, staging: Path, stage: Stage
) -> tuple[dict[str, tuple[str, float]], NearDuplicates]:
    """Id of a removed document → (id of the remaining one, cosine), and the entry for meta.json."""
    total, digest = _corpus_digest(benchmark)
    identity = encoder.identity
    plan = {"corpus": digest, **identity}
    path = staging / _PLAN
    if path.is_file():
        if path.read_text(encoding="utf-8") != json.dumps(plan):
            raise DataError(
                f"{staging} holds embeddings of another corpus or by another encoder, from an interrupted call. "
                "Give --restart to discard them, or write to another folder."
            )
    else:
        shutil.rmtree(staging / "vectors", ignore_errors=True)
        path.write_text(json.dumps(plan), encoding="utf-8")
    vectors = staging / "vectors"
    with stage("embedding") as progress:
        embed(benchmark.documents(), encoder, vectors, progress and (lambda done, _: progress(done, total)))
    with stage("comparing") as progress:
        matches = near_duplicates(vectors, total, threshold, progress)
    needed = {duplicate.position for duplicate in matches} | {duplicate.kept for duplicate in matches}
    ids = {position: document.id for position, document in enumerate(benchmark.documents()) if position in needed}
    details: NearDuplicates = {
        "encoder": identity["recipe"]["name"],
        "model": identity["encoder"],
        "max_length": identity["recipe"]["max_length"],
        "cosine_over": threshold,
        "removed": len(matches),
    }
    return {ids[duplicate.position]: (ids[duplicate.kept], duplicate.cosine) for duplicate in matches}, details


def _corpus_digest(benchmark: Benchmark) -> tuple[int, str]:
    """The number of documents, and a sha256 over all of them."""
    digest, total = hashlib.sha256(), 0
    for document in unique(benchmark):
        digest.update(document_record(document))
        total += 1
    return total, digest.hexdigest()


def _write(
    benchmark: Benchmark,
    config: DatasetConfig,
    removed: Mapping[str, tuple[str, float]],
    details: NearDuplicates | None,
    folder: Path,
) -> PreparedMeta:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "qrels").mkdir(parents=True)
    ids: set[str] = set()
    write_lines(folder / "corpus.jsonl", _corpus_lines(benchmark, removed, ids))
    splits, notes = within_corpus(benchmark.name, benchmark.splits, ids | removed.keys())

    def remaining(document: str) -> list[str]:
        return [removed[document][0] if document in removed else document]

    inherited = {
        name: Split(split.questions, moved_judgements(split.qrels, remaining)) for name, split in splits.items()
    }
    questions = {question.id: question for split in inherited.values() for question in split.questions}
    write_lines(folder / "queries.jsonl", map(question_line, questions.values()))
    write_qrels(folder, inherited)
    if details is not None:
        lines = (f"{document}\t{survivor}\t{cosine:.6f}" for document, (survivor, cosine) in removed.items())
        write_lines(folder / DUPLICATES, ["removed\tkept\tcosine", *lines])
    near = near_overlap(Dataset(benchmark.name, (), inherited))
    meta: PreparedMeta = {
        "name": benchmark.name,
        "licence": benchmark.licence,
        "ignore_identical_ids": benchmark.ignore_identical_ids,
        "relevance_level": benchmark.relevance_level,
        "made_from": {**benchmark.about, "path": config.path},
        "documents": len(ids),
        "questions": {name: len(split.questions) for name, split in inherited.items()},
        "judgements": {name: split.relevant for name, split in inherited.items()},
        "near_duplicates": details,
        "notes": [*benchmark.notes, *notes, *near],
        "sha256": {
            str(path.relative_to(folder)): file_sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()
        },
    }
    write_meta(folder, meta)
    return meta


def _corpus_lines(benchmark: Benchmark, removed: Mapping[str, tuple[str, float]], ids: set[str]) -> Iterator[str]:
    """Yield the lines of the remaining documents, and add their ids to `ids`."""
    for document in unique(benchmark):
        if document.id not in removed:
            ids.add(document.id)
            yield document_line(document)


def summary(meta: PreparedMeta) -> Sequence[str]:
    """A summary of meta.json as lines of text."""
    questions = ", ".join(f"{count:,} {name}" for name, count in meta["questions"].items())
    lines = [f"{meta['name']}: {meta['documents']:,} documents; questions: {questions}"]
    if meta["near_duplicates"]:
        details = meta["near_duplicates"]
        lines.append(
            f"{details['removed']:,} near-duplicates removed "
            f"(cosine over {details['cosine_over']}, {details['encoder']})"
        )
    return [*lines, *meta["notes"]]
