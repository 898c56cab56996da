"""The questions of a split as vetted questions: what an index of real, answered questions finds.

    python benchmarks/split_as_vetted.py demo vetted.jsonl            # the training questions
    querylect index questions demo --to indexes/demo-questions --add vetted.jsonl

No model is called. The contents of a question stand by falling grade.
"""

import json
import sys
from pathlib import Path

from querylect.configs.load import load_config
from querylect.data.load import load_dataset


def main(config: str, to: str, name: str = "train") -> None:
    """Write one line for each question."""
    split = load_dataset(load_config(config, []).env.dataset).splits[name]
    rows = [
        {"question": question.text, "contents": sorted(grades, key=lambda content: (-grades[content], content))}
        for question in split.questions
        for grades in [split.qrels[question.id]]
    ]
    Path(to).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{to}: {len(rows)} questions")


if __name__ == "__main__":
    main(*sys.argv[1:])
