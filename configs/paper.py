"""Settings of a paper that is run again: its methods, its tasks, what is searched, who reads and judges, its tables."""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ..errors import ConfigError
from .environment import ClientConfig, EnvironmentConfig, RerankConfig
from .llm import AnswerForm, LlmConfig
from .load import read_yaml, validated
from .section import Section
from .yaml12 import write_yaml

_FOLDER = Path(__file__).parent / "papers"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

AVERAGE = "average"
"""The column of a table that is the mean of its other tasks."""

Style = Literal["reasoned", "short", "grounded"]
JudgeName = Literal[
    "utility", "relevancy", "declined", "faithfulness", "answer_relevancy", "guideline", "context_recall"
]


class TaskConfig(Section):
    """One set of questions, and how answers to them are asked for and judged."""

    kind: Literal["choice", "open", "content"]
    """Multiple choice, open questions with short right answers, or questions that documents of the corpus answer."""
    data: str
    """choice, open: a JSON-lines file of right answers (docs/answers.md). content: a BEIR folder, whose test questions
    are asked."""
    about: str = ""
    """Where the data comes from, for the error where it is missing."""
    title: str = ""
    """Its name in tables; the task's own where empty."""
    options: list[str] = []
    """choice: the options of every question, for files whose lines have none, as [yes, no]."""
    sources: list[str] = []
    """Environments that are searched, the first by default; all of the paper where empty."""
    style: Style | None = None
    """How the reader is asked: reasoned, short or grounded; None is reasoned for choice, short for open, grounded for
    content."""
    field: str = ""
    """What the reader is told to be an expert of, as medical."""
    metrics: list[str] | None = None
    """open: em, accuracy, precision, recall, f1, rouge1, rouge2, rougeL, bleu1 to bleu4; None takes em, accuracy and
    f1. choice has accuracy, content has exact_recovery, and nothing else."""
    judges: list[JudgeName] = []
    """Who judges contexts and answers besides (docs/papers.md)."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """So many questions, drawn with the seed of the paper; None takes all, or the limit of the paper."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "TaskConfig":
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
    "choice": ("utility", "relevancy"),
    "open": ("context_recall", "relevancy", "declined", "faithfulness", "answer_relevancy"),
    "content": ("relevancy", "declined", "faithfulness", "answer_relevancy", "guideline"),
}
"""The judges that can judge a kind of task."""


class PaperEnvironment(Section):
    """A knowledge base with its retriever: searched here, its index built where it is missing, or a running service."""

    env: EnvironmentConfig = EnvironmentConfig()
    client: ClientConfig = ClientConfig()
    about: str = ""
    """Where the corpus comes from, for the error where it is missing."""


class PaperSystem(Section):
    """One row of the tables: a method with its settings."""

    method: str
    """Its name (docs/methods.md)."""
    settings: dict[str, Any] = {}
    """Of the method, those that differ from what it does by itself."""
    label: str = ""
    """Its name in tables; the system's own where empty."""
    sources: list[str] | None = None
    """Environments that it searches; those of the task where None."""
    style: Style | None = None
    """How the reader is asked for its answer; that of the task where None."""
    tasks: list[str] | None = None
    """Only these tasks; None takes all."""


class Sweep(Section):
    """One setting of a system over several values: a table and a curve."""

    system: str
    """The system whose setting changes."""
    setting: str
    """Of the method, its place in the settings, as k or penalty."""
    values: Annotated[list[int | float], Field(min_length=2)]
    """What the setting takes, one after the other."""
    task: str
    """The task that is answered."""
    metric: str = "accuracy"
    """What the curve shows."""
    beside: list[str] = []
    """Systems that are drawn as level lines."""


class TableColumn(Section):
    """What stands in a column of a table."""

    task: str
    """A task, or `average` for the mean of the other columns of the same metric."""
    metric: str
    """A metric or judge of that task."""


