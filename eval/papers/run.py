"""Running a paper again: every system over every task, question by question, and then the paper's tables.

A question goes through the method, the reader and the judges, and its record is stored with those of its batch, by a
key of all inputs. Started again, the command asks only for what is missing.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...configs.methods import PromptConfig
from ...configs.paper import PaperConfig, PaperSystem, Style
from ...data.packaged import PACKAGED
from ...data.sampling import in_batches
from ...envs.build import build_index
from ...envs.client.client import EnvironmentClient
from ...envs.client.connect import open_environment
from ...envs.retrievers.question_index import open_question_index
from ...envs.retrievers.rerank import PairScorer
from ...errors import ConfigError, DataError, EnvironmentUnavailableError
from ...llms.access import Llm
from ...llms.base import LlmResponse, SamplingParams
from ...logs import progress_bar
from ...methods.method import MISSING, NO_RANKING, MethodRun, Runner
from ...methods.methods import METHODS, make_method, method_settings, named_sources
from ...methods.prompts import prompt_text, prompts_of
from ...methods.reading import shares
from ...provenance import versions
from ...rewriters.retriever_info import RetrieverInfo
from ...rollouts.llms import open_llm
from ...storage import data_sha256
from ...version import __version__
from ..records import EvalRecord, now
from ..store import RecordStore, answer_key, open_store, question_set, refuse_other
from ..tasks.gold import Gold, read_items
from ..tasks.judges import PROMPTS, Case, judged
from ..tasks.reader import GENERATOR_VERSION, generator_prompt, read_answer, reader_name, refuse_silence
from .tables import swept, write_results

BATCH = 64
"""Questions per batch; answers are stored after each batch."""
PASSING = (MISSING, NO_RANKING)
"""Failures that another run may not meet."""


def run_paper(paper: PaperConfig, output: Path | None = None, overwrite: bool = False) -> Path:
    """Run a paper and return the path of results.md; results.json, eval.jsonl and curves lie beside it.

    Raises ConfigError where the folder holds tables of other questions, unless `overwrite` says to replace them
    (answers are kept), and for an unknown method or unusable settings, DataError where data is missing, both before an
    index is built or anything is asked, and what environments and models raise; then the same command goes on.
    """
    systems = {**paper.systems, **sweep_systems(paper)}
    rows = [
        (t, name) for t in paper.tasks for name, system in systems.items() if system.tasks is None or t in system.tasks
    ]
    for task, name in rows:
        _check(paper, task, name, systems[name])
    tasks = {name: read_items(name, task, paper.limit, paper.seed) for name, task in paper.tasks.items()}
    folder = output or Path("papers") / f"{paper.name}-{reader_name(paper.reader.model)}"
    questions = {name: question_set([item.question for item in items.items]) for name, items in tasks.items()}
    refuse_other(folder / "results.json", {"questions": questions}, overwrite)
    with open_store(folder) as store, ExitStack() as stack:
        reader = stack.enter_context(open_llm(paper.reader))
        writer = stack.enter_context(open_llm(paper.writer)) if paper.writer else reader
        judge = stack.enter_context(open_llm(paper.judge)) if paper.judge else reader
        names = [name for task, system in rows for name in _sources(paper, task, systems[system]).values()]
        bases = _open_bases(paper, list(dict.fromkeys(names)), stack)
        cross_encoder = PairScorer(paper.reranker) if paper.reranker else None
        run = PaperRun(paper, systems, bases, reader, writer, judge, cross_encoder, store)
        records = [record for task, name in rows for record in run.records(task, name, tasks[task].items)]
        refuse_silence([record.failure == MISSING for record in records], reader)
        searched = [record for record in records if record.searches]
        if searched and all(record.failure == NO_RANKING for record in searched):
            raise EnvironmentUnavailableError(
                f"no environment answered any of {len(searched)} questions that were searched for; nothing was "
                "tabulated. Check the services (the warnings above have the reasons) and run the same command again."
            )
        store.publish(records)
    models = (
        {"reader": reader} | ({"writer": writer} if paper.writer else {}) | ({"judge": judge} if paper.judge else {})
    )
    facts = {
        "questions": {
            name: {"asked": len(items.items), "skipped": items.skipped, "sample": str(items.sample or "all")}
            for name, items in tasks.items()
        },
        "reader": reader.identity,
        "writer": writer.identity,
        "judge": judge.identity,
        "environments": {name: base.facts for name, base in bases.items()},
        "cost": {name: model.costs.to_dict() for name, model in models.items()},
        "generator": GENERATOR_VERSION,
        "versions": versions(),
        "created": now(),
        "identity": {"questions": questions},
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
    """Raise ConfigError for an unknown method, settings that it does not take, a broken file of prompts, a source that
    it may not search, and a cross-encoder that it needs and the paper does not name."""
    try:
        settings, sources = method_settings(system.method, system.settings), list(_sources(paper, task, system))
        if isinstance(settings, PromptConfig):
            prompts_of(system.method, settings)
        unknown = [source for source in named_sources(settings) if source and source not in sources]
        if unknown or (METHODS[system.method].searches and not sources):
            raise ConfigError(
                f"{system.method} searches {', '.join(map(repr, unknown)) or 'something'}; for the task {task!r} it "
                f"may search {', '.join(map(repr, sources)) or 'nothing'}. Change systems.{name}.sources."
            )
        if METHODS[system.method].scores and paper.reranker is None:
            raise ConfigError(
                "it needs a cross-encoder. Give reranker.model=MODEL, or choose other systems (--system)."
            )
    except ConfigError as error:
        raise ConfigError(f"the system {name!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class KnowledgeBase:
    """One environment that methods search."""

    client: EnvironmentClient
    retriever: RetrieverInfo
    facts: Mapping[str, object]
    """What a result says of it and a record depends on: name, retriever, index, settings of the search."""


def _open_bases(paper: PaperConfig, names: Sequence[str], stack: ExitStack) -> dict[str, KnowledgeBase]:
    """The environments by name; a missing index is built, after the corpora of all were found.

    Raises DataError where a corpus is missing (it says where it comes from), IndexFolderError where a question index
    is, and as the opening of an environment.
    """
    environments = {name: paper.environments[name] for name in names}
    unbuilt = {
        name: environment
        for name, environment in environments.items()
        if environment.client.urls == "local" and not environment.env.has_index
    }
    for name, environment in unbuilt.items():
        path = environment.env.dataset.path
        if path not in PACKAGED and not Path(path).expanduser().is_dir():
            raise DataError(
                f"{path}, the corpus of the environment {name!r}, does not exist "
                f"(environments.{name}.env.dataset.path). {environment.about}"
            )
        if environment.env.question_index is not None:
            open_question_index(environment.env.question_index.folder)
    for name, environment in unbuilt.items():
        with progress_bar(f"indexing {name}") as progress:
            build_index(environment.env, progress=progress)
    bases = {}
    for name, environment in environments.items():
        client = stack.enter_context(open_environment(environment.env, environment.client))
        info = client.info()
        facts = {
            "name": info.name,
            "retriever": str(info.retriever.get("name", "")),
            "documents": info.corpus_size,
            "index": info.index_hash,
            "settings": info.settings_hash,
        }
        bases[name] = KnowledgeBase(client, RetrieverInfo.from_service(info.retriever), facts)
    return bases


@dataclass(frozen=True)
class PaperRun:
    """What all rows of a run share."""

    paper: PaperConfig
    systems: Mapping[str, PaperSystem]
    bases: Mapping[str, KnowledgeBase]
    reader: Llm
    writer: Llm
    judge: Llm
    cross_encoder: PairScorer | None
    store: RecordStore

    def records(self, task: str, name: str, items: Sequence[Gold]) -> list[EvalRecord]:
        """The record of each question; new ones are stored batch by batch."""
        config, system = self.paper.tasks[task], self.systems[name]
        bases = {source: self.bases[base] for source, base in _sources(self.paper, task, system).items()}
        method = make_method(system.method, system.settings, next((b.retriever for b in bases.values()), None))
        searchers = {source: base.client for source, base in bases.items()}
        runner = Runner(self.writer, searchers, self.cross_encoder, self.reader)
        keys = {item.question.id: self._key(task, system, bases, item) for item in items}
        pending = [item for item in items if not any(map(_finished, self.store.get(keys[item.question.id])))]
        with progress_bar(f"{task}: {name}") as advance:
            for number, batch in enumerate(in_batches(pending, BATCH)):
                runs = runner.run(method, [item.question for item in batch])
                records = self._answered(task, batch, runs, several=len(bases) > 1)
                self.store.add(replace(record, key=keys[record.question_id], system=name) for record in records)
                advance(number * BATCH + len(batch), len(pending))
        stored = [self.store.get(keys[item.question.id])[-1] for item in items]
        return [
            replace(record, dataset=task, system=name, metrics=_scores(record, item, config.answer_metrics))
            for record, item in zip(stored, items, strict=True)
        ]

    def _answered(self, task: str, items: Sequence[Gold], runs: Sequence[MethodRun], several: bool) -> list[EvalRecord]:
        """The records of some questions: the reader, where the method has not answered, then the judges."""
        paper, config = self.paper, self.paper.tasks[task]
        style = config.answer_style
        unanswered = [run for run in runs if not run.result.failure and run.result.answer is None]
        prompts = [
            generator_prompt(run.question, run.result.documents, style, paper.document_words, config.field)
            for run in unanswered
        ]
        draw = SamplingParams(max_tokens=paper.max_tokens, seed=paper.seed)
        responses = self.reader.ask(prompts, draw) if prompts else []
        replies = {run.question.id: reply for run, reply in zip(unanswered, responses, strict=True)}
        records = [_record(task, run, replies.get(run.question.id), style) for run in runs]
        cases = [
            Case(
                item,
                run.result.documents,
                searched=bool(record.searches) and not run.result.failure,
                answer=record.answer,
                sources=run.result.sources if several else (),
                notes=run.result.notes,
            )
            for item, run, record in zip(items, runs, records, strict=True)
        ]
        draw = SamplingParams(max_tokens=paper.judge_max_tokens, seed=paper.seed)
        verdicts = judged(Runner(self.judge, {}), config.judges, cases, paper.document_words, draw)
        chosen = [item.letter(record.answer or "") for item, record in zip(items, records, strict=True)]
        return [
            replace(record, chosen=letter, judged=verdict)
            for record, letter, verdict in zip(records, chosen, verdicts, strict=True)
        ]

    def _key(self, task: str, system: PaperSystem, bases: Mapping[str, KnowledgeBase], item: Gold) -> str:
        """A sha256 over all inputs of a question's record, except those of its scores and its names."""
        paper, config = self.paper, self.paper.tasks[task]
        settings = method_settings(system.method, system.settings)
        inputs: dict[str, Any] = {
            "version": __version__,
            "method": [system.method, settings.model_dump(mode="json"), prompt_text(system.method, settings)],
            "models": [self.reader.identity, self.writer.identity],
            "cross-encoder": paper.reranker.model_dump(mode="json") if paper.reranker else None,
            "environments": [[source, base.facts] for source, base in bases.items()],
            "asked": [config.kind, config.answer_style, config.field, GENERATOR_VERSION, paper.document_words],
            "decoding": [paper.max_tokens, paper.seed],
        }
        if config.judges:
            right = [item.right, item.answers, [document.id for document in item.contents]]
            inputs["judges"] = [config.judges, PROMPTS, self.judge.identity, paper.judge_max_tokens, right]
        return answer_key(data_sha256(inputs), item.question)


