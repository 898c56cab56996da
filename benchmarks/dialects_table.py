"""The tables and decisions of docs/dialects.md, from the rewrites of finished policies; everything is searched here.

Scores are kept by seed; a row without seeds (a free one, the untrained policy) is compared with every seed. Differences
are tested question by question, of the mean over seeds and of each seed, with Holm's correction over a table.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import permutations, product
from statistics import fmean

import dialects_queries as queries
import numpy as np
import pandas as pd
from dialects_queries import FREE, MOST, RAREST, WAYS
from querylect.configs.methods import TRAINING_FREE
from querylect.configs.schema import EnvironmentConfig
from querylect.data import sampling
from querylect.data.corpus import load_dataset
from querylect.data.types import AllDocuments, Question
from querylect.envs.environment import PLANS_AT_ONCE, Environment
from querylect.envs.plan import SearchPlan
from querylect.eval import training_free
from querylect.eval.drift import ENCODER, measure, open_encoder
from querylect.eval.statistics import holm, paired_permutation_test
from querylect.markdown_tables import markdown_table
from reproduction_claims import CONFIRMED, LEAST_SEEDS, NOT_YET, OPEN, REFUTED, verdict
from reproduction_results import RESAMPLES, mean_of_seeds
from reproduction_tables import plain, spread

RETRIEVERS = {"fts5": "FTS5, ranked", "fts5-date": "FTS5, by date", "bm25": "BM25", "minilm": "MiniLM"}
"""By the name of the policy that is trained with it."""
METRICS = NDCG, F3 = "ndcg@10", "f3@1000"
FEEDBACK = {"first titles, as text": "first_titles", "RM3, as text": "rm3"}
FREE_ROWS, FREE_ON = (*FREE, *FEEDBACK), ("fts5", "fts5-date")
ANY = "any"  # the seed of what has none
TWO_TURNS, FIRST_TURN = "fts5-date-two", "fts5-date-two-turn1"
LEVEL, MARGIN = 0.01, 0.02  # of "native wins", and by how much the demo has to be ahead
PERMUTATIONS = 20_000  # Holm's correction over a hundred tests can then stay below LEVEL
SAMPLE = 300  # questions whose rewrites RE-MMD compares
FORMS = {"as written": str, "words alone": lambda rewrite: " ".join(queries.operands(rewrite))}

Policies = Mapping[str, Mapping[int | str, Mapping[str, str]]]  # rewrites by policy, seed and question id
Seeds = dict[int | str, list[float]]  # by seed, a value per question
Judgement = tuple[str, str, str, Sequence[float], Sequence[float]]
"""Claim, verdict, evidence, differences of single seeds, adjusted p of the mean over seeds and of each seed."""


class Results:
    """What free rows and policies find for the questions of a split. A row is a free one, or "policy, way"."""

    def __init__(self, configs: dict[str, EnvironmentConfig], split: str, policies: Policies, last: Policies) -> None:
        """`configs` by retriever; `last` are the rewrites of the last step."""
        dataset = load_dataset(configs["fts5"].dataset, AllDocuments())
        self.environments = {name: Environment.open(config, dataset) for name, config in configs.items()}
        self.native_on = [name for name, env in self.environments.items() if "query_language" in env.info().retriever]
        self.splits = {name: list(dataset.splits[name].questions) for name in (split, "validation")}
        self.split, self.questions, self.policies, self.last = split, self.splits[split], policies, last
        frequency = cache(lambda query: self.environments["fts5"].rank([SearchPlan.of(query, 1, "native")])[0].hits)
        self.free = cache(lambda question: queries.free_queries(question, frequency))
        self._searched = cache(self._search)
        self._found: dict[tuple[str, str, SearchPlan], dict[str, float]] = {}

    def chosen(self, retriever: str, metric: str) -> int:
        """The n of the rarest words that is best on validation."""
        rows = [self.scores(RAREST.format(n), retriever, metric, "validation") for n in range(1, MOST + 1)]
        return 1 + int(np.argmax([fmean(row[ANY]) for row in rows]))

    def scores(self, row: str, retriever: str, metric: str, split: str = "") -> Seeds:
        """By seed, a metric (also "hits", "refused" and "empty") of every question; {} where nothing is there."""
        if row == RAREST.format("n"):
            row = RAREST.format(self.chosen(retriever, metric))
        found = self._searched(row, retriever, split or self.split)
        return {seed: [values[metric] for values in by_question] for seed, by_question in found.items()}

    def _search(self, row: str, retriever: str, split: str) -> dict[int | str, list[dict[str, float]]]:
        questions, has_language = self.splits[split], retriever in self.native_on
        depth = 1000 if has_language else 10
        if row in FEEDBACK:
            tuned = training_free.Tuned(FEEDBACK[row], TRAINING_FREE[FEEDBACK[row]]().model_dump())
            env, parts = self.environments[retriever], sampling.in_batches(questions, PLANS_AT_ONCE)
            answers = (training_free.answer(row, env, tuned, part, METRICS, depth) for part in parts)
            return {ANY: [dict(record.metrics) for part in answers for record in part]}
        if row in self.free(questions[0].text):
            plans = {ANY: [SearchPlan.of(self.free(question.text)[row], depth, "native") for question in questions]}
        else:
            name, _, way = row.rpartition(", ")
            plans = {
                seed: [queries.asked(way, rewrites[question.id], has_language, depth) for question in questions]
                for seed, rewrites in self.policies[name].items()
            }
        return {seed: self._find(retriever, questions, asked) for seed, asked in plans.items()}

    def _find(self, retriever: str, questions: list[Question], plans: list[SearchPlan]) -> list[dict[str, float]]:
        env, asked = self.environments[retriever], zip(questions, plans, strict=True)
        keys = [(retriever, question.id, plan) for question, plan in asked]
        for part in sampling.in_batches([key for key in keys if key not in self._found], PLANS_AT_ONCE):
            for key, ranking in zip(part, env.rank([plan for *_, plan in part]), strict=True):
                refused = ranking.error is not None
                more = {"hits": ranking.hits or 0, "refused": refused, "empty": not refused and not ranking}
                self._found[key] = env.score(key[1], ranking, METRICS) | more
        return [self._found[key] for key in keys]

    def mean(self, row: str, retriever: str, metric: str = NDCG) -> float | None:
        """The mean over seeds and questions."""
        scores = self.scores(row, retriever, metric)
        return fmean(map(fmean, scores.values())) if scores else None


def judge(claims: Sequence[tuple[str, Seeds, Seeds]]) -> list[Judgement]:
    """The claims "the first is better than the second" of one table."""
    tested = []
    for _, first, second in claims:
        seeds = [seed for seed in first if seed in second or ANY in second]
        pairs = [(first[seed], second.get(seed) or second[ANY]) for seed in seeds]
        tested.append([tuple(map(mean_of_seeds, zip(*pairs, strict=True))), *pairs] if pairs else [])
    adjusted = iter(holm([paired_permutation_test(*test, PERMUTATIONS, 0) for tests in tested for test in tests]))
    judgements = []
    for (text, *_), tests in zip(claims, tested, strict=True):
        if not tests:
            judgements.append((text, NOT_YET, "", [], []))
            continue
        p = [next(adjusted) for _ in tests]
        by_seed = [fmean(first) - fmean(second) for first, second in tests[1:]]
        low, high = interval(np.array([np.subtract(*pair) for pair in tests[1:]]))
        listed = ", ".join(f"{value:+.3f} (p {one:.4f})" for value, one in zip(by_seed, p[1:], strict=True))
        evidence = f"{fmean(by_seed):+.3f} ({low:+.3f} to {high:+.3f}), p {p[0]:.4f}; by seed {listed}"
        judgements.append((text, verdict(low, high, p[0], by_seed), evidence, by_seed, p))
    return judgements


def interval(differences: np.ndarray) -> list[float]:
    """95% bootstrap interval of the mean of `differences` (seeds, questions), over questions and seeds."""
    rng = np.random.default_rng(0)
    drawn = zip(*(rng.integers(0, size, (RESAMPLES, size)) for size in differences.shape), strict=True)
    return np.quantile([differences[np.ix_(*rows)].mean() for rows in drawn], (0.025, 0.975)).tolist()


def render(results: Results) -> str:
    """All tables as Markdown."""
    sections = {
        "What costs nothing or the same": _free(results),
        "Transfer": _transfer(results),
        "Native under `order: date`": _native_wins(results),
        "Two turns": _two_turns(results),
        "The demo": _demo(results),
        "How queries are written": _behaviour(results),
        "RE-MMD": _distances(results),
        "Examples": _examples(results),
    }
    return "\n".join(line for title, lines in sections.items() for line in (f"### {title}", "", *lines, ""))


def _free(results: Results) -> Iterator[str]:
    columns, rows = list(product(FREE_ON, METRICS)), []
    for row in (*FREE_ROWS, *map(", ".join, product(results.policies, WAYS[:2]))):
        by_column = [list(results.scores(row, *column).values()) for column in columns]
        rows.append([row, *(spread(by_seed) if by_seed else "" for by_seed in by_column)])
    yield from markdown_table(["asked", *(f"{RETRIEVERS[name]}: {metric}" for name, metric in columns)], rows)
    chosen = ", ".join(str(results.chosen(*column)) for column in columns)
    finished = "; ".join(f"{name} {', '.join(map(str, seeds))}" for name, seeds in results.policies.items() if seeds)
    yield f"\n{len(results.questions):,} questions; seeds: {finished or 'none yet'}. n is {chosen}, by column."


def _transfer(results: Results) -> Iterator[str]:
    """Of each pair of policies of two retrievers, the best way of either is compared."""
    names, rows, claims = list(results.environments), [], []
    asked = {policy: [f"{policy}, {way}" for way in WAYS] for policy in results.policies}
    for policy in results.policies:
        means = [[results.mean(row, name) for row in asked[policy]] for name in names]
        rows.append([policy, *(" / ".join(f"{mean:.3f}" for mean in cell if mean is not None) for cell in means)])
    yield from markdown_table(["policy", *(RETRIEVERS[name] for name in names)], rows)
    yield ""
    for name, other in permutations(names, 2):
        sides = [max(asked[policy], key=lambda row: results.mean(row, name) or 0) for policy in (name, other)]
        text = f"on {RETRIEVERS[name]}: {sides[0]} is better than {sides[1]}"
        claims.append((text, *(results.scores(side, name, NDCG) for side in sides)))
    yield from _verdicts(judge(claims))


def _verdicts(rows: Sequence[Sequence[str]], claim: str = "claim") -> list[str]:
    return markdown_table([claim, "verdict", "evidence"], [row[:3] for row in rows], "lll")


def _native_wins(results: Results) -> Iterator[str]:
    untrained = [f"{name}, native" for name, seeds in results.policies.items() if ANY in seeds]
    rows = [*FREE_ROWS, *untrained, *(f"{name}, repaired" for name in results.policies)]
    for policy, metric in (("fts5-date", NDCG), ("fts5-date-f3", F3)):
        own, *others = (results.scores(row, "fts5-date", metric) for row in (f"{policy}, native", *rows))
        judgements = judge([(row, own, other) for row, other in zip(rows, others, strict=True)])
        yield from _verdicts(judgements, f"{policy}, native, is better by {metric} than")
        yield f"\nNative wins by {metric}: **{native_wins(judgements)}** (each p < {LEVEL}).\n"


def native_wins(judgements: Sequence[Judgement]) -> str:
    """Whether a policy is ahead of every row; those that are not there are left out."""
    run = [(result, by_seed, p) for _, result, _, by_seed, p in judgements if p]
    if not run or min(len(by_seed) for _, by_seed, _ in run) < LEAST_SEEDS:
        return NOT_YET
    if all(min(by_seed) > 0 and max(p) < LEVEL for _, by_seed, p in run):
        return CONFIRMED
    return REFUTED if any(result == REFUTED for result, _, _ in run) else OPEN


def _two_turns(results: Results) -> list[str]:
    own = results.scores(f"{TWO_TURNS}, native", "fts5-date", NDCG)
    others = {"fts5-date, repaired": "one turn after repair", f"{FIRST_TURN}, native": "its own first turn"}
    claims = [(text, own, results.scores(row, "fts5-date", NDCG)) for row, text in others.items()]
    return _verdicts(judge(claims), f"{TWO_TURNS}, native, is better than")


def _demo(results: Results) -> list[str]:
    rows = []
    for policy in FREE_ON:
        own, repaired = (results.scores(f"{policy}, {way}", policy, NDCG) for way in WAYS[:2])
        best = max(FREE_ROWS, key=lambda row: results.mean(row, policy))
        margins = [fmean(own[seed]) - max(results.mean(best, policy), fmean(repaired[seed])) for seed in own]
        text = f"{policy}, native, is ahead of its repair and of the best free row ({best}) by {MARGIN} with each seed"
        result = NOT_YET if len(margins) < LEAST_SEEDS else CONFIRMED if min(margins) >= MARGIN else REFUTED
        rows.append((text, result, "by seed " + ", ".join(f"{margin:+.3f}" for margin in margins)))
    return _verdicts(rows)


def _behaviour(results: Results) -> list[str]:
    rows, signs = [], ("OR", "AND", "NOT", '"', "*")
    for policy, seeds in results.policies.items():
        if seeds:
            texts = [text for rewrites in seeds.values() for text in rewrites.values()]
            shares = [fmean(sign in queries.OPERATOR.findall(text) for text in texts) for sign in signs]
            row, asked_of = f"{policy}, native", policy if policy in results.native_on else "fts5"
            shares += [results.mean(row, asked_of, share) for share in ("refused", "empty")]
            words, hits = fmean(len(queries.operands(text)) for text in texts), results.mean(row, asked_of, "hits")
            rows.append([policy, f"{words:.1f}", *(f"{share:.0%}" for share in shares), f"{hits:.0f}"])
    return markdown_table(["policy", "words", *signs, "refused", "without hits", "hits"], rows)


def _distances(results: Results) -> Iterator[str]:
    """RE-MMD² × 100, mean (lowest to highest) over pairs of runs of two retrievers, and of two seeds of one."""
    last = {name: results.last.get(name, {}) for name in results.environments}
    runs = {f"{name} {seed}": rewrites for name, seeds in last.items() for seed, rewrites in seeds.items()}
    if len(runs) < 2:
        yield NOT_YET
        return
    questions, frames = sampling.draw(results.questions, SAMPLE, 0), []
    encode, _ = open_encoder(ENCODER)
    for form, change in FORMS.items():
        written = {run: [(q.id, q.text, change(texts[q.id])) for q in questions] for run, texts in runs.items()}
        written = {run: [query for query in listed if query[2].strip()] for run, listed in written.items()}
        frames.append(measure(written, encode, permutations=1, bootstrap=1, seed=0).assign(form=form))
    frame = pd.concat(frames, ignore_index=True)
    first, second = (frame[side].str.split().str[0] for side in ("first", "second"))
    frame["same"], frame["value"] = first == second, 100 * frame["value"]
    frame["policies"] = (first + " – " + second).where(first != second, "seeds of " + first)
    cells = frame.pivot_table("value", "policies", ["form", "kind"], aggfunc=_range, sort=False)
    head = ["policies", *(f"{kind}, {form}" for form, kind in cells.columns)]
    yield from markdown_table(head, map(list, cells.itertuples()))
    yield f"\n{len(questions)} questions; encoder {ENCODER}.\n"
    complete = [name for name, seeds in last.items() if len(seeds) >= LEAST_SEEDS]
    frame = frame[first.isin(complete) & second.isin(complete)]
    yield from _verdicts([(f"a dialect exists, {form}", *dialect(frame[frame["form"] == form])) for form in FORMS])


def dialect(frame: pd.DataFrame) -> tuple[str, str]:
    """Verdict and evidence of "a dialect exists", from a value for each pair of runs and kind of distance; `same` says
    whether both have one retriever."""
    structural, semantic = (frame[frame["kind"] == kind] for kind in ("structural", "semantic"))
    between, within = (structural.loc[structural["same"] == same, "value"] for same in (False, True))
    if not len(between) or not len(within):
        return NOT_YET, ""
    ratio = between.mean() / semantic.loc[~semantic["same"], "value"].mean()
    evidence = f"structural {_range(between)} between retrievers, {_range(within)} between seeds of one; "
    return (CONFIRMED if between.min() > within.max() else OPEN), f"{evidence}{ratio:.1f} times the semantic one"


def _range(values: pd.Series) -> str:
    return f"{values.mean():.2f} ({values.min():.2f} to {values.max():.2f})"


def _examples(results: Results) -> list[str]:
    questions = sampling.spread(results.questions, 3)
    shown = {name: seeds[min(seeds)] for name, seeds in results.policies.items() if seeds}
    rows = [[name, *(plain(texts[question.id]) for question in questions)] for name, texts in shown.items()]
    return markdown_table(["first seed of", *(plain(question.text) for question in questions)], rows, "llll")
