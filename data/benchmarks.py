"""Three retrieval benchmarks in their published forms: BRIGHT, RAGBench, FinAgentBench.

- BRIGHT (Su et al. 2024): one domain is one benchmark. `examples/DOMAIN-*.parquet` has its questions,
  `documents/DOMAIN-*.parquet` the passages and `long_documents/DOMAIN-*.parquet` the whole pages. `gpt4_reason` and
  others have the same rows, but for a query that a model wrote by reasoning about the question. Documents that a
  question excludes are left out of its rankings.
- RAGBench (Friel et al. 2024): each row has the documents that were given to answer it. The corpus is the documents of
  all rows of all parts, each text once. Relevant to a question are all documents of its row, as in Yuan et al. Rows of
  one part with the same question (many are answered by two models) are joined. Question ids are PART/ID. The dataset is
  named `ragbench` only if all parts are read, so that published scores are not compared with those on a smaller corpus.
- FinAgentBench (Choi et al. 2025): one prompt per row, and grades by candidate number. Questions with equal texts are
  merged, candidates likewise, and each pair of them keeps its highest grade (Yuan et al., appendix B). Each task has
  its own corpus: `chunks` ranks passages of filings, `documents` ranks document types. Rows without grades add their
  candidates to the corpus, but no question.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from pydantic import Field

from ..errors import DataError
from .rows import Id, Row, Texts, document_id, parquet_shards, read_rows
from .types import SPLITS, Benchmark, Document, Question

PARTS = (
    "covidqa", "cuad", "delucionqa", "emanual", "expertqa", "finqa", "hagrid", "hotpotqa", "msmarco", "pubmedqa",
    "tatqa", "techqa",
)  # fmt: skip
"""The parts of RAGBench."""


class _BrightQuestion(Row):
    id: Id
    query: str
    excluded_ids: Texts
    gold: Texts = Field(alias="gold_ids")


class _LongBrightQuestion(_BrightQuestion):
    gold: Texts = Field(alias="gold_ids_long")


class _BrightDocument(Row):
    id: Id
    content: str


def open_bright(folder: Path, domain: str, queries: str = "examples") -> Benchmark:
    """Read the questions of a domain from the folder `queries`; they are its test split. `biology-long` searches the
    whole pages of `biology`.

    Raises DataError for a missing file and for an excluded document that is relevant.
    """
    long, name = domain.endswith("-long"), f"bright-{domain}" + ("" if queries == "examples" else f"-{queries}")
    domain = domain.removesuffix("-long")
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, int]] = {}
    for file in _bright_files(folder, queries, domain):
        for location, row in read_rows(file, _LongBrightQuestion if long else _BrightQuestion):
            excluded = tuple(name for name in row.excluded_ids if name != "N/A")
            if row.id in questions or set(excluded).intersection(row.gold):
                raise DataError(f"{location}: question {row.id!r} is repeated or excludes what is relevant.")
            questions[row.id] = Question(row.id, row.query, excluded=excluded)
            qrels[row.id] = dict.fromkeys(row.gold, 1)
    files = _bright_files(folder, "long_documents" if long else "documents", domain)

    def documents() -> Iterator[Document]:
        for file in files:
            yield from (Document(row.id, "", row.content) for _, row in read_rows(file, _BrightDocument))

    return Benchmark(name, documents, questions, {"test": qrels})


def _bright_files(folder: Path, table: str, domain: str) -> list[Path]:
    """The files of a domain in one of the published folders: Parquet, or JSON lines."""
    files = parquet_shards(folder / table, domain) or [folder / table / f"{domain}.jsonl"]
    if not files[0].is_file():
        domains = sorted({file.name.split("-0")[0].split(".")[0] for file in (folder / table).glob("*.*")})
        raise DataError(
            f"{folder / table} has no domain {domain!r}; it has {', '.join(domains) or 'no file'}. Choose one with "
            "--subset, and the folder of the questions with --queries."
        )
    return files


class _RagbenchRow(Row):
    id: Id
    question: str
    documents: list[str]


def part_of(question_id: str) -> str:
    """The RAGBench part of a question id."""
    return question_id.partition("/")[0]


def open_ragbench(folder: Path, parts: Sequence[str] | None = None) -> Benchmark:
    """Read the questions of a folder PART/{train,validation,test}-*.parquet; `parts` None requires all twelve.

    A part must have test rows; missing train or validation rows are noted. Raises DataError for a missing part.
    """
    files = {part: {split: parquet_shards(folder / part, split) for split in SPLITS} for part in parts or PARTS}
    if lacking := [part for part, by_split in files.items() if not by_split["test"]]:
        raise DataError(
            f"{folder} lacks the test rows of the RAGBench parts {', '.join(lacking)}. Fetch them, or say which to use "
            f"with --subset, of {', '.join(PARTS)}."
        )
    notes = [f"ragbench/{part}: no {split} rows." for part in files for split in SPLITS if not files[part][split]]

    def rows() -> Iterator[tuple[str, str, _RagbenchRow]]:
        for part, by_split in files.items():
            for split, paths in by_split.items():
                for path in paths:
                    yield from ((part, split, row) for _, row in read_rows(path, _RagbenchRow))

    questions: dict[str, Question] = {}
    ids: dict[tuple[str, str], str] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {split: {} for split in SPLITS}
    total = repeated = 0
    for part, split, row in rows():
        key = (part, row.question)
        if key not in ids:
            identifier = "_".join(f"{part}/{row.id}".split())
            if identifier in questions:  # the id of another question
                identifier = f"{identifier}-{document_id(row.question)[:8]}"
            ids[key] = identifier
            questions[identifier] = Question(identifier, row.question)
        total, repeated = total + 1, repeated + (ids[key] in qrels[split])
        judged = qrels[split].setdefault(ids[key], {})
        judged.update({document_id(text): 1 for text in row.documents if text.strip()})
    if repeated:
        notes.append(f"ragbench: {repeated} of {total} rows repeat a question of their part and split and are joined.")
    name = "ragbench" if len(files) == len(PARTS) else f"ragbench[{','.join(files)}]"
    return Benchmark(
        name, lambda: _distinct(text for *_, row in rows() for text in row.documents), questions, qrels, notes
    )


class _Message(Row):
    role: str
    content: str


class _FinAgentBenchRow(Row):
    messages: list[_Message]
    qrel: dict[int, int] | None = None
    """Candidate number → grade."""


_FORMS = {
    "chunks": ("*chunk_ranking*.jsonl", "Text chunks:", "Chunk Index", "Task: Select and rank"),
    "documents": (
        "*document_ranking*.jsonl", "Document Types to rank:", "Document Index", "Your response must be a list",
    ),
}  # fmt: skip
"""File names of a task, and what stands before the candidates of its prompts, before each of them, and after them."""


def open_finagentbench(folder: Path, task: str = "chunks") -> Benchmark:
    """Read the questions of the published JSON-lines files as the test split.

    Raises DataError for an unknown task or missing file, a prompt in another form, and an invalid grade.
    """
    if task not in _FORMS:
        raise DataError(f"--subset is {task!r}; FinAgentBench has {' and '.join(_FORMS)}.")
    pattern, *markers = _FORMS[task]
    files, name = sorted(folder.glob(pattern)), f"finagentbench/{task}"
    if not files:
        raise DataError(f"{folder} holds no file {pattern} of FinAgentBench's task {task!r}. Put it there.")

    def rows() -> Iterator[tuple[str, list[str], dict[int, int] | None]]:
        for file in files:
            for location, row in read_rows(file, _FinAgentBenchRow):
                prompt = next((message.content for message in row.messages if message.role == "user"), "")
                question, candidates = _parse_prompt(prompt, markers, location)
                if unknown := [number for number in row.qrel or () if not 0 <= number < len(candidates)]:
                    raise DataError(f"{location}: candidate {unknown[0]} of {len(candidates)} is graded.")
                yield question, candidates, row.qrel

    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, int]] = {}
    unjudged = contradicting = 0
    for question, candidates, grades in rows():
        if grades is None:
            unjudged += 1
            continue
        identifier = f"q{document_id(question)}"
        questions.setdefault(identifier, Question(identifier, question))
        judged = qrels.setdefault(identifier, {})
        for number, grade in grades.items():
            document = document_id(candidates[number])
            contradicting += judged.get(document, grade) != grade
            judged[document] = max(grade, judged.get(document, grade))
    notes = []
    if unjudged:
        notes.append(f"{name}: {unjudged} rows have no grades: their candidates are in the corpus, nothing is asked.")
    if contradicting:
        notes.append(f"{name}: {contradicting} pairs of question and candidate have two grades; the higher one counts.")

    def documents() -> Iterator[Document]:
        return _distinct(text for _, candidates, _ in rows() for text in candidates)

    return Benchmark(name, documents, questions, {"test": qrels}, notes)


def _parse_prompt(prompt: str, markers: Sequence[str], location: str) -> tuple[str, list[str]]:
    """The question and the candidates. Only the next number in order begins a candidate; others are part of a text."""
    heading, candidate, ending = markers
    form = rf"Question:(.*?)\s*{re.escape(heading)}(.*)\n{re.escape(ending)}"
    match = re.search(form, prompt, re.DOTALL)
    if match is None or not (question := match[1].strip()):
        raise DataError(
            f"{location}: expected a prompt with 'Question: …', '{heading} …', '{ending} …'. It may be a file of the "
            "other task."
        )
    body, begins = match[2], list[tuple[int, int]]()
    for begin in re.finditer(rf"(?:^|\n)[ \t]*\[{candidate} (\d+)\]", body):
        if int(begin[1]) == len(begins):
            begins.append(begin.span())
    candidates = [body[begin[1] : end[0]].strip() for begin, end in pairwise([*begins, (len(body), len(body))])]
    if not any(candidates):
        raise DataError(f"{location}: the prompt has no [{candidate} 0].")
    return question, candidates


def _distinct(texts: Iterator[str]) -> Iterator[Document]:
    """A document for each text that has one, by its hash."""
    ids: set[str] = set()
    for text in texts:
        identifier = document_id(text)
        if text.strip() and identifier not in ids:
            ids.add(identifier)
            yield Document(identifier, "", text)
