"""What the check for leaking questions finds: edited copies of real questions, planted among the others.

    python benchmarks/leaks.py data/qa/nq_open_test.jsonl data/qa/medqa.jsonl … [--per-cell 500] [--scale 100000]

The files hold questions as JSON lines, with `question` or `text`. For each length and kind of edit, questions are drawn
without replacement, edited, and looked for among all questions: by words (removed from training) and by nearly the same
letters or words (reported). The share of other questions that are reported as nearly the same is printed too, and with
`--scale` the time for that many made-up questions against as many others.
"""

import argparse
import json
import random
import resource
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from machine import describe
from querylect.data.leakage import words
from querylect.data.near_texts import near_duplicates

LENGTHS = ((6, 14), (15, 29), (30, 44), (45, 59), (60, 99), (100, 10_000))
"""Characters of the questions, without punctuation."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CYRILLIC = str.maketrans("aceopxyi", "асеорхуі")

Edit = Callable[[str, random.Random], str]


def _at_letter(change: Callable[[str, int, random.Random], str]) -> Edit:
    def edit(text: str, draw: random.Random) -> str:
        positions = [position for position, character in enumerate(text) if character.isalpha()]
        return change(text, draw.choice(positions), draw)

    return edit


def _neighbours_swapped(text: str, draw: random.Random) -> str:
    positions = [i for i in range(len(text) - 1) if text[i : i + 2].isalpha() and text[i] != text[i + 1]]
    position = draw.choice(positions) if positions else 0
    return text[:position] + text[position + 1] + text[position] + text[position + 2 :]


def _word_changed(text: str, position: int, more: bool, draw: random.Random) -> str:
    parts = text.split()
    inserted = ["".join(draw.choices(LETTERS, k=draw.randint(3, 9)))] if more else []
    return " ".join([*parts[:position], *inserted, *parts[position + (not more) :]])


EDITS: dict[str, Edit] = {
    "letter less": _at_letter(lambda text, position, _: text[:position] + text[position + 1 :]),
    "letter more": _at_letter(lambda text, position, draw: text[:position] + draw.choice(LETTERS) + text[position:]),
    "other letter": _at_letter(
        lambda text, position, draw: (
            text[:position] + draw.choice(LETTERS.replace(text[position].lower(), "")) + text[position + 1 :]
        )
    ),
    "letters swapped": _neighbours_swapped,
    "two letters less": lambda text, draw: EDITS["letter less"](EDITS["letter less"](text, draw), draw),
    "word more": lambda text, draw: _word_changed(text, draw.randint(0, len(text.split())), True, draw),
    "word less": lambda text, draw: _word_changed(text, draw.randrange(len(text.split())), False, draw),
    "other word": lambda text, draw: _word_changed(
        _word_changed(text, position := draw.randrange(len(text.split())), False, draw), position, True, draw
    ),
    "other order": lambda text, draw: " ".join(draw.sample(text.split(), len(text.split()))),
    "accents": lambda text, _: unicodedata.normalize("NFC", "".join(c + "\u0301" * (c in "aeiou") for c in text)),
    "look-alikes": lambda text, _: text.translate(CYRILLIC),
    "full width": lambda text, _: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
}


def recall_table(questions: Sequence[str], per_cell: int, seed: int = 0) -> dict[str, list[tuple[int, float] | None]]:
    """Edit → for each of LENGTHS, how many were planted and the share that was found; None without such questions."""
    folded = list(dict.fromkeys(map(words, questions)))
    originals = {words(question): question for question in reversed(questions)}
    shares: dict[str, list[tuple[int, float] | None]] = {}
    for name, edit in EDITS.items():
        draw = random.Random(f"{seed} {name}")
        planted: list[tuple[str, str]] = []
        cells: list[range] = []
        for shortest, longest in LENGTHS:
            eligible = [text for text in folded if shortest <= len(text) <= longest]
            chosen = draw.sample(eligible, min(per_cell, len(eligible)))
            cells.append(range(len(planted), len(planted) + len(chosen)))
            planted += [(text, words(edit(originals[text], draw))) for text in chosen]
        near = near_duplicates(folded, [edited for _, edited in planted])
        hits = {(folded[pair.left], pair.right) for pair in near}
        shares[name] = [
            (len(cell), sum((planted[index][0], index) in hits for index in cell) / len(cell)) if cell else None
            for cell in cells
        ]
    return shares


def reported_share(questions: Sequence[str]) -> float:
    """The share of questions that have a near-duplicate among the other ones, all of which are different."""
    folded = list(dict.fromkeys(map(words, questions)))
    near = near_duplicates(folded, folded)
    return len({pair.left for pair in near if pair.left != pair.right}) / len(folded)


def _scaled(questions: Sequence[str], size: int) -> str:
    draw = random.Random(0)
    vocabulary = [word for question in questions for word in words(question).split()]

    def made_up() -> str:
        parts = words(draw.choice(questions)).split()
        for _ in range(3):
            parts[draw.randrange(len(parts))] = draw.choice(vocabulary)
        return " ".join(parts)

    left, right = ([made_up() for _ in range(size)] for _ in range(2))
    start = time.process_time()
    pairs = len(near_duplicates(left, right))
    seconds, peak = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return f"{size:,} × {size:,} questions: {seconds:.0f} s of one processor, peak {peak:.1f} GiB, {pairs} pairs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--per-cell", type=int, default=500)
    parser.add_argument("--scale", type=int, default=0)
    args = parser.parse_args()
    by_file = {
        path: [
            row.get("question") or row["text"]
            for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
            if any(character.isalpha() for character in row.get("question") or row["text"])
        ]
        for path in args.files
    }
    questions = [question for texts in by_file.values() for question in texts]
    print(describe("rapidfuzz", "numpy"))
    print(f"{len(questions):,} questions of {', '.join(path.stem for path in args.files)}\n")
    heads = [f"{a}–{b}" if b < 10_000 else f"{a} on" for a, b in LENGTHS]
    print(f"| edit | {' | '.join(heads)} |\n|---|{'--:|' * len(heads)}")
    for name, cells in recall_table(questions, args.per_cell).items():
        print(f"| {name} | {' | '.join(f'{cell[1]:.1%}' if cell else '–' for cell in cells)} |")
    print()
    for path, texts in by_file.items():
        print(f"{path}: {reported_share(texts):.1%} of the questions have a near-duplicate among the others")
    if args.scale:
        print(_scaled(questions, args.scale))


if __name__ == "__main__":
    main()
