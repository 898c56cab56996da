"""Write the results as drift.json and drift.md."""

from dataclasses import asdict, replace
from pathlib import Path

from ...markdown_tables import markdown_table
from ...provenance import versions
from ...storage import write_text
from ..records import write_json
from ..table import ALPHA, p_cell
from .queries import RetrieverQueries
from .results import KINDS, DriftResults, Pair, drift_identity, pair_of

TITLES = {"semantic": "Semantic drift: what is asked for", "structural": "Structural drift: how it is worded"}
ESTIMATORS = {
    "different": "equation 6 over pairs of different questions",
    "eq6": "equation 6 as written, over all pairs, in every value, interval and test",
}
FEW_QUESTIONS = 50
"""With fewer questions on a side, the page warns that little can be concluded."""
PAIR_COLUMNS = ("pair", "drift", "RE-MMD² × 100", "95% interval", "p", "p (Holm)", "queries", "shared questions")


def write_files(results: DriftResults, folder: Path, created: str) -> Path:
    """Write both files and return the path of drift.md. Raises StorageError."""
    write_json(folder / "drift.json", as_json(results, created))
    write_text(folder / "drift.md", as_markdown(results))
    return folder / "drift.md"


def as_json(results: DriftResults, created: str) -> dict[str, object]:
    """All numbers, unscaled, with everything needed to recompute them."""
    return {
        "created": created,
        "identity": drift_identity(results.systems, results.settings),
        "versions": versions(),
        "notes": notes_of(results),
        **asdict(replace(results, systems=())),
        "systems": [
            asdict(replace(system, queries=())) | {"queries": len(system.queries), "questions": system.questions}
            for system in results.systems
        ],
    }


def counts_text(system: RetrieverQueries) -> str:
    """One line on how a system's queries were selected."""
    queries = f"{len(system.queries)} queries for {system.questions} questions"
    if system.answers is None:
        return f"{system.said}: {len(system.queries)} queries"
    return (
        f"{system.said}: {system.successful} of {system.answers} answers successful ({system.wrong_format} not in the "
        f"asked format, {system.failed_searches} without a score), {queries}"
    )


def notes_of(results: DriftResults) -> list[str]:
    """Caveats for interpreting the numbers."""
    pairs, systems = results.pairs, results.systems
    notes = []
    few = [system.name for system in systems if system.questions < FEW_QUESTIONS]
    if few:
        notes.append(
            f"Fewer than {FEW_QUESTIONS} questions: {', '.join(few)}. Intervals and tests of so few say little; that a "
            "drift is not significant does not mean that there is none."
        )
    notes += [
        f"{pair.first} and {pair.second}: a random sample of the questions is compared, with {sum(pair.queries):,} of "
        f"{sum(pair.sampled_from):,} queries (seed {results.settings.seed})."
        for pair in pairs
        if pair.sampled_from is not None
    ]
    if results.settings.estimator == "eq6" and any(pair.shared for pair in pairs):
        notes.append(
            "The retrievers share questions. Equation 6 as it is written counts the two queries of a question among "
            "the pairs between the sides, which pulls it down."
        )
    evaluated = any(system.answers is not None for system in systems)
    if evaluated and any(pair.shared < min(pair.questions) for pair in pairs):
        notes.append(
            "The retrievers succeeded on different questions, so that part of a drift may be a difference in what was "
            "asked and not in how it was worded; --shared compares only questions that both of a pair succeeded on."
        )
    return notes


def settings_rows(results: DriftResults) -> list[tuple[str, str]]:
    """The settings behind the numbers, as names and values."""
    settings = results.settings
    return [
        ("Successful", results.success),
        ("Estimator", ESTIMATORS[settings.estimator]),
        ("Questions", "those that both sides of a pair succeeded on" if settings.shared else "every side's own"),
        ("Semantic kernel", f"exp(−|x − y|² / 2σ²) over embeddings by {results.model}"),
        ("σ", f"{results.sigma:.4f}, the median distance between two queries"),
        (
            "Structural kernel",
            f"inner product of TF-IDF vectors of length 1; {results.vocabulary:,} words, of all queries",
        ),
        ("Permutations", f"{settings.permutations:,}, p = (b + 1) / (m + 1)"),
        ("Resamples", f"{settings.bootstrap:,} of questions, 95% percentile intervals"),
        ("Seed", str(settings.seed)),
    ]


def as_markdown(results: DriftResults) -> str:
    """drift.md: the matrices of the paper's figure 3, every pair, and where the numbers come from."""
    names = [system.name for system in results.systems]
    lines = [f"# Drift between {', '.join(names)}", ""]
    for kind in KINDS:
        lines += [f"## {TITLES[kind]}", "", f"RE-MMD² × 100. †: p < {ALPHA} after Holm's correction.", ""]
        cells = [[name, *(_value(pair_of(results.pairs, name, other), kind) for other in names)] for name in names]
        lines += [*markdown_table(["", *names], cells), ""]
    lines += ["## Pairs", ""]
    lines += markdown_table(PAIR_COLUMNS, [_pair_cells(pair, kind) for pair in results.pairs for kind in KINDS])
    lines += ["", "## Queries", ""]
    lines += [f"- **{system.name}** (`{system.source}`) {counts_text(system)}" for system in results.systems]
    lines += ["", *(f"- **{name}**: {value}" for name, value in settings_rows(results))]
    if notes := notes_of(results):
        lines += ["", "## Notes", "", *[f"- {note}" for note in notes]]
    return "\n".join(lines) + "\n"


def _value(pair: Pair | None, kind: str) -> str:
    if pair is None:
        return "–"
    return _hundred(pair.drifts[kind].value) + ("†" if pair.p_holm[kind] < ALPHA else "")


def _pair_cells(pair: Pair, kind: str) -> list[str]:
    drift = pair.drifts[kind]
    interval = f"{_hundred(drift.low)} to {_hundred(drift.high)}" if drift.low is not None else "–"
    queries = f"{pair.queries[0]} / {pair.queries[1]}"
    p_values = p_cell(drift.p), p_cell(pair.p_holm[kind])
    return [f"{pair.first} – {pair.second}", kind, _value(pair, kind), interval, *p_values, queries, str(pair.shared)]


def _hundred(value: float | None) -> str:
    """The value times 100, with a true minus sign; zero after rounding has no sign."""
    text = f"{100 * (value or 0.0):.2f}"
    return "0.00" if text == "-0.00" else text.replace("-", "−")