class PaperTable(Section):
    """One table of the paper."""

    title: str
    """What stands above it."""
    published: str = ""
    """The paper's own table of the same content, as data/papers names it."""
    rows: list[str] = []
    """Systems in the order of the paper; all where empty."""
    columns: Annotated[list[TableColumn], Field(min_length=1)]
    generators: Literal["across", "down"] = "across"
    """Where the paper's generators stand: side by side within each column, or below each other."""
    unit: Literal["percent", "share", "number"] = "percent"
    """How 0.374 is printed: 37.4 as percent, 0.37 as a share; number is for what is no share, with one decimal."""


class PaperCase(Section):
    """A case study: one question step by step, for some systems."""

    title: str
    """What stands above it."""
    published: str = ""
    """The paper's own, as data/papers names it."""
    task: str
    """The task whose question it is."""
    rows: Annotated[list[str], Field(min_length=1)]
    """Systems."""


class PaperConfig(Section):
    """One paper."""

    name: str
    """The folder of the results is `output/name-READER`."""
    title: str = ""
    """The paper's title, for the report."""
    method: str = ""
    """The system that is the paper's own."""
    output: str = "papers"
    """The folder of folders of results."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of sampled answers, of the questions that a `limit` draws, and of the tests."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """So many questions of every task, drawn with `seed`; None takes all."""
    batch: Annotated[int, Field(ge=1)] = 64
    """Questions that are answered together, and then written."""
    document_words: Annotated[int, Field(ge=1)] = 200
    """Words that the reader and the judges are shown of each document."""
    max_tokens: Annotated[int, Field(ge=1)] = 2048
    """Longest answer of the reader."""
    judge_max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Longest answer of a judge."""
    method_max_tokens: Annotated[int, Field(ge=1)] | None = None
    """No answer to a method is longer, whatever its settings say; None leaves it to them."""
    form: AnswerForm = "json"
    """How methods and judges are answered where a form is asked for: as JSON, as in the papers, or as labelled lines,
    which a small model keeps to."""
    reader: LlmConfig = LlmConfig()
    """Answers the questions."""
    writer: LlmConfig | None = None
    """Is asked by the methods for all but answers and drafts of them, which are the reader's; the reader where None."""
    judge: LlmConfig | None = None
    """Is asked by the judges; the reader where None."""
    reranker: RerankConfig | None = None
    """The cross-encoder of methods that need one."""
    judging: bool = True
    """False asks no judge."""
    tasks: Annotated[dict[str, TaskConfig], Field(min_length=1)]
    environments: dict[str, PaperEnvironment] = {}
    systems: Annotated[dict[str, PaperSystem], Field(min_length=1)]
    baseline: str = ""
    """The system that all others are tested against."""
    alone: str = ""
    """The system without retrieval that gains within a label of the utility judge are measured from."""
    shifts: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = []
    """Pairs of systems whose rankings are compared."""
    shift_k: Annotated[int, Field(ge=1)] = 5
    """Documents of each ranking that are compared."""
    sweeps: list[Sweep] = []
    tables: list[PaperTable] = []
    cases: list[PaperCase] = []

    @field_validator("tasks", "environments", "systems")
    @classmethod
    def _names_for_files(cls, members: dict[str, object]) -> dict[str, object]:
        for name in members:
            if not _NAME.fullmatch(name) or name == AVERAGE:
                raise ValueError(f"the name {name!r} must be of letters, digits, '.', +, - and _, and not {AVERAGE!r}")
        return members

    @model_validator(mode="after")
    def _everything_named(self) -> "PaperConfig":
        for where, names, known in self._mentions():
            unknown = [name for name in names if name and name not in known]
            if unknown:
                raise ValueError(f"{where} names {unknown[0]!r}; the paper has {', '.join(known) or 'none'}")
        return self

    def _mentions(self) -> Iterable[tuple[str, Iterable[str], Sequence[str]]]:
        """Where the paper speaks of its own parts: the place, what it names, what there is."""
        tasks, systems, environments = list(self.tasks), list(self.systems), list(self.environments)
        yield "method", [self.method], systems
        yield "baseline", [self.baseline], systems
        yield "alone", [self.alone], systems
        yield "shifts", [name for pair in self.shifts for name in pair], systems
        for name, task in self.tasks.items():
            yield f"tasks.{name}.sources", task.sources, environments
        for name, system in self.systems.items():
            yield f"systems.{name}.sources", system.sources or [], environments
            yield f"systems.{name}.tasks", system.tasks or [], tasks
        for sweep in self.sweeps:
            yield "sweeps", [sweep.system, *sweep.beside], systems
            yield "sweeps", [sweep.task], tasks
        for case in self.cases:
            yield f"the case {case.title!r}", [*case.rows], systems
            yield f"the case {case.title!r}", [case.task], tasks
        for table in self.tables:
            yield f"the table {table.title!r}", table.rows, systems
            yield f"the table {table.title!r}", [column.task for column in table.columns], [*tasks, AVERAGE]


