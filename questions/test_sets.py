"""The two generated test sets of the QB-RAG paper (section 5.4) over a question index.

- `rephrased`: questions of the index in other words; the index covers what they ask. The paper rephrases all questions
  and samples 500; here the sample is drawn first.
- `new`: a question per content that is not in the index, kept if the judge says that the content answers it; the index
  does not cover these.

No test question is in the index word for word. Relevant are, for a rephrased question, the contents of its original,
for a new one the content that it was written for. Questions that are left out are counted. The paper prints no prompts
for these sets; they are written for this project.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..configs.schema import EnvironmentConfig, QuestionsConfig
from ..data.beir import document_line, new_beir_folder, question_line, write_meta, write_qrels
from ..data.corpus import open_corpus
from ..data.sampling import draw
from ..data.types import Document, Question, Split
from ..envs.plan import is_unicode
from ..envs.retrievers.question_index import QuestionIndex, open_question_index, same_question
from ..errors import DataError
from ..llms.base import SamplingParams
from ..llms.structured import FormPrompt, Structured, WorkedExample, ask_structured, version_in
from ..storage import write_lines
from .asking import QuestionWriter, refuse_missing
from .build import documents_of, open_writer
from .prompts import ONE_QUESTION_REQUEST, OneQuestion, cut

Kind = Literal["rephrased", "new"]
VERSIONS: Mapping[Kind, str] = {"rephrased": "qb-rag-rephrase-1", "new": "qb-rag-new-question-1"}
"""Raise these with every change of the wording: every test set records its own."""
_MAX_SHOWN = 50
"""Questions of a content that the prompt for a new one lists at most."""

_TEXT = "Keep insulin that you are not using yet in the refrigerator, and never freeze it."
_OWN = "Where should I keep the insulin that I have not opened yet?"
_REPHRASED_EXAMPLE = WorkedExample(
    f"Question: {_OWN}", OneQuestion(question="What is the right place for a pen of insulin I'm still saving?")
)
_NEW_EXAMPLE = WorkedExample(
    f"Text: {_TEXT}\n\nQuestions that exist:\n- {_OWN}", OneQuestion(question="Does insulin survive being frozen?")
)


@dataclass(frozen=True, slots=True)
class TestSet:
    """What was written, and what was left out."""

    __test__ = False

    folder: Path
    questions: int
    failed: int
    """Replies that were not of their form."""
    repeated: int
    """Questions that stand in the index, or that were written before."""
    dropped: int
    """New questions that their content does not answer, or on which the judge's verdict was not of its form."""


def write_test_set(
    kind: Kind, config: QuestionsConfig, env: EnvironmentConfig, target: Path, limit: int | None = None
) -> TestSet:
    """Write the test set as the BEIR folder `target`, with all contents as its corpus.

    `limit` draws so many questions (rephrased) or contents (new); None takes all. Raises
    IndexFolderError for an unusable question index, DataError where no question is left or `target` exists,
    IncompleteError where replies are missing (nothing is written then, and replies are cached), and as `Llm.ask`.
    """
    assert env.question_index is not None, "the caller checked that there is a question index"
    index = open_question_index(env.question_index.folder)
    corpus = open_corpus(env.dataset)
    contents = {document.id: document for document in documents_of(corpus)}
    with open_writer(config) as writer:
        drafts = (
            _rephrased(writer, config, index, limit)
            if kind == "rephrased"
            else _new(writer, config, index, list(contents.values()), limit)
        )
    existing = {same_question(question.text) for question in index.questions()}
    questions: dict[str, tuple[str, Sequence[str]]] = {}
    repeated = 0
    for text, relevant in drafts.questions:
        if same_question(text) in existing:
            repeated += 1
            continue
        existing.add(same_question(text))
        questions[f"{kind}-{len(questions) + 1}"] = (text, relevant)
    if not questions:
        raise DataError(
            f"no question is left: {drafts.failed} replies were not of their form, {repeated} questions stand in the "
            f"index or twice, {drafts.dropped} are not answered by their content. Ask another model "
            "(questions.writer.model)."
        )
    split = Split(
        [Question(name, text) for name, (text, _) in questions.items()],
        {name: dict.fromkeys(relevant, 1) for name, (_, relevant) in questions.items()},
    )
    result = TestSet(target, len(questions), drafts.failed, repeated, drafts.dropped)
    with new_beir_folder(target) as folder:
        write_lines(folder / "corpus.jsonl", map(document_line, contents.values()))
        write_lines(folder / "queries.jsonl", map(question_line, split.questions))
        write_qrels(folder, {"test": split})
        counts = {name: getattr(result, name) for name in ("questions", "failed", "repeated", "dropped")}
        write_meta(
            folder,
            {
                "name": target.name,
                "licence": corpus.licence,
                "made_from": str(index.path),
                "question_index": index.description.hash,
                "writer": writer.identity["writer"],
                "judge": writer.identity["judge"] if kind == "new" else None,
                "prompt": version_in(VERSIONS[kind], config.form),
                "counts": counts,
            },
        )
    return result


