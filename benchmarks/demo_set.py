"""Facts about the two packaged question sets, with BM25: what there is to gain, and what is to be had without a model.

    python benchmarks/demo_set.py [CONFIG …]        # demo and hpo

Prints documents and questions; nDCG@10 of the raw question on every split; what one right word or term would give,
added at two weights (the first of the relevant document's title, known from the judgements, which no part of training
sees); and the best of two families of training-free rewrites, chosen on validation and scored on test. Indexes are
built in a temporary folder.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from bm25s.stopwords import STOPWORDS_EN
from machine import describe
from querylect.configs.load import load_config
from querylect.data.types import Question
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term

RIGHT_WORD_WEIGHTS = (0.6, 1.0)
COUNTS = (1, 3, 5)
WEIGHTS = (0.1, 0.2, 0.3, 0.5, 1.0)
Rewrite = Callable[[Question], Sequence[str]]
"""The texts that are added to a question."""


def main(*configs: str) -> None:
    """Print the facts of each config's set."""
    print(describe("bm25s"))
    for name in configs or ("demo", "hpo"):
        with tempfile.TemporaryDirectory() as folder:
            config = load_config(name, [f"env.index={Path(folder) / 'index'}"]).env
            build_index(config)
            print(f"\n{name}:")
            show(Environment.open(config))


def show(environment: Environment) -> None:
    """Print what the module's docstring lists, for one environment."""
    sizes = ", ".join(f"{count:,} {split}" for split, count in environment.splits.items())
    print(f"  {environment.corpus_size:,} documents; questions: {sizes}")
    splits = {split: environment.questions(split) for split in environment.splits}
    for split, questions in splits.items():
        raw = score(environment, questions, lambda _: (), 0.0)
        right = (
            f"{score(environment, questions, right_word(environment), weight):.4f} at weight {weight}"
            for weight in RIGHT_WORD_WEIGHTS
        )
        print(f"  {split}: raw question {raw:.4f}, with one right word {', '.join(right)}")
    families = {
        "titles of its first n documents": [first_titles(environment, splits, count) for count in COUNTS],
        "its first n content words": [content_words(count) for count in COUNTS],
    }
    for family, rewrites in families.items():
        tried = [
            (score(environment, splits["validation"], rewrites[index], weight), COUNTS[index], weight)
            for index, weight in product(range(len(COUNTS)), WEIGHTS)
        ]
        best, count, weight = max(tried)
        test = score(environment, splits["test"], rewrites[COUNTS.index(count)], weight)
        print(
            f"  question and {family}, best of {len(tried)} on validation: n {count}, weight {weight}: "
            f"validation {best:.4f}, test {test:.4f}"
        )


def right_word(environment: Environment) -> Rewrite:
    """The first word of the title of the first relevant document."""

    def added(question: Question) -> Sequence[str]:
        relevant = min(environment.judgements(question.id))
        return environment.document(relevant).title.split(", ")[:1]

    return added


def first_titles(environment: Environment, splits: dict[str, list[Question]], count: int) -> Rewrite:
    """The titles of the first documents that the raw question finds."""
    questions = [*splits["validation"], *splits["test"]]
    rankings = environment.search([SearchPlan.of(question.text, k=count) for question in questions])
    titles = {
        question.id: [environment.document(hit.id).title for hit in ranking]
        for question, ranking in zip(questions, rankings, strict=True)
    }
    return lambda question: titles[question.id]


def content_words(count: int) -> Rewrite:
    """The first words of the question that BM25 does not drop as stopwords."""
    stopwords = frozenset(STOPWORDS_EN)
    return lambda question: [word for word in question.text.split() if word.lower().strip("(),;") not in stopwords][
        :count
    ]


def score(environment: Environment, questions: Sequence[Question], rewrite: Rewrite, weight: float) -> float:
    """Mean nDCG@10 of the questions, each with what the rewrite adds to it."""
    plans = []
    for question in questions:
        added = [Term(text=text, weight=weight) for text in rewrite(question) if text]
        plans.append(SearchPlan(probes=(Probe(terms=(Term(text=question.text), *added)),)))
    scored = zip(questions, environment.search(plans), strict=True)
    return fmean(environment.score(question.id, ranking, ["ndcg@10"])["ndcg@10"] for question, ranking in scored)


if __name__ == "__main__":
    main(*sys.argv[1:])
