"""Writes a BEIR folder again without leaks and near-duplicates.

Near-duplicates are documents whose embeddings have a cosine over a threshold (Yuan et al., section 3.1: over 0.99): in
corpus order, a document is removed if an earlier remaining one is that near, which then inherits its judgements.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..logs import Progress
from ..storage import write_lines
from .beir import (
    beir_folder,
    corpus_file,
    documents_of,
    judging,
    load_beir,
    new_beir_folder,
    no_document,
    questions_of,
    write_documents,
    write_meta,
    write_questions,
)
from .judgements import moved_judgements
from .leakage import described, near_leaks, without_leaks
from .types import AllDocuments, Split

BLOCK = 4096
"""Documents embedded and compared at once."""
DUPLICATES = "duplicates.tsv"

Stage = Callable[[str], AbstractContextManager[Progress | None]]
"""Returns the progress of a stage of that title."""
Vectors = npt.NDArray[np.float32]


def prepare(
    source: Path,
    target: Path,
    encoder: Callable[[], Any] | None = None,
    threshold: float = 0.99,
    near: bool = False,
    stage: Stage = lambda _: nullcontext(),
) -> list[str]:
    """Write the BEIR folder `source` as the new folder `target`; return a report.

    Of documents with a cosine over `threshold` by the encoder (envs/retrievers/encoder.py) that `encoder` opens, the
    first stays and inherits the judgements of the others, where the higher grade wins. Questions that a later split has
    are removed; with `near`, also those that nearly repeat one. Raises DataError as the reader and for an old target.
    """
    folder = beir_folder(source)
    if next(documents_of(folder), None) is None:
        raise no_document(corpus_file(folder))
    dataset = load_beir(folder, documents=AllDocuments())
    splits, notes = without_leaks(dataset.name, dataset.splits, near)
    survivors: dict[str, tuple[str, float]] = {}
    """Id of a removed document → (id of the remaining one, cosine)."""
    details: dict[str, object] = {}
    if encoder is not None:
        opened, ids, parts = encoder(), list[str](), list[Vectors]()
        with stage("embedding") as progress:
            documents = documents_of(folder)
            while block := list(islice(documents, BLOCK)):
                ids += [document.id for document in block]
                parts.append(opened.documents(block))
                if progress:
                    progress(len(ids), 0)
        with stage("comparing") as progress:
            duplicates = near_duplicates(np.concatenate(parts), threshold, progress)
        survivors = {ids[row]: (ids[survivor], cosine) for row, (survivor, cosine) in duplicates.items()}
        details = {"encoder": opened.preset.name, "model": opened.fingerprint, "cosine_over": threshold}
        details |= {"max_length": opened.preset.max_length, "removed": len(survivors)}
    with new_beir_folder(target) as new:
        ids_left = write_documents(new, (entry for entry in documents_of(folder) if entry.id not in survivors))
        moved = {
            name: Split(
                split.questions, moved_judgements(split.qrels, lambda entry: [survivors.get(entry, (entry, 0))[0]])
            )
            for name, split in splits.items()
        }
        fields = {question.id: more for question, more in questions_of(folder)} if splits else {}
        write_questions(new, moved, fields)
        if encoder is not None:
            rows = (f"{document}\t{survivor}\t{cosine:.6f}" for document, (survivor, cosine) in survivors.items())
            write_lines(new / DUPLICATES, ["removed\tkept\tcosine", *rows])
        notes += described(dataset.name, near_leaks(moved))
        meta = {"name": dataset.name, "licence": dataset.licence, **judging(dataset), "made_from": str(source)}
        write_meta(new, {**meta, "documents": len(ids_left), "near_duplicates": details, "notes": notes})
    questions = ", ".join(f"{len(split.questions):,} {name}" for name, split in moved.items())
    lines = [f"{dataset.name}: {len(ids_left):,} documents; questions: {questions or 'none'}"]
    if encoder is not None:
        lines.append(f"{len(survivors):,} near-duplicates removed (cosine over {threshold}, {details['encoder']})")
    return [*lines, *notes]


def near_duplicates(
    vectors: Vectors, threshold: float, progress: Progress | None = None
) -> dict[int, tuple[int, float]]:
    """The rows of vectors (documents, dimension) to remove → (first remaining row that is near enough, its cosine).

    O(documents²), in single precision, on a GPU if there is one.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    unit = torch.nn.functional.normalize(torch.from_numpy(vectors).float().to(device))
    removed: dict[int, tuple[int, float]] = {}
    for start in range(0, len(unit), BLOCK):
        for earlier in range(0, start + 1, BLOCK):
            cosines = unit[start : start + BLOCK] @ unit[earlier : earlier + BLOCK].T
            for row, column in (cosines > threshold).nonzero().tolist():  # by rows, then by columns
                document, survivor = start + row, earlier + column
                if survivor < document and document not in removed and survivor not in removed:
                    removed[document] = (survivor, cosines[row, column].item())
        if progress:
            progress(min(start + BLOCK, len(unit)), len(unit))
    return dict(sorted(removed.items()))
