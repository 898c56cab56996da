"""The training questions of a dataset as vetted questions: what an index of real, answered questions finds.

    python benchmarks/train_as_vetted.py demo /tmp/vetted.jsonl
    querylect index questions demo --to indexes/demo-questions --add /tmp/vetted.jsonl
    Q='env.retriever=qb-rag env.question_index={folder: indexes/demo-questions, index: indexes/demo-questions-bm25}'

No model is asked; the test questions and their judgements play no part.
"""

import json
import sys
from pathlib import Path

from querylect.configs.load import load_config
from querylect.data.load import load_dataset


def main(config: str, to: str) -> None:
    """Write one line for each training question, its contents by falling grade."""
    split = load_dataset(load_config(config, []).env.dataset).splits["train"]
    rows = [
        {"question": question.text, "contents": sorted(grades, key=lambda name: (-grades[name], name))}
        for question in split.questions
        for grades in [split.qrels[question.id]]
    ]
    Path(to).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{to}: {len(rows)} questions")


if __name__ == "__main__":
    main(*sys.argv[1:])
