"""How cost grows with the corpus: build, bytes, open and queries of BM25 and dense indexes, and the fitted exponents.

    OMP_NUM_THREADS=1 python benchmarks/corpus_growth.py [1e4 1e5 1e6] [--kinds bm25 flat hnsw ivfpq milvus]
        [--dimension 64] [--folder /tmp/growth]

Documents are synthetic: 40 words each, drawn from 500,000 by Zipf's law. The dense kinds search random unit vectors
through the same build and the same index; only the encoder is replaced, for its time says nothing about the index. The
vectors lie near a subspace of 24 dimensions, because those of encoders do, and approximate search depends on that.
Milvus is embedded, with HNSW. Every row is measured in a process of its own; files are in the page cache when an index
is opened. Times are processor time: on an idle core, with one thread, the same as wall-clock time. The exponents have
the standard error of the fit.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from machine import describe, processor_seconds
from querylect.configs.environment import MilvusConfig, VectorsConfig
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.corpus import open_corpus
from querylect.envs.builder.build import build_index
from querylect.envs.index.arrays import mapped
from querylect.envs.index.open import open_index
from querylect.envs.plan import Probe, Term
from querylect.envs.recipes import RetrieverRecipe
from querylect.envs.retrievers import dense, nearest
from querylect.envs.retrievers.base import Retriever
from querylect.envs.retrievers.fusion import Scored
from querylect.envs.retrievers.open import open_retriever

WORDS, LENGTH, LATENT, ASKED, BATCH, K = 500_000, 40, 24, 256, 64, 10
SHOWN = {"build s": 1, "MB": 1, "open ms": 1, "q/s": 1, "ms/q": 2, "of ten": 3, "peak MB": 0}
EFFORT = 64
"""efConstruction of both HNSW kinds: graphs of this size are built in minutes, not in an hour."""
HNSW = {"M": 32, "efConstruction": EFFORT}
KINDS = {
    "bm25": {},
    "flat": {},
    "hnsw": {"vectors": VectorsConfig(search="hnsw", hnsw_effort=EFFORT)},
    "ivfpq": {"vectors": VectorsConfig(search="ivfpq", ivf_probes=128)},
    "milvus": {
        "engine": "milvus",
        "milvus": MilvusConfig(index_type="HNSW", index_params=HNSW, search_params={"ef": 128}),
    },
}


class RandomEncoder:
    """Stands in for `dense.Encoder`: random vectors of length 1, the same for the same first text of a block."""

    fingerprint = "random"
    recipe = RetrieverRecipe(name="random/encoder", kind="dense", model="random/encoder", trained="", similarity="cos")

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._basis = np.random.default_rng(7).standard_normal((LATENT, dimension), dtype=np.float32)

    def documents(self, texts: Sequence[str], progress: object = None) -> np.ndarray:
        """Vectors (n, dimension); a tenth of their length is noise in all dimensions."""
        random = np.random.default_rng(zlib.crc32(texts[0].encode()) if texts else 0)
        vectors = random.standard_normal((len(texts), LATENT), dtype=np.float32) @ self._basis
        vectors += 0.1 * LATENT**0.5 * random.standard_normal(vectors.shape, dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    queries = documents


def write_corpus(folder: Path, documents: int) -> None:
    """A BEIR folder with one question; written in blocks."""
    (folder / "qrels").mkdir(parents=True)
    random = np.random.default_rng(0)
    with (folder / "corpus.jsonl").open("w") as file:
        for start in range(0, documents, 10_000):
            lines = words(random, (min(10_000, documents - start), LENGTH))
            for number, line in enumerate(lines, start):
                file.write(json.dumps({"_id": f"doc{number}", "title": "", "text": line}) + "\n")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "w1"}\n')
    (folder / "qrels" / "test.tsv").write_text("q\tdoc0\t1\n")


def words(random: np.random.Generator, shape: tuple[int, int]) -> list[str]:
    """Texts of words whose rank is drawn by Zipf's law (exponent 1, truncated)."""
    ranks = np.exp(random.random(shape) * np.log(WORDS)).astype(np.int64)
    return [" ".join(f"w{rank}x" for rank in row) for row in ranks.tolist()]


