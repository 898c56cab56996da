"""A plan carried out: every system on every dataset in every environment, and nothing asked twice.

A cell that cannot be run (a model that is missing, a service that does not answer) is noted and told at the end; the
others go on. What a cell has answered stands in its journal, under a name that follows from all that the answers depend
on: so a stopped evaluation goes on, and a changed plan asks only what has changed. Every model is loaded once, and an
environment on this machine runs only while it is asked.
"""

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...configs.evaluation import RAW, PlanConfig
from ...data.lines import only_writer
from ...data.references import Verdict
from ...data.types import Question
from ...envs.connect import open_environment
from ...errors import EnvironmentUnavailableError, QuerylectError
from ...llms.access import Llm, open_llm
from ...logs import progress_bar
from ...rewriters.stages import ask_first_stage
from ...rollouts.engine import Engine
from ..answering import Asking, answers, batches
from ..compare import run_raw
from ..identity import system_identity
from ..journal import Journal, Key, finished
from ..prompted import prompted_answers
from ..records import EvalRecord, records_of_trees
from ..training_free import answer
from .contestants import Contestant, TrainedQuestions, resolve
from .places import Place, Places, chosen_places
from .training_free import FreeSystem

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that could not be finished."""

    system: str
    dataset: str
    environment: str
    error: str
    """What kind of error it was."""
    message: str


@dataclass(slots=True)
class Cell:
    """One system on one dataset in one environment."""

    place: Place
    contestant: Contestant | None
    """None is the raw question, or a training-free baseline."""
    asking: Asking
    journal: Journal
    failure: Failure | None = None
    free: FreeSystem | None = None
    """The training-free baseline."""

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
        """What counts of the questions that are asked, with scores or without. Raises DataError as Journal.read."""
        texts = {question.id: question.text for question in self.place.questions}
        return [one for one in self.journal.read() if one.question == texts.get(one.question_id)]

    def missing(self) -> dict[str, int]:
        """How many answers the model never gave to the questions that are asked, by reason."""
        asked = {question.id for question in self.place.questions}
        return dict(Counter(reason for key, reason in self.journal.missing().items() if key[0] in asked))

    def pending(self) -> list[Question]:
        """The questions that have no score yet at some turn or in some sample."""
        done = finished(self.journal.read(), self.place.questions, self.turns, self.asking.paths)
        return [question for question in self.place.questions if question.id not in done]


@dataclass(slots=True)
class Grid:
    """What came of a plan."""

    plan: PlanConfig
    folder: Path
    places: list[Place] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    licences: dict[str, str] = field(default_factory=dict)
    contestants: dict[str, Contestant] = field(default_factory=dict)
    baselines: list[tuple[Place, Verdict]] = field(default_factory=list)
    """How raw questions compare with published figures, where that was asked for."""

    @property
    def wrong(self) -> list[Verdict]:
        """Of environments that do not show what is published for them."""
        return [verdict for _, verdict in self.baselines if verdict.status == "wrong"]


def run_plan(plan: PlanConfig, folder: Path, check: Callable[[Grid], None] | None = None) -> Grid:
    """Carry out a plan in `folder`, as far as that can be done. Raises StorageError where another one is at it.

    `check` may fill in `baselines` before a model is loaded; where one is wrong, nothing is asked.
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
    """Open all places, resolve all systems, and lay out the cells."""
    plan, trained, places = grid.plan, TrainedQuestions(), Places(grid.plan)
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
            place = places.open(dataset, environment)
        except QuerylectError as error:
            grid.failures += [_failure(name, dataset, environment, error) for name in (RAW, *names)]
            continue
        grid.places.append(place)
        cells = grid.folder / "cells"
        common = {"place": place.identity, "depth": plan.depth, "metrics": plan.metrics, "split": plan.split}
        grid.cells.append(raw_cell(grid, place, plan.metrics, plan.depth))
        for name in names:
            if plan.systems[name].training_free is not None:
                free = FreeSystem.of(plan, name)
                journal = Journal(cells, {**common, "system": free.identity})
                grid.cells.append(Cell(place, None, Asking(0, plan.metrics), journal, free=free))
                continue
            try:
                if name in unresolved:
                    raise unresolved[name]
                contestant = grid.contestants[name]
                grid.notes += trained.refuse(contestant, place, plan.split)
                settings, rewriter = contestant.rewriter_settings(environment), contestant.rewriter(place)
                config = contestant.config.model_copy(update={"rewriter": settings})
                system = contestant.system
                identity = system_identity(system, config, contestant.weights, rewriter, plan.seed)
                asking = Asking(system.turns, plan.metrics, system.samples, plan.seed)
                journal = Journal(cells, {**common, "system": identity})
                grid.cells.append(Cell(place, contestant, asking, journal))
            except QuerylectError as error:
                grid.failures.append(_failure(name, dataset, environment, error))
    grid.licences = {dataset: places.licence(dataset) for dataset in plan.datasets}


def raw_cell(grid: Grid, place: Place, metrics: Sequence[str], depth: int) -> Cell:
    """The raw questions of a place."""
    identity = {"place": place.identity, "depth": depth, "metrics": list(metrics), "split": grid.plan.split}
    return Cell(place, None, Asking(0, metrics), Journal(grid.folder / "cells", {**identity, "system": RAW}))


