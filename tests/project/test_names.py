"""Names: few words that are literary rather than technical, one definition of each class name, short names of tests."""

import re
from pathlib import Path

from querylect.benchmarks.structure import literary, modules, parsed, repeated_classes

ROOT = Path(__file__).parents[2]
PER_10_000 = 30
"""verifiers v1 has 21, prime-rl 7; querylect had 564 before its names were revised."""


def test_few_identifiers_are_literary_words():
    rate, words = literary([parsed(path) for path in modules(ROOT).values()])
    assert rate < PER_10_000, f"{rate:.1f} per 10,000: {words.most_common(12)}; take the field's words"


def test_a_class_name_is_defined_once():
    assert len(modules(ROOT)) > 150
    assert repeated_classes(ROOT) == {}


def test_names_of_tests_are_shorter_than_80_characters():
    names = [
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(names) > 500
    assert [name for name in names if len(name) >= 80] == []
