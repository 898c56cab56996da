"""Running a paper again: every system over every task, question by question, and then the paper's tables.

A question goes through the method, the reader and the judges, and its record is stored with those of its batch, by a
key of all inputs. Started again, the command asks only for what is missing.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ..configs.evaluation import SpecConfig
from ..configs.paper import ENVIRONMENT_AWARE, PaperConfig, PaperEnvironment, PaperSystem, Style
from ..data.published import Published, published
from ..data.sampling import in_batches
from ..envs.build import build_index
from ..envs.client.client import EnvironmentClient
from ..envs.client.connect import open_environment
from ..envs.retrievers.combined import PairScorer
from ..errors import ConfigError, DataError, EnvironmentUnavailableError, QuerylectError
from ..llms.access import Llm
from ..llms.base import LlmResponse, SamplingParams
from ..logs import progress_bar
from ..methods.method import MISSING, NO_RANKING, MethodRun, Runner
from ..methods.methods import METHODS, make_method, method_settings, named_sources
from ..methods.prompts import prompt_text
from ..methods.reading import shares
from ..provenance import versions
from ..rewriters.retriever_info import RetrieverInfo
from ..rollouts.llms import open_llm
from ..storage import data_sha256, write_text
from ..version import __version__
from .paper_tables import CHECK, swept, write_results
from .records import (
    EvalRecord,
    RecordStore,
    answer_key,
    now,
    open_store,
    question_set,
    record_of_search,
    refuse_other,
)
from .results import EvalResults, read_results
from .spec import evaluate_spec
from .table import MEAN, percentage
from .tasks.gold import Gold, read_items
from .tasks.judges import PROMPTS, Case, judged
from .tasks.reader import PROMPT_VERSION, read_answer, reader_name, reader_prompt, refuse_silence, with_reply

BATCH = 64
"""Questions per batch; answers are stored after each batch."""
PASSING = (MISSING, NO_RANKING)
"""Failures that another run may not meet."""


def run_paper(
    paper: PaperConfig,
    output: Path | None = None,
    overwrite: bool = False,
    only_tasks: Sequence[str] = (),
    only_systems: Sequence[str] = (),
) -> Path:
    """Run a paper, or some of its tasks and systems, and return the path of results.md; results.json, eval.jsonl and
    curves lie beside it.

    Raises ConfigError where the folder holds tables of other questions, unless `overwrite` says to replace them
    (answers are kept), and for an unknown method or unusable settings, DataError where data is missing, both before
    anything is asked, and what environments and models raise; then the same command goes on.
    """
    systems = {**paper.systems, **sweep_systems(paper)}
    for name in {*only_tasks, *only_systems} - paper.tasks.keys() - paper.systems.keys():
        raise ConfigError(f"{paper.name} has no {name!r}; it has {', '.join((*paper.tasks, *paper.systems))}.")
    rows = [
        (task, name)
        for task in only_tasks or paper.tasks
        for name, system in systems.items()
        if task in (system.tasks or paper.tasks) and (not only_systems or name.partition("[")[0] in only_systems)
    ]
    for task, name in rows:
        _check(paper, task, name, systems[name])
    tasks = {task: read_items(task, paper.tasks[task], paper.limit, paper.seed) for task in dict(rows)}
    folder = output or Path("papers") / f"{paper.name}-{reader_name(paper.reader.model)}"
    identity = {"questions": {name: question_set([i.question for i in items]) for name, (items, _) in tasks.items()}}
    refuse_other(folder / "results.json", identity, overwrite)
    with open_store(folder) as store, ExitStack() as stack:
        reader = stack.enter_context(open_llm(paper.reader))
        writer = stack.enter_context(open_llm(paper.writer)) if paper.writer else reader
        judge = stack.enter_context(open_llm(paper.judge)) if paper.judge else reader
        searched = dict.fromkeys(
            name for task, system in rows for name in _sources(paper, task, systems[system]).values()
        )
        clients = {name: stack.enter_context(_environment(name, paper.environments[name])) for name in searched}
        cross_encoder = PairScorer(paper.reranker) if paper.reranker else None
        run = PaperRun(paper, systems, clients, reader, writer, judge, cross_encoder, store)
        records = [record for task, name in rows for record in run.records(task, name, tasks[task][0])]
        refuse_silence(records, reader)
        _refuse_unsearched(records, clients)
        store.publish(records)
        facts = {
            "questions": {name: counts for name, (_, counts) in tasks.items()},
            "models": {
                name: {**model.identity, "cost": model.costs.to_dict()}
                for name, model in {"reader": reader, "writer": writer, "judge": judge}.items()
            },
            "environments": {name: _facts(client) for name, client in clients.items()},
            "prompt": PROMPT_VERSION,
            "versions": versions(),
            "created": now(),
            "identity": identity,
        }
    return write_results(folder, paper, records, facts)


def sweep_systems(paper: PaperConfig) -> dict[str, PaperSystem]:
    """The systems that the sweeps of a paper add: one for each system and value, named SYSTEM[SETTING=VALUE]."""
    systems: dict[str, PaperSystem] = {}
    for sweep in paper.sweeps:
        for varied, settings in sweep.systems.items():
            system = paper.systems[varied]
            for value in sweep.values:
                parts = shares(value, len(settings)) if isinstance(value, int) else [value]
                changed = {**system.settings, **dict(zip(settings, parts, strict=True))}
                name = swept(varied, settings, value)
                tasks = sorted({*((systems[name].tasks or []) if name in systems else []), sweep.task})
                systems[name] = system.model_copy(update={"settings": changed, "tasks": tasks})
    return systems


def _sources(paper: PaperConfig, task: str, system: PaperSystem) -> dict[str, str]:
    """The environments that a system may search for a task, by the name that it knows; the first is its default."""
    config = paper.tasks[task]
    names = system.sources if system.sources is not None else config.sources or paper.environments
    return {name: config.environments.get(name, name) for name in names}


def _check(paper: PaperConfig, task: str, name: str, system: PaperSystem) -> None:
    """Raise ConfigError for what would end the command hours later: an unknown method, settings that it does not take,
    a source that it may not search, and a cross-encoder that it needs and the paper does not name."""
    try:
        settings, sources = method_settings(system.method, system.settings), list(_sources(paper, task, system))
        unknown = [source for source in named_sources(settings) if source and source not in sources]
        if unknown or (METHODS[system.method].searches and not sources):
            raise ConfigError(
                f"{system.method} searches {', '.join(unknown) or 'something'}; for the task {task!r} it may search "
                f"{', '.join(sources) or 'nothing'}. Change systems.{name}.sources."
            )
        if METHODS[system.method].scores and paper.reranker is None:
            raise ConfigError("it needs a cross-encoder. Give reranker.model=MODEL, or choose others (--system).")
    except ConfigError as error:
        raise ConfigError(f"the system {name!r}: {error}") from error


def _environment(name: str, environment: PaperEnvironment) -> AbstractContextManager[EnvironmentClient]:
    """A client of the environment; a missing index is built. Raises as the build and the opening."""
    if environment.client.urls == "local" and not environment.env.has_index:
        try:
            with progress_bar(f"indexing {name}") as progress:
                build_index(environment.env, progress=progress)
        except DataError as error:
            raise DataError(f"environments.{name}: {error} {environment.about}") from error
    return open_environment(environment.env, environment.client)


def _refuse_unsearched(records: Sequence[EvalRecord], clients: Mapping[str, EnvironmentClient]) -> None:
    """Raise EnvironmentUnavailableError where every question that was searched for got no ranking."""
    searched = [record for record in records if record.searches]
    if searched and all(record.failure == NO_RANKING for record in searched):
        failures = "; ".join(f"{name}: {client.last_failure}" for name, client in clients.items())
        raise EnvironmentUnavailableError(
            f"no environment answered any of {len(searched)} questions that were searched for ({failures}); nothing "
            "was tabulated. Check the services and run the same command again."
        )


def _facts(client: EnvironmentClient) -> dict[str, object]:
    """What a result says of an environment, and a record depends on."""
    return client.info().model_dump(include={"name", "retriever", "corpus_size", "index_hash", "settings_hash"})


@dataclass(frozen=True)
class PaperRun:
    """What all rows of a run share."""

    paper: PaperConfig
    systems: Mapping[str, PaperSystem]
    clients: Mapping[str, EnvironmentClient]
    reader: Llm
    writer: Llm
    judge: Llm
    cross_encoder: PairScorer | None
    store: RecordStore

    def records(self, task: str, name: str, items: Sequence[Gold]) -> list[EvalRecord]:
        """The record of each question; new ones are stored batch by batch."""
        system, names = self.systems[name], self.paper.tasks[task].answer_metrics
        clients = {source: self.clients[base] for source, base in _sources(self.paper, task, system).items()}
        retriever = next((RetrieverInfo.from_service(client.info().retriever) for client in clients.values()), None)
        method = make_method(system.method, system.settings, retriever)
        runner = Runner(self.writer, clients, self.cross_encoder, self.reader)
        settings = self._settings(task, system, clients)
        keys = {item.question.id: self._key(settings, item) for item in items}
        pending = [item for item in items if not any(map(_finished, self.store.get(keys[item.question.id])))]
        with progress_bar(f"{task}: {name}") as advance:
            for number, batch in enumerate(in_batches(pending, BATCH)):
                runs = runner.run(method, [item.question for item in batch])
                records = self._answered(task, batch, runs)
                self.store.add(replace(record, key=keys[record.question_id], system=name) for record in records)
                advance(number * BATCH + len(batch), len(pending))
        stored = [self.store.get(keys[item.question.id])[-1] for item in items]
        return [
            replace(record, dataset=task, system=name, metrics=_scores(record, item, names))
            for record, item in zip(stored, items, strict=True)
        ]

    def _answered(self, task: str, items: Sequence[Gold], runs: Sequence[MethodRun]) -> list[EvalRecord]:
        """The records of some questions: the reader, where the method has not answered, then the judges."""
        paper, config = self.paper, self.paper.tasks[task]
        unanswered = [run for run in runs if not run.result.failure and run.result.answer is None]
        prompts = [
            reader_prompt(run.question, run.result.documents, paper.document_words, config.answer_style, config.field)
            for run in unanswered
        ]
        draw = SamplingParams(max_tokens=paper.max_tokens, seed=paper.seed)
        responses = self.reader.ask(prompts, draw) if prompts else []
        replies = {run.question.id: reply for run, reply in zip(unanswered, responses, strict=True)}
        records = [_record(run, replies.get(run.question.id), config.answer_style) for run in runs]
        cases = [
            Case(item, run.result, bool(run.cost.searches) and not run.result.failure, record.answer)
            for item, run, record in zip(items, runs, records, strict=True)
        ]
        draw = SamplingParams(max_tokens=paper.judge_max_tokens, seed=paper.seed)
        verdicts = judged(Runner(self.judge, {}), config.judges, cases, paper.document_words, draw)
        return [
            replace(record, chosen=item.letter(record.answer or ""), judged=verdict)
            for record, item, verdict in zip(records, items, verdicts, strict=True)
        ]

    def _settings(self, task: str, system: PaperSystem, clients: Mapping[str, EnvironmentClient]) -> dict[str, Any]:
        """All that a system's records depend on, except their names, what is right, and the question."""
        paper, config = self.paper, self.paper.tasks[task]
        settings = method_settings(system.method, system.settings)
        return {
            "version": __version__,
            "method": [system.method, settings.model_dump(mode="json"), prompt_text(system.method, settings)],
            "models": [self.reader.identity, self.writer.identity],
            "cross-encoder": paper.reranker.model_dump(mode="json") if paper.reranker else None,
            "environments": [[source, _facts(client)] for source, client in clients.items()],
            "asked": [config.kind, config.answer_style, config.field, PROMPT_VERSION, paper.document_words],
            "decoding": [paper.max_tokens, paper.seed],
            "judges": [config.judges, PROMPTS, self.judge.identity, paper.judge_max_tokens] if config.judges else None,
        }

    def _key(self, settings: Mapping[str, Any], item: Gold) -> str:
        right = [item.right, item.answers, [document.id for document in item.contents]] if settings["judges"] else None
        return answer_key(data_sha256([settings, right]), item.question)