def known_papers() -> list[str]:
    """Names of the papers that come with the package, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_paper(name: str, overrides: Sequence[str] = ()) -> PaperConfig:
    """Read and validate a paper by its packaged name or as a YAML file. Raises ConfigError."""
    path = Path(name).expanduser()
    if not path.is_file():
        if name not in known_papers():
            near = difflib.get_close_matches(name, known_papers(), n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"the paper {name!r} is neither a file nor one of {', '.join(known_papers())}.{meant} Name one of them "
                "or give a YAML file."
            )
        path = _FOLDER / f"{name}.yaml"
    return validated(PaperConfig, read_yaml(path), str(path), overrides)


def chosen_parts(paper: PaperConfig, tasks: Sequence[str], systems: Sequence[str]) -> PaperConfig:
    """The paper with these tasks and systems alone; all of them where none is named. Raises ConfigError."""
    for flag, names, known in (("--task", tasks, paper.tasks), ("--system", systems, paper.systems)):
        for name in names:
            if name not in known:
                raise ConfigError(f"{flag} is {name!r}; {paper.name} has {', '.join(known)}.")
    kept_tasks = {name: task for name, task in paper.tasks.items() if not tasks or name in tasks}
    kept = {name: system for name, system in paper.systems.items() if not systems or name in systems}

    def there(name: str) -> str:
        return name if name in kept else ""

    changes = {
        "tasks": kept_tasks,
        "systems": {
            name: system.model_copy(
                update={"tasks": [one for one in system.tasks if one in kept_tasks] if system.tasks else None}
            )
            for name, system in kept.items()
            if system.tasks is None or set(system.tasks) & set(kept_tasks)
        },
        "method": there(paper.method),
        "baseline": there(paper.baseline),
        "alone": there(paper.alone),
        "shifts": [pair for pair in paper.shifts if all(name in kept for name in pair)],
        "sweeps": [
            sweep.model_copy(update={"beside": [name for name in sweep.beside if name in kept]})
            for sweep in paper.sweeps
            if sweep.system in kept and sweep.task in kept_tasks
        ],
        "cases": [
            case.model_copy(update={"rows": left})
            for case in paper.cases
            if case.task in kept_tasks and (left := [name for name in case.rows if name in kept])
        ],
        "tables": [
            table.model_copy(update={"rows": [name for name in table.rows if name in kept], "columns": columns})
            for table in paper.tables
            if (columns := [one for one in table.columns if one.task in {*kept_tasks, AVERAGE}])
            and (not table.rows or set(table.rows) & set(kept))
        ],
    }
    return paper.model_copy(update=changes)


def dump_paper(paper: PaperConfig) -> str:
    """The paper with every setting as YAML; `load_paper` reads it back to an equal one."""
    return write_yaml(paper.model_dump(mode="json"))
