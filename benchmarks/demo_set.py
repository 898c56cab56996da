"""Facts about the demo's questions: how BM25 answers them raw, and what adding titles of its own first ten would give.

    querylect index build demo --overwrite
    python benchmarks/demo_set.py [QUESTIONS]

The right title is known here from the judgements, which no part of training sees: an upper bound for a second turn that
chooses among titles.
"""

import sys
from collections import Counter
from statistics import fmean

from querylect.configs.load import load_config
from querylect.data.types import Question
from querylect.envs.environment import Environment, RankedHit
from querylect.envs.plan import Probe, SearchPlan, Term


def main(count: str = "2000") -> None:
    """Print raw nDCG@10 by split, ranks of the relevant term, and nDCG@10 with titles added."""
    environment = Environment.open(load_config("demo", []).env)
    for split in ("test", "validation"):
        questions = environment.questions(split)
        print(
            f"raw nDCG@10, {split}: {fmean(score(environment, questions, None, 1.0)):.4f} ({len(questions)} questions)"
        )

    questions = environment.questions("train", limit=int(count))
    rankings = environment.search([SearchPlan.of(question.text) for question in questions])
    print(f"raw nDCG@10, first {len(questions)} of train: {fmean(score(environment, questions, None, 1.0)):.4f}")
    found = [
        next((at for at, hit in enumerate(ranking) if relevant(environment, question, hit.id)), None)
        for question, ranking in zip(questions, rankings, strict=True)
    ]
    ranks = Counter("none" if at is None else "1" if at == 0 else "2-10" for at in found)
    print(
        "rank of the relevant term:",
        {name: f"{100 * ranks[name] / len(found):.0f} %" for name in ("1", "2-10", "none")},
    )
    titles = [[environment.document(hit.id).title for hit in ranking] for ranking in rankings]
    first = [shown[0] if shown else None for shown in titles]
    right = [None if at is None else shown[at] for at, shown in zip(found, titles, strict=True)]
    for weight in (0.2, 0.5, 0.6, 1.0):
        always, best = (fmean(score(environment, questions, chosen, weight)) for chosen in (first, right))
        print(f"title added with weight {weight}: always the first {always:.4f}, the right one where shown {best:.4f}")


def score(
    environment: Environment, questions: list[Question], titles: list[str | None] | None, weight: float
) -> list[float]:
    """nDCG@10 of every question with its title added, or as it stands where there is none."""
    plans = []
    for question, title in zip(questions, titles or [None] * len(questions), strict=True):
        added = (Term(text=title, weight=weight),) if title else ()
        plans.append(SearchPlan(probes=(Probe(terms=(Term(text=question.text), *added)),)))
    rankings = environment.search(plans)
    scored = zip(questions, rankings, strict=True)
    return [environment.score(question.id, ranking, ["ndcg@10"])["ndcg@10"] for question, ranking in scored]


def relevant(environment: Environment, question: Question, document: str) -> bool:
    """Whether one document is judged relevant, asked as the score of a ranking of it alone."""
    return environment.score(question.id, [RankedHit(document, 1.0)], ["recall@1"])["recall@1"] > 0


if __name__ == "__main__":
    main(*sys.argv[1:])
