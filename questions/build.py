"""Writes a question index: asks the models for missing answers and makes an index of all answers.

The index keeps every model answer (`asked.jsonl`), keyed by the content and by everything else that the answer depends
on, so after the corpus has grown only the new contents are asked about. The reply cache resumes an interrupted call and
gives another sample without a model call. An existing index stays in place until the new one is complete.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..configs.schema import EnvironmentConfig, QuestionsConfig
from ..data.corpus import Corpus, open_corpus
from ..data.load import corpus_hash
from ..data.sampling import draw
from ..data.types import Document
from ..envs.index.meta import hashes_of, write_json
from ..envs.retrievers.question_index import (
    DESCRIPTION,
    Content,
    Description,
    QuestionIndex,
    content_hash,
    open_question_index,
    read_vetted,
    write_jsonl,
    write_rows,
)
from ..errors import ConfigError, DataError, IncompleteError, IndexFolderError
from ..rollouts.llms import open_llm
from ..storage import KeyedJournal, atomic_folder, only_command, restore_folder
from .asking import ASKED, LineAnswers, QuestionWriter, total_cost
from .pool import Vetted, counts_of, down_sampled, with_vetted, written_pool

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
VETTED = "vetted.jsonl"


@dataclass(frozen=True, slots=True)
class _Existing:
    """A question index that a new one builds on; all empty if there is none."""

    description: Description | None = None
    answers: Mapping[str, LineAnswers] = field(default_factory=dict)
    contents: Mapping[str, Content] = field(default_factory=dict)
    vetted: Sequence[Vetted] = ()

    @property
    def models(self) -> dict[str, object]:
        """What its answers depend on besides the contents; {} if no model was asked."""
        return self.description.asked if self.description is not None else {}


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

    `add` names a file of vetted questions to add to the existing index, or to make a new one of; no model is asked.
    `overwrite` asks for everything again if the index was made with other settings.

    Raises ConfigError if the index was made with other settings, DataError for the corpus or the file, IndexFolderError
    for a folder that is no question index, and whatever asking a model raises. Raises IncompleteError after the index
    is written if replies are missing; the same command asks for those again.
    """
    target = Path(to).expanduser()
    with only_command(target.parent, f".{target.name}.lock"):
        restore_folder(target)
        session = _Session(config, env, _load_existing(_open_existing(target, overwrite)))
        if add is not None:
            session.take_over(add)
            missing = 0
        else:
            missing = session.ask(None if overwrite else target, progress)
        description = session.finish(target, missing)
    if missing:
        raise IncompleteError(
            f"{missing} replies are missing, and {target} was written without them. Give the same command again: only "
            "they are asked for."
        )
    return description


