"""Settings of a paper reproduction: its methods, tasks, environments, reader, judges and tables."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ..errors import ConfigError
from .environment import ClientConfig, EnvironmentConfig, RerankConfig
from .llm import LlmConfig
from .load import config_file, known_configs, read_yaml, validated
from .section import Name, Section
from .yaml12 import write_yaml

_FOLDER = Path(__file__).parent / "papers"

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

    @model_validator(mode="after")
    def _check_kind(self) -> "TaskConfig":
        if self.metrics is not None and self.kind != "open":
            raise ValueError(f"metrics belong to kind 'open', and the kind is {self.kind!r}; remove them")
        if self.options and self.kind != "choice":
            raise ValueError(f"options belong to kind 'choice', and the kind is {self.kind!r}; remove them")
        if self.options and not 2 <= len(self.options) <= 26:
            raise ValueError(f"options has {len(self.options)} members; expected 2 to 26")
        wrong = [name for name in self.judges if name not in JUDGES_OF[self.kind]]
        if wrong:
            raise ValueError(
                f"the judge {wrong[0]!r} does not fit kind {self.kind!r}, which takes {', '.join(JUDGES_OF[self.kind])}"
            )
        return self


JUDGES_OF: dict[str, tuple[JudgeName, ...]] = {
    "choice": ("utility", "mimic", "relevancy"),
    "open": ("context_recall", "relevancy", "declined", "faithfulness", "answer_relevancy"),
    "content": ("relevancy", "declined", "faithfulness", "answer_relevancy", "guideline"),
}
"""Judges available for each kind of task."""


class PaperEnvironment(Section):
    """A knowledge base with its retriever: local (a missing index is built), or a running service."""

    env: EnvironmentConfig = EnvironmentConfig()
    client: ClientConfig = ClientConfig()
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
    """A sweep of one setting of some systems over several values: a table and curves."""

    systems: Annotated[dict[str, str | list[str]], Field(min_length=1)]
    """Systems to vary, each with the setting of its method that takes the values, such as k or penalty. Several
    settings share a value evenly, the first get the remainder: [first_k, second_k]."""
    values: Annotated[list[int | float], Field(min_length=2)]
    """Values of the setting."""
    task: str
    """The task to run."""
    metric: str = "accuracy"
    """The metric to plot."""
    beside: list[str] = []
    """Systems drawn as horizontal lines."""

    def settings_of(self, system: str) -> list[str]:
        """The settings of a system that share each value."""
        settings = self.systems[system]
        return [settings] if isinstance(settings, str) else list(settings)


class PaperConfig(Section):
    """A paper: its methods, tasks, environments, models and tables."""

    name: Name
    """Name of the paper; results are written to `papers/name-READER`."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Random seed of sampled answers, of the sample that `limit` draws, and of the tests."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Sample size per task, drawn with `seed`; None: all questions."""
    document_words: Annotated[int, Field(ge=1)] = 200
    """Words of each document shown to the reader and the judges."""
    max_tokens: Annotated[int, Field(ge=1)] = 2048
    """Maximum tokens of the reader's answer."""
    judge_max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Maximum tokens of a judge's answer."""
    method_max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Upper bound on the tokens of every answer to a method, whatever its settings; None: no such bound."""
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

    @field_validator("tasks", "environments", "systems")
    @classmethod
    def _check_names(cls, members: dict[str, object]) -> dict[str, object]:
        for name in (AVERAGE, POOLED):
            if name in members:
                raise ValueError(f"the name {name!r} is that of a column of the tables; choose another")
        return members

    @model_validator(mode="after")
    def _check_references(self) -> "PaperConfig":
        for path, names, valid in self._references():
            unknown = [name for name in names if name and name not in valid]
            if unknown:
                raise ValueError(f"{path} names {unknown[0]!r}; the paper has {', '.join(valid) or 'none'}")
        return self

    def _references(self) -> Iterable[tuple[str, Iterable[str], Sequence[str]]]:
        """Settings of the paper that name other parts of it, as (path, names used, names defined)."""
        tasks, systems, environments = list(self.tasks), list(self.systems), list(self.environments)
        yield "baseline", [self.baseline], systems
        yield "alone", [self.alone], systems
        yield "shifts", [name for pair in self.shifts for name in pair], systems
        for name, task in self.tasks.items():
            yield f"tasks.{name}.sources", task.sources, environments
            yield f"tasks.{name}.environments", [*task.environments, *task.environments.values()], environments
        for name, system in self.systems.items():
            yield f"systems.{name}.sources", system.sources or [], environments
            yield f"systems.{name}.tasks", system.tasks or [], tasks
            yield f"systems.{name}.baseline", [system.baseline], systems
        for sweep in self.sweeps:
            yield "sweeps", [*sweep.systems, *sweep.beside], systems
            yield "sweeps", [sweep.task], tasks


def known_papers() -> list[str]:
    """Names of the papers that come with the package, sorted."""
    return known_configs(_FOLDER)


def load_paper(name: str, overrides: Sequence[str] = ()) -> PaperConfig:
    """Read and validate a paper by its packaged name or as a YAML file. Raises ConfigError."""
    path = config_file(name, _FOLDER)
    return validated(PaperConfig, read_yaml(path), str(path), overrides)


def chosen_parts(paper: PaperConfig, tasks: Sequence[str], systems: Sequence[str]) -> PaperConfig:
    """The paper with these tasks and systems alone; all of them where none is named. Raises ConfigError."""
    for flag, names, valid in (("--task", tasks, paper.tasks), ("--system", systems, paper.systems)):
        for name in names:
            if name not in valid:
                raise ConfigError(f"{flag} is {name!r}; {paper.name} has {', '.join(valid)}.")
    chosen_tasks = {name: task for name, task in paper.tasks.items() if not tasks or name in tasks}
    chosen_systems = {name: system for name, system in paper.systems.items() if not systems or name in systems}

    def if_chosen(name: str) -> str:
        return name if name in chosen_systems else ""

    changes = {
        "tasks": chosen_tasks,
        "systems": {
            name: system.model_copy(
                update={
                    "tasks": [task for task in system.tasks if task in chosen_tasks] if system.tasks else None,
                    "baseline": if_chosen(system.baseline),
                }
            )
            for name, system in chosen_systems.items()
            if system.tasks is None or set(system.tasks) & set(chosen_tasks)
        },
        "baseline": if_chosen(paper.baseline),
        "alone": if_chosen(paper.alone),
        "shifts": [pair for pair in paper.shifts if all(name in chosen_systems for name in pair)],
        "sweeps": [
            sweep.model_copy(
                update={
                    "beside": [name for name in sweep.beside if name in chosen_systems],
                    "systems": {name: settings for name, settings in sweep.systems.items() if name in chosen_systems},
                }
            )
            for sweep in paper.sweeps
            if set(sweep.systems) & set(chosen_systems) and sweep.task in chosen_tasks
        ],
    }
    return paper.model_copy(update=changes)


def dump_paper(paper: PaperConfig) -> str:
    """The paper with every setting as YAML; `load_paper` reads it back to an equal one."""
    return write_yaml(paper.model_dump(mode="json"))