def _finished(record: EvalRecord) -> bool:
    """Whether nothing has to be asked again; a lasting failure is not."""
    return record.failure not in PASSING and all(verdict["failure"] != MISSING for verdict in record.judged.values())


def _record(task: str, run: MethodRun, reply: LlmResponse | None, style: Style) -> EvalRecord:
    """The record of a question without verdicts, from the method's own answer or from the reader's reply."""
    question, result, cost = run.question, run.result, run.cost
    answer, text = None, None
    if result.answer is not None and not result.failure:
        answer = read_answer(result.answer, question, "grounded" if style == "grounded" else "short")
    elif reply is not None:
        text = reply.texts[0].text
        answer = read_answer(text, question, style)
    read_cut = reply is not None and not reply.texts[0].finished
    return EvalRecord(
        system="",
        turn=0,
        question_id=question.id,
        question=question.text,
        think="",
        rewrites=(),
        ranking=(),
        metrics={},
        **{name: value for name, value in asdict(cost).items() if name not in ("cut",)},
        cut=bool(cost.cut) or read_cut if reply is not None or cost.calls else None,
        format_ok=True,
        history=question.history,
        dataset=task,
        failure=result.failure or (MISSING if answer is None else ""),
        answer=answer,
        text=text,
        documents=tuple(document.id for document in result.documents),
        reader_prompt_tokens=reply.prompt_tokens if reply else 0,
        reader_tokens=reply.tokens if reply else 0,
        notes=dict(result.notes),
    )


def _scores(record: EvalRecord, item: Gold, names: Sequence[str]) -> dict[str, float | None]:
    """The metrics of an answer against what is right, which is no part of a record's key."""
    if names == ("exact_recovery",):
        recovered = {document.id for document in item.contents} & set(record.documents)
        return {"exact_recovery": float(bool(recovered)) if record.searches and not record.failure else None}
    return dict(item.score(record.answer, names)) if record.answer is not None else dict.fromkeys(names)
