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
from ..data.corpus import load_dataset
from ..data.sampling import draw
from ..data.types import Document, Question, Split
from ..envs.retrievers.qb_rag import QuestionIndex, open_question_index, same_question
from ..errors import DataError
from ..logs import Progress
from .models import OneQuestion, QuestionModels, excerpt, open_models, prompt, versions

Kind = Literal["rephrased", "new"]
Drafts = list[tuple[str | None, Sequence[str]]]
"""A text and its relevant contents for each prompt: "" for a reply of another form, None for a new question that its
content does not answer."""
_MAX_LISTED = 50
"""Questions of a content that the prompt for a new one lists at most."""


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
    index, dataset = open_question_index(env.question_index.folder), load_dataset(env.dataset)
    with open_models(config, progress) as models:
        if kind == "rephrased":
            drafts = _rephrased(models, index, limit)
        else:
            drafts = _new(models, config.words, index, draw(dataset.corpus, limit, 0))
    texts = {same_question(question.text) for question in index.questions()}
    questions: list[Question] = []
    qrels: dict[str, dict[str, int]] = {}
    left_out = {"failed": 0, "repeated": 0, "dropped": 0}
    for text, relevant in drafts:
        if not text:
            left_out["dropped" if text is None else "failed"] += 1
        elif same_question(text) in texts:
            left_out["repeated"] += 1
        else:
            texts.add(same_question(text))
            questions.append(Question(f"{kind}-{len(questions) + 1}", text))
            qrels[questions[-1].id] = dict.fromkeys(relevant, 1)
    counts = {"questions": len(questions), **left_out}
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
    texts = models.questions([prompt("rephrased", OneQuestion, question=question.text) for question in originals])
    return [(text, contents[question.id]) for (text, _), question in zip(texts, originals, strict=True)]


def _new(models: QuestionModels, words: int, index: QuestionIndex, chosen: Sequence[Document]) -> Drafts:
    texts = {question.id: question.text for question in index.questions()}
    existing: dict[str, list[str]] = {}
    for answer in index.answers():
        existing.setdefault(answer.content, []).append(f"- {texts[answer.question]}")
    excerpts = [excerpt([content], words) for content in chosen]
    listed = ["\n".join(existing.get(content.id, ["(none)"])[:_MAX_LISTED]) for content in chosen]
    cases = zip(excerpts, listed, strict=True)
    drafts = models.questions([prompt("new", OneQuestion, text=text, questions=asked) for text, asked in cases])
    pairs = [(draft, text) for (draft, _), text in zip(drafts, excerpts, strict=True) if draft]
    verdicts = iter(models.verdicts(pairs))
    answered = [draft if not draft or next(verdicts) else None for draft, _ in drafts]
    return [(draft, [content.id]) for draft, content in zip(answered, chosen, strict=True)]
