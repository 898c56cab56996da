"""Running a paper again: every system over every task, question by question, and then the paper's tables.

A question's record is on the disk with those of its batch. Started again, the command asks only for what is missing:
the journal has what was written down, and the reply cache of llms/ what a killed batch had asked.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from ...configs.paper import PaperConfig, PaperSystem
from ...envs.retrievers.rerank import PairScorer
from ...errors import EnvironmentUnavailableError
from ...methods.method import MISSING, NO_RANKING
from ...provenance import versions
from ...rollouts.llms import open_llm
from ...storage import only_command, write_text
from ..placement import question_set, refuse_other
from ..records import now, write_json
from ..tasks.gold import read_items
from ..tasks.judges import JUDGES
from ..tasks.reader import GENERATOR_VERSION
from ..tasks.records import open_journal, reader_name, refuse_silence
from .knowledge_bases import check_systems, open_bases, rows_of
from .records import PaperRecord
from .results import PaperResults, tabulate_paper
from .sweeps import draw_sweep, sweep_systems
from .systems import PaperRun, SystemRun
from .tables import PaperPage


def run_paper(paper: PaperConfig, output: Path | None = None, overwrite: bool = False) -> Path:
    """Run a paper and return the path of results.md; results.json, questions.jsonl and curves lie beside it.

    Raises ConfigError where the folder holds tables of other questions, unless `overwrite` says to replace them
    (records are kept), and for an unknown method or unusable settings, DataError where data is missing, both before an
    index is built or anything is asked, and what environments and models raise; then the same command goes on.
    """
    systems = {**paper.systems, **sweep_systems(paper)}
    check_systems(paper, systems)
    tasks = {}
    for name, task in paper.tasks.items():
        tasks[name] = read_items(name, task, paper.limit, paper.seed)
    folder = output or Path("papers") / f"{paper.name}-{reader_name(paper.reader.model)}"
    questions = {name: question_set([item.question for item in items.items]) for name, items in tasks.items()}
    refuse_other(folder / "results.json", {"questions": questions}, overwrite)
    with only_command(folder), ExitStack() as stack:
        reader = stack.enter_context(open_llm(paper.reader))
        writer = stack.enter_context(open_llm(paper.writer)) if paper.writer else reader
        judge = stack.enter_context(open_llm(paper.judge)) if paper.judge else reader
        bases = open_bases(paper, systems, stack)
        cross_encoder = PairScorer(paper.reranker) if paper.reranker else None
        journal = open_journal(folder / "questions.jsonl", PaperRecord)
        run = PaperRun(paper, tasks, bases, reader, writer, judge, cross_encoder, journal)
        records = all_records(run, systems)
    judges = [name for task in paper.tasks.values() for name in task.judges]
    models = {"reader": reader, "writer": writer if paper.writer else None, "judge": judge if paper.judge else None}
    facts = {
        "identity": {"questions": questions},
        "reader": reader.identity,
        "writer": writer.identity,
        "judge": judge.identity if judges else None,
        "environments": {name: base.facts for name, base in bases.items()},
        "cost": {role: model.costs.to_dict() for role, model in models.items() if model is not None},
        "generator": GENERATOR_VERSION,
        "judges": {name: JUDGES[name].version for name in judges},
        "questions": {
            name: {
                "asked": len(items.items),
                "skipped": items.skipped,
                "sample": asdict(items.sample) if items.sample else None,
            }
            for name, items in tasks.items()
        },
        "versions": versions(),
        "created": now(),
    }
    return write_results(folder, paper, systems, tabulate_paper(paper, records), facts)


def all_records(run: PaperRun, systems: Mapping[str, PaperSystem]) -> list[PaperRecord]:
    """The records of all systems on all tasks, also written down.

    Raises ConfigError for settings that a method does not take, before anything is asked, and
    EngineUnavailableError where no question at all got an answer because the models did not reply, and
    EnvironmentUnavailableError where no environment answered any question that was searched for.
    """
    rows = [SystemRun(run, *row) for row in rows_of(run.paper, systems)]
    records = [record for row in rows for record in row.records()]
    refuse_silence([record.reason == MISSING for record in records], run.reader)
    searched = [record for record in records if record.searched]
    if searched and all(record.reason == NO_RANKING for record in searched):
        raise EnvironmentUnavailableError(
            f"no environment answered any of {len(searched)} questions that were searched for; nothing was "
            "tabulated. Check the services (the warnings above have the reasons) and run the same command again."
        )
    run.journal.rewrite(records)
    return records


def write_results(
    folder: Path,
    paper: PaperConfig,
    systems: Mapping[str, PaperSystem],
    results: PaperResults,
    facts: Mapping[str, object],
) -> Path:
    """Write results.json, results.md and the curves of sweeps; return the path of results.md."""
    curves: dict[int, str] = {}
    for i, sweep in enumerate(paper.sweeps, start=1):
        curve = draw_sweep(sweep, results)
        if curve is not None:
            curves[i] = f"sweep-{i}.svg"
            write_text(folder / curves[i], curve)
    content = {
        "paper": paper.name,
        **asdict(results),
        "comparisons": [{**asdict(row), "significant": row.significant} for row in results.comparisons],
        **facts,
        "settings": paper.model_dump(mode="json"),
    }
    write_json(folder / "results.json", content)
    write_text(folder / "results.md", PaperPage(paper, systems, results).text(facts, curves))
    return folder / "results.md"
