"""One system of a paper on one task: each question goes through the method, the reader and the judges.

Records are keyed by all their inputs, so a question is asked again only where something that it depends on has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ...configs.paper import PaperConfig, PaperSystem, Style, TaskConfig
from ...data.history import lines_of
from ...envs.retrievers.rerank import PairScorer
from ...llms.access import Llm
from ...llms.base import LlmResponse, SamplingParams
from ...logs import progress_bar
from ...methods.methods import make_method, method_settings, prompt_text
from ...methods.runner import MethodRun, Runner
from ...storage import KeyedJournal, data_sha256
from ...version import __version__
from ..tasks.gold import Gold, Items
from ..tasks.judges import JUDGES, Case, JudgeScore, Setting, judged
from ..tasks.reader import GENERATOR_VERSION, generator_prompt, read_answer
from ..tasks.records import keyed_records
from .knowledge_bases import KnowledgeBase, environment_of, naming, sources_of
from .records import PaperRecord

BATCH = 64
"""Questions per batch; results are written after each batch."""
_FORM = 5
"""Part of every key: to be raised where a record gets another meaning."""

DEFAULT_STYLE: Mapping[str, Style] = {"choice": "reasoned", "open": "short", "content": "grounded"}
OPEN_METRICS = ("em", "cover_em", "f1")


def answer_metrics(task: TaskConfig) -> Sequence[str]:
    """The metrics of answers to a task; none for content questions, whose contexts are scored."""
    if task.kind == "open":
        return OPEN_METRICS if task.metrics is None else task.metrics
    return ("accuracy",) if task.kind == "choice" else ()


@dataclass(frozen=True)
class PaperRun:
    """What all systems of a run share."""

    paper: PaperConfig
    tasks: Mapping[str, Items]
    bases: Mapping[str, KnowledgeBase]
    reader: Llm
    writer: Llm
    judge: Llm
    cross_encoder: PairScorer | None
    journal: KeyedJournal[PaperRecord]


class SystemRun:
    """One system on one task."""

    def __init__(self, run: PaperRun, task: str, name: str, system: PaperSystem) -> None:
        """Raises ConfigError for settings that the method does not take, or that do not fit its retriever."""
        self._run, self._paper, self._task, self._name = run, run.paper, task, name
        self._config: TaskConfig = run.paper.tasks[task]
        self._style: Style = self._config.style or DEFAULT_STYLE[self._config.kind]
        self._bases = {
            source: run.bases[environment_of(run.paper, task, source)] for source in sources_of(run.paper, task, system)
        }
        retriever = next((base.retriever for base in self._bases.values()), None)
        with naming(name):
            self._method = make_method(system.method, system.settings, retriever)
            settings = method_settings(system.method, system.settings)
        prompts, bound = prompt_text(system.method, settings), run.paper.method_max_tokens
        self._method_key = [system.method, settings.model_dump(mode="json"), prompts, bound]

    def records(self) -> list[PaperRecord]:
        """The records of all questions; new ones are written down batch by batch."""
        cases = [(item, self._key(item)) for item in self._run.tasks[self._task].items]
        with progress_bar(f"{self._task}: {self._name}") as advance:
            return keyed_records(cases, self._run.journal, self._batch, self._reuse, BATCH, advance)

    def _batch(self, cases: Sequence[tuple[Gold, str]]) -> list[PaperRecord]:
        """The records of some questions: the method, then the reader, then the judges."""
        run = self._run
        searchers = {source: base.client for source, base in self._bases.items()}
        runner = Runner(run.writer, searchers, run.cross_encoder, run.reader, self._paper.method_max_tokens)
        results = runner.run(self._method, [item.question for item, _ in cases])
        unanswered = [result for result in results if not result.result.failure and result.result.answer is None]
        replies = self._ask_reader(unanswered)
        records = [
            self._record(item, key, result, replies.get(item.question.id))
            for (item, key), result in zip(cases, results, strict=True)
        ]
        verdicts = self._judge([item for item, _ in cases], results, records)
        return [replace(record, judged=judged) for record, judged in zip(records, verdicts, strict=True)]

    def _ask_reader(self, results: Sequence[MethodRun]) -> dict[str, LlmResponse | None]:
        words, field = self._paper.document_words, self._config.field
        prompts = [
            generator_prompt(result.question, result.result.documents, self._style, words, field) for result in results
        ]
        draw = SamplingParams(max_tokens=self._paper.max_tokens, seed=self._paper.seed)
        replies = self._run.reader.ask(prompts, draw) if prompts else []
        return {result.question.id: reply for result, reply in zip(results, replies, strict=True)}

    def _record(self, item: Gold, key: str, result: MethodRun, reply: LlmResponse | None) -> PaperRecord:
        """The record of a question without verdicts, from the method's own answer or from the reader's reply."""
        outcome, spent = result.result, result.cost
        text, cut = None, False
        answered: str | None = None
        if outcome.answer is not None and not outcome.failure:
            style: Style = "grounded" if self._style == "grounded" else "short"
            answered = read_answer(outcome.answer, item.question, style)
            cut = outcome.cut
        elif reply is not None:
            text, cut = reply.texts[0].text, not reply.texts[0].finished
            answered = read_answer(text, item.question, self._style)
        return self._scored(
            PaperRecord(
                task=self._task,
                system=self._name,
                question_id=item.question.id,
                question=item.question.text,
                documents=tuple(document.id for document in outcome.documents),
                searched=bool(spent.searches),
                failure=outcome.failure,
                text=text,
                answer=answered,
                chosen=item.letter(answered or ""),
                cut=cut,
                scores={},
                judged={},
                notes=dict(outcome.notes),
                spent={
                    **asdict(spent),
                    "reader_prompt_tokens": reply.prompt_tokens if reply else 0,
                    "reader_tokens": reply.tokens if reply else 0,
                },
                key=key,
            ),
            item,
        )

    def _reuse(self, item: Gold, cached: PaperRecord) -> PaperRecord:
        return self._scored(replace(cached, task=self._task, system=self._name), item)

    def _scored(self, record: PaperRecord, item: Gold) -> PaperRecord:
        """The record with its scores against what is right."""
        if self._config.kind == "content":
            relevant = {document.id for document in item.contents}
            ranked = record.searched and not record.failure
            recovered = float(bool(relevant & set(record.documents))) if ranked else None
            return replace(record, scores={"exact_recovery": recovered})
        metrics = answer_metrics(self._config)
        scores = item.score(record.answer, metrics) if record.answer is not None else dict.fromkeys(metrics)
        return replace(record, scores=scores)

    def _judge(
        self, items: Sequence[Gold], results: Sequence[MethodRun], records: Sequence[PaperRecord]
    ) -> list[dict[str, JudgeScore]]:
        """The verdicts on each record, by judge."""
        verdicts: list[dict[str, JudgeScore]] = [{} for _ in records]
        cases = [
            Case(
                item,
                result.result.documents,
                searched=record.searched and not record.failure,
                answer=record.answer,
                sources=result.result.sources if len(self._bases) > 1 else (),
                notes=result.result.notes,
            )
            for item, result, record in zip(items, results, records, strict=True)
        ]
        draw = SamplingParams(max_tokens=self._paper.judge_max_tokens, seed=self._paper.seed)
        runner = Runner(self._run.judge, {})
        for name in self._config.judges:
            scores = judged(runner, JUDGES[name], cases, Setting(self._paper.document_words, draw))
            for by_judge, score in zip(verdicts, scores, strict=True):
                if score is not None:
                    by_judge[name] = score
        return verdicts

    def _key(self, item: Gold) -> str:
        """A sha256 over all inputs of a question's record, except those of its scores and its names."""
        run, paper, config, judges = self._run, self._paper, self._config, self._config.judges
        history = [lines_of(item.question.history)] if item.question.history else []
        right = [item.right, list(item.answers), [document.id for document in item.contents]]
        return data_sha256(
            {
                "form": [_FORM, __version__],
                "method": self._method_key,
                "models": [run.reader.identity, run.writer.identity, run.judge.identity if judges else None],
                "cross-encoder": paper.reranker.model_dump(mode="json") if paper.reranker else None,
                "environments": [[source, base.facts] for source, base in self._bases.items()],
                "question": [item.question.id, item.question.text, list(item.question.options), *history],
                "asked": [config.kind, self._style, config.field, paper.document_words, paper.max_tokens],
                "judges": [[name, JUDGES[name].version] for name in judges],
                "judging": [paper.judge_max_tokens, *right] if judges else None,
                "generator": GENERATOR_VERSION,
                "seed": paper.seed,
            }
        )
