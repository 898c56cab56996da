"""Settings of a paper reproduction: its methods, tasks, environments, reader, judges and tables."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from .environment import RerankConfig, ServedConfig
from .llm import LlmConfig, ShownConfig
from .load import config_file, read_yaml, validated, write_yaml
from .section import Drawn, Limited, Name, Section

PAPERS = Path(__file__).parent / "papers"

ENVIRONMENT_AWARE = "environment_aware"
"""The paper that is an evaluation spec (configs/specs), since its systems rewrite and do not answer."""

AVERAGE = "average"
"""Table column with the mean of the other tasks."""

POOLED = "pooled"
"""Table column over the questions of all tasks together."""

Style = Literal["reasoned", "short", "grounded"]
MetricName = Literal[
    "em", "cover_em", "precision", "recall", "f1", "rouge1", "rouge2", "rougeL", "bleu1", "bleu2", "bleu3", "bleu4"
]
JudgeName = Literal[
    "utility", "mimic", "relevancy", "declined", "faithfulness", "answer_relevancy", "guideline", "context_recall"
]

JUDGED_KIND: dict[JudgeName, str] = {
    "utility": "choice",
    "mimic": "choice",
    "context_recall": "open",
    "guideline": "content",
}
"""The kind of task that a judge takes; the others take any."""


class TaskConfig(Section):
    """One set of questions, and how they are answered and judged."""

    kind: Literal["choice", "open", "content"]
    """choice: multiple choice. open: questions with short correct answers. content: questions answered by documents."""
    data: str
    """choice, open: JSON-lines file of correct answers (docs/answers.md). content: BEIR folder; its test questions are
    used."""
    about: str = ""
    """Source of the data, for the error message if it is missing."""
    options: list[str] = []
    """choice: the options of every question, such as [yes, no], for files without options."""
    sources: list[str] = []
    """Environments that may be searched, the first by default; if empty, all of the paper's."""
    environments: dict[str, str] = {}
    """Environments that replace others in this task, such as those of its language: {wiki: wiki_zh}."""
    style: Style | None = None
    """Prompt style of the reader: reasoned, short or grounded; None: reasoned for choice, short for open, grounded for
    content."""
    field: str = ""
    """Field of expertise in the reader's prompt, such as medical."""
    metrics: list[MetricName] | None = None
    """open: metrics of the answer; None: em, cover_em (it contains a right answer) and f1. choice has only accuracy,
    content only exact_recovery."""
    judges: list[JudgeName] = []
    """LLM judges of contexts and answers, in addition to the metrics (docs/papers.md)."""

    @property
    def answer_metrics(self) -> tuple[str, ...]:
        """The metrics of answers, or for content of their documents; the first one is tested."""
        if self.kind == "open":
            return tuple(self.metrics or ("em", "cover_em", "f1"))
        return ("accuracy",) if self.kind == "choice" else ("exact_recovery",)

    @property
    def answer_style(self) -> Style:
        """The style of the reader's prompt."""
        default: dict[str, Style] = {"choice": "reasoned", "open": "short", "content": "grounded"}
        return self.style or default[self.kind]

    @model_validator(mode="after")
    def _check_judges(self) -> "TaskConfig":
        if wrong := [name for name in self.judges if JUDGED_KIND.get(name, self.kind) != self.kind]:
            raise ValueError(f"the judge {wrong[0]!r} takes tasks of kind {JUDGED_KIND[wrong[0]]!r}")
        return self


class PaperEnvironment(ServedConfig):
    """A knowledge base with its retriever: local (a missing index is built), or a running service."""

    about: str = ""
    """Source of the corpus, for the error message if it is missing."""


class PaperSystem(Section):
    """One row of the tables: a method with its settings."""

    method: str
    """Name of the method (docs/methods.md)."""
    settings: dict[str, object] = {}
    """Settings of the method that differ from its defaults."""
    sources: list[str] | None = None
    """Environments that it may search; None: those of the task."""
    tasks: list[str] | None = None
    """Tasks to run; None: all."""
    baseline: str = ""
    """System that this one is tested against; if empty, the paper's."""


class Sweep(Section):
    """A sweep of one setting of some systems over several values: more systems, and a figure of their curves."""

    systems: Annotated[dict[str, list[str]], Field(min_length=1)]
    """Systems to vary, each with the setting of its method that takes the values, such as [k] or [penalty]; several
    settings, such as [first_k, second_k], share a value evenly, the first get the remainder."""
    values: Annotated[list[int | float], Field(min_length=2)]
    """Values of the setting."""
    task: str
    """The task to run."""
    metric: str = "accuracy"
    """The metric to plot."""
    beside: list[str] = []
    """Systems drawn as horizontal lines."""


class PaperConfig(ShownConfig, Drawn, Limited):
    """A paper: its methods, tasks, environments, models and tables."""

    name: Name
    """Name of the paper; results are written to `papers/name-READER`."""
    max_tokens: Annotated[int, Field(ge=1)] = 2048
    """Maximum tokens of the reader's answer."""
    judge_max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Maximum tokens of a judge's answer."""
    reader: LlmConfig = LlmConfig()
    """The model that answers the questions."""
    writer: LlmConfig | None = None
    """The model that methods prompt, except for answers and drafts, which the reader writes; None: the reader."""
    judge: LlmConfig | None = None
    """The model that judges; None: the reader."""
    reranker: RerankConfig | None = None
    """Cross-encoder for the methods that need one."""
    tasks: Annotated[dict[Name, TaskConfig], Field(min_length=1)]
    environments: dict[Name, PaperEnvironment] = {}
    systems: Annotated[dict[Name, PaperSystem], Field(min_length=1)]
    baseline: str = ""
    """System that all others are tested against."""
    alone: str = ""
    """System without retrieval, the reference for the gains within each label of the utility judge."""
    shifts: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = []
    """Pairs of systems whose retrieved documents are compared (retrieval shift)."""
    sweeps: list[Sweep] = []

    @model_validator(mode="after")
    def _check_references(self) -> "PaperConfig":
        systems, tasks = list(self.systems.values()), list(self.tasks.values())
        compared = [self.baseline, self.alone, *(system.baseline for system in systems), *chain(*self.shifts)]
        compared += [name for sweep in self.sweeps for name in (*sweep.systems, *sweep.beside)]
        run = [sweep.task for sweep in self.sweeps] + [name for system in systems for name in system.tasks or ()]
        searched = [name for task in tasks for name in (*task.sources, *task.environments.values())]
        searched += [name for system in systems for name in system.sources or ()]
        for kind, used, defined in (
            ("system", compared, self.systems),
            ("task", run, self.tasks),
            ("environment", searched, self.environments),
        ):
            if unknown := [name for name in used if name and name not in defined]:
                raise ValueError(f"there is no {kind} {unknown[0]!r}; the paper has {', '.join(defined) or 'none'}")
        return self


def load_paper(name: str, overrides: Sequence[str] = ()) -> PaperConfig:
    """Read and validate a paper by its packaged name or as a YAML file. Raises ConfigError."""
    path = config_file(name, PAPERS)
    return validated(PaperConfig, read_yaml(path), str(path), overrides)


def dump_paper(paper: PaperConfig) -> str:
    """The paper with every setting as YAML; `load_paper` reads it back to an equal one."""
    return write_yaml(paper.model_dump(mode="json"))
