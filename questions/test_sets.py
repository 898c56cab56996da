"""The two generated test sets of the QB-RAG paper (section 5.4) over a question index.

- `rephrased`: questions of the index in other words; the index covers what they ask. Relevant are the contents of the
  original. The paper rephrases all questions and samples 500; here the sample is drawn first.
- `new`: a question per content that is not in the index, kept if the judge says that the content answers it; the index
  does not cover these.

No test question is in the index word for word.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ..configs.schema import EnvironmentConfig, QuestionsConfig
from ..data.beir import new_beir_folder, write_documents, write_meta, write_questions
from ..data.load import load_dataset
from ..data.sampling import draw
from ..data.types import Document, Question, Split
from ..envs.plan import is_unicode
from ..envs.retrievers.question_index import QuestionIndex, open_question_index, same_question
from ..errors import DataError
from ..llms.structured import FormPrompt
from ..logs import Progress
from .asking import QuestionModels, open_models, refuse_missing
from .prompts import OneQuestion, excerpt, prompt, versions

Kind = Literal["rephrased", "new"]
_MAX_LISTED = 50
"""Questions of a content that the prompt for a new one lists at most."""
Drafts = tuple[list[tuple[str, Sequence[str]]], int]
"""A text and its relevant contents for each prompt, "" for a reply of another form; and how many new questions their
content does not answer."""


def write_test_set(
    kind: Kind,
    config: QuestionsConfig,
    env: EnvironmentConfig,
    target: Path,
    limit: int | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write the test set as the BEIR folder `target`, with all contents as its corpus. Returns how many questions it
    has, and how many were left out: replies not of their form (`failed`), questions that stand in the index or twice
    (`repeated`), new questions that their content does not answer (`dropped`).

    `limit` draws so many questions (rephrased) or contents (new); None takes all. Raises IndexFolderError for an
    unusable question index, DataError where no question is left or `target` exists, IncompleteError where replies are
    missing (nothing is written then), and as `Llm.ask`.
    """
    assert env.question_index is not None, "the caller checked that there is a question index"
    index = open_question_index(env.question_index.folder)
    dataset = load_dataset(env.dataset)
    with open_models(config, progress) as models:
        if kind == "rephrased":
            drafts, dropped = _rephrased(models, index, limit)
        else:
            drafts, dropped = _new(models, config.words, index, draw(dataset.corpus, limit, 0))
    texts = {same_question(question.text) for question in index.questions()}
    questions: list[Question] = []
    qrels: dict[str, dict[str, int]] = {}
    valid = [(text, relevant) for text, relevant in drafts if text]
    for text, relevant in valid:
        if same_question(text) not in texts:
            texts.add(same_question(text))
            questions.append(Question(f"{kind}-{len(questions) + 1}", text))
            qrels[questions[-1].id] = dict.fromkeys(relevant, 1)
    counts = {
        "questions": len(questions),
        "failed": len(drafts) - len(valid) - dropped,
        "repeated": len(valid) - len(questions),
        "dropped": dropped,
    }
    if not questions:
        raise DataError(f"no question is left ({counts}). Ask another model (questions.writer.model).")
    with new_beir_folder(target) as folder:
        write_documents(folder, dataset.corpus)
        write_questions(folder, {"test": Split(questions, qrels)})
        meta = {"name": target.name, "licence": dataset.licence, "made_from": str(index.path), **models.identity}
        index_hash = {"question_index": index.description.hash}
        write_meta(folder, {**meta, **index_hash, "prompts": versions([kind, "judge"]), "counts": counts})
    return counts


def _rephrased(models: QuestionModels, index: QuestionIndex, limit: int | None) -> Drafts:
    contents: dict[str, list[str]] = {}
    for answer in index.answers():
        contents.setdefault(answer.question, []).append(answer.content)
    originals = draw(index.questions(), limit, 0)
    prompts = [prompt("rephrased", OneQuestion, question=question.text) for question in originals]
    texts = _texts(models, prompts)
    return [(text, contents[question.id]) for text, question in zip(texts, originals, strict=True)], 0


def _new(models: QuestionModels, words: int, index: QuestionIndex, chosen: Sequence[Document]) -> Drafts:
    texts = {question.id: question.text for question in index.questions()}
    existing: dict[str, list[str]] = {}
    for answer in index.answers():
        existing.setdefault(answer.content, []).append(f"- {texts[answer.question]}")
    excerpts = [excerpt([content], words) for content in chosen]
    listed = ["\n".join(existing.get(content.id, ["(none)"])[:_MAX_LISTED]) for content in chosen]
    prompts = [
        prompt("new", OneQuestion, text=text, questions=questions)
        for text, questions in zip(excerpts, listed, strict=True)
    ]
    drafts = _texts(models, prompts)
    verdicts = models.judge([(draft, text) for draft, text in zip(drafts, excerpts, strict=True) if draft])
    refuse_missing(verdicts)
    answerable = iter(verdict.value is not None and verdict.value.answerable for verdict in verdicts)
    answered = [draft if draft and next(answerable) else "" for draft in drafts]
    dropped = sum(bool(draft) for draft in drafts) - sum(map(bool, answered))
    return [(draft, [content.id]) for draft, content in zip(answered, chosen, strict=True)], dropped


def _texts(models: QuestionModels, prompts: Sequence[FormPrompt]) -> list[str]:
    """The question that each prompt got, "" for a reply that is not of its form."""
    answers = models.generate(prompts, OneQuestion)
    refuse_missing(answers)
    texts = [" ".join(answer.value.question.split()) if answer.value else "" for answer in answers]
    return [text if is_unicode(text) else "" for text in texts]