def _answer(grid: Grid) -> None:
    """Ask all that is pending, model by model and in each environment by environment; what needs none on the way."""
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
        except Exception as error:  # noqa: BLE001 (told at the end; the other models go on)
            _give_up(cells, error)
            continue
        for place in grid.places:
            here = [cell for cell in cells if cell.place is place]
            if here:
                first = [cell for cell in without_model if cell.place is place]
                without_model = [cell for cell in without_model if cell.place is not place]
                ask_at(place, [*first, *here], engine, grid.plan.batch)
        if isinstance(engine, Llm):
            _tell_costs(contestant, engine)
            engine.close()
        del engine
        _free()
    for place in grid.places:
        if here := [cell for cell in without_model if cell.place is place]:
            ask_at(place, here, None, grid.plan.batch)


def ask_at(place: Place, cells: Sequence[Cell], engine: Engine | Llm | None, size: int) -> None:
    """Ask the cells of one place, one after another, while its environment is open."""
    try:
        with open_environment(place.config) as client:
            for cell in cells:
                try:
                    _ask(cell, client, engine, size)
                except Exception as error:  # noqa: BLE001 (told at the end; the other cells go on)
                    _give_up([cell], error)
    except Exception as error:  # noqa: BLE001 (as above)
        _give_up([cell for cell in cells if cell.failure is None and cell.pending()], error)


def _ask(cell: Cell, client: Any, engine: Engine | Llm | None, size: int) -> None:
    """Ask what is pending, a batch at a time. EnvironmentUnavailableError where a whole batch has no score."""
    questions = cell.pending()
    kept = len(cell.place.questions) - len(questions)
    title = f"{cell.name} on {cell.place.dataset} in {cell.place.environment}"
    log.info("%s: %d questions%s", title, len(questions), f" ({kept} answered before)" if kept else "")
    done = 0
    with progress_bar(title) as advance:
        advance(0, len(questions))
        for part, records in _batches_of_records(cell, questions, client, engine, size):
            cell.journal.append(records)
            asked = len({record.question_id for record in records})
            done += part
            advance(done, len(questions))
            searched = [record for record in records if record.searches]
            if searched and all(record.metrics[cell.asking.metrics[0]] is None for record in searched):
                raise EnvironmentUnavailableError(
                    f"the environment scored none of {asked} questions before the deadline; the last error was "
                    f"{getattr(client, 'last_failure', None)}. Mend it, or raise client.deadline, and give the command "
                    "again: what was answered is kept."
                )


def _batches_of_records(
    cell: Cell, questions: Sequence[Question], client: Any, engine: Engine | Llm | None, size: int
) -> Iterator[tuple[int, list[EvalRecord]]]:
    """Batches as they are answered: of how many questions, and what is to be written."""
    asking, contestant = cell.asking, cell.contestant
    if contestant is None:
        depth, folder = int(cell.journal.identity["depth"]), cell.journal.folder
        free = cell.free
        tuned = free.choose(client, cell.place.everything, folder, folder.parent.parent) if free is not None else None
        for start in range(0, len(questions), size):
            part = questions[start : start + size]
            if free is not None and tuned is not None:
                yield len(part), answer(free.name, client, tuned, part, asking.metrics, depth)
            else:
                yield len(part), run_raw(client, part, asking.metrics, depth)
        return
    assert engine is not None, "a system is asked with its model loaded"
    rewriter, rollout = contestant.rewriter(cell.place), contestant.config.rollout
    lost: dict[Key, str] = {}

    def lose(question: Question, reason: str) -> None:
        lost.update({(question.id, 1, sample): reason for sample in range(asking.paths)})

    base = contestant.system.llm or contestant.config.policy
    kept = ask_first_stage(rewriter, questions, base, lost=lose)
    cell.journal.miss(lost)
    parts = batches(kept, size)
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
        cell.missing()  # a file of it that cannot be read fails the cell, too
        return cell.failure is None and bool(cell.pending())
    except QuerylectError as error:
        _give_up([cell], error)
        return False


def _load(contestant: Contestant) -> Engine | Llm:
    if contestant.system.llm is not None:
        return open_llm(contestant.system.llm)
    from ...rollouts.engines import load_engine

    log.info("loading %s", contestant.checkpoint or contestant.config.policy.model)
    return load_engine(contestant.config, contestant.checkpoint)


def _tell_costs(contestant: Contestant, llm: Llm) -> None:
    costs = llm.costs
    said = ", ".join(f"{count} × {reason}" for reason, count in costs.missing.items())
    log.info(
        "%s: %d replies, %d known before, %d requests made again, missing: %s",
        contestant.name, costs.calls, costs.cached, costs.retries, said or "none",
    )  # fmt: skip


def _free() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _give_up(cells: Sequence[Cell], error: Exception) -> None:
    for cell in cells:
        cell.failure = failure_of(cell, error)


def failure_of(cell: Cell, error: Exception) -> Failure:
    """The failure of a cell, which is logged."""
    return _failure(cell.name, cell.place.dataset, cell.place.environment, error)


def _failure(system: str, dataset: str, environment: str, error: Exception) -> Failure:
    ours = isinstance(error, QuerylectError)
    log.log(
        logging.WARNING,
        "%s on %s in %s failed: %s",
        system,
        dataset,
        environment,
        error,
        exc_info=None if ours else error,
    )
    return Failure(system, dataset, environment, type(error).__name__, str(error))


def _takes_part(plan: PlanConfig, name: str, dataset: str, environment: str) -> bool:
    system = plan.systems[name]
    return (system.datasets is None or dataset in system.datasets) and (
        system.environments is None or environment in system.environments
    )


def _alone(folder: Path) -> AbstractContextManager[None]:
    """Hold the folder, so that two evaluations never write into one cell."""
    return only_writer(
        folder,
        ".lock",
        unwritable="Give another output.",
        taken=f"another evaluation is at work in {folder}. Wait for it, or give this one another name or output.",
    )
