"""What `querylect adapt` teaches with poor, good and real questions: three trainings of one policy, one test.

    python benchmarks/adapt_writers.py wordnet --to FOLDER [--passages N] [--questions N] [KEY=VALUE …]

DATASET is a packaged dataset (wordnet, hpo) or a BEIR folder with training and test questions. Rows:

    model      `querylect adapt` on the documents, with the writer of the config
    scripted   the same with a served writer that answers with the dataset's own training question for a passage, as a
               perfect writer would; `--passages` are requested, and those without such a question get none
    real       `querylect train` with the same settings on the dataset's training questions and judgements

All three are tested on the dataset's test questions, which no writer sees. `--questions` are requested from the model.
The settings change all rows. An interrupted call goes on where it was.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from machine import describe
from querylect.configs.schema import DatasetConfig
from querylect.data.corpus import dataset_folder, load_dataset
from querylect.data.types import AllDocuments, Dataset, relevant
from querylect.eval.results import read_results
from querylect.eval.table import Comparison
from querylect.markdown_tables import markdown_table
from querylect.questions.models import excerpt

ROWS = ("model", "scripted", "real")
WORDS = 200
"""Words of a passage that a writer is shown, `questions.words`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--row", action="append", choices=ROWS, help="only this row; may be repeated")
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--passages", type=int, default=6000)
    args = parser.parse_intermixed_args()
    print(describe())
    folder = dataset_folder(args.dataset)
    dataset = load_dataset(DatasetConfig(path=str(folder)))
    source = [str(folder / "corpus.jsonl"), "--test", str(folder), f"questions.words={WORDS}", *args.changes]
    rows = list[list[str]]()
    for row in args.row or ROWS:
        to = args.to / row
        if row == "model":
            _querylect("adapt", *source, "--to", str(to), f"synthetic.count={args.questions}")
        elif row == "scripted":
            with _served_writer(dataset) as url:
                scripted = ["--llm", "scripted", "--endpoint", url, "synthetic.judge=false"]
                question_options = [f"synthetic.count={args.passages}", "synthetic.styles=[question]"]
                _querylect("adapt", *source, "--to", str(to), *question_options, *scripted)
        else:
            _train_on_real(folder, args.changes, to)
        rows.append(_row(row, to / "runs" / row, folder if row == "real" else to / "dataset"))
    print("\n".join(markdown_table(_HEADER, rows)))


def _querylect(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "querylect", *arguments], check=True)


def _train_on_real(folder: Path, changes: Sequence[str], to: Path) -> None:
    settings = ["adapt", "name=real", f"output={to / 'runs'}", f"env.index={to / 'index'}", *changes]
    settings += [f"env.dataset.path={folder}"]
    run = to / "runs" / "real"
    if not (to / "index").exists():
        _querylect("index", "build", *settings)
    if not (run / "final").exists():
        _querylect("train", *settings, *(["--resume"] if (run / "config.yaml").exists() else []))
    if not (run / "results.json").exists():
        _querylect("eval", str(run))


@contextmanager
def _served_writer(dataset: Dataset) -> Iterator[str]:
    """A chat-completions endpoint on a free port that answers a passage with its first training question."""
    questions: dict[str, str] = {}
    by_id = {document.id: document for document in dataset.corpus}
    split = dataset.splits["train"]
    for question in split.questions:
        for name in relevant(split.qrels.get(question.id, {})):
            questions.setdefault(excerpt([by_id[name]], WORDS), question.text)

    class Writer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            passage = body["messages"][-1]["content"].rpartition("Text: ")[2].strip()
            text = json.dumps({"question": questions[passage]}) if passage in questions else "no question"
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
            reply = json.dumps({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Writer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


_HEADER = ("trained on", "training questions", "raw", "untrained", "trained", "over untrained", "over raw", "n")


def _row(name: str, run: Path, trained_on: Path) -> list[str]:
    results = read_results(run)
    means = {score.arm: score.mean for score in results.scores}
    tests = {row.against: row for row in results.comparisons if row.system == "trained"}
    scores = [f"{means[system]:.3f}" for system in (("raw", 0), ("untrained", 1), ("trained", 1))]
    count = len(load_dataset(DatasetConfig(path=str(trained_on)), AllDocuments()).splits["train"].questions)
    leads = map(_lead, (tests["untrained"], tests["raw"]))
    return [name, f"{count:,}", *scores, *leads, f"{results.scores[0].of:,}"]


def _lead(test: Comparison) -> str:
    return f"{test.difference:+.3f} ({test.low:+.3f} to {test.high:+.3f}), p = {test.p:.3g}"


if __name__ == "__main__":
    main()