@dataclass(frozen=True, slots=True)
class _Made:
    questions: Sequence[tuple[str, Sequence[str]]]
    """Texts, each with the ids of its relevant contents."""
    failed: int
    dropped: int = 0


def _rephrased(writer: QuestionWriter, config: QuestionsConfig, index: QuestionIndex, limit: int | None) -> _Made:
    answers: dict[str, list[str]] = {}
    for answer in index.answers():
        answers.setdefault(answer.question, []).append(answer.content)
    originals = draw(index.questions(), limit, 0)
    texts, failed = _texts(writer, config, [_rephrase_prompt(question.text) for question in originals])
    pairs = zip(texts, originals, strict=True)
    return _Made([(text, answers[original.id]) for text, original in pairs if text], failed)


def _new(
    writer: QuestionWriter,
    config: QuestionsConfig,
    index: QuestionIndex,
    contents: Sequence[Document],
    limit: int | None,
) -> _Made:
    texts_by_id = {question.id: question.text for question in index.questions()}
    existing: dict[str, list[str]] = {}
    for answer in index.answers():
        existing.setdefault(answer.content, []).append(texts_by_id[answer.question])
    chosen = draw(contents, limit, 0)
    prompts = [_new_prompt(content, existing.get(content.id, []), config.words) for content in chosen]
    texts, failed = _texts(writer, config, prompts)
    pairs = [(text, content) for text, content in zip(texts, chosen, strict=True) if text]
    verdicts = writer.verdicts(pairs)
    refuse_missing(verdicts.count(None), len(verdicts))
    answerable = [
        (text, [content.id])
        for (text, content), verdict in zip(pairs, verdicts, strict=True)
        if verdict is not None and verdict[0].answerable
    ]
    return _Made(answerable, failed, len(pairs) - len(answerable))


def _texts(writer: QuestionWriter, config: QuestionsConfig, prompts: Sequence[FormPrompt]) -> tuple[list[str], int]:
    """The question that each prompt got, "" for a reply that is not of its form; and how many these are."""
    sampling = SamplingParams(max_tokens=config.max_tokens)
    answers: list[Structured[OneQuestion]] = ask_structured(writer.model, prompts, OneQuestion, sampling, config.form)
    refuse_missing(sum(answer.missing for answer in answers), len(answers))
    texts = [" ".join(answer.value.question.split()) if answer.value else "" for answer in answers]
    texts = [text if is_unicode(text) else "" for text in texts]
    return texts, texts.count("")


def _rephrase_prompt(question: str) -> FormPrompt:
    task = (
        "Write the question below in other words, as another person would ask it who wants to know exactly the same: "
        "other words where there are some, another order, the same details."
    )
    return FormPrompt(task, f"Question: {question}", VERSIONS["rephrased"], (_REPHRASED_EXAMPLE,), ONE_QUESTION_REQUEST)


def _new_prompt(content: Document, existing: Sequence[str], words: int) -> FormPrompt:
    task = (
        "Write one question that the text below answers and that is none of the questions listed after it, also not in "
        "other words: ask about something that they leave out. Write in the first person, as the people whom the text "
        "addresses would ask."
    )
    listed = "\n".join(f"- {question}" for question in existing[:_MAX_SHOWN]) or "(none)"
    case = f"Text: {cut(content, words)}\n\nQuestions that exist:\n{listed}"
    return FormPrompt(task, case, VERSIONS["new"], (_NEW_EXAMPLE,), ONE_QUESTION_REQUEST)
