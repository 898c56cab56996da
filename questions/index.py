"""Writes a question index (envs/retrievers/qb_rag.py): questions that a model wrote for the contents of a
corpus, those that the judge says they answer, and vetted ones.

The reply cache makes the same command cheap: a later call asks only about contents that are new or have changed, and
another `questions.mean` costs nothing. An existing index stays in place until the new one is complete.

Down-sampling is that of the QB-RAG paper (section 5.2): m̄ is the *average* number of questions per content, and it is
lowered by sampling from the whole set.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..configs.schema import EnvironmentConfig, QuestionsConfig
from ..data.corpus import corpus_hash, load_dataset
from ..data.sampling import draw
from ..data.types import Document
from ..envs.index import hashes_of, write_json
from ..envs.retrievers.qb_rag import (
    DESCRIPTION,
    AnswerabilityEntry,
    Content,
    Description,
    QuestionIndex,
    Source,
    content_hash,
    open_question_index,
    question_id,
    read_vetted,
    same_question,
    write_rows,
)
from ..errors import ConfigError, DataError, IncompleteError
from ..logs import Progress
from ..storage import atomic_folder, data_sha256, logged_objects, only_command, restore_folder, write_lines
from .models import QuestionModels, Written, excerpt, open_models, prompt, versions

REPLIES = "replies.jsonl"
"""What writer and judge answered about each content, including what was dropped."""
_MAX_FAILURE_CHARS = 2000

Row = dict[str, Any]
"""A line of replies.jsonl."""


def write_question_index(
    config: QuestionsConfig,
    env: EnvironmentConfig,
    to: str | Path,
    *,
    add: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Description:
    """Write the question index of the corpus of `env` at `to`, or bring the existing one up to date.

    `add` names a file of vetted questions to add to the existing index, or to make a new one of; no model is asked. An
    index of another dataset, other settings or another model is replaced only with `overwrite`; its vetted questions
    stay.

    Raises DataError for the corpus or the file, IndexFolderError for a folder that is no question index, ConfigError
    for an index that is not replaced, and as `Llm.ask`. Raises IncompleteError after the index is written if replies
    are missing; the same command asks for those again.
    """
    target = Path(to).expanduser()
    with only_command(target.parent, f".{target.name}.lock"):
        restore_folder(target)
        existing = open_question_index(target) if target.exists() and any(target.iterdir()) else None
        dataset = load_dataset(env.dataset)
        documents = draw(dataset.corpus, config.limit, 0)
        hashes = {document.id: content_hash(document) for document in documents}
        vetted = _vetted(existing, hashes)
        settings = config.model_dump(mode="json", exclude={"writer", "judge"})
        identity = {"dataset": dataset.name, "questions": settings}
        if add is not None:
            _refuse_other(existing, identity, overwrite)
            rows, vetted = _still_valid(existing, hashes), [*vetted, *_vetted_in(add, hashes)]
            models_info, costs = (existing.description.asked, existing.description.costs) if existing else ({}, {})
        else:
            with open_models(config, progress) as models:
                models_info = {**models.identity, "prompts": versions(["writer", "judge"])}
                _refuse_other(existing, identity | models_info, overwrite)
                rows, costs = _ask(config, models, documents), models.costs()
        questions, answers = _matrix(rows, config.mean, len(documents), vetted)
        counts = _counts(rows, questions, answers, len(documents))
        if not questions:
            failed = [row["text"] for row in rows if row["failure"]]
            raise DataError(
                f"no question is left: of {len(documents)} contents, {len(failed)} got an answer without the required "
                f"form{f' (such as {failed[0]!r})' if failed else ''} and {counts['contents_missing']} none. Ask "
                "another model, or give questions with --add."
            )
        contents, rounds = _contents(existing, hashes)
        with atomic_folder(target) as folder:
            questions_hash = write_rows(folder, questions, answers, contents)
            write_lines(folder / REPLIES, map(json.dumps, rows))
            description = Description(
                dataset=dataset.name,
                licence=dataset.licence,
                corpus_hash=corpus_hash(documents),
                questions_hash=questions_hash,
                questions=len(questions),
                asked=models_info,
                settings=settings,
                counts=counts,
                costs=costs,
                rounds=rounds,
                files=hashes_of(folder),
            )
            write_json(folder / DESCRIPTION, description.model_dump(mode="json"))
    if missing := 0 if add is not None else counts["contents_missing"]:
        raise IncompleteError(
            f"{missing} contents got no reply, and {target} was written without them. Rerun the command; the replies "
            "that came are cached."
        )
    return description


def _refuse_other(existing: QuestionIndex | None, identity: Mapping[str, object], overwrite: bool) -> None:
    """Raise ConfigError where an existing index differs in dataset, settings, or models that it names."""
    if existing is None or overwrite:
        return
    description = existing.description
    previous = {"dataset": description.dataset, "questions": description.settings, **description.asked}
    for name in previous.keys() & identity.keys():  # vetted questions alone come from no model, and are written by none
        if previous[name] != identity[name]:
            raise ConfigError(
                f"{existing.path} holds other questions, which this would replace ({name}: {previous[name]} → "
                f"{identity[name]}). Give another folder with --to, or replace them with --overwrite."
            )


def _ask(config: QuestionsConfig, models: QuestionModels, documents: Sequence[Document]) -> list[Row]:
    """What writer and judge answer about each content; nothing about one with a missing reply."""
    texts = [excerpt([document], config.words) for document in documents]
    prompts = [prompt("writer", Written, count=config.per_content, about=config.about, text=text) for text in texts]
    answers = models.generate(prompts, Written)
    proposed = [distinct(answer.value.questions) if answer.value else [] for answer in answers]
    pairs = [(question, text) for text, questions in zip(texts, proposed, strict=True) for question in questions]
    verdicts = iter(models.judge(pairs))
    rows: list[Row] = []
    for document, questions, answer in zip(documents, proposed, answers, strict=True):
        judged = [(question, next(verdicts)) for question in questions]
        if answer.missing or any(verdict.missing for _, verdict in judged):
            continue
        rows.append(
            {
                "content": document.id,
                "hash": content_hash(document),
                "written": len(answer.value.questions) if answer.value else 0,
                "failure": answer.failure,
                "text": answer.text[:_MAX_FAILURE_CHARS] if answer.failure else "",
                "judged": [
                    {
                        "question": question,
                        "answerable": verdict.value.answerable if verdict.value else None,
                        "why": verdict.value.explanation if verdict.value else verdict.failure,
                    }
                    for question, verdict in judged
                ],
            }
        )
    return rows


def _still_valid(existing: QuestionIndex | None, hashes: Mapping[str, str]) -> list[Row]:
    """The rows of an existing index. Raises DataError if a content has changed since."""
    rows = logged_objects(existing.path / REPLIES) if existing is not None else []
    for row in rows:
        if hashes.get(row["content"]) != row["hash"]:
            raise DataError(
                f"content {row['content']!r} has changed or is gone since its questions were written. Bring them up to "
                "date first: querylect index questions without --add."
            )
    return rows


def _vetted(existing: QuestionIndex | None, hashes: Mapping[str, str]) -> list[tuple[str, str]]:
    """The vetted questions of an existing index, each with a content that the corpus still has."""
    if existing is None:
        return []
    texts = {question.id: question.text for question in existing.questions()}
    vetted = [answer for answer in existing.answers() if answer.source == "vetted"]
    return [(texts[answer.question], answer.content) for answer in vetted if answer.content in hashes]


def _vetted_in(add: Path, hashes: Mapping[str, str]) -> list[tuple[str, str]]:
    """Questions of a file, each with its contents. Raises DataError for a content that the corpus does not hold."""
    vetted = [(text, content) for text, contents in read_vetted(add) for content in contents]
    for text, content in vetted:
        if content not in hashes:
            raise DataError(
                f"{add}: the question {text!r} names content {content!r}, which the corpus does not hold. Correct the "
                "id, or take the question out."
            )
    return vetted


def _matrix(
    rows: Sequence[Row], mean: float | None, contents: int, vetted: Sequence[tuple[str, str]]
) -> tuple[list[Document], list[AnswerabilityEntry]]:
    """The questions, and which contents answer them: round(mean · `contents`) of the answerable written ones, of which
    a smaller sample is a subset of a larger one, and all vetted ones. Equal questions (`same_question`) are one."""
    texts: dict[str, str] = {}
    pairs: dict[tuple[str, str], Source] = {}
    for row in rows:
        for judged in row["judged"]:
            if judged["answerable"]:
                name = question_id(judged["question"])
                texts.setdefault(name, judged["question"])
                pairs[name, row["content"]] = "written"
    if mean is not None:
        sample = set(sorted(texts, key=lambda name: data_sha256([0, name]))[: round(mean * contents)])
        texts = {name: text for name, text in texts.items() if name in sample}
        pairs = {pair: source for pair, source in pairs.items() if pair[0] in sample}
    for text, content in vetted:
        texts.setdefault(question_id(text), " ".join(text.split()))
        pairs[question_id(text), content] = "vetted"
    position = {name: number for number, name in enumerate(texts)}
    ordered = sorted(pairs, key=lambda pair: position[pair[0]])
    answers = [AnswerabilityEntry(question=pair[0], content=pair[1], source=pairs[pair]) for pair in ordered]
    return [Document(name, "", text) for name, text in texts.items()], answers


def _counts(
    rows: Sequence[Row], questions: Sequence[Document], answers: Sequence[AnswerabilityEntry], contents: int
) -> dict[str, int]:
    verdicts = Counter(judged["answerable"] for row in rows for judged in row["judged"])
    sources = Counter(answer.source for answer in answers)
    return {
        "contents": contents,
        "contents_missing": contents - len(rows),
        "contents_failed": sum(bool(row["failure"]) for row in rows),
        "contents_without_a_question": contents - len({answer.content for answer in answers}),
        "questions_written": sum(row["written"] for row in rows),
        "questions_kept": verdicts[True],
        "questions_dropped": verdicts[False],
        "questions_unjudged": verdicts[None],
        "questions": len(questions),
        "pairs_written": sources["written"],
        "pairs_vetted": sources["vetted"],
    }


def _contents(existing: QuestionIndex | None, hashes: Mapping[str, str]) -> tuple[list[Content], int]:
    """The contents, and the number of calls so far that added new ones."""
    previous, rounds = (existing.contents(), existing.description.rounds) if existing is not None else ({}, 0)
    contents = [
        previous[name]
        if name in previous and previous[name].hash == hash_
        else Content(id=name, hash=hash_, round=rounds)
        for name, hash_ in hashes.items()
    ]
    return contents, rounds + any(content.round == rounds for content in contents)


def distinct(questions: Sequence[str]) -> list[str]:
    """The questions without blank and repeated ones; they are compared by `same_question`."""
    texts: dict[str, str] = {}
    for question in questions:
        if question.strip():
            texts.setdefault(same_question(question), " ".join(question.split()))
    return list(texts.values())
