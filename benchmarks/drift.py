"""Time and memory of comparing two retrievers with many queries, and that the sums equal a direct computation.

    python benchmarks/drift.py [100000] [--permutations 99] [--resamples 99] [--dimension 384]

Vectors are random, of length 1; texts have ten words drawn from 50,000 by Zipf's law; every question has a query on
both sides. Encoding is left out: its time says nothing about the comparison. Each kernel is measured in a process of
its own, whose peak memory is printed beside what the whole kernel matrix would take. Before that, 500 queries a side
are compared with the peer: the whole matrix in float64, each permutation by indexing it.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
from machine import describe
from querylect.eval.drift.draws import PooledSides, permuted_labels
from querylect.eval.drift.kernels import Gaussian, Linear
from querylect.eval.drift.mmd import Kernel, compare
from querylect.eval.drift.words import count_words, tf_idf

VOCABULARY, LENGTH, SIGMA, PEER = 50_000, 10, 1.2, 500


def kernel_of(kind: str, queries: int, dimension: int) -> Kernel:
    """A kernel over twice `queries` random queries."""
    random = np.random.default_rng(0)
    if kind == "semantic":
        vectors = random.standard_normal((2 * queries, dimension), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return Gaussian(vectors, SIGMA)
    ranks = np.exp(random.random((2 * queries, LENGTH)) * np.log(VOCABULARY)).astype(np.int64)
    return Linear(tf_idf(count_words([" ".join(f"w{rank}" for rank in row) for row in ranks.tolist()]).counts))


def layout_of(queries: int) -> PooledSides:
    """Each question on both sides."""
    return PooledSides(queries, np.concatenate([np.arange(queries), np.arange(queries)]))


def peer(matrix: np.ndarray, layout: PooledSides, permutations: int) -> tuple[float, float]:
    """RE-MMD² over pairs of different questions, and its p, from the whole matrix."""
    same = layout.questions[:, None] == layout.questions

    def value(order: np.ndarray) -> float:
        n, m, permuted, permuted_same = layout.n, layout.m, matrix[np.ix_(order, order)], same[np.ix_(order, order)]
        x, y, between = permuted[:n, :n], permuted[n:, n:], permuted[:n, n:]
        within = (x.sum() - np.trace(x)) / (n * (n - 1)) + (y.sum() - np.trace(y)) / (m * (m - 1))
        return float(within - 2 * between.mean(where=~permuted_same[:n, n:]))

    observed = value(np.arange(len(matrix)))
    labels, extreme = permuted_labels(layout, permutations, seed=0), 0
    for draw in range(permutations):
        signs = labels.draws[layout.questions, draw] * labels.factor
        extreme += value(np.argsort(-signs, kind="stable")) >= observed - 1e-12
    return observed, (extreme + 1) / (permutations + 1)


def beside_peer(kernel: Kernel, kind: str) -> None:
    """Print times of both for 99 permutations. AssertionError where they differ in p."""
    layout = layout_of(PEER)
    matrix = np.empty((2 * PEER, 2 * PEER))
    everything = np.arange(2 * PEER)
    for row in everything:
        matrix[row] = kernel.at(np.full(2 * PEER, row), everything)
    start = time.perf_counter()
    value, p = peer(matrix, layout, 99)
    theirs = time.perf_counter() - start
    result = compare(kernel, layout, permutations=99, resamples=1, seed=0)
    ours = time.perf_counter() - start - theirs
    assert p == result.p, f"p is {result.p}, from the matrix {p}"
    print(
        f"{kind}, {PEER} a side, 99 permutations: {ours:.2f} s; from the whole matrix, made before, {theirs:.2f} s, "
        f"{theirs / ours:.1f} times as long; values differ by {abs(value - result.value):.0e}, p by nothing",
        flush=True,
    )


def measure(kind: str, args: argparse.Namespace) -> None:
    """One row, as JSON."""
    kernel = kernel_of(kind, args.queries, args.dimension)
    draws = {"permutations": args.permutations, "resamples": args.resamples, "seed": 0}
    start = time.perf_counter()
    result = compare(kernel, layout_of(args.queries), **draws)
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": took, "peak": peak, "value": result.value, "p": result.p}))


def main() -> None:
    """Print the comparison with the peer, then a line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", nargs="?", type=int, default=100_000, help="a side")
    parser.add_argument("--permutations", type=int, default=99)
    parser.add_argument("--resamples", type=int, default=99)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure(args.one, args)
        return
    print(describe("numpy", "scipy"))
    for kind in ("semantic", "structural"):
        beside_peer(kernel_of(kind, PEER, args.dimension), kind)
    for kind in ("semantic", "structural"):
        command = [sys.executable, __file__, *sys.argv[1:], "--one", kind]
        row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        matrix_gib = (2 * args.queries) ** 2 * 8 / 2**30
        print(
            f"{kind}, {args.queries:,} a side, {args.permutations} permutations, {args.resamples} "
            f"resamples: {row['seconds']:.1f} s, peak {row['peak']:.2f} GiB (the matrix: {matrix_gib:.1f} GiB), "
            f"RE-MMD² {row['value']:.2e}, p {row['p']:.3f}",
            flush=True,
        )
    print(describe("numpy", "scipy"))


if __name__ == "__main__":
    main()
