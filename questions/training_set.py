"""Questions that a language model writes for the passages of a corpus, as a dataset to train and to test on.

For each planned question the writer sees its passage, or two; the judge says whether they answer what it wrote, and
then reads the most similar other passages of the same split, of which those that answer it are relevant too (Â). What
is left is a BEIR folder with splits by document. The reply cache resumes a call that was killed.
"""

import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..configs.llm import SyntheticConfig
from ..configs.schema import DatasetConfig, EnvironmentConfig, QuestionsConfig
from ..data.beir import (
    judging,
    link_corpus,
    load_beir,
    new_beir_folder,
    read_meta,
    refuse_existing,
    write_meta,
    write_questions,
)
from ..data.corpus import load_dataset
from ..data.documents import documents_of_passages, word_count
from ..data.leakage import exact_leaks, near_leaks, without, words
from ..data.rows import write_rows
from ..data.sampling import draw
from ..data.types import SPLITS, Document, Question, Split, relevant
from ..envs.environment import Environment
from ..envs.plan import SearchPlan
from ..errors import DataError
from ..logs import Progress
from ..storage import write_lines
from .models import (
    STYLE_PROMPTS,
    OneQuestion,
    QuestionModels,
    example_questions,
    excerpt,
    open_models,
    prompt,
    versions,
)
from .written import (
    WrittenQuestion,
    neighbours,
    plan_questions,
    quality_by_style,
    quality_lines,
    split_counts,
    split_documents,
    with_typos,
)

LEAKS, QUALITY = "leaks.jsonl", "quality.json"
WIDEN = 4
"""Number of other passages, the most similar ones, that the judge reads for each question."""
_SIMILAR = 20
"""Similar passages among which those of the same split are looked for."""


@dataclass(frozen=True, slots=True)
class Passages:
    """The passages of a corpus, and the opened environment that ranks them."""

    by_id: Mapping[str, Document]
    document_of: Mapping[str, str]
    """Document by passage."""
    split_of: Mapping[str, str]
    """Split by document, of those that get questions."""
    environment: Environment

    def split(self, passage: str) -> str | None:
        """The split of a passage; None if its document gets no question."""
        return self.split_of.get(self.document_of[passage])

    def similar(self, queries: Sequence[str], depth: int = _SIMILAR) -> list[list[str]]:
        """The ids of the first `depth` passages for every query."""
        results = self.environment.search([SearchPlan.of(query, k=depth) for query in queries], with_text=False)
        return [[hit.id for hit in result.ranking] for result in results]


