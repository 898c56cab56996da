"""Write the results as drift.json, drift.md and drift.html."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path

from ...markdown_tables import markdown_table
from ...provenance import versions
from ..pages.figures import Drawing, Square, heat_map
from ..pages.templates import render_page
from ..records import write_json, write_text
from ..table import ALPHA, p_cell
from .mmd import Drift
from .queries import RetrieverQueries
from .results import KINDS, DriftResults, Pair, drift_identity, pair_of
from .words import Value

TITLES = {"semantic": "Semantic drift: what is asked for", "structural": "Structural drift: how it is worded"}
ESTIMATORS = {
    "different": "equation 6 over pairs of different questions",
    "eq6": "equation 6 as written, over all pairs, in every value, interval and test",
}
FEW_QUESTIONS = 50
"""With fewer questions on a side, the page warns that little can be concluded."""
PAIR_COLUMNS = (
    "pair", "drift", "RE-MMD² × 100", "95% interval", "p", "p (Holm)", "equation 6 × 100", "95% interval", "queries",
    "shared questions",
)  # fmt: skip
_STRONGEST = 0.6
"""Opacity of the largest value in a heat map, so that numbers stay readable on it."""


def write_files(results: DriftResults, folder: Path, created: str) -> Path:
    """Write the three files and return the path of drift.html. Raises StorageError."""
    write_json(folder / "drift.json", as_json(results, created))
    write_text(folder / "drift.md", as_markdown(results))
    write_text(folder / "drift.html", as_page(results, created))
    return folder / "drift.html"


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
        "examples": [{"question": question, "queries": dict(queries)} for question, queries in results.examples],
    }


def headline(results: DriftResults) -> str:
    """One sentence: in how many pairs each kind of drift is significant."""
    significant = {kind: sum(pair.p_holm[kind] < ALPHA for pair in results.pairs) for kind in KINDS}
    if len(results.pairs) == 1:
        summary = " and ".join(f"{kind} drift {'is' if significant[kind] else 'is not'} significant" for kind in KINDS)
        return f"Between {results.systems[0].name} and {results.systems[1].name}, {summary}."
    summary = ", ".join(f"{kind} drift in {significant[kind]}" for kind in KINDS)
    return f"Significant among {len(results.pairs)} pairs of retrievers: {summary}."


def counts_text(system: RetrieverQueries) -> str:
    """One line on how a system's queries were selected."""
    queries = f"{len(system.queries)} queries for {system.questions} questions"
    if system.answers is None:
        return f"{system.said}: {len(system.queries)} queries"
    return (
        f"{system.said}: {system.successful} of {system.answers} answers successful ({system.wrong_format} not in the "
        f"asked format, {system.unscorable} unscorable), {queries}"
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
    if any(pair.shared for pair in pairs):
        notes.append(
            "The retrievers share questions. Equation 6 as it is written counts the two queries of a question among "
            "the pairs between the sides, which pulls it down; RE-MMD² here is "
            + (
                "equation 6 as written, and lower for it."
                if results.settings.estimator == "eq6"
                else "over pairs of different questions."
            )
        )
    evaluated = any(system.answers is not None for system in systems)
    if evaluated and any(pair.shared < min(pair.questions) for pair in pairs):
        notes.append(
            "The retrievers succeeded on different questions, so that part of a drift may be a difference in what was "
            "asked and not in how it was worded; --shared compares only questions that both of a pair succeeded on."
        )
    plain = [system.name for system in systems if system.answers is None]
    if plain and len(plain) < len(systems):
        notes.append(f"Plain files of queries ({', '.join(plain)}) are taken whole: their success is not known.")
    return notes


def settings_rows(results: DriftResults) -> list[tuple[str, str]]:
    """The settings behind the numbers, as names and values."""
    settings = results.settings
    return [
        ("Successful", results.success),
        ("Estimator", ESTIMATORS[settings.estimator]),
        ("Questions", "those that both sides of a pair succeeded on" if settings.shared else "every side's own"),
        ("Semantic kernel", f"exp(−|x − y|² / 2σ²) over embeddings by {results.model}"),
        ("σ", f"{results.sigma:.4f}, {results.sigma_said}"),
        (
            "Structural kernel",
            f"inner product of TF-IDF vectors of length 1; {results.vocabulary:,} words, of all queries",
        ),
        ("Permutations", f"{settings.permutations:,}, p = (b + 1) / (m + 1)"),
        ("Resamples", f"{settings.bootstrap:,} of questions, 95% percentile intervals"),
        ("Seed", str(settings.seed)),
    ]


def as_markdown(results: DriftResults) -> str:
    """drift.md: all tables in Markdown."""
    names = [system.name for system in results.systems]
    lines = [f"# Drift between {', '.join(names)}", "", headline(results), ""]
    lines += [f"- **{name}**: {value}" for name, value in settings_rows(results)]
    lines += ["", "## Queries", ""]
    lines += [f"- **{system.name}** (`{system.source}`) {counts_text(system)}" for system in results.systems]
    for kind in KINDS:
        lines += ["", f"## {TITLES[kind]}", "", "RE-MMD² × 100.", ""]
        cells = [[name, *(_map_cell(pair_of(results.pairs, name, b), kind) for b in names)] for name in names]
        lines += markdown_table(["", *names], cells)
    lines += ["", "## Pairs", ""]
    lines += markdown_table(PAIR_COLUMNS, [_pair_cells(pair, kind) for pair in results.pairs for kind in KINDS])
    lines += ["", "## Profiles", ""]
    lines += markdown_table(
        ["", *_profile_columns(results)], [[name, *_profile_cells(results, name)] for name in names]
    )
    lines += ["", "## Most telling words", ""]
    for name in names:
        terms = ", ".join(f"{term.word} (z {term.z:.1f})" for term in results.terms[name])
        lines.append(f"- **{name}**: {terms or 'none'}")
    if notes := notes_of(results):
        lines += ["", "## Notes", "", *[f"- {note}" for note in notes]]
    return "\n".join(lines) + "\n"


def as_page(results: DriftResults, created: str) -> str:
    names = [system.name for system in results.systems]
    return render_page(
        "drift.html.j2",
        title=f"Drift between {', '.join(names)}",
        headline=headline(results),
        maps=maps(names, results.pairs, notes_of(results)),
        systems=[(system.name, system.source, counts_text(system)) for system in results.systems],
        columns=_profile_columns(results),
        profiles=[(name, _profile_cells(results, name)) for name in names],
        terms=results.terms,
        examples=results.examples,
        names=names,
        settings=settings_rows(results),
        versions=versions(),
        created=created,
    )


def maps(names: Sequence[str], pairs: Sequence[Pair], notes: Sequence[str], mark: str = "drift") -> dict[str, object]:
    """Heat maps, table of pairs and notes for drift_maps.html.j2; `mark` is a unique prefix for SVG ids."""
    return {
        "drawings": [draw_map(names, pairs, kind, mark) for kind in KINDS],
        "pair_columns": PAIR_COLUMNS,
        "pairs": [_pair_cells(pair, kind) for pair in pairs for kind in KINDS],
        "notes": notes,
        "alpha": ALPHA,
    }


def draw_map(names: Sequence[str], pairs: Sequence[Pair], kind: str, mark: str) -> Drawing:
    """The heat map of one kind of drift, as in figure 3 of Yuan et al.: RE-MMD² × 100, darker for larger values."""
    values = {ends: pair.drifts[kind].value for pair in pairs for ends in permutations((pair.first, pair.second))}
    top = max([*values.values(), 1e-12])
    squares = [
        [
            Square(_map_cell(pair_of(pairs, a, b), kind), _STRONGEST * max(0.0, values.get((a, b), 0.0)) / top)
            for a in names
        ]
        for b in names
    ]
    description = "; ".join(f"{pair.first} and {pair.second} {_map_cell(pair, kind)}" for pair in pairs)
    svg = heat_map(names, names, squares, f"{mark}-{kind}", f"{TITLES[kind]}, RE-MMD² times 100: {description}.")
    return Drawing(TITLES[kind], f"RE-MMD² × 100. †: p < {ALPHA} after Holm’s correction.", [svg])


def _map_cell(pair: Pair | None, kind: str) -> str:
    if pair is None:
        return "–"
    return _hundred(pair.drifts[kind].value) + ("†" if pair.p_holm[kind] < ALPHA else "")


def _pair_cells(pair: Pair, kind: str) -> list[str]:
    drift: Drift = pair.drifts[kind]
    return [
        f"{pair.first} – {pair.second}",
        kind,
        _map_cell(pair, kind),
        _range(drift.low, drift.high),
        p_cell(drift.p),
        p_cell(pair.p_holm[kind]),
        _hundred(drift.equation6),
        _range(drift.equation6_low, drift.equation6_high),
        f"{pair.queries[0]} / {pair.queries[1]}",
        str(pair.shared),
    ]


def _profile_columns(results: DriftResults) -> list[str]:
    variety = f"different words in {results.variety_of:,}"
    return ["words", "with a question mark", "stop-words", "copied from the question", variety]


def _profile_cells(results: DriftResults, name: str) -> list[str]:
    profile = results.profiles[name]
    shares = (profile.question_marks, profile.stop_words, profile.copied, profile.variety)
    return [_value(profile.words, 1, ""), *(_value(share, 100, " %") for share in shares)]


def _value(value: Value | None, scale: float, unit: str) -> str:
    if value is None:
        return "–"
    if value.low is None or value.high is None:
        return f"{scale * value.mean:.1f}{unit}"
    return f"{scale * value.mean:.1f}{unit} ({scale * value.low:.1f} to {scale * value.high:.1f})"


def _range(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{_hundred(low)} to {_hundred(high)}"


def _hundred(value: float) -> str:
    """The value times 100, with a true minus sign; zero after rounding has no sign."""
    text = f"{100 * value:.2f}"
    return "0.00" if text == "-0.00" else text.replace("-", "−")
