"""What this machine knows about the documents that an evaluation ranked: their titles, and which are relevant.

Both are read only from what the evaluation was made of: an index with the hash that stands in its results, or the
dataset itself where there is none, and judgements with the hash that they had.
"""

import logging
from collections.abc import Collection, Iterator
from pathlib import Path

from ...data.corpus import open_corpus
from ...data.types import Document, Qrels
from ...envs.index import open_index
from ...errors import QuerylectError
from ..grid.places import AnyDocument, searched_here
from ..identity import judgements_identity
from .sources import Evaluation

log = logging.getLogger(__name__)

TITLE = 160
"""Characters kept of a title."""
_BLOCK = 64 * 2**20


def judgements(evaluation: Evaluation, dataset: str) -> Qrels | None:
    """Grades by question, from the evaluation's TREC files or from the dataset; None where neither has them."""
    folder = evaluation.folder / "trec" / dataset
    try:
        lines = (folder / "qrels.txt").read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        lines = []
    found: dict[str, dict[str, int]] = {}
    for line in lines:
        columns = line.split()
        if len(columns) == 4 and columns[3].isdigit() and int(columns[3]):
            found.setdefault(columns[0], {})[columns[2]] = int(columns[3])
    return found or _of_the_dataset(evaluation, dataset)


def _of_the_dataset(evaluation: Evaluation, dataset: str) -> Qrels | None:
    source = evaluation.plan.datasets[dataset]
    wanted = {
        place["identity"].get("judgements") for place in evaluation.results["places"] if place["dataset"] == dataset
    }
    if source is None or wanted <= {None}:
        return None
    try:
        split = open_corpus(source).questions(AnyDocument()).splits.get(evaluation.plan.split)
    except QuerylectError as error:
        log.warning("which documents of %s are relevant is not shown: %s", dataset, error)
        return None
    return split.qrels if split is not None and judgements_identity(split.qrels) in wanted else None


def titles(evaluation: Evaluation, dataset: str, wanted: Collection[str]) -> dict[str, str]:
    """Titles by document, of those without one the beginning of the text; empty where the corpus is not here."""
    found = _from_an_index(evaluation, dataset, wanted)
    if found is None:
        try:
            found = dict(_from_the_corpus(evaluation, dataset, frozenset(wanted)))
        except QuerylectError as error:
            log.warning("titles of %s are not shown: %s", dataset, error)
            return {}
    return found


def _from_an_index(evaluation: Evaluation, dataset: str, wanted: Collection[str]) -> dict[str, str] | None:
    """From the first index on this machine that the evaluation searched; None where there is none."""
    plan, source = evaluation.plan, evaluation.plan.datasets[dataset]
    for place in evaluation.results["places"]:
        settings = plan.environments[place["environment"]]
        if place["dataset"] != dataset or source is None or settings.urls or settings.client.urls != "local":
            continue
        try:
            index = open_index(Path(searched_here(plan, settings, dataset, source).index))
            if index.manifest.index_hash != place["identity"]["index"]:
                continue
            documents = index.documents
            here = [documents.at(documents.position(name)) for name in wanted if name in documents]
        except QuerylectError as error:
            log.info("no titles of %s from the index of %s: %s", dataset, place["environment"], error)
            continue
        return {document.id: _said(document) for document in here}
    return None


def _from_the_corpus(evaluation: Evaluation, dataset: str, wanted: frozenset[str]) -> Iterator[tuple[str, str]]:
    source = evaluation.plan.datasets[dataset]
    if source is None or not wanted:
        return
    corpus = open_corpus(source)
    for block in corpus.blocks(_BLOCK)[0]:
        for document in corpus.read(block):
            if document.id in wanted:
                yield document.id, _said(document)


def _said(document: Document) -> str:
    said = " ".join((document.title or document.text[: 4 * TITLE]).split()).encode("utf-8", "replace").decode()
    return said if len(said) <= TITLE else f"{said[: TITLE - 1]}…"
