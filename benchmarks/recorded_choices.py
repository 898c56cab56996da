"""How many answers of real models to multiple-choice questions are read, and as what: the published ones of MIRAGE.

    python benchmarks/recorded_choices.py MIRAGE [--limit 200] [--unread]

MIRAGE is a clone of github.com/Teddy-XiongGZ/MIRAGE: answers of GPT-3.5 and GPT-4 to five sets of medical questions,
with and without retrieval (prediction/), and the questions with their options (benchmark.json). From each set, model
and setting LIMIT files are drawn with seed 0; those without an answer are left out. Printed for each: the share that
strict JSON reads (`json.loads`, then a letter in `answer_choice`), the share that querylect reads, on how many of the
answers that both read they agree, and where there is a benchmark.json how many are right by either. Without it the
options are letters alone, so that none is read by its words. `--unread` also prints what querylect does not read, or
reads as something else.
"""

import argparse
import json
import re
import string
import sys
from dataclasses import dataclass
from pathlib import Path

from machine import describe
from querylect.data.sampling import draw
from querylect.eval.tasks.choice import chosen

Questions = dict[str, dict[str, dict[str, object]]]
"""Questions of benchmark.json by set and id."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer, and the option that each reader takes it for."""

    text: str
    strict: int | None
    ours: int | None
    right: int | None
    """The right option, where it is known."""


def main() -> None:
    """Print a line for each set, model and setting, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mirage", type=Path, help="a clone of github.com/Teddy-XiongGZ/MIRAGE")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--unread", action="store_true")
    args = parser.parse_args()
    folders = sorted({path.parent for path in (args.mirage / "prediction").rglob("*.json")})
    if not folders:
        sys.exit(f"{args.mirage} has no prediction/…/*.json; give a clone of github.com/Teddy-XiongGZ/MIRAGE.")
    benchmark = args.mirage / "benchmark.json"
    questions: Questions = json.loads(benchmark.read_text(encoding="utf-8")) if benchmark.is_file() else {}
    print(describe("querylect"))
    print("answers  strict JSON  querylect  agree  right: strict JSON  querylect")
    everything: list[Reading] = []
    for folder in folders:
        files = draw(folder.glob("*.json"), args.limit, seed=0, id_of=lambda path: path.name)
        name = folder.relative_to(args.mirage / "prediction")
        readings = [answer for path in files if (answer := read_answer(path, questions.get(name.parts[0], {})))]
        print(f"{line(readings)}  {name}")
        everything += readings
    print(f"{line(everything)}  all")
    if args.unread:
        for reading in everything:
            if reading.ours is None or reading.strict not in (None, reading.ours):
                print(f"\nread as {reading.ours}, strictly {reading.strict}: {reading.text}")


def read_answer(path: Path, questions: dict[str, dict[str, object]]) -> Reading | None:
    """The first answer of a file of predictions, test_ID.json; None where it holds none."""
    answers = json.loads(path.read_text(encoding="utf-8"))
    if not answers:
        return None
    text = str(answers[0])
    question = questions.get(path.stem.partition("_")[2], {})
    options = question.get("options")
    texts = [str(option) for option in options.values()] if isinstance(options, dict) else [""] * 4
    right = question.get("answer")
    return Reading(text, strict(text), chosen(text, texts), _index(right) if isinstance(right, str) else None)


def strict(text: str) -> int | None:
    """The option in `answer_choice` of an answer that is one JSON object: a letter, alone or before its words."""
    try:
        choice = json.loads(text)["answer_choice"]
    except (ValueError, TypeError, KeyError):
        return None
    mark = re.fullmatch(r"([A-D])(?![\w'])(?!\s*(?:/|,|and\b|or\b)\s*[A-D]\b).*", str(choice).strip(), re.DOTALL)
    return _index(mark[1]) if mark else None


def _index(letter: str) -> int:
    return string.ascii_uppercase.index(letter)


def line(readings: list[Reading]) -> str:
    """The figures of some answers."""
    both = [reading for reading in readings if None not in (reading.strict, reading.ours)]
    gradable = [reading for reading in readings if reading.right is not None]

    def share(count: int, total: int) -> str:
        return f"{100 * count / total:.2f} %" if total else "–"

    return "  ".join(
        (
            f"{len(readings):7,}",
            f"{share(sum(reading.strict is not None for reading in readings), len(readings)):>11}",
            f"{share(sum(reading.ours is not None for reading in readings), len(readings)):>9}",
            f"{sum(reading.strict == reading.ours for reading in both):,} of {len(both):,}",
            f"{share(sum(reading.strict == reading.right for reading in gradable), len(gradable)):>11}",
            f"{share(sum(reading.ours == reading.right for reading in gradable), len(gradable)):>9}",
        )
    )


if __name__ == "__main__":
    main()