def measure(kind: str, documents: int, folder: Path, dimension: int) -> None:
    """One row, as JSON."""
    encoder = RandomEncoder(dimension)
    dense.Encoder.open = staticmethod(lambda recipe, device=None: encoder)
    config = EnvironmentConfig(
        dataset=DatasetConfig(kind="beir", path=str(folder / f"corpus{documents}")),
        index=str(folder / f"{kind}{documents}"),
        retriever="bm25" if kind == "bm25" else "random/encoder",
        **KINDS[kind],
    )
    built = processor_seconds(lambda: build_index(config))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    folders = [Path(config.index), Path(f"{config.index}.milvus.db")]
    size = sum(path.stat().st_size for root in folders for path in root.rglob("*") if path.is_file()) / 1e6

    def opened() -> Retriever:
        index = open_index(config.index)
        open_corpus(config.dataset).questions(index.documents)
        return open_retriever(index, config)

    opening = processor_seconds(opened)
    retriever = opened()
    texts = words(np.random.default_rng(1), (ASKED, 8))
    probes = [Probe(terms=(Term(text=text),)) for text in texts]
    retriever.rank(probes[:1], [K])
    rankings: list[Scored] = []

    def ask() -> None:
        for start in range(0, ASKED, BATCH):
            rankings.extend(retriever.rank(probes[start : start + BATCH], [K] * BATCH))

    asking = processor_seconds(ask) / ASKED
    row = {"build s": built, "MB": size, "open ms": 1000 * opening, "q/s": 1 / asking, "ms/q": 1000 * asking}
    stored = Path(config.index) / dense.VECTORS
    share = 1.0
    if stored.exists():
        exact = nearest.flat(mapped(stored))(retriever._vectors_of(probes).astype(np.float32), K)
        share = fmean(
            len(set(best) & set(ranking.documents.tolist())) / K
            for best, ranking in zip(exact.tolist(), rankings, strict=True)
        )
    print(json.dumps(row | {"of ten": share, "peak MB": peak}))


def main() -> None:
    """Measure every size and print a table for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=float, default=[1e4, 1e5, 1e6])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["bm25", "flat"])
    parser.add_argument("--dimension", type=int, default=64, help="of the vectors")
    parser.add_argument("--folder", type=Path, help="where corpora and indexes are written; a temporary folder")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure(args.one[0], int(args.one[1]), args.folder, args.dimension)
        return
    sizes = [int(size) for size in args.sizes]
    print(describe("faiss-cpu", "bm25s", "milvus-lite"))
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        for size in sizes:
            write_corpus(folder / f"corpus{size}", size)
        for kind in args.kinds:
            print(f"\n{kind:>10} " + " ".join(f"{column:>9}" for column in SHOWN), flush=True)
            rows = []
            for size in sizes:
                command = [sys.executable, __file__, "--folder", name, "--dimension", str(args.dimension)]
                command += ["--one", kind, str(size)]
                row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                cells = (f"{row[column]:9.{digits}f}" for column, digits in SHOWN.items())
                print(f"{size:10d} " + " ".join(cells), flush=True)
                rows.append(row)
            if len(sizes) > 2:
                fits = [
                    np.polyfit(np.log(sizes), np.log([row[column] for row in rows]), 1, cov=True) for column in SHOWN
                ]
                print("  exponent " + " ".join(f"{fit[0]:9.2f}" for fit, _ in fits))
                print("         ± " + " ".join(f"{errors[0, 0] ** 0.5:9.2f}" for _, errors in fits), flush=True)
    print("\n" + describe("faiss-cpu", "bm25s", "milvus-lite"))


if __name__ == "__main__":
    main()