def _finished(record: EvalRecord) -> bool:
    """Whether nothing has to be asked again; a lasting failure is not."""
    return record.failure not in PASSING and all(verdict["failure"] != MISSING for verdict in record.judged.values())


def _record(run: MethodRun, reply: LlmResponse | None, style: Style) -> EvalRecord:
    """The record of a question without verdicts, from the method's own answer or from the reader's reply."""
    result, cost = run.result, run.cost
    record = replace(
        record_of_search("", run.question, (), None, None, (), searches=cost.searches, notes=dict(result.notes)),
        calls=cost.calls,
        prompt_tokens=cost.prompt_tokens,
        tokens=cost.tokens,
        truncated=cost.truncated,
        cut=cost.cut > 0 if cost.calls else None,
        failure=result.failure,
        documents=tuple(document.id for document in result.documents),
        reader_prompt_tokens=0,
        reader_tokens=0,
    )
    if result.failure:
        return record
    if result.answer is None:
        return with_reply(record, run.question, reply, style)
    answer = read_answer(result.answer, run.question, "grounded" if style == "grounded" else "short")
    return replace(record, answer=answer)


def _scores(record: EvalRecord, item: Gold, names: Sequence[str]) -> dict[str, float | None]:
    """The metrics of an answer against what is right, which is no part of a record's key."""
    if names == ("exact_recovery",):
        recovered = {document.id for document in item.contents} & set(record.documents)
        return {"exact_recovery": float(bool(recovered)) if record.searches and not record.failure else None}
    return dict(item.score(record.answer, names)) if record.answer is not None else dict.fromkeys(names)


