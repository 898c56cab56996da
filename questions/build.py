"""Writes a question index: asks what is not known yet, and makes an index of all answers.

Everything that a model said stays with the index (`asked.jsonl`, `pairs.jsonl`), known by the content and by all that
the answer depends on. So a call over a corpus that has grown asks about the new contents alone, one with another sample
asks nothing, and one that was killed goes on; the index that stands stays until the new one is complete.
"""

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from ..configs.schema import EnvironmentConfig, QuestionsConfig
from ..data.corpus import Corpus, open_corpus
from ..data.files import storage
from ..data.jsonl import identifier_of, read_records
from ..data.lines import only_writer
from ..data.load import corpus_hash
from ..data.sampling import draw
from ..data.types import Document
from ..envs.manifest import describe_files
from ..envs.parts import Parts
from ..envs.question_index import (
    Answer,
    Content,
    Description,
    QuestionIndex,
    content_hash,
    open_question_index,
    question_id,
    read_vetted,
    write_description,
    write_jsonl,
    write_rows,
)
from ..errors import ConfigError, DataError, IncompleteError, IndexFolderError
from ..llms.access import open_llm
from .asking import Asked, AskedPair, Interviewer, Spent
from .extend import completed_answers, similar_contents
from .journal import ASKED, PAIRS, Journal
from .pool import Pool, Vetted, counts_of, down_sampled, with_answers, with_vetted, written_pool

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
VETTED = "vetted.jsonl"


@dataclass(frozen=True, slots=True)
class _Known:
    """What a question index that stands has to tell."""

    index: QuestionIndex | None
    journal: Journal
    contents: dict[str, Content]
    vetted: list[Vetted]


