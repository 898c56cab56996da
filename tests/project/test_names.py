"""Names: few words that are literary rather than technical, one definition of each class name, short names of tests."""

import ast
import re
from pathlib import Path

from querylect.benchmarks.structure import identifiers, literary, modules, parsed, repeated_classes

ROOT = Path(__file__).parents[2]
PER_10_000 = 30
"""verifiers v1 has 21, prime-rl 7; querylect had 564 before its names were revised."""


def test_identifiers_are_counted_as_often_as_they_stand_in_the_code():
    tree = ast.parse("def f(found, k=1):\n    '''found'''\n    found.place = g(found=k)  # found\n")
    assert sorted(identifiers(tree)) == ["found", "found", "g", "k", "k", "place"]
    assert literary([tree]) == (5_000, {"found": 2, "place": 1})


def test_few_identifiers_are_literary_words():
    rate, words = literary([parsed(path) for path in modules(ROOT).values()])
    assert rate < PER_10_000, f"{rate:.1f} per 10,000: {words.most_common(12)}; take the field's words"


def test_a_class_name_is_defined_once():
    assert len(modules(ROOT)) > 250
    assert repeated_classes(ROOT) == {}


def test_a_class_name_that_is_defined_twice_is_seen(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "load.py").write_text("class Split: ...\ndef f():\n    class Split: ...\n")
    assert repeated_classes(tmp_path) == {"Split": ["data.load:1", "data.load:3"]}


def test_names_of_tests_are_shorter_than_80_characters():
    names = [
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(names) > 1_000
    assert [name for name in names if len(name) >= 80] == []