def run_environment_aware(
    spec: SpecConfig, output: Path | None = None, overwrite: bool = False
) -> tuple[Path, QuerylectError | None]:
    """Evaluate the spec of the paper on environment-aware retrieval, whose systems are rewriters and do not answer, and
    write results.md beside its files; return its path, and the error if cells failed. Raises as `evaluate_spec`."""
    path, failed = evaluate_spec(spec, output, overwrite)
    page = path.with_name("results.md")
    write_text(page, results_page(spec, read_results(path.parent), published(ENVIRONMENT_AWARE)))
    return page, failed


def results_page(spec: SpecConfig, results: EvalResults, theirs: Published) -> str:
    """For each retriever, and dataset with parts, a table of our rows and the paper's; a cell of ours has its n."""
    rows = [
        ("here", score.environment, score.dataset, score.part, score.label, f"{percentage(score.mean)} ({score.n})")
        for score in results.scores
        if score.dataset != MEAN
    ]
    compared = {row[1:4] for row in rows}
    for figure in theirs.figures:
        dataset, _, part = figure.task.partition("/")
        if (figure.generator, dataset, part) in compared and figure.metric == spec.metrics[0]:
            rows.append(("paper", figure.generator, dataset, part, figure.system, f"{figure.value:g}"))
    frame = pd.DataFrame(rows, columns=["", "environment", "dataset", "part", "system", "cell"])
    parted = frame["dataset"].isin(spec.parts)
    frame["column"] = frame["part"].replace("", "average").where(parted, frame["dataset"])
    frame["group"] = frame["dataset"].where(parted, "")
    models = [
        f"{name}: {system.run or (system.llm or system.policy or spec.policy).model}"
        for name, system in spec.systems.items()
        if system.training_free is None
    ]
    parts = ["# Environment-aware retrieval", theirs.citation, CHECK, f"Models: {', '.join(models) or 'none'}."]
    for (_, environment), cells in frame.groupby(["group", "environment"], sort=False):
        table = cells.pivot_table("cell", ["", "system"], "column", aggfunc="first", sort=False).fillna("–")
        parts.append(f"## {', '.join(dict.fromkeys(cells['dataset']))}: {spec.metrics[0]}, {environment}")
        parts.append(table.reset_index().to_markdown(index=False, disable_numparse=True))
    parts.append("\n".join(f"- {note}" for note in (*theirs.notes, *(note.text for note in results.notes))))
    return "\n\n".join(filter(None, parts)) + "\n"
