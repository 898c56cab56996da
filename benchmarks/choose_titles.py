"""What a second turn could gain without training: choosing one title among the first turn's hits by its probability.

    python benchmarks/choose_titles.py RUN [--split validation] [--questions 300] [--weight 0.3] [KEY=VALUE …]

The policy of RUN, a run of `demo`, answers greedily. Each title of the first ten hits is then scored by the same policy
and prompt: log p(title | question), that minus log p(title | "something") (pointwise mutual information, PMI), or its
rank. The best title of each kind is added to the plan. Prints nDCG@10, and the paired test of each against turn 1.
Choose the weight on validation and run it once on test.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from greedy import greedy_trees
from machine import describe
from paired import compare_paired
from querylect.configs.run_settings import load_run_config
from querylect.configs.schema import RunConfig
from querylect.data.sampling import draw
from querylect.data.types import Question
from querylect.envs.client.connect import open_environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.schemas import Step, StepResult
from querylect.rewriters.small import load_prompt
from querylect.rollouts.chat import Chat
from querylect.rollouts.checkpoints import find_checkpoint
from querylect.rollouts.policy import load_policy

METRIC = "ndcg@10"
NEUTRAL = "something"


@dataclass(frozen=True)
class Candidate:
    """One title of the first turn's hits."""

    title: str
    conditional: float
    """log p(title | question)."""
    neutral: float
    """log p(title | "something")."""
    rank: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--weight", type=float, default=0.3)
    args = parser.parse_intermixed_args()
    print(describe())
    config = load_run_config(args.run, [*args.changes, "eval.turns=1"], trust=True)
    checkpoint = find_checkpoint(args.run)
    with open_environment(config.env, config.client) as client:
        questions = draw(client.questions(args.split), args.questions, config.eval.sample_seed)

        def search(plans: Sequence[SearchPlan], with_text: bool = False) -> list[StepResult | None]:
            steps = [Step(question_id=question.id, plan=plan) for question, plan in zip(questions, plans, strict=True)]
            return client.step(steps, metrics=[METRIC], with_text=with_text)

        trees = greedy_trees(config, client, checkpoint, questions)
        first = [tree.roots[0].rewrite.plan or SearchPlan.of(tree.question.text) for tree in trees]
        results = search(first, with_text=True)
        titles = [[hit.title for hit in result.ranking] if result else [] for result in results]
        candidates = score_titles(config, checkpoint, questions, titles)
        turn_1 = values(results)
        print(f"{len(questions)} questions of {args.split}; turn 1: {mean(turn_1):.4f}")
        kinds: dict[str, Callable[[Candidate], float]] = {
            "first title": lambda candidate: -candidate.rank,
            "log p(title | question)": lambda candidate: candidate.conditional,
            "PMI": lambda candidate: candidate.conditional - candidate.neutral,
        }
        for name, score in kinds.items():
            plans = [
                extended(plan, max(choices, key=score).title if choices else "", args.weight)
                for plan, choices in zip(first, candidates, strict=True)
            ]
            test = compare_paired(values(search(plans)), turn_1, resamples=2000, permutations=20_000, seed=config.seed)
            print(
                f"{name:24} {test.mean_a:.4f}  {test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f}), "
                f"p = {test.p:.4f}, {test.wins} better, {test.losses} worse"
            )


def values(results: Sequence[StepResult | None]) -> list[float | None]:
    """nDCG@10 of each search; None where the environment did not answer."""
    return [result.metrics[METRIC] if result else None for result in results]


def mean(scores: Sequence[float | None]) -> float:
    """The mean of the scores that are there."""
    present = [score for score in scores if score is not None]
    return sum(present) / len(present)


def extended(plan: SearchPlan, title: str, weight: float) -> SearchPlan:
    """The plan of turn 1 with a title added to each probe."""
    if not title:
        return plan
    probes = [Probe(terms=(*probe.terms, Term(text=title, weight=weight))) for probe in plan.probes]
    return plan.model_copy(update={"probes": tuple(probes)})


@torch.no_grad()
def score_titles(
    config: RunConfig, checkpoint: Path, questions: Sequence[Question], titles_of: Sequence[Sequence[str]]
) -> list[list[Candidate]]:
    """The titles of each question's hits with their log-probabilities as answers."""
    model, tokenizer = load_policy(config.policy, checkpoint)
    prompt, chat = load_prompt(config.rewriter.prompt), Chat(tokenizer, {tokenizer.eos_token_id})

    def log_probabilities(text: str, titles: Sequence[str]) -> list[float]:
        ids = chat.first([*prompt.messages(), {"role": "user", "content": prompt.ask(text, "")}])
        answers = [tokenizer(title, add_special_tokens=False)["input_ids"] for title in titles]
        cache = model(torch.tensor([ids[:-1]]), use_cache=True, logits_to_keep=1).past_key_values
        cache.batch_repeat_interleave(len(answers))
        rows = torch.full((len(answers), 1 + max(map(len, answers))), tokenizer.eos_token_id)
        rows[:, 0] = ids[-1]
        for row, answer in zip(rows, answers, strict=True):
            row[1 : 1 + len(answer)] = torch.tensor(answer)
        mask = torch.ones(len(answers), len(ids) - 1 + rows.shape[1], dtype=torch.long)
        logits = model(rows, past_key_values=cache, attention_mask=mask).logits.log_softmax(-1)
        return [
            sum(float(logits[number, position, token]) for position, token in enumerate(answer))
            for number, answer in enumerate(answers)
        ]

    scored = []
    for question, titles in zip(questions, titles_of, strict=True):
        if not titles:
            scored.append([])
            continue
        both = zip(titles, log_probabilities(question.text, titles), log_probabilities(NEUTRAL, titles), strict=True)
        scored.append([Candidate(*values, rank) for rank, values in enumerate(both)])
    return scored


if __name__ == "__main__":
    main()
