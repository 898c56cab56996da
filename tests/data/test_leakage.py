"""Questions in two splits: by id, by text, by nearly the same letters."""

import pytest
from querylect.data.leakage import described, exact_leaks, near_leaks, same_form, without_leaks, words
from querylect.data.types import Question, Split

LONG = "how do i set the date and the time of the television when it is not connected to the internet"


def split(*questions):
    return Split(tuple(Question(*question) for question in questions), {key: {"d": 1} for key, _ in questions})


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Wer heilt Röteln?", "wer heilt roteln"),
        ("pa\u200bin, naïve", "pain naive"),
        ("Straße İstanbul", "strasse istanbul"),
    ],
)
def test_words_are_compared_in_one_form(text, same):
    assert words(text) == words(same) == same


@pytest.mark.parametrize(
    ("left", "right"),
    [("Wer heilt Röteln?", "wer  heilt Ro\u0308teln?\n"), ("STRASSE 5", "Straße 5"), ("İ\u0345", "i\u0307\u03b9")],
)
def test_texts_are_the_same_whatever_their_composition_case_and_white_space(left, right):
    assert same_form(left) == same_form(right)
    assert [leak.criterion for leak in exact_leaks({"train": split(("a", left)), "test": split(("b", right))})] == [
        "text"
    ]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("What is C++ used for?", "What is C# used for?"),
        ("Solve x + 3 = 7 for x", "Solve x - 3 = 7 for x"),
        ("Is -5 greater than 3?", "Is 5 greater than 3?"),
        ("दिन कब है", "दान कब है"),
        ("🍕?", "🚀?"),
        ("résumé", "resume"),
        ("x² = 4", "x2 = 4"),
        ("", " "),
    ],
)
def test_different_questions_are_never_removed(left, right):
    splits = {"train": split(("a", left)), "test": split(("b", right))}
    assert exact_leaks(splits) == []
    assert without_leaks("set", splits) == (splits, [])


@pytest.mark.parametrize(
    ("left", "right", "near"),
    [
        ("what is mumps?", "what is mumps", True),
        (LONG, LONG.replace("internet", "internets"), True),
        (LONG, " ".join(reversed(LONG.split())), True),
        ("缺铁性贫血应该怎么治疗才好，请问一下医生", "缺铁性贫血应该怎么治疗才好, 请问一下医生", True),
        ("asthma", "severe asthma", False),
    ],
)
def test_nearly_the_same_letters_are_reported(left, right, near):
    leaks = near_leaks({"train": split(("a", left), ("x", "x" * 40)), "test": split(("y", "y" * 40), ("b", right))})
    assert [(leak.question.id, leak.match.id, leak.criterion) for leak in leaks] == [("a", "b", "near")] * near


def test_leaks_are_taken_out_of_the_earlier_split_and_described(caplog):
    near = LONG.replace("internet", "internets")
    splits = {
        "train": split(("1", "Same words"), ("2", "kept"), ("t", "same id"), ("3", "of validation"), ("4", near)),
        "validation": split(("v", "of validation"), ("t", "an id of test")),
        "test": split(("t", "tested"), ("u", "same WORDS"), ("w", LONG)),
    }
    clean, notes = without_leaks("set", splits)
    left = {name: [question.id for question in clean_split.questions] for name, clean_split in clean.items()}
    assert left == {"train": ["2", "4"], "validation": ["v"], "test": ["t", "u", "w"]}
    assert set(clean["train"].qrels) == {"2", "4"}
    for note, facts in zip(notes, ("2 train validation", "2 train test", "1 validation test"), strict=True):
        assert set(facts.split()) <= set(note.split())
    assert [record.args for record in caplog.records] == [(note,) for note in notes]
    (sentence,) = described("set", near_leaks(splits))
    assert sentence.startswith("set: 1 questions of train are nearly the same as one of test")
    clean, _ = without_leaks("set", splits, near=True)
    assert [question.id for question in clean["train"].questions] == ["2"]
