"""Run a plan: every system on every dataset in every environment, without asking any question twice.

If a cell cannot be run (a missing model, a service that does not answer), its failure is recorded and reported at the
end; the other cells continue. A cell's answers are stored in its journal, whose name is a fingerprint of everything
that the answers depend on. So a stopped evaluation resumes, and a changed plan asks only what has changed. Every model
is loaded once, and a local environment runs only while questions are sent to it.
"""

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from ...configs.evaluation import RAW, PlanConfig
from ...data.references import BaselineCheck
from ...data.types import Question
from ...envs.client.base import EnvironmentApi
from ...envs.client.connect import open_environment
from ...errors import EnvironmentUnavailableError, QuerylectError
from ...llms.access import Llm
from ...logs import progress_bar
from ...rollouts.engines.base import Engine
from ...rollouts.first_stage import ask_first_stage
from ...rollouts.llms import open_llm
from ...storage import only_writer
from ..answering import Asking, answers, batches
from ..compare import run_raw
from ..identity import system_identity
from ..journal import Journal, Key, finished
from ..prompted import prompted_answers
from ..records import EvalRecord, records_of_trees
from ..training_free import answer
from .contestants import Contestant, TrainedQuestions, resolve
from .places import Places, Testbed, chosen_places
from .training_free import FreeSystem

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell that could not be finished."""

    system: str
    dataset: str
    environment: str
    error: str
    """Name of the exception class."""
    message: str


@dataclass(slots=True)
class Cell:
    """One system on one dataset in one environment."""

    testbed: Testbed
    contestant: Contestant | None
    """None for the raw question and for a training-free baseline."""
    asking: Asking
    journal: Journal
    failure: FailedCell | None = None
    free: FreeSystem | None = None
    """The training-free baseline, if the cell is one."""

    @property
    def name(self) -> str:
        """The system's name."""
        system = self.contestant or self.free
        return system.name if system is not None else RAW

    @property
    def turns(self) -> list[int]:
        """The turns that every question has records of."""
        return list(range(1, self.asking.turns + 1)) if self.contestant is not None else [0]

    def records(self) -> list[EvalRecord]:
        """The valid records of the cell's questions, scored or not. Raises DataError as Journal.read."""
        texts = {question.id: question.text for question in self.testbed.questions}
        return [record for record in self.journal.read() if record.question == texts.get(record.question_id)]

    def missing(self) -> dict[str, int]:
        """How many answers the model failed to give to the cell's questions, by reason."""
        question_ids = {question.id for question in self.testbed.questions}
        return dict(Counter(reason for key, reason in self.journal.missing().items() if key[0] in question_ids))

    def pending(self) -> list[Question]:
        """The questions without a score for some turn or sample."""
        done = finished(self.journal.read(), self.testbed.questions, self.turns, self.asking.paths)
        return [question for question in self.testbed.questions if question.id not in done]


