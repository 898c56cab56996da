"""Titles and judgements of the documents that an evaluation ranked, as far as they are on this machine.

Titles are read from an index whose hash matches the results, or else from the dataset's corpus. Judgements are read
from the evaluation's TREC files, or from the dataset if their hash matches the results.
"""

import logging
from collections.abc import Collection, Iterator
from pathlib import Path

from ...data.corpus import open_corpus
from ...data.types import AllDocuments, Document, Qrels, relevant
from ...envs.index.open import open_index
from ...errors import QuerylectError
from ..environments import searched_here
from ..identity import judgements_identity
from .sources import EvaluationFolder

log = logging.getLogger(__name__)

TITLE = 160
"""Maximum characters of a title."""
_BLOCK = 64 * 2**20


def judgements(evaluation: EvaluationFolder, dataset: str) -> Qrels | None:
    """Grades above 0 by question, from the evaluation's TREC files or from the dataset; None if neither has them."""
    folder = evaluation.folder / "trec" / dataset
    try:
        lines = (folder / "qrels.txt").read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        lines = []
    qrels: dict[str, dict[str, int]] = {}
    for line in lines:
        columns = line.split()
        if len(columns) == 4 and columns[3].isdigit() and int(columns[3]):
            qrels.setdefault(columns[0], {})[columns[2]] = int(columns[3])
    return qrels or _judgements_from_dataset(evaluation, dataset)


def _judgements_from_dataset(evaluation: EvaluationFolder, dataset: str) -> Qrels | None:
    source = evaluation.spec.datasets[dataset]
    hashes = {env.identity.get("judgements") for env in evaluation.results.places if env.dataset == dataset}
    if source is None or hashes <= {None}:
        return None
    try:
        split = open_corpus(source).questions(AllDocuments()).splits.get(evaluation.spec.split)
    except QuerylectError as error:
        log.warning("which documents of %s are relevant is not shown: %s", dataset, error)
        return None
    if split is None or judgements_identity(split.qrels) not in hashes:
        return None
    return {question: relevant(judged) for question, judged in split.qrels.items()}


def titles(evaluation: EvaluationFolder, dataset: str, document_ids: Collection[str]) -> dict[str, str]:
    """Titles by document id, or the start of the text if there is no title; empty if the corpus is not available."""
    by_id = _titles_from_index(evaluation, dataset, document_ids)
    if by_id is None:
        try:
            by_id = dict(_titles_from_corpus(evaluation, dataset, frozenset(document_ids)))
        except QuerylectError as error:
            log.warning("titles of %s are not shown: %s", dataset, error)
            return {}
    return by_id


def _titles_from_index(
    evaluation: EvaluationFolder, dataset: str, document_ids: Collection[str]
) -> dict[str, str] | None:
    """Titles from the first local index that the evaluation searched; None if there is none."""
    spec, source = evaluation.spec, evaluation.spec.datasets[dataset]
    for env in evaluation.results.places:
        settings = spec.environments[env.environment]
        if env.dataset != dataset or source is None or settings.urls or settings.client.urls != "local":
            continue
        try:
            index = open_index(Path(searched_here(spec, settings, dataset, source).index))
            if index.manifest.index_hash != env.identity["index"]:
                continue
            documents = index.documents
            present = [documents.at(documents.position(name)) for name in document_ids if name in documents]
        except QuerylectError as error:
            log.info("no titles of %s from the index of %s: %s", dataset, env.environment, error)
            continue
        return {document.id: _display_title(document) for document in present}
    return None


def _titles_from_corpus(
    evaluation: EvaluationFolder, dataset: str, document_ids: frozenset[str]
) -> Iterator[tuple[str, str]]:
    source = evaluation.spec.datasets[dataset]
    if source is None or not document_ids:
        return
    corpus = open_corpus(source)
    for block in corpus.blocks(_BLOCK)[0]:
        for document in corpus.read(block):
            if document.id in document_ids:
                yield document.id, _display_title(document)


def _display_title(document: Document) -> str:
    title = " ".join((document.title or document.text[: 4 * TITLE]).split()).encode("utf-8", "replace").decode()
    return title if len(title) <= TITLE else f"{title[: TITLE - 1]}…"