def write_question_index(
    config: QuestionsConfig,
    env: EnvironmentConfig,
    to: str | Path,
    *,
    start: str | Path | None = None,
    add: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Description:
    """Write the question index of the corpus of `env` at `to`, or bring the one that stands there up to date.

    `start` names another question index whose answers are taken over; where these are vetted questions alone, nobody is
    asked. `add` names a file of vetted questions; then nobody is asked either, and without an index to add them to they
    are all there is. `overwrite` asks everything again where the index was made with other settings.

    Raises ConfigError where it was made with other settings, DataError for the corpus or the file, IndexFolderError for
    a folder that is something else, what asking a model raises, and IncompleteError, once the index is written, where
    replies are missing; the same command asks for those again.
    """
    target = Path(to).expanduser()
    parts = Parts(target)
    with ExitStack() as stack:
        stack.enter_context(
            only_writer(
                parts.folder,
                ".asking.lock",
                unwritable="Give another folder with --to.",
                taken=f"another process is asking questions for {target}. Wait for it, or give another folder.",
            )
        )
        stack.callback(_tidy, parts.folder)
        parts.restore()
        standing = _standing(target, overwrite)
        if start is not None and standing is not None and not overwrite:
            raise IndexFolderError(
                f"{target} exists already. Replace it by what {start} and the settings give with --overwrite, or name "
                "another folder with --to."
            )
        known = _known(open_question_index(start) if start is not None else standing)
        writing = _Writing(config, env, known, Journal(parts.folder), progress)
        if add is not None or (start is not None and writing.vetted_alone):
            missing = writing.take_over(add)
        else:
            _refuse_other_settings(writing, overwrite, start or target)
            missing = writing.ask()
        description, missing = writing.finish(parts, missing)
    if missing:
        raise IncompleteError(
            f"{missing} replies are missing, and {target} was written without them. Give the same command again: only "
            "they are asked for."
        )
    return description


class _Writing:
    """One call: the corpus, what is known, and what has been asked in it."""

    def __init__(
        self,
        config: QuestionsConfig,
        env: EnvironmentConfig,
        known: _Known,
        journal: Journal,
        progress: Progress | None,
    ) -> None:
        self.config, self.env, self.known, self.journal, self.progress = config, env, known, journal, progress
        self.corpus: Corpus = open_corpus(env.dataset)
        self.documents = draw(_documents(self.corpus), config.limit, config.seed)
        self.vetted: list[Vetted] = list(known.vetted)
        self.asked: list[Asked] = []
        self.models: dict[str, Any] = {}

    @property
    def pairs(self) -> list[AskedPair]:
        """All verdicts on pairs that nobody wrote the question for."""
        return list({**self.known.journal.pairs, **self.journal.pairs}.values())

    def identity(self) -> dict[str, Any]:
        """What answers depend on, without loading a model."""
        with self._interviewer() as interviewer:
            return interviewer.identity

    def ask(self) -> int:
        """Ask about all contents that are not known; gives how many got no reply."""
        with self._interviewer() as interviewer:
            self.models = interviewer.identity
            answered = {**self.known.journal.asked, **self.journal.asked}
            wanted = [one for one in self.documents if interviewer.key(one) not in answered]
            if wanted:
                log.info("asking about %d of %d contents", len(wanted), len(self.documents))

            def keep(asked: Asked) -> None:
                self.journal.keep(asked)
                answered[asked.key] = asked

            done = 0

            def advance(count: int) -> None:
                nonlocal done
                done += count
                if self.progress is not None:
                    self.progress(done, len(wanted))

            missing = interviewer.contents(wanted, keep, advance)
            keys = map(interviewer.key, self.documents)
            self.asked = [answered[key] for key in keys if key in answered]
        return missing

    @property
    def vetted_alone(self) -> bool:
        """Whether the index that is known holds nothing that a model was asked for."""
        return self.known.index is not None and not self.known.index.description.asked

    def take_over(self, add: Path | None) -> int:
        """Take the answers that there are and add vetted questions, where there is a file; nobody is asked."""
        hashes = {one.id: content_hash(one) for one in self.documents}
        for name, content in self.known.contents.items():
            if hashes.get(name) != content.hash:
                raise DataError(
                    f"content {name!r} has changed or is gone since its questions were written. Bring them up to date "
                    "first: querylect index questions without --add."
                )
        current = [one for one in self.known.journal.asked.values() if hashes.get(one.id) == one.hash]
        if self.known.index is not None:
            self.models = self.known.index.description.asked
        place = {name: number for number, name in enumerate(hashes)}
        self.asked = sorted(current, key=lambda one: place[one.id])
        for text, contents in read_vetted(add) if add is not None else ():
            unknown = [name for name in contents if name not in hashes]
            if unknown:
                raise DataError(
                    f"{add}: the question {text!r} names content {unknown[0]!r}, which the corpus does not hold. "
                    "Mend the id, or take the question out."
                )
            self.vetted.append((text, contents))
        return 0

    def finish(self, parts: Parts, missing: int) -> tuple[Description, int]:
        """Write the index; gives what it says and how many replies are missing."""
        config, documents = self.config, self.documents
        written = written_pool(self.asked)
        pool = down_sampled(written, config.mean, config.sample, config.seed, len(documents))
        pool = with_vetted(pool, self.vetted)
        if not pool.questions:
            failed = sum(bool(one.failure) for one in self.asked)
            raise DataError(
                f"no question is left: {len(self.asked)} contents were asked about, {failed} of the writer's answers "
                f"did not have the required form, {missing} replies are missing. See {parts.folder / ASKED}; ask "
                "another model, or give questions with --add."
            )
        unjudged = 0
        if config.extend is not None:
            pool, unjudged = self._extended(pool)
        contents, rounds = self._contents()
        with _storage(parts.target), parts.staged() as folder:
            questions_hash = write_rows(folder, pool.questions, pool.answers, contents)
            write_jsonl(folder / ASKED, [asdict(one) for one in self.asked])
            write_jsonl(folder / PAIRS, [asdict(one) for one in self.pairs])
            write_jsonl(folder / VETTED, [{"question": text, "contents": list(names)} for text, names in self.vetted])
            counts = counts_of(self.asked, written, pool, len(documents), missing)
            description = Description(
                dataset=self.corpus.name,
                licence=self.corpus.licence,
                corpus_hash=corpus_hash(documents),
                questions_hash=questions_hash,
                questions=len(pool.questions),
                asked=self.models,
                settings=config.model_dump(mode="json", include={"limit", "mean", "sample", "seed", "extend"}),
                counts={**counts, "pairs_judged": len(self.pairs), "pairs_missing": unjudged},
                costs=_costs([*(one.spent for one in self.asked), *(one.spent for one in self.pairs)]),
                rounds=rounds,
                files=describe_files(folder),
            )
            write_description(folder, description)
        return description, missing + unjudged

    def _extended(self, pool: Pool) -> tuple[Pool, int]:
        """The pool with further contents; and how many pairs got no reply."""
        extend, missing = self.config.extend, 0
        assert extend is not None, "asked for where there is an extension"
        names = [one.id for one in self.documents]
        similar = similar_contents(pool.questions, set(names), extend, self.env, self.corpus)
        threshold = extend.threshold
        if threshold is None:
            assert extend.share is not None, "a threshold or a share"
            threshold = similar.threshold(extend.share, len(names) * len(pool.questions))
        known = pool.pairs
        ids = [question.id for question in pool.questions]
        new = [(place, name) for place, name in similar.above(threshold) if (ids[place], name) not in known]
        if not extend.judge:
            more = [Answer(question=ids[place], content=name, source="similar", judged=False) for place, name in new]
            return with_answers(pool, more), 0
        missing = self._judge([(pool.questions[place].text, name) for place, name in new])
        verdicts = {(one.judged.question, one.content): one.judged.answerable for one in self.pairs}
        yes = [(ids[place], name) for place, name in new if verdicts.get((pool.questions[place].text, name))]
        answers = [Answer(question=name, content=content, source="similar", judged=True) for name, content in yes]
        extended = with_answers(pool, answers)
        if extend.by == "completed":
            judged = judged_pairs(extended, self.asked, self.pairs)
            extended = with_answers(extended, completed_answers(judged, ids, names, extend))
        return extended, missing

    def _judge(self, pairs: Sequence[tuple[str, str]]) -> int:
        by_id = {one.id: one for one in self.documents}
        with self._interviewer() as interviewer:
            answered = {one.key for one in self.pairs}
            asked = {interviewer.pair_key(text, by_id[name]): (text, by_id[name]) for text, name in pairs}
            wanted = [pair for key, pair in asked.items() if key not in answered]
            if wanted:
                log.info("judging %d pairs", len(wanted))
            return interviewer.pairs(wanted, self.journal.keep_pair)

    def _contents(self) -> tuple[list[Content], int]:
        """The contents, and how many calls have brought new ones."""
        before, dates = self.known.contents, _dates(self.config.dates)
        rounds = self.known.index.description.rounds if self.known.index is not None else 0
        found, new = [], False
        for one in self.documents:
            seen, own = before.get(one.id), content_hash(one)
            known = seen is not None and seen.hash == own
            new |= not known
            number = seen.round if seen is not None and known else rounds
            found.append(Content(id=one.id, hash=own, date=dates.get(one.id, ""), round=number))
        return found, rounds + new

    def _interviewer(self) -> "_Opened":
        return _Opened(self.config)


class _Opened(AbstractContextManager["Interviewer"]):
    """Writer and judge, which may be one; a local model is loaded when something new is asked."""

    def __init__(self, config: QuestionsConfig) -> None:
        self._config, self._stack = config, ExitStack()

    def __enter__(self) -> Interviewer:
        writer = self._stack.enter_context(open_llm(self._config.writer))
        judge = writer
        if self._config.judge is not None and self._config.judge != self._config.writer:
            judge = self._stack.enter_context(open_llm(self._config.judge))
        return Interviewer(self._config, writer, judge)

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def judged_pairs(pool: Pool, asked: Sequence[Asked], pairs: Sequence[AskedPair]) -> dict[tuple[str, str], bool]:
    """Every pair of a question of the pool that was judged: by the model, or by people, who are always right."""
    ids = {question.id for question in pool.questions}
    found: dict[tuple[str, str], bool] = {}
    for judged, content in [
        *((judged, one.id) for one in asked for judged in one.judged),
        *((pair.judged, pair.content) for pair in pairs),
    ]:
        name = question_id(judged.question)
        if judged.answerable is not None and name in ids:
            found[name, content] = judged.answerable
    found.update({(one.question, one.content): True for one in pool.answers if one.source == "vetted"})
    return found


def _standing(target: Path, overwrite: bool) -> QuestionIndex | None:
    """The question index at `target`; None where there is nothing, or nothing readable that may be overwritten."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    try:
        return open_question_index(target)
    except IndexFolderError:
        if overwrite and (target / "questions.json").is_file():
            return None
        raise


def _known(index: QuestionIndex | None) -> _Known:
    if index is None:
        return _Known(None, Journal(None), {}, [])
    vetted = index.path / VETTED
    return _Known(
        index, Journal(index.path), index.contents(), list(read_vetted(vetted)) if vetted.stat().st_size else []
    )


def _refuse_other_settings(writing: _Writing, overwrite: bool, folder: str | Path) -> None:
    before = writing.known.index.description.asked if writing.known.index is not None else {}
    if overwrite or not before:
        return
    now = writing.identity()
    differs = [name for name in now if before.get(name) != now[name]]
    if differs:
        name = differs[0]
        raise ConfigError(
            f"the questions in {folder} were asked with {name} {before.get(name)!r}; the settings say {now[name]!r}. "
            "Go on with the settings of that index, name another folder with --to, or ask everything again with "
            "--overwrite."
        )


def _documents(corpus: Corpus) -> Iterator[Document]:
    """Every document of a corpus. Raises DataError where an id stands twice."""
    blocks, _ = corpus.blocks(8 * 2**20)
    seen: set[str] = set()
    for block in blocks:
        for document in corpus.read(block):
            if document.id in seen:
                raise DataError(f"document id {document.id!r} stands twice in the corpus; ids must be unique.")
            seen.add(document.id)
            yield document


def _dates(file: str | None) -> dict[str, str]:
    if file is None:
        return {}
    path, found = Path(file).expanduser(), {}
    for number, row in read_records(path, "dates of contents"):
        if row.get("date") in (None, ""):
            continue
        try:
            found[identifier_of(row, path, number)] = date.fromisoformat(str(row["date"])[:10]).isoformat()
        except ValueError:
            raise DataError(f"{path}, line {number}: 'date' is {row['date']!r}; expected YYYY-MM-DD.") from None
    return found


def _costs(spent: Sequence[Spent]) -> dict[str, int | None]:
    def total(counts: Sequence[int | None]) -> int | None:
        return None if None in counts else sum(count for count in counts if count is not None)

    return {
        "calls": sum(one.calls for one in spent),
        "prompt_tokens": total([one.prompt_tokens for one in spent]),
        "tokens": total([one.tokens for one in spent]),
    }


def _tidy(folder: Path) -> None:
    """Remove the journal's folder where nothing was written into it."""
    if folder.is_dir() and not any(path.stat().st_size for path in folder.rglob("*") if path.is_file()):
        shutil.rmtree(folder, ignore_errors=True)


def _storage(target: Path) -> AbstractContextManager[None]:
    return storage(
        lambda error: (
            f"question index {target} could not be written ({error}); what was answered is kept. Free some space or "
            "give another folder with --to, and give the command again."
        )
    )
