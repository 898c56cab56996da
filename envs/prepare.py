"""A benchmark as it is published → a BEIR folder, its near-duplicates taken out. It stands above `data/`, whose readers
it calls, because taking out near-duplicates embeds the corpus.

The corpus is read as a stream: what grows with it in memory are its ids. The folder appears complete or not at all;
until then `.NAME.partial` beside it holds the embeddings that are done, and a second call goes on with them.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..configs.schema import DatasetConfig, EnvironmentConfig
from ..data.benchmark import Benchmark, judged_within, open_benchmark, unique
from ..data.files import file_sha256, storage, write_lines
from ..data.leakage import near_overlap, without_leaks
from ..data.load import document_record
from ..data.types import Dataset, Document, Split
from ..errors import DataError

Progress = Callable[[int, int], None]
Stage = Callable[[str], Any]
"""Gives, for the title of a stage, a context manager of a Progress."""

_PLAN = "plan.json"
DUPLICATES = "duplicates.tsv"


def prepare(
    config: DatasetConfig,
    target: Path,
    encoder: EnvironmentConfig | None = None,
    duplicates: float = 0.99,
    near_leaks: bool = False,
    restart: bool = False,
    stage: Stage | None = None,
) -> dict[str, Any]:
    """Write a published benchmark as the new BEIR folder `target`; returns what its meta.json says.

    `encoder` (its retriever, model and recipe) embeds the documents; of those nearer than the cosine `duplicates` the
    first stays and inherits the judgements of the others, the higher grade where it has one of its own. Without it,
    none is taken out. `near_leaks` also takes questions out of training that are nearly those of a later split.
    `restart` discards what an interrupted call has done.

    Raises DataError as the reader does, where the target exists, or where an interrupted call was of something else;
    StorageError where the disk does not take the files.
    """
    target = target.expanduser()
    if target.exists():
        raise DataError(
            f"{target} exists already; a dataset is only written to a new folder. Remove it or name another."
        )
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
        gone, how = ({}, None) if encoder is None else _duplicates(benchmark, encoder, duplicates, staging, stage)
        meta = _write(benchmark, config, gone, how, staging / "folder")
        (staging / "folder").rename(target)
        shutil.rmtree(staging)
    return meta


def _duplicates(
    benchmark: Benchmark, config: EnvironmentConfig, threshold: float, staging: Path, stage: Stage | None
) -> tuple[dict[str, tuple[str, float]], dict[str, Any]]:
    """Id of a document that goes → (id of the one that stays, cosine), and what meta.json says of it."""
    from .encoder import Encoder
    from .near_duplicates import embed, near_duplicates
    from .recipes import recipe_of

    recipe = recipe_of(config)
    if recipe.kind != "dense":
        raise DataError(f"--encoder {config.retriever!r} is no encoder; expected a dense retriever's recipe or model.")
    encoder = Encoder.open(recipe)
    total, digest = _corpus_digest(benchmark)
    plan = {
        "corpus": digest,
        "encoder": encoder.fingerprint,
        "recipe": encoder.recipe.model_dump(mode="json", exclude={"trained"}),
    }
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
    with _staged(stage, "embedding") as progress:
        embed(benchmark.documents(), encoder, vectors, progress and (lambda done, _: progress(done, total)))
    with _staged(stage, "comparing") as progress:
        found = near_duplicates(vectors, total, threshold, progress)
    wanted = {each.place for each in found} | {each.kept for each in found}
    ids = {place: document.id for place, document in enumerate(benchmark.documents()) if place in wanted}
    how = {
        "encoder": encoder.recipe.name,
        "model": encoder.fingerprint,
        "max_length": encoder.recipe.max_length,
        "cosine_over": threshold,
        "removed": len(found),
    }
    return {ids[each.place]: (ids[each.kept], each.cosine) for each in found}, how


def _corpus_digest(benchmark: Benchmark) -> tuple[int, str]:
    """How many documents there are, and a sha256 of them all."""
    digest, total = hashlib.sha256(), 0
    for document in unique(benchmark):
        digest.update(document_record(document))
        total += 1
    return total, digest.hexdigest()


def _write(
    benchmark: Benchmark,
    config: DatasetConfig,
    gone: Mapping[str, tuple[str, float]],
    how: Mapping[str, Any] | None,
    folder: Path,
) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "qrels").mkdir(parents=True)
    ids: set[str] = set()
    write_lines(folder / "corpus.jsonl", _corpus_lines(benchmark, gone, ids))
    splits, notes = judged_within(benchmark, ids | gone.keys())
    followed = {name: _following(split, gone) for name, split in splits.items()}
    questions = {question.id: question for split in followed.values() for question in split.questions}
    write_lines(
        folder / "queries.jsonl",
        (_json({"_id": question.id, "text": question.text}) for question in questions.values()),
    )
    for name, split in followed.items():
        stem = "dev" if name == "validation" else name
        write_lines(folder / "qrels" / f"{stem}.tsv", _qrel_lines(split))
    if how is not None:
        lines = (f"{document}\t{kept}\t{cosine:.6f}" for document, (kept, cosine) in gone.items())
        write_lines(folder / DUPLICATES, ["removed\tkept\tcosine", *lines])
    near = near_overlap(Dataset(benchmark.name, (), followed))
    meta: dict[str, Any] = {
        "name": benchmark.name,
        "licence": benchmark.licence,
        "ignore_identical_ids": benchmark.ignore_identical_ids,
        "made_from": {**benchmark.about, "path": config.path},
        "documents": len(ids),
        "questions": {name: len(split.questions) for name, split in followed.items()},
        "judgements": {name: sum(map(len, split.qrels.values())) for name, split in followed.items()},
        "near_duplicates": how,
        "notes": [*benchmark.notes, *notes, *near],
        "sha256": {
            str(path.relative_to(folder)): file_sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()
        },
    }
    write_lines(folder / "meta.json", [json.dumps(meta, ensure_ascii=False, indent=1)])
    return meta


def _corpus_lines(benchmark: Benchmark, gone: Mapping[str, tuple[str, float]], ids: set[str]) -> Iterator[str]:
    """The lines of the documents that stay, whose ids are put into `ids`."""
    for document in unique(benchmark):
        if document.id not in gone:
            ids.add(document.id)
            yield _line(document)


def _line(document: Document) -> str:
    return _json({"_id": document.id, "title": document.title, "text": document.text})


def _following(split: Split, gone: Mapping[str, tuple[str, float]]) -> Split:
    """The split with the judgements of documents that went given to those that stayed."""
    qrels: dict[str, dict[str, int]] = {}
    for question, judged in split.qrels.items():
        mine = qrels.setdefault(question, {})
        for document, grade in judged.items():
            stays = gone[document][0] if document in gone else document
            mine[stays] = max(grade, mine.get(stays, grade))
    return Split(split.questions, qrels)


def _qrel_lines(split: Split) -> Iterator[str]:
    yield "query-id\tcorpus-id\tscore"
    for question in split.questions:
        for document, grade in split.qrels[question.id].items():
            if any(character in question.id + document for character in "\t\r\n"):
                raise DataError(f"ids {question.id!r}, {document!r}: a qrel file takes no tab or line break in an id.")
            yield f"{question.id}\t{document}\t{grade}"


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def _staged(stage: Stage | None, title: str) -> Iterator[Progress | None]:
    if stage is None:
        yield None
        return
    with stage(title) as progress:
        yield progress


def summary(meta: Mapping[str, Any]) -> Sequence[str]:
    """What meta.json says, in lines for a reader."""
    questions = ", ".join(f"{count:,} {name}" for name, count in meta["questions"].items())
    lines = [f"{meta['name']}: {meta['documents']:,} documents; questions: {questions}"]
    if meta["near_duplicates"]:
        how = meta["near_duplicates"]
        lines.append(f"{how['removed']:,} near-duplicates removed (cosine over {how['cosine_over']}, {how['encoder']})")
    return [*lines, *meta["notes"]]
