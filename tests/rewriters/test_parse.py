"""The strict parser: what it reads, what it refuses, and that it never raises."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from querylect.llms.prose import END_OF_TURN
from querylect.rewriters.parse import TAGS, Parsed, parse, render

untagged = st.text().filter(lambda text: not any(tag in text for tag in TAGS))
pieces = st.sampled_from([*TAGS, *END_OF_TURN, "<", ">", "</", "a b", " ", "\n", "<think", "rewrite>", "\ud800"])


def test_a_think_and_a_rewrite_are_read_and_stripped():
    text = "<think> short\nthought </think>\n<rewrite> tall stature </rewrite> \n <rewrite>a</rewrite>\n"
    assert parse(text) == Parsed("short\nthought", ("tall stature", "a"))
    failed = parse("<think>why</think><rewrite>a")
    assert failed == Parsed("why", failure="unclosed rewrite"), "the thoughts survive"


@pytest.mark.parametrize(
    "body", ["p < 0.05 and q > 2", "<b>bold</b>", "a </b> c", "<", "</", "x<y</rewrit", "<rewrite"]
)
def test_angle_brackets_inside_a_rewrite_are_text(body):
    assert parse(f"<think></think><rewrite>{body}</rewrite>").rewrites == (body,)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("", "empty answer"),
        (" \n", "empty answer"),
        ("<|im_end|>", "empty answer"),
        ("tall stature", "missing think"),
        ("<Think></Think><rewrite>a</rewrite>", "missing think"),
        ("Sure! <think></think><rewrite>a</rewrite>", "text outside tags"),
        ("<think></think> so <rewrite>a</rewrite>", "text outside tags"),
        ("<think></think><rewrite>a</rewrite> and <rewrite>b</rewrite>", "text outside tags"),
        ("<think></think><rewrite>a</rewrite><think>b</think>", "text outside tags"),
        ("<think>a<rewrite>b</rewrite>", "unclosed think"),
        ("<think>a</think>", "missing rewrite"),
        ("<think>a <rewrite>b</rewrite></think>", "missing rewrite"),
        ("<think></think><rewrite>a", "unclosed rewrite"),
        ("<think></think><rewrite>a</rewrite><rewrite>b", "unclosed rewrite"),
        ("<think></think><rewrite>a<rewrite>b</rewrite>", "nested tag"),
        ("<think></think><rewrite><think>a</think>b</rewrite>", "nested tag"),
        ("<think></think><rewrite> \n</rewrite>", "empty rewrite"),
        ("<think></think><rewrite>a</rewrite><rewrite></rewrite>", "empty rewrite"),
        ("<think></think><rewrite>\ud800</rewrite>", "invalid unicode"),
    ],
)
def test_what_breaks_the_format_is_named(text, failure):
    parsed = parse(text)
    assert (parsed.failure, parsed.rewrites) == (failure, ())


def test_the_number_of_rewrites_is_limited():
    assert parse(render("", ["a", "b", "c", "d"])).rewrites == ("a", "b", "c", "d")
    assert parse(render("", ["a", "b", "c", "d", "e"])) == Parsed(failure="too many rewrites")


@pytest.mark.parametrize("mark", END_OF_TURN)
def test_end_of_turn_marks_may_follow_but_not_stand_between(mark):
    answer = render("t", ["a"])
    assert parse(f"{answer}{mark}\n{mark}\n") == parse(answer)
    assert parse(f"<think>t</think>{mark}<rewrite>a</rewrite>").failure == "text outside tags"
    assert parse(render("t", [f"a {mark}"])).rewrites == (f"a {mark}",)


@given(untagged, st.lists(untagged.filter(str.strip), min_size=1, max_size=4))
@example("a < b", ["</b>", "<"])
def test_what_render_writes_parse_reads(think, rewrites):
    parsed = parse(render(think, rewrites))
    assert parsed == Parsed(think.strip(), tuple(text.strip() for text in rewrites))


@given(st.text() | st.lists(pieces).map("".join))
def test_no_text_raises_and_a_failure_has_no_rewrites(text):
    parsed = parse(text)
    assert bool(parsed.rewrites) == (parsed.failure == "")
    if parsed.rewrites:
        assert parse(render(parsed.think, parsed.rewrites)) == parsed


@given(st.text(), untagged.filter(str.strip))
def test_nothing_before_the_answer_is_ever_accepted(outside, rewrite):
    """The prompt in front of an answer, or a text without tags after a tagged prompt, is no answer."""
    assume(not outside.lstrip().startswith("<think>"))  # what an opened think part holds is thinking, tags and all
    answer = render("", [rewrite])
    assert parse(f"{outside}x{answer}").failure
    assert parse(f"{answer}{outside}x").failure
