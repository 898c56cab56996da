"""Writes a question index (envs/retrievers/qb_rag.py): questions that a model wrote for the contents of a
corpus, those that the judge says they answer, and vetted ones.

The reply cache makes the same command cheap: a later call asks only about contents that are new or have changed, and
another `questions.mean` costs nothing. An existing index stays in place until the new one is complete.

Down-sampling is that of the QB-RAG paper (section 5.2): m̄ is the *average* number of questions per content, and it is
lowered by sampling from the whole set.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

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
from ..storage import atomic_folder, data_sha256, only_command, restore_folder
from .models import QuestionModels, Written, excerpt, open_models, prompt, versions

Pair = tuple[str, str, Source]
"""A question, a content that answers it, and why."""


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
        settings = config.model_dump(mode="json", exclude={"writer", "judge"})
        identity = {"dataset": dataset.name, "questions": settings}
        vetted = [pair for pair in _pairs(existing, "vetted") if pair[1] in hashes]
        costs: dict[str, int | None] = {}
        if add is not None:
            _refuse_other(existing, identity, overwrite)
            _refuse_changed(existing, hashes)
            vetted += _vetted_in(add, hashes)
            pairs, models_used, counts = _pairs(existing, "written"), dict[str, object](), {"contents": len(documents)}
            if existing is not None:
                former = existing.description
                models_used, counts, costs = former.asked, former.counts, former.costs
        else:
            with open_models(config, progress) as models:
                models_used = {**models.identity, "prompts": versions(["writer", "judge"])}
                _refuse_other(existing, identity | models_used, overwrite)
                pairs, counts = _ask(config, models, documents, required=not vetted)
                costs = models.costs()
            pairs = _sampled(pairs, config.mean, len(documents))
        questions, answers = _matrix([*pairs, *vetted])
        sources = Counter(answer.source for answer in answers)
        counts = counts | {
            "contents_without_a_question": len(documents) - len({answer.content for answer in answers}),
            "questions": len(questions),
            "pairs_written": sources["written"],
            "pairs_vetted": sources["vetted"],
        }
        contents, rounds = _contents(existing, hashes)
        with atomic_folder(target) as folder:
            questions_hash = write_rows(folder, questions, answers, contents)
            description = Description(
                dataset=dataset.name,
                licence=dataset.licence,
                corpus_hash=corpus_hash(documents),
                questions_hash=questions_hash,
                questions=len(questions),
                asked=models_used,
                settings=settings,
                counts=counts,
                costs=costs,
                rounds=rounds,
                files=hashes_of(folder),
            )
            write_json(folder / DESCRIPTION, description.model_dump(mode="json"))
    if add is None and (missing := counts["contents_missing"]):
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


def _refuse_changed(existing: QuestionIndex | None, hashes: Mapping[str, str]) -> None:
    for name, content in existing.contents().items() if existing is not None else ():
        if hashes.get(name) != content.hash:
            raise DataError(
                f"content {name!r} has changed or is gone since its questions were written. Bring them up to date "
                "first: querylect index questions without --add."
            )


def _ask(
    config: QuestionsConfig, models: QuestionModels, documents: Sequence[Document], required: bool
) -> tuple[list[Pair], dict[str, int]]:
    """The questions of each content that the judge says it answers; nothing about one with a missing reply. Raises
    DataError where there is none, if `required`."""
    texts = [excerpt([document], config.words) for document in documents]
    prompts = [prompt("writer", Written, count=config.per_content, about=config.about, text=text) for text in texts]
    answers = models.generate(prompts, Written)
    proposed = [distinct(answer.value.questions) if answer.value else [] for answer in answers]
    candidates = [(question, text) for text, questions in zip(texts, proposed, strict=True) for question in questions]
    verdicts = iter(models.judge(candidates))
    pairs: list[Pair] = []
    missing, judged = 0, Counter[bool | None]()
    for document, questions, answer in zip(documents, proposed, answers, strict=True):
        of_content = [(question, next(verdicts)) for question in questions]
        if answer.missing or any(verdict.missing for _, verdict in of_content):
            missing += 1
            continue
        judged.update(verdict.value.answerable if verdict.value else None for _, verdict in of_content)
        kept = (question for question, verdict in of_content if verdict.value and verdict.value.answerable)
        pairs += [(question, document.id, "written") for question in kept]
    failed = [answer for answer in answers if answer.failure]
    if required and not pairs:
        example = f" (such as {failed[0].text!r}: {failed[0].failure})" if failed else ""
        raise DataError(
            f"no question is left: of {len(documents)} contents, {len(failed)} got an answer without the required form"
            f"{example} and {missing} none. Ask another model, or give questions with --add."
        )
    return pairs, {
        "contents": len(documents),
        "contents_missing": missing,
        "contents_failed": len(failed),
        "questions_written": sum(len(answer.value.questions) for answer in answers if answer.value),
        "questions_kept": judged[True],
        "questions_dropped": judged[False],
        "questions_unjudged": judged[None],
    }


def _pairs(existing: QuestionIndex | None, source: Source) -> list[Pair]:
    """The pairs of an existing index."""
    if existing is None:
        return []
    texts = {question.id: question.text for question in existing.questions()}
    answers = (answer for answer in existing.answers() if answer.source == source)
    return [(texts[answer.question], answer.content, source) for answer in answers]


def _vetted_in(add: Path, hashes: Mapping[str, str]) -> list[Pair]:
    """Questions of a file, each with its contents. Raises DataError for a file without any, and for a content that the
    corpus does not hold."""
    vetted: list[Pair] = [(text, content, "vetted") for text, contents in read_vetted(add) for content in contents]
    if not vetted:
        raise DataError(f"{add} holds no question with contents, and nothing was added.")
    for text, content, _ in vetted:
        if content not in hashes:
            raise DataError(
                f"{add}: the question {text!r} names content {content!r}, which the corpus does not hold. Correct the "
                "id, or take the question out."
            )
    return vetted


def _sampled(pairs: list[Pair], mean: float | None, contents: int) -> list[Pair]:
    """The pairs of round(mean · `contents`) questions; a smaller sample is a subset of a larger one."""
    if mean is None:
        return pairs
    names = sorted({question_id(text) for text, _, _ in pairs}, key=lambda name: data_sha256([0, name]))
    sample = set(names[: round(mean * contents)])
    return [pair for pair in pairs if question_id(pair[0]) in sample]


def _matrix(pairs: Sequence[Pair]) -> tuple[list[Document], list[AnswerabilityEntry]]:
    """The questions, and which contents answer them. Equal questions (`same_question`) are one; a pair that is both
    written and vetted is vetted."""
    texts: dict[str, str] = {}
    sources: dict[tuple[str, str], Source] = {}
    for text, content, source in pairs:
        texts.setdefault(question_id(text), " ".join(text.split()))
        sources[question_id(text), content] = source
    position = {name: number for number, name in enumerate(texts)}
    ordered = sorted(sources, key=lambda pair: position[pair[0]])
    answers = [AnswerabilityEntry(question=pair[0], content=pair[1], source=sources[pair]) for pair in ordered]
    return [Document(name, "", text) for name, text in texts.items()], answers


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
