"""Running a paper again: every system over every task, question by question, and then the paper's tables.

A question goes through a method (methods/runner.py), the reader, and the judges; its record is on the disk with those
of its batch. Started again, the command asks only for what is missing: records are keyed by all their inputs, and the
reply cache of llms/ keeps what a killed batch had asked.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...configs.environment import RerankConfig
from ...configs.llm import AnswerForm
from ...configs.paper import PaperConfig, PaperSystem, Style, TaskConfig
from ...data.types import Question
from ...errors import EngineUnavailableError, EnvironmentUnavailableError
from ...llms.access import Llm
from ...llms.base import LlmResponse, SamplingParams
from ...llms.structured import AskForm, version_in
from ...logs import progress_bar
from ...methods.method import ANSWER, MISSING, NO_RANKING, Method, PromptStep, Step, Steps
from ...methods.methods import METHODS, KnownMethod, make_method, method_settings
from ...methods.reading import SOURCES
from ...methods.runner import MethodRun, Runner, way_of
from ...rollouts.llms import open_llm
from ..answers.metrics import letter
from ..answers.run import named_after
from ..placement import question_set, refuse_other
from ..tasks.generator import ReaderAnswer, generator_prompt, read_answer
from ..tasks.items import Item, Items, read_items
from ..tasks.judges import JUDGES, Case, Setting, judged
from ..tasks.text_metrics import check_metrics, score_text
from .checks import check_systems, naming, rows_of, sources_of
from .records import PaperLog, PaperRecord, only_writer
from .report import write_results
from .searching import KnowledgeBase, open_bases
from .sweeps import sweep_systems

if TYPE_CHECKING:
    from ..cross_encoder import PairScorer

log = logging.getLogger(__name__)

_FORM = 3
"""Part of every key: to be raised where a record gets another meaning."""

DEFAULT_STYLE: Mapping[str, Style] = {"choice": "reasoned", "open": "short", "content": "grounded"}
OPEN_METRICS = ("em", "accuracy", "f1")


def run_paper(
    paper: PaperConfig,
    output: Path | None = None,
    methods: Mapping[str, KnownMethod] = METHODS,
    overwrite: bool = False,
) -> Path:
    """Run a paper and return the path of results.md; results.json, questions.jsonl and curves lie beside it.

    Raises ConfigError where the folder holds tables of other questions, unless `overwrite` says to replace them
    (records are kept), and for an unknown method or unusable settings, DataError where data is missing, both before an
    index is built or anything is asked, and what environments and models raise; then the same command goes on.
    """
    systems = {**paper.systems, **sweep_systems(paper)}
    check_systems(paper, systems, methods)
    for task in paper.tasks.values():
        check_metrics(open_metrics(task))
    tasks = {
        name: read_items(name, task, _smallest(task.limit, paper.limit), paper.seed)
        for name, task in paper.tasks.items()
    }
    folder = output or Path(paper.output) / f"{paper.name}-{reader_name(paper)}"
    questions = {name: question_set([item.question for item in items.items]) for name, items in tasks.items()}
    refuse_other(folder / "results.json", {"questions": questions}, overwrite)
    with only_writer(folder), ExitStack() as stack:
        reader = stack.enter_context(open_llm(paper.reader))
        writer = stack.enter_context(open_llm(paper.writer)) if paper.writer else reader
        judge = stack.enter_context(open_llm(paper.judge)) if paper.judge else reader
        bases = open_bases(paper, systems, stack)
        run = PaperRun(paper, tasks, systems, methods, bases, reader, writer, judge)
        records = run.all(PaperLog(folder / "questions.jsonl"))
        facts = {
            "identity": {"questions": questions},
            "reader": reader.identity,
            "writer": writer.identity,
            "judge": judge.identity if paper.judging and any(task.judges for task in paper.tasks.values()) else None,
            "environments": {name: base.facts for name, base in bases.items()},
            "cost": {"reader": reader.costs.to_dict()}
            | ({"writer": writer.costs.to_dict()} if paper.writer else {})
            | ({"judge": judge.costs.to_dict()} if paper.judge else {}),
        }
    return write_results(folder, paper, systems, tasks, records, facts)


def reader_name(paper: PaperConfig) -> str:
    """The reader as a folder is named."""
    return named_after(paper.reader.model)


def _smallest(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def open_metrics(task: TaskConfig) -> Sequence[str]:
    """The metrics of written answers to a task."""
    if task.kind != "open":
        return ()
    return OPEN_METRICS if task.metrics is None else task.metrics


class _CrossEncoder:
    """The cross-encoder of methods that need one, loaded at its first use."""

    def __init__(self, config: RerankConfig) -> None:
        self._config = config

    @cached_property
    def _scorer(self) -> "PairScorer":
        from ..cross_encoder import PairScorer

        return PairScorer(self._config)

    def scores(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """One score for each text."""
        return self._scorer.scores(question, texts)


@dataclass(frozen=True)
class _Observed:
    """A wrapper of a method that records prompt versions by question and limits answers to `max_tokens`."""

    method: Method
    prompt_versions: dict[str, list[str]]
    max_tokens: int | None
    form: AnswerForm

    @property
    def name(self) -> str:
        """That of the method."""
        return self.method.name

    @property
    def versions(self) -> Sequence[str]:
        """Those of the method."""
        return self.method.versions

    def steps(self, question: Question) -> Steps:
        """Those of the method."""
        versions = self.prompt_versions.setdefault(question.id, [])
        steps = self.method.steps(question)
        answer: Any = None
        while True:
            try:
                yielded = steps.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            bounded = [
                self._limited(step, versions) for step in (yielded if isinstance(yielded, Sequence) else [yielded])
            ]
            answer = yield bounded if isinstance(yielded, Sequence) else bounded[0]

    def _limited(self, step: Step, versions: list[str]) -> Step:
        if not isinstance(step, PromptStep | AskForm):
            return step
        answer_form: AnswerForm = "json"
        if isinstance(step, AskForm):
            answer_form = way_of(step, self.form)
        elif step.small is not None:
            answer_form = self.form
        version = version_in(step.prompt.version, answer_form)
        if version not in versions:
            versions.append(version)
        limit = min(self.max_tokens or step.draw.max_tokens, step.draw.max_tokens)
        return replace(step, draw=replace(step.draw, max_tokens=limit))


class PaperRun:
    """One run of a paper."""

    def __init__(
        self,
        paper: PaperConfig,
        tasks: Mapping[str, Items],
        systems: Mapping[str, PaperSystem],
        methods: Mapping[str, KnownMethod],
        bases: Mapping[str, KnowledgeBase],
        reader: Llm,
        writer: Llm,
        judge: Llm,
    ) -> None:
        self._paper, self._tasks, self._systems, self._bases = paper, tasks, systems, bases
        self._methods, self._reader, self._writer, self._judge = methods, reader, writer, judge
        self._cross_encoder = _CrossEncoder(paper.reranker) if paper.reranker else None

    def all(self, paper_log: PaperLog) -> list[PaperRecord]:
        """The records of all tasks and systems, also written down.

        Raises ConfigError for settings that a method does not take, before anything is asked, and
        EngineUnavailableError where no question at all got an answer because the models did not reply, and
        EnvironmentUnavailableError where no environment answered any question that was searched for.
        """
        rows = [
            (task, name, system, self._method(task, name, system))
            for task, name, system in rows_of(self._paper, self._systems)
        ]
        records = [record for row in rows for record in self._system(*row, paper_log)]
        if records and all(record.reason == MISSING for record in records):
            raise EngineUnavailableError(
                f"none of {len(records)} questions got a reply ({dict(self._reader.costs.missing)}); nothing was "
                "tabulated. Check the reader and run the same command again."
            )
        searched = [record for record in records if record.searched]
        if searched and all(record.reason == NO_RANKING for record in searched):
            raise EnvironmentUnavailableError(
                f"no environment answered any of {len(searched)} questions that were searched for; nothing was "
                "tabulated. Check the services (the warnings above have the reasons) and run the same command again."
            )
        paper_log.finish(records)
        return records

    def _method(self, task: str, name: str, system: PaperSystem) -> Method:
        card = next((self._bases[source].card for source in sources_of(self._paper, task, system)), None)
        with naming(name):
            return make_method(system.method, system.settings, card, self._methods)

    def _system(
        self, task: str, name: str, system: PaperSystem, method: Method, paper_log: PaperLog
    ) -> list[PaperRecord]:
        sources = sources_of(self._paper, task, system)
        searchers = {source: self._bases[source].client for source in sources}
        runner = Runner(self._writer, searchers, self._cross_encoder, reader=self._reader, form=self._paper.form)
        items = self._tasks[task].items
        keys = self._keys(task, system, method, sources, items)
        by_key: dict[str, PaperRecord] = {}
        for item, key in zip(items, keys, strict=True):
            if cached := paper_log.known(key):
                by_key[key] = self._with_scores(replace(cached, task=task, system=name), task, item)
        pending = [(item, key) for item, key in zip(items, keys, strict=True) if key not in by_key]
        with progress_bar(f"{task}: {name}") as advance:
            for start in range(0, len(pending), self._paper.batch):
                part = pending[start : start + self._paper.batch]
                new = self._batch(task, name, system, method, runner, part)
                paper_log.append(new)
                by_key |= {record.key: record for record in new}
                advance(min(start + self._paper.batch, len(pending)), len(pending))
        return [by_key[key] for key in keys]

    def _batch(
        self,
        task: str,
        name: str,
        system: PaperSystem,
        method: Method,
        runner: Runner,
        part: Sequence[tuple[Item, str]],
    ) -> list[PaperRecord]:
        """The records of some questions: the method, then the reader, then the judges."""
        versions: dict[str, list[str]] = {}
        observed = _Observed(method, versions, self._paper.method_max_tokens, self._paper.form)
        results = runner.run(observed, [item.question for item, _ in part])
        replies = self._ask_reader(task, system, [result for result in results if _needs_reader(result)])
        records: list[PaperRecord] = []
        cases: list[Case] = []
        several_sources = len(sources_of(self._paper, task, system)) > 1
        for (item, key), result in zip(part, results, strict=True):
            reply = replies.get(item.question.id)
            record = self._record(task, name, system, item, result, reply)
            prompts = tuple(versions.get(item.question.id, []))
            records.append(replace(record, key=key, prompts=prompts))
            searched = bool(result.spent.searches) and not result.outcome.failure
            bases = tuple(result.outcome.notes.get(SOURCES, ())) if several_sources else ()
            cases.append(Case(item, result.outcome.documents, searched, record.answer, bases))
        return self._ask_judges(task, cases, records)

    def _ask_reader(
        self, task: str, system: PaperSystem, results: Sequence[MethodRun]
    ) -> dict[str, LlmResponse | None]:
        config, style = self._paper.tasks[task], self._style(task, system)
        prompts = [
            generator_prompt(result.question, result.outcome.documents, style, self._paper.document_words, config.field)
            for result in results
        ]
        draw = SamplingParams(max_tokens=self._paper.max_tokens, seed=self._paper.seed)
        replies = self._reader.ask(prompts, draw) if prompts else []
        return {result.question.id: reply for result, reply in zip(results, replies, strict=True)}

    def _record(
        self, task: str, name: str, system: PaperSystem, item: Item, result: MethodRun, reply: LlmResponse | None
    ) -> PaperRecord:
        outcome, style = result.outcome, self._style(task, system)
        text, cut = None, False
        answered: ReaderAnswer | None = None
        if outcome.answer is not None and not outcome.failure:
            answered = read_answer(outcome.answer, item.question, "short")
            cut = ANSWER in outcome.notes.get("cut", ())
        elif reply is not None:
            text, cut = reply.texts[0].text, not reply.texts[0].finished
            answered = read_answer(text, item.question, style)
        choice = answered.choice if answered else None
        return self._with_scores(
            PaperRecord(
                task=task,
                system=name,
                question_id=item.question.id,
                question=item.question.text,
                documents=tuple(document.id for document in outcome.documents),
                searched=bool(result.spent.searches),
                failure=outcome.failure,
                text=text,
                answer=answered.answer if answered else None,
                chosen=letter(choice) if choice is not None else "",
                cut=cut,
                scores={},
                judged={},
                notes=dict(outcome.notes),
                prompts=(),
                spent={
                    "calls": result.spent.calls,
                    "prompt_tokens": result.spent.prompt_tokens,
                    "tokens": result.spent.tokens,
                    "searches": result.spent.searches,
                    "reader_prompt_tokens": reply.prompt_tokens if reply else 0,
                    "reader_tokens": reply.tokens if reply else 0,
                },
                key="",
            ),
            task,
            item,
        )

    def _with_scores(self, record: PaperRecord, task: str, item: Item) -> PaperRecord:
        """The record with its scores against what is right."""
        config = self._paper.tasks[task]
        scores: dict[str, float | None]
        if config.kind == "choice":
            right = letter(item.right) if item.right is not None else None
            scores = {"accuracy": float(record.chosen == right) if record.answer is not None else None}
        elif config.kind == "open":
            names = open_metrics(config)
            scores = dict.fromkeys(names)
            if record.answer is not None:
                scores |= score_text(record.answer, item.answers, names)
        else:
            relevant = {document.id for document in item.contents}
            ranked = record.searched and not record.failure
            scores = {"exact_recovery": float(bool(relevant & set(record.documents))) if ranked else None}
        return replace(record, scores=scores)

    def _ask_judges(self, task: str, cases: Sequence[Case], records: Sequence[PaperRecord]) -> list[PaperRecord]:
        if not self._paper.judging:
            return list(records)
        draw = SamplingParams(max_tokens=self._paper.judge_max_tokens, seed=self._paper.seed)
        setting = Setting(self._paper.document_words, draw)
        runner = Runner(self._judge, {}, form=self._paper.form)
        verdicts: list[dict[str, Mapping[str, Any]]] = [{} for _ in records]
        for name in self._paper.tasks[task].judges:
            for by_judge, verdict in zip(verdicts, judged(runner, JUDGES[name], cases, setting), strict=True):
                if verdict is not None:
                    by_judge[name] = verdict.plain()
        return [replace(record, judged=by_judge) for record, by_judge in zip(records, verdicts, strict=True)]

    def _style(self, task: str, system: PaperSystem) -> Style:
        config = self._paper.tasks[task]
        return system.style or config.style or DEFAULT_STYLE[config.kind]

    def _keys(
        self, task: str, system: PaperSystem, method: Method, sources: Sequence[str], items: Sequence[Item]
    ) -> list[str]:
        """For each item a sha256 over all inputs of its record, except those of its scores and its names."""
        settings = method_settings(system.method, system.settings, self._methods).model_dump(mode="json")
        method_key = [system.method, settings, list(method.versions), self._paper.method_max_tokens]
        return [self._key(task, system, method_key, sources, item) for item in items]

    def _key(self, task: str, system: PaperSystem, method: Sequence[Any], sources: Sequence[str], item: Item) -> str:
        paper, config = self._paper, self._paper.tasks[task]
        judges = list(config.judges) if paper.judging else []
        inputs = {
            "form": [_FORM, __version__],
            "method": method,
            "models": [self._reader.identity, self._writer.identity, self._judge.identity if judges else None],
            "cross-encoder": paper.reranker.model_dump(mode="json") if paper.reranker else None,
            "environments": [[source, self._bases[source].facts] for source in sources],
            "question": [item.question.id, item.question.text, list(item.question.options)],
            "asked": [config.kind, self._style(task, system), config.field, paper.document_words, paper.max_tokens],
            "answers": paper.form,
            "judges": [[name, JUDGES[name].version] for name in judges],
            "judging": [
                paper.judge_max_tokens,
                item.right,
                list(item.answers),
                [document.id for document in item.contents],
            ]
            if judges
            else None,
            "generator": generator_prompt(item.question, (), self._style(task, system), 1).version,
            "seed": paper.seed,
        }
        return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()


def _needs_reader(result: MethodRun) -> bool:
    return not result.outcome.failure and result.outcome.answer is None
