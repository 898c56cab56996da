"""How cost grows with the corpus: build, bytes, open, queries per second for BM25 and Flat, and the fitted exponents.

    python benchmarks/corpus_growth.py [1e4 1e5 1e6] [--folder /tmp/growth]

Documents are synthetic: 40 words each, drawn from 500,000 by Zipf's law. Flat searches random unit vectors of 64
dimensions through the same build and the same index; only the encoder is replaced, for its time says nothing about
the index. Every row is measured in a process of its own; files are in the page cache when an index is opened.
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

import numpy as np
from machine import describe, seconds
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.corpus import open_corpus
from querylect.envs.builder.build import build_index
from querylect.envs.index.open import open_index
from querylect.envs.plan import Probe, Term
from querylect.envs.recipes import RetrieverRecipe
from querylect.envs.retrievers import dense
from querylect.envs.retrievers.bm25 import Bm25
from querylect.envs.retrievers.open import open_retriever

WORDS, LENGTH, DIMENSION, ASKED, BATCH = 500_000, 40, 64, 256, 64
SHOWN = {"build s": 1, "MB": 1, "open ms": 1, "q/s": 1, "peak MB": 0}


class RandomEncoder:
    """Stands in for `dense.Encoder`: random vectors of length 1, the same for the same first text of a block."""

    dimension, fingerprint = DIMENSION, "random"
    recipe = RetrieverRecipe(name="random/encoder", kind="dense", model="random/encoder", trained="", similarity="cos")

    def documents(self, texts: Sequence[str], progress: object = None) -> np.ndarray:
        """Vectors (n, 64)."""
        random = np.random.default_rng(zlib.crc32(texts[0].encode()) if texts else 0)
        vectors = random.standard_normal((len(texts), DIMENSION), dtype=np.float32)
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


def measure(kind: str, documents: int, folder: Path) -> None:
    """One row, as JSON."""
    if kind == "flat":
        dense.Encoder.open = staticmethod(lambda recipe: RandomEncoder())
    config = EnvironmentConfig(
        dataset=DatasetConfig(kind="beir", path=str(folder / f"corpus{documents}")),
        index=str(folder / f"{kind}{documents}"),
        retriever="bm25" if kind == "bm25" else "random/encoder",
    )
    built = seconds(lambda: build_index(config))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    size = sum(path.stat().st_size for path in Path(config.index).iterdir()) / 1e6

    def opened() -> Bm25 | dense.Dense:
        index = open_index(config.index)
        open_corpus(config.dataset).questions(index.documents)
        return open_retriever(index, config)

    opening = seconds(opened)
    retriever = opened()
    texts = words(np.random.default_rng(1), (ASKED, 8))
    probes = [Probe(terms=(Term(text=text),)) for text in texts]
    retriever.rank(probes[:1], [10])

    def ask() -> None:
        for start in range(0, ASKED, BATCH):
            retriever.rank(probes[start : start + BATCH], [10] * BATCH)

    row = {"build s": built, "MB": size, "open ms": 1000 * opening, "q/s": ASKED / seconds(ask), "peak MB": peak}
    print(json.dumps(row))


def main() -> None:
    """Measure every size and print a table for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=float, default=[1e4, 1e5, 1e6])
    parser.add_argument("--folder", type=Path, help="where corpora and indexes are written; a temporary folder")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure(args.one[0], int(args.one[1]), args.folder)
        return
    sizes = [int(size) for size in args.sizes]
    print(describe())
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        for size in sizes:
            write_corpus(folder / f"corpus{size}", size)
        for kind in ("bm25", "flat"):
            rows = []
            for size in sizes:
                command = [sys.executable, __file__, "--folder", name, "--one", kind, str(size)]
                rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
            print(f"\n{kind:>10} " + " ".join(f"{column:>9}" for column in SHOWN))
            for size, row in zip(sizes, rows, strict=True):
                cells = (f"{row[column]:9.{digits}f}" for column, digits in SHOWN.items())
                print(f"{size:10d} " + " ".join(cells), flush=True)
            if len(sizes) > 1:
                slopes = (np.polyfit(np.log(sizes), np.log([row[column] for row in rows]), 1)[0] for column in SHOWN)
                print("  exponent " + " ".join(f"{slope:9.2f}" for slope in slopes), flush=True)
    print("\n" + describe())


if __name__ == "__main__":
    main()