class _Session:
    """The state of one call: the corpus, the existing answers and the new ones."""

    def __init__(self, config: QuestionsConfig, env: EnvironmentConfig, existing: _Existing) -> None:
        self.config, self.env, self.existing = config, env, existing
        self.corpus: Corpus = open_corpus(env.dataset)
        self.documents = draw(documents_of(self.corpus), config.limit, 0)
        self.vetted: list[Vetted] = list(existing.vetted)
        self.records: list[LineAnswers] = []
        """The answers about the contents, in their order."""
        self.models: dict[str, object] = {}

    def ask(self, same_as: str | Path | None, progress: Progress | None) -> int:
        """Ask about all contents without an answer. Returns the number of incomplete ones.

        Raises ConfigError if the answers in `same_as` were given with other settings.
        """
        with open_writer(self.config) as writer:
            if same_as is not None:
                _refuse_other_settings(self.existing.models, writer.identity, same_as)
            self.models = writer.identity
            answered = dict(self.existing.answers)
            pending = [document for document in self.documents if writer.key(document) not in answered]
            if pending:
                log.info("asking about %d of %d contents", len(pending), len(self.documents))
            asked = 0
            for batch in writer.contents(pending):
                answered |= {record.key: record for record in batch if record is not None}
                asked += len(batch)
                if progress is not None:
                    progress(asked, len(pending))
            self.records = [answered[key] for key in map(writer.key, self.documents) if key in answered]
        return len(self.documents) - len(self.records)

    def take_over(self, add: Path) -> None:
        """Reuse the existing answers and add the vetted questions of the file. No model is asked."""
        hashes = {document.id: content_hash(document) for document in self.documents}
        for name, content in self.existing.contents.items():
            if hashes.get(name) != content.hash:
                raise DataError(
                    f"content {name!r} has changed or is gone since its questions were written. Bring them up to date "
                    "first: querylect index questions without --add."
                )
        current = [record for record in self.existing.answers.values() if hashes.get(record.id) == record.hash]
        position = {name: number for number, name in enumerate(hashes)}
        self.records = sorted(current, key=lambda record: position[record.id])
        self.models = self.existing.models
        for text, contents in read_vetted(add):
            unknown = [name for name in contents if name not in hashes]
            if unknown:
                raise DataError(
                    f"{add}: the question {text!r} names content {unknown[0]!r}, which the corpus does not hold. "
                    "Correct the id, or take the question out."
                )
            self.vetted.append((text, contents))

    def finish(self, target: Path, missing: int) -> Description:
        """Write the index; return its description."""
        config, documents = self.config, self.documents
        unsampled = written_pool(self.records)
        pool = down_sampled(unsampled, config.mean, len(documents))
        pool = with_vetted(pool, self.vetted)
        if not pool.questions:
            failed = [record.text for record in self.records if record.failure]
            example = f" (such as {failed[0]!r})" if failed else ""
            raise DataError(
                f"no question is left: {len(self.records)} contents were asked about, {len(failed)} of the writer's "
                f"answers did not have the required form{example}, {missing} replies are missing. Ask another model, "
                "or give questions with --add."
            )
        contents, rounds = self._contents()
        with atomic_folder(target) as folder:
            questions_hash = write_rows(folder, pool.questions, pool.answers, contents)
            write_jsonl(folder / ASKED, [asdict(record) for record in self.records])
            write_jsonl(folder / VETTED, [{"question": text, "contents": list(names)} for text, names in self.vetted])
            counts = counts_of(self.records, unsampled, pool, len(documents), missing)
            description = Description(
                dataset=self.corpus.name,
                licence=self.corpus.licence,
                corpus_hash=corpus_hash(documents),
                questions_hash=questions_hash,
                questions=len(pool.questions),
                asked=self.models,
                settings=config.model_dump(mode="json", include={"limit", "mean"}),
                counts=counts,
                costs=total_cost([record.spent for record in self.records]),
                rounds=rounds,
                files=hashes_of(folder),
            )
            write_json(folder / DESCRIPTION, description.model_dump(mode="json"))
        return description

    def _contents(self) -> tuple[list[Content], int]:
        """The contents, and the number of calls so far that added new ones."""
        previous = self.existing.contents
        rounds = self.existing.description.rounds if self.existing.description is not None else 0
        contents, any_new = [], False
        for document in self.documents:
            old, new_hash = previous.get(document.id), content_hash(document)
            unchanged = old is not None and old.hash == new_hash
            any_new |= not unchanged
            first_round = old.round if old is not None and unchanged else rounds
            contents.append(Content(id=document.id, hash=new_hash, round=first_round))
        return contents, rounds + any_new


@contextmanager
def open_writer(config: QuestionsConfig) -> Iterator[QuestionWriter]:
    """Open writer and judge, which may be the same; a local model is loaded at the first new request."""
    with ExitStack() as stack:
        writer = judge = stack.enter_context(open_llm(config.writer))
        if config.judge is not None and config.judge != config.writer:
            judge = stack.enter_context(open_llm(config.judge))
        yield QuestionWriter(config, writer, judge)


def _open_existing(target: Path, overwrite: bool) -> QuestionIndex | None:
    """The question index at `target`; None if there is none, or an unreadable one that may be overwritten."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    try:
        return open_question_index(target)
    except IndexFolderError:
        if overwrite and (target / DESCRIPTION).is_file():
            return None
        raise


def _load_existing(index: QuestionIndex | None) -> _Existing:
    if index is None:
        return _Existing()
    path = index.path / VETTED
    vetted = list(read_vetted(path)) if path.stat().st_size else []
    answers = KeyedJournal(index.path / ASKED, LineAnswers).by_key
    return _Existing(index.description, answers, index.contents(), vetted)


def _refuse_other_settings(previous: Mapping[str, object], now: Mapping[str, object], folder: str | Path) -> None:
    """Raise ConfigError if a model gave the `previous` answers and anything that they depend on has changed."""
    differs = [name for name in now if previous and previous.get(name) != now[name]]
    if differs:
        name = differs[0]
        raise ConfigError(
            f"the questions in {folder} were asked with {name} {previous.get(name)!r}; the settings say {now[name]!r}. "
            "Go on with the settings of that index, name another folder with --to, or ask everything again with "
            "--overwrite."
        )


def documents_of(corpus: Corpus) -> Iterator[Document]:
    """All documents of a corpus. Raises DataError for a duplicate id."""
    blocks, _ = corpus.blocks(8 * 2**20)
    ids: set[str] = set()
    for block in blocks:
        for document in corpus.read(block):
            if document.id in ids:
                message = f"document id {document.id!r} stands twice in the corpus; ids must be unique."
                raise DataError(message)
            ids.add(document.id)
            yield document
