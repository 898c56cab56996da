"""Questions and judgements in text files: topics as `<top>` records, as XML, or as tab-separated lines of id and text;
judgements as in BEIR's qrels or in those of TREC."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from ..errors import DataError, first_line
from .jsonl import read_lines

JUDGEMENT_COLUMNS = ("query-id", "corpus-id", "score")
_ITERATION = {"0", "q0", "iter", "iteration", "iter_id", "unused"}
_GRADE = {"score", "rel", "relevance", "label", "grade"}
"""What a header line of TREC's form may call its second and fourth column."""

_EXPECTED = "the topics of a TREC collection"
_NUMBER = re.compile(r"^(?:number|topic)\s*:?\s*", re.IGNORECASE)
_FIELD = re.compile(r"<(\w+)>([^<]*)")
_LABEL = re.compile(r"^\s*(?:topic|description|narrative|title)\s*:\s*", re.IGNORECASE)
_TEXTS = ("title", "query", "question", "desc", "description", "summary")
"""Fields that hold what is asked; the first that a topic has is its question."""


def read_topics(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (number of the topic or line from 1, id, text) of a topics file, also a gzipped one.

    A topic of `<top>` or `<topic>` records is asked by its title, else by its query, question, description or summary.
    Raises DataError for a missing or unreadable file and for a topic without id or text.
    """
    if ".tsv" in path.suffixes:
        yield from _tabbed(path)
        return
    text = "\n".join(line for _, line in read_lines(path, _EXPECTED))
    topics = list(_tops(text) if re.search(r"<top>", text, re.IGNORECASE) else _topics(path, text))
    if not topics:
        raise _unknown(path, "it has no <top> and no <topic>")
    for number, (identifier, question) in enumerate(topics, start=1):
        if not identifier or not question:
            raise DataError(
                f"{path}, topic {number}: its id is {identifier!r} and its text is {question!r}; expected a number and "
                f"one of the fields {', '.join(_TEXTS)}. Correct the topic."
            )
        yield number, identifier, question


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


def _tabbed(path: Path) -> Iterator[tuple[int, str, str]]:
    for number, line in read_lines(path, "questions, each an id, a tab and a text"):
        identifier, tab, text = line.partition("\t")
        if not tab or not identifier.strip() or not text.strip():
            raise DataError(f"{path}, line {number}: {line!r}; expected 'id<TAB>text'. Correct the line.")
        yield number, identifier.strip(), text.strip()


def _tops(text: str) -> Iterator[tuple[str, str]]:
    """Records whose fields have no closing tags, as in the ad hoc tracks: <num> Number: 301 <title> organized crime."""
    for record in re.split(r"<top>", text, flags=re.IGNORECASE)[1:]:
        fields = {name.lower(): " ".join(html.unescape(value).split()) for name, value in _FIELD.findall(record)}
        texts = (_LABEL.sub("", fields[name]) for name in _TEXTS if fields.get(name))
        yield _NUMBER.sub("", fields.get("num", "")), next(texts, "")


def _topics(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """XML with an element `topic` for each question, as in the clinical and COVID tracks."""
    if re.search(r"<!(?:DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise _unknown(path, "it has a document type declaration, which is not read")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise _unknown(path, f"it is no XML ({first_line(error)})") from error
    for topic in root.iter("topic"):
        texts = (" ".join(topic.findtext(name, "").split()) for name in _TEXTS)
        body = " ".join((topic.text or "").split())
        yield topic.get("number", topic.get("id", "")).strip(), next(filter(None, texts), body)


def _unknown(path: Path, cause: str) -> DataError:
    return DataError(
        f"{path}: {cause}; expected {_EXPECTED}: records <top> … </top>, XML with elements <topic number=…>, or a .tsv "
        "file with lines 'id<TAB>text'."
    )