def write_training_set(
    config: QuestionsConfig,
    synthetic: SyntheticConfig,
    env: EnvironmentConfig,
    corpus: Path,
    target: Path,
    test: Path | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Write the BEIR folder `target`: the passages of the folder `corpus` with questions, judgements and splits.
    Returns lines about it for a reader.

    `env` names the retriever, and its index of `corpus`, by which similar passages are found. With `test`, a BEIR
    folder of users' questions judged with ids of `corpus`, its test split is that of the new folder; documents that are
    relevant there get no question.

    Raises DataError for an unusable corpus or test folder, for too few documents, if no training question is left, and
    if `target` exists; IndexFolderError for an unusable index; IncompleteError where replies are missing (nothing is
    written then, and the same call asks for those again); and as `Llm.ask`.
    """
    target = target.expanduser()
    refuse_existing(target)
    env = env.model_copy(update={"dataset": DatasetConfig(path=str(corpus))})
    by_id = {document.id: document for document in load_dataset(env.dataset).corpus}
    users = load_beir(test, ["test"], by_id) if test is not None else None
    document_of = documents_of_passages(corpus)
    judged = users.splits["test"].qrels.values() if users is not None else ()
    asked = {document_of[name] for grades in judged for name in relevant(grades)}
    usable = [
        passage
        for passage in by_id.values()
        if document_of[passage.id] not in asked and word_count(passage.text) >= synthetic.min_words
    ]
    split_of = split_documents(usable, document_of, with_test=users is None)
    passages = Passages(by_id, document_of, split_of, Environment.open(env))
    questions = _planned(passages, usable, synthetic)
    with open_models(config, progress) as models:
        _write_texts(questions, models, config)
        if synthetic.judge:
            _judge(questions, models, config.words, passages)
    retained = [question for question in questions if question.text and (question.answerable or not synthetic.judge)]
    reserved = {question.id for question in users.splits["test"].questions} if users is not None else set[str]()
    splits, by_question = _splits(retained, users.relevance_level if users is not None else 1, reserved)
    if users is not None:
        splits["test"] = users.splits["test"]
    leaks = [*exact_leaks(splits), *near_leaks(splits)]
    leaks = list({(leak.split, leak.question.id): leak for leak in leaks}.values())
    splits = without(splits, ((leak.split, leak.question.id) for leak in leaks))
    if missing := [split for split in SPLITS if split not in splits]:
        failures = Counter(question.failure for question in questions if question.failure).most_common(1)
        failed = "".join(f" {count} failed: {failure}." for failure, count in failures)
        raise DataError(
            f"of {len(questions)} questions that were asked for, {len(by_question)} are answerable and distinct, and "
            f"none is left for {' and '.join(missing)}.{failed} Ask another model (questions.writer.model), request "
            "more (synthetic.count), or keep what the judge rejects (synthetic.judge=false)."
        )
    for name, question in by_question.items():
        question.relevant = len(splits[question.split].qrels.get(name, ()))
    quality = quality_by_style(questions, config.words)
    source = read_meta(corpus)
    meta = {
        "name": source.name,
        "licence": source.licence,
        **(judging(users) if users is not None else {}),
        "made_from": str(corpus),
        "test": None if test is None else str(test),
        **models.identity,
        "prompts": versions([*STYLE_PROMPTS, "judge"]),
        "synthetic": synthetic.model_dump(mode="json"),
        "costs": models.costs(),
    }
    with new_beir_folder(target) as folder:
        link_corpus(corpus, folder)
        origins = {
            name: {"style": question.style, "written_for": [passage.id for passage in question.passages]}
            for name, question in by_question.items()
        }
        write_questions(folder, splits, origins)
        write_lines(folder / QUALITY, [json.dumps(quality, indent=1)])
        if leaks:
            write_rows(folder / LEAKS, (leak.record() for leak in leaks))
        write_meta(folder, meta)
    sizes = ", ".join(f"{len(split.questions):,} {name}" for name, split in splits.items())
    lines = [*quality_lines(quality), f"{target}: {sizes} questions"]
    if leaks:
        lines.append(
            f"{len(leaks)} questions are left out, because a later split has them or nearly so: {target / LEAKS}"
        )
    return lines


def _planned(passages: Passages, usable: Sequence[Document], synthetic: SyntheticConfig) -> list[WrittenQuestion]:
    """The questions to write. Second passages of questions about two: the neighbour in the document, else the passage
    of the same split that is most similar to the first words."""
    counts = split_counts(passages.split_of.values(), synthetic.count)
    drawn = {
        split: draw((passage for passage in usable if passages.split(passage.id) == split), count, 0)
        for split, count in counts.items()
    }
    partners: dict[str, Document] = {}
    if "multi_hop" in synthetic.styles:
        partners = neighbours(usable, passages.document_of)
        eligible = {passage.id for passage in usable}
        alone = [passage for of_split in drawn.values() for passage in of_split if passage.id not in partners]
        rankings = passages.similar([excerpt([passage], 32) for passage in alone])
        for passage, names in zip(alone, rankings, strict=True):
            split = passages.split(passage.id)
            similar = (name for name in names if name != passage.id and name in eligible)
            if second := next((name for name in similar if passages.split(name) == split), None):
                partners[passage.id] = passages.by_id[second]
    return plan_questions(drawn, counts, synthetic.styles, partners)


def _write_texts(questions: Sequence[WrittenQuestion], models: QuestionModels, config: QuestionsConfig) -> None:
    """Ask the writer; a question with typing mistakes begins as one without. Raises IncompleteError."""
    prompts = [
        prompt(
            "question" if question.style == "typo" else question.style,
            OneQuestion,
            about=config.about,
            text=excerpt(question.passages, config.words),
        )
        for question in questions
    ]
    copies = example_questions()
    for question, (text, failure) in zip(questions, models.questions(prompts), strict=True):
        if not failure and not words(text):
            failure = "the question has no words"
        elif not failure and words(text) in copies:
            failure = f"it copies an example of the prompt: {text}"
        question.failure = failure
        if not failure:
            question.draft = text
            question.text = with_typos(text, f"0 {text}") if question.style == "typo" else text


def _judge(questions: Sequence[WrittenQuestion], models: QuestionModels, limit: int, passages: Passages) -> None:
    """Ask the judge whether their passages answer the questions, and of those that they do, which of the most similar
    other passages of the same split answer them too. Raises IncompleteError."""
    drafted = [question for question in questions if question.draft]
    verdicts = models.verdicts([(question.draft, excerpt(question.passages, limit)) for question in drafted])
    for question, verdict in zip(drafted, verdicts, strict=True):
        question.answerable = verdict
    answerable = [question for question in drafted if question.answerable]
    rankings = passages.similar([question.draft for question in answerable], WIDEN + _SIMILAR)
    similar: list[tuple[WrittenQuestion, Document]] = []
    for question, names in zip(answerable, rankings, strict=True):
        ranked = (passages.by_id[name] for name in names if passages.split(name) == question.split)
        more = [passage for passage in ranked if passage not in question.passages]
        similar += [(question, passage) for passage in more[:WIDEN]]
    verdicts = models.verdicts([(question.draft, excerpt([passage], limit)) for question, passage in similar])
    for (question, passage), verdict in zip(similar, verdicts, strict=True):
        question.also += (passage.id,) if verdict else ()


def _splits(
    questions: Sequence[WrittenQuestion], grade: int, reserved: Container[str]
) -> tuple[dict[str, Split], dict[str, WrittenQuestion]]:
    """The splits, and the question behind each id; `grade` is that of every judgement, `reserved` are ids in use.

    Questions of one split with the same words are one question, relevant to the passages of all; of two splits the
    first one keeps it.
    """
    ids: dict[str, str] = {}
    by_id: dict[str, WrittenQuestion] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    number = 0
    for question in questions:
        text = words(question.text)
        if text not in ids:
            number += 1
            while f"{question.style}-{number}" in reserved:
                number += 1
            ids[text] = f"{question.style}-{number}"
            by_id[ids[text]] = question
        if by_id[ids[text]].split == question.split:
            judged = qrels.setdefault(question.split, {}).setdefault(ids[text], {})
            judged |= dict.fromkeys([*(passage.id for passage in question.passages), *question.also], grade)
    splits = {
        split: Split([Question(name, by_id[name].text) for name in judged], judged) for split, judged in qrels.items()
    }
    return splits, by_id
