"""Rewards computed a second time: from the same index and judgements, in this process, for attack_services.py."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from querylect.configs.schema import RunConfig
from querylect.data.types import Question
from querylect.envs.client.client import Step, SyncEnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.rewards.reward import node_reward
from querylect.rewriters.card import RetrieverCard
from querylect.rewriters.registry import make_rewriter
from querylect.storage import logged_objects

WORDS = ["", "hand", "abnormal", "heart", "short", "blood", "loss of", "late"]


def judge_answers(
    environment: Environment, client: SyncEnvironmentClient, samples: int, draw: random.Random
) -> tuple[int, list[str]]:
    """Ask a service for the rewards of some plans through the project's client: how many came, and what is wrong."""
    steps = [
        Step(question_id=question.id, plan=SearchPlan.of(f"{question.text} {draw.choice(WORDS)}"))
        for question in draw.choices(environment.questions("train"), k=samples)
    ]
    results = client.step(steps)
    wrong = []
    for step, result, ranking in zip(steps, results, environment.search([step.plan for step in steps]), strict=True):
        worth = environment.score(step.question_id, ranking, ["ndcg@10"])["ndcg@10"]
        if result is not None and result.reward != worth:
            wrong.append(f"a client took {result.reward} for {step.question_id}, which is worth {worth}")
    return sum(result is not None for result in results), wrong


def judge_run(folder: Path, config: RunConfig, environment: Environment) -> tuple[int, list[str]]:
    """Compare what a run recorded with what its plans are worth here: rewards compared, and what is wrong."""
    if not (folder / "metrics.jsonl").exists():
        return 0, []
    steps, trees = logged_objects(folder / "metrics.jsonl"), logged_objects(folder / "rollouts.jsonl")
    wrong = []
    if [step["step"] for step in steps] != [*range(1, len(steps) + 1)]:
        wrong.append("a step is missing or twice")
    if Counter(tree["step"] for tree in trees) != {step["step"]: config.train.questions_per_step for step in steps}:
        wrong.append("a tree is missing or twice")
    missing: Counter = Counter()
    compared = 0
    rewriter = make_rewriter(config.rewriter, RetrieverCard.from_service(environment.card), config.search_depth)
    for tree in trees:
        question = Question(tree["question_id"], tree["question"])
        for node in _nodes(tree):
            plan = rewriter.parse(question, node["text"], node["turn"]).plan
            reward, metric = node["reward"], None
            if plan is not None and reward is None:
                missing[tree["step"], node["turn"]] += 1
            elif plan is not None:
                (ranking,) = environment.search([plan])
                metric = environment.score(question.id, ranking, [config.reward.metric])[config.reward.metric]
                if node["ranking"] != [hit.id for hit in ranking]:
                    wrong.append(f"step {tree['step']}, {question.id}: another ranking")
            expected = node_reward(metric, plan is not None, config.reward.format_weight)
            compared += reward is not None
            if reward != expected:
                wrong.append(f"step {tree['step']}, {question.id}: reward {reward}, computed {expected}")
            if reward is None and (node["ranking"] or node["metrics"]):
                wrong.append(f"step {tree['step']}, {question.id}: a sample half scored")
    for step in steps:
        width = config.train.questions_per_step
        for turn, several in enumerate(config.rollout.branching, start=1):
            width *= several
            recorded, counted = step[f"unscorable/turn{turn}"], missing[step["step"], turn] / width
            if abs(recorded - counted) > 1e-5:
                wrong.append(f"step {step['step']} records {recorded} unscorable, its trees {counted}")
    return compared, wrong


def _nodes(tree: dict) -> Iterator[dict]:
    for turn in tree["turns"]:
        yield turn
        yield from turn["children"]
