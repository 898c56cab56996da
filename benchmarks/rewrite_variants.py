"""What in a policy's rewrites finds the answer: the same rewrites with fewer words and with other weights.

    python benchmarks/rewrite_variants.py RUN [--split validation] [--questions 300] [KEY=VALUE …]

The policy of RUN, a run of `demo`, answers greedily, and its plans are searched as they are and changed: without
repeated words, with the first words alone, with another weight of the rewrite. Prints nDCG@10, and the paired test of
each against the plans as they are. Choose on validation.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from greedy import greedy_trees
from machine import describe
from paired import compare_paired
from querylect.configs.run_settings import load_run_config
from querylect.data.sampling import draw
from querylect.envs.client.connect import open_environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.schemas import Step
from querylect.rollouts.checkpoints import find_checkpoint

METRIC = "ndcg@10"
WEIGHTS = (0.3, 0.45, 0.6, 0.8, 1.0)
FIRST_WORDS = (1, 2, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--questions", type=int, default=300)
    args = parser.parse_intermixed_args()
    print(describe())
    config = load_run_config(args.run, [*args.changes, "eval.turns=1"], trust=True)
    with open_environment(config.env, config.client) as client:
        questions = draw(client.questions(args.split), args.questions, config.eval.sample_seed)

        def scores(plans: Sequence[SearchPlan]) -> list[float | None]:
            steps = [Step(question_id=question.id, plan=plan) for question, plan in zip(questions, plans, strict=True)]
            return [result.metrics[METRIC] if result else None for result in client.step(steps, metrics=[METRIC])]

        trees = greedy_trees(config, client, find_checkpoint(args.run), questions)
        plans = [tree.roots[0].rewrite.plan or SearchPlan.of(tree.question.text) for tree in trees]
        reference = scores(plans)
        variants: dict[str, Callable[[Term], Term]] = {"without repeated words": without_repeats}
        variants |= {f"first {count} words": partial(first_words, count=count) for count in FIRST_WORDS}
        variants |= {f"weight {weight:g}": partial(weighted, weight=weight) for weight in WEIGHTS}
        for name, change in variants.items():
            changed = [with_rewrite(plan, change) for plan in plans]
            test = compare_paired(scores(changed), reference, resamples=2000, permutations=20_000, seed=config.seed)
            print(
                f"{name:24} {test.mean_a:.4f}  {test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f}), "
                f"p = {test.p:.4f}, {test.wins} better, {test.losses} worse"
            )
        print(f"{'as they are':24} {test.mean_b:.4f}, {test.n} questions of {args.split}")


def with_rewrite(plan: SearchPlan, change: Callable[[Term], Term]) -> SearchPlan:
    """The plan with its rewrite, the last term of each probe, changed; a plan of the question alone stays."""
    probes = tuple(
        Probe(terms=(*probe.terms[:-1], change(probe.terms[-1]))) if len(probe.terms) > 1 else probe
        for probe in plan.probes
    )
    return plan.model_copy(update={"probes": probes})


def without_repeats(rewrite: Term) -> Term:
    """Each word once."""
    return rewrite.model_copy(update={"text": " ".join(dict.fromkeys(rewrite.text.replace(",", " ").split()))})


def first_words(rewrite: Term, count: int) -> Term:
    return rewrite.model_copy(update={"text": " ".join(rewrite.text.replace(",", " ").split()[:count])})


def weighted(rewrite: Term, weight: float) -> Term:
    return rewrite.model_copy(update={"weight": weight})


if __name__ == "__main__":
    main()
