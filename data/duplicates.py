"""The same passage under two ids: told by the MD5 of what is indexed of it (seed 004, sections 2.2 and 3.1)."""

import hashlib
from collections.abc import Iterable

from .types import Document


def fingerprint(document: Document) -> bytes:
    """The MD5 (16 bytes) of title and text as one string, whatever the id."""
    return hashlib.md5(document.contents.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def unique(documents: Iterable[Document]) -> tuple[Document, ...]:
    """Each passage where it stands first."""
    kept: dict[bytes, Document] = {}
    for document in documents:
        kept.setdefault(fingerprint(document), document)
    return tuple(kept.values())