@dataclass(slots=True)
class Grid:
    """The outcome of running a plan."""

    plan: PlanConfig
    folder: Path
    testbeds: list[Testbed] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    failures: list[FailedCell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    licences: dict[str, str] = field(default_factory=dict)
    contestants: dict[str, Contestant] = field(default_factory=dict)
    baselines: list[tuple[Testbed, BaselineCheck]] = field(default_factory=list)
    """How raw questions compare with published figures, if that was requested."""

    @property
    def wrong(self) -> list[BaselineCheck]:
        """Verdicts on environments that do not reproduce their published figures."""
        return [verdict for _, verdict in self.baselines if verdict.status == "wrong"]


def run_plan(plan: PlanConfig, folder: Path, check: Callable[[Grid], None] | None = None) -> Grid:
    """Run a plan in `folder`, as far as possible. Raises StorageError if another evaluation uses the folder.

    `check` may fill in `baselines` before any model is loaded; if one is wrong, nothing is asked.
    """
    with _alone(folder):
        grid = Grid(plan, folder)
        _prepare(grid)
        if check is not None:
            check(grid)
        if not grid.wrong:
            _answer(grid)
        grid.failures += [cell.failure for cell in grid.cells if cell.failure is not None]
        return grid


def _prepare(grid: Grid) -> None:
    """Open all testbeds, resolve all systems, and create the cells."""
    plan, trained_questions, testbeds = grid.plan, TrainedQuestions(), Places(grid.plan)
    unresolved: dict[str, QuerylectError] = {}
    for name, system in plan.systems.items():
        if system.training_free is not None:
            continue
        try:
            grid.contestants[name] = resolve(name, plan)
        except QuerylectError as error:
            unresolved[name] = error
    for dataset, environment in chosen_places(plan):
        names = [name for name in plan.systems if _takes_part(plan, name, dataset, environment)]
        try:
            testbed = testbeds.open(dataset, environment)
        except QuerylectError as error:
            grid.failures += [_failure(name, dataset, environment, error) for name in (RAW, *names)]
            continue
        grid.testbeds.append(testbed)
        cells = grid.folder / "cells"
        common = {"place": testbed.identity, "depth": plan.depth, "metrics": plan.metrics, "split": plan.split}
        grid.cells.append(raw_cell(grid, testbed, plan.metrics, plan.depth))
        for name in names:
            if plan.systems[name].training_free is not None:
                free = FreeSystem.of(plan, name)
                journal = Journal(cells, {**common, "system": free.identity})
                grid.cells.append(Cell(testbed, None, Asking(0, plan.metrics), journal, free=free))
                continue
            try:
                if name in unresolved:
                    raise unresolved[name]
                contestant = grid.contestants[name]
                grid.notes += trained_questions.refuse(contestant, testbed, plan.split)
                settings, rewriter = contestant.rewriter_settings(environment), contestant.rewriter(testbed)
                config = contestant.config.model_copy(update={"rewriter": settings})
                system = contestant.system
                identity = system_identity(system, config, contestant.weights, rewriter, plan.seed)
                asking = Asking(system.turns, plan.metrics, system.samples, plan.seed)
                journal = Journal(cells, {**common, "system": identity})
                grid.cells.append(Cell(testbed, contestant, asking, journal))
            except QuerylectError as error:
                grid.failures.append(_failure(name, dataset, environment, error))
    grid.licences = {dataset: testbeds.licence(dataset) for dataset in plan.datasets}


def raw_cell(grid: Grid, testbed: Testbed, metrics: Sequence[str], depth: int) -> Cell:
    """The cell of a testbed's raw questions."""
    identity = {"place": testbed.identity, "depth": depth, "metrics": list(metrics), "split": grid.plan.split}
    return Cell(testbed, None, Asking(0, metrics), Journal(grid.folder / "cells", {**identity, "system": RAW}))


def _answer(grid: Grid) -> None:
    """Ask all pending questions, by model and then by testbed.

    Cells that need no model run when their testbed is first opened.
    """
    pending = [cell for cell in grid.cells if _has_work(cell)]
    by_engine: dict[str, list[Cell]] = {}
    for cell in pending:
        if cell.contestant is not None:
            by_engine.setdefault(cell.contestant.engine_key, []).append(cell)
    without_model = [cell for cell in pending if cell.contestant is None]
    for cells in by_engine.values():
        contestant = cells[0].contestant
        assert contestant is not None, "raw questions need no engine"
        try:
            engine = _load(contestant)
        except Exception as error:  # noqa: BLE001 (reported at the end; other models continue)
            _mark_failed(cells, error)
            continue
        for testbed in grid.testbeds:
            testbed_cells = [cell for cell in cells if cell.testbed is testbed]
            if testbed_cells:
                model_free = [cell for cell in without_model if cell.testbed is testbed]
                without_model = [cell for cell in without_model if cell.testbed is not testbed]
                ask_at(testbed, [*model_free, *testbed_cells], engine, grid.plan.batch)
        if isinstance(engine, Llm):
            _log_costs(contestant, engine)
            engine.close()
        del engine
        _free_memory()
    for testbed in grid.testbeds:
        if testbed_cells := [cell for cell in without_model if cell.testbed is testbed]:
            ask_at(testbed, testbed_cells, None, grid.plan.batch)


def ask_at(testbed: Testbed, cells: Sequence[Cell], engine: Engine | Llm | None, batch_size: int) -> None:
    """Run the cells of one testbed, one after another, while its environment is open."""
    try:
        with open_environment(testbed.config) as client:
            for cell in cells:
                try:
                    _ask(cell, client, engine, batch_size)
                except Exception as error:  # noqa: BLE001 (reported at the end; other cells continue)
                    _mark_failed([cell], error)
    except Exception as error:  # noqa: BLE001 (as above)
        _mark_failed([cell for cell in cells if cell.failure is None and cell.pending()], error)


def _ask(cell: Cell, client: EnvironmentApi, engine: Engine | Llm | None, batch_size: int) -> None:
    """Ask the pending questions, batch by batch.

    Raises EnvironmentUnavailableError if no search of a batch was scored.
    """
    questions = cell.pending()
    answered = len(cell.testbed.questions) - len(questions)
    title = f"{cell.name} on {cell.testbed.dataset} in {cell.testbed.environment}"
    log.info("%s: %d questions%s", title, len(questions), f" ({answered} answered before)" if answered else "")
    done = 0
    with progress_bar(title) as advance:
        advance(0, len(questions))
        for part, records in _batches_of_records(cell, questions, client, engine, batch_size):
            cell.journal.append(records)
            question_count = len({record.question_id for record in records})
            done += part
            advance(done, len(questions))
            searched = [record for record in records if record.searches]
            if searched and all(record.metrics[cell.asking.metrics[0]] is None for record in searched):
                raise EnvironmentUnavailableError(
                    f"the environment scored none of {question_count} questions before the deadline; the last error "
                    f"was {client.last_failure}. Mend it, or raise client.deadline, and give the "
                    "command again: what was answered is kept."
                )


def _batches_of_records(
    cell: Cell, questions: Sequence[Question], client: EnvironmentApi, engine: Engine | Llm | None, batch_size: int
) -> Iterator[tuple[int, list[EvalRecord]]]:
    """Yield (number of questions, records) for every answered batch."""
    asking, contestant = cell.asking, cell.contestant
    if contestant is None:
        depth, folder = int(cell.journal.identity["depth"]), cell.journal.folder
        free = cell.free
        tuned = free.choose(client, cell.testbed.everything, folder, folder.parent.parent) if free is not None else None
        for start in range(0, len(questions), batch_size):
            part = questions[start : start + batch_size]
            if free is not None and tuned is not None:
                yield len(part), answer(free.name, client, tuned, part, asking.metrics, depth)
            else:
                yield len(part), run_raw(client, part, asking.metrics, depth)
        return
    assert engine is not None, "a system is asked with its model loaded"
    rewriter, rollout = contestant.rewriter(cell.testbed), contestant.config.rollout
    missing: dict[Key, str] = {}

    def mark_missing(question: Question, reason: str) -> None:
        missing.update({(question.id, 1, sample): reason for sample in range(asking.paths)})

    base = contestant.system.llm or contestant.config.policy
    remaining = ask_first_stage(rewriter, questions, base, lost=mark_missing)
    cell.journal.miss(missing)
    parts = batches(remaining, batch_size)
    if isinstance(engine, Llm):
        for batch in prompted_answers(
            parts, contestant.name, asking, contestant.system, engine, client, rewriter, rollout
        ):
            cell.journal.miss(batch.missing)
            yield batch.questions, batch.records
        return
    for answered in answers(parts, asking, engine, client, rewriter, rollout):
        records = records_of_trees(contestant.name, answered.trees, asking.metrics, asking.paths, answered.seconds)
        yield len(answered.trees), records


def _has_work(cell: Cell) -> bool:
    try:
        cell.missing()  # an unreadable file of missing answers fails the cell, too
        return cell.failure is None and bool(cell.pending())
    except QuerylectError as error:
        _mark_failed([cell], error)
        return False


def _load(contestant: Contestant) -> Engine | Llm:
    if contestant.system.llm is not None:
        return open_llm(contestant.system.llm)
    from ...rollouts.engines.open import load_engine

    log.info("loading %s", contestant.checkpoint or contestant.config.policy.model)
    return load_engine(contestant.config, contestant.checkpoint)


def _log_costs(contestant: Contestant, llm: Llm) -> None:
    costs = llm.costs
    reasons = ", ".join(f"{count} × {reason}" for reason, count in costs.missing.items())
    log.info(
        "%s: %d replies, %d known before, %d requests made again, missing: %s",
        contestant.name, costs.calls, costs.cached, costs.retries, reasons or "none",
    )  # fmt: skip


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _mark_failed(cells: Sequence[Cell], error: Exception) -> None:
    for cell in cells:
        cell.failure = failure_of(cell, error)


def failure_of(cell: Cell, error: Exception) -> FailedCell:
    """Log the failure of a cell and return it."""
    return _failure(cell.name, cell.testbed.dataset, cell.testbed.environment, error)


def _failure(system: str, dataset: str, environment: str, error: Exception) -> FailedCell:
    expected = isinstance(error, QuerylectError)
    log.log(
        logging.WARNING,
        "%s on %s in %s failed: %s",
        system,
        dataset,
        environment,
        error,
        exc_info=None if expected else error,
    )
    return FailedCell(system, dataset, environment, type(error).__name__, str(error))


def _takes_part(plan: PlanConfig, name: str, dataset: str, environment: str) -> bool:
    system = plan.systems[name]
    return (system.datasets is None or dataset in system.datasets) and (
        system.environments is None or environment in system.environments
    )


def _alone(folder: Path) -> AbstractContextManager[None]:
    """Lock the folder, so that two evaluations never write to the same cell."""
    return only_writer(
        folder,
        ".lock",
        unwritable="Give another output.",
        taken=f"another evaluation is at work in {folder}. Wait for it, or give this one another name or output.",
    )
