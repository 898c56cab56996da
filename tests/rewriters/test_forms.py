"""The three forms of an answer: what the strict parsers read and refuse, and what is read of prompted models."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from querylect.rewriters.forms import TAGS, LineForm, Parsed, PassageForm, TagForm, render

untagged = st.text().filter(lambda text: not any(tag in text for tag in TAGS))
pieces = st.sampled_from([*TAGS, "<|im_end|>", "</s>", "<", ">", "</", "a b", " ", "\n", "<think", "rewrite>"])
parse = TagForm().parse
LINES = LineForm({"Query 1": "the first", "Query 2": "the second"})


def test_a_think_and_a_rewrite_are_read_and_stripped():
    text = "<think> short\nthought </think>\n<rewrite> tall stature </rewrite> \n <rewrite>a</rewrite>\n"
    assert parse(text) == Parsed("short\nthought", ("tall stature", "a"))
    failed = parse("<think>why</think><rewrite>a")
    assert failed == Parsed("why", failure="unclosed rewrite"), "the thoughts survive"


@pytest.mark.parametrize("body", ["p < 0.05 and q > 2", "<b>bold</b>", "a </b> c", "</", "x<y</rewrit", "<rewrite"])
def test_angle_brackets_inside_a_rewrite_are_text(body):
    assert parse(f"<think></think><rewrite>{body}</rewrite>").parts == (body,)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("", "empty answer"),
        ("<|im_end|>", "empty answer"),
        ("tall stature", "missing think"),
        ("<Think></Think><rewrite>a</rewrite>", "missing think"),
        ("Sure! <think></think><rewrite>a</rewrite>", "text outside tags"),
        ("<think></think> so <rewrite>a</rewrite>", "text outside tags"),
        ("<think></think><rewrite>a</rewrite> and <rewrite>b</rewrite>", "text outside tags"),
        ("<think></think><rewrite>a</rewrite><think>b</think>", "text outside tags"),
        ("<think>a<rewrite>b</rewrite>", "unclosed think"),
        ("<think>a <rewrite>b</rewrite></think>", "missing rewrite"),
        ("<think></think><rewrite>a", "unclosed rewrite"),
        ("<think></think><rewrite>a</rewrite><rewrite>b", "unclosed rewrite"),
        ("<think></think><rewrite>a<rewrite>b</rewrite>", "nested tag"),
        ("<think></think><rewrite><think>a</think>b</rewrite>", "nested tag"),
        ("<think></think><rewrite> \n</rewrite>", "empty rewrite"),
        ("<think></think><rewrite>a</rewrite><rewrite></rewrite>", "empty rewrite"),
        (render("", list("abcde")), "too many rewrites"),
    ],
)
def test_what_breaks_the_tags_is_named(text, failure):
    assert (parse(text).failure, parse(text).parts) == (failure, ())


@pytest.mark.parametrize("mark", ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "</s>"])
def test_end_of_turn_marks_may_follow_but_not_stand_between(mark):
    answer = render("t", ["a"])
    assert parse(f"{answer}{mark}\n{mark}\n") == parse(answer)
    assert parse(f"<think>t</think>{mark}<rewrite>a</rewrite>").failure == "text outside tags"


@given(untagged, st.lists(untagged.filter(str.strip), min_size=1, max_size=4))
@example("a < b", ["</b>", "<"])
def test_what_render_writes_parse_reads(think, rewrites):
    assert parse(render(think, rewrites)) == Parsed(think.strip(), tuple(text.strip() for text in rewrites))


@given(st.text() | st.lists(pieces).map("".join), st.sampled_from([TagForm(), LINES, PassageForm()]))
def test_no_text_raises_and_a_failure_has_no_parts(text, form):
    for parsed in (form.parse(text), form.read(text)):
        assert bool(parsed.parts) == (parsed.failure == "")
    if (parsed := parse(text)).parts:
        assert parse(render(parsed.think, parsed.parts)) == parsed


@given(st.text(), untagged.filter(str.strip))
def test_nothing_before_the_answer_is_ever_accepted(outside, rewrite):
    """The prompt in front of an answer, or a text without tags after a tagged prompt, is no answer."""
    assume(not outside.lstrip().startswith("<think>"))  # what an opened think part holds is thinking, tags and all
    answer = render("", [rewrite])
    assert parse(f"{outside}x{answer}").failure
    assert parse(f"{answer}{outside}x").failure


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Query 1: a b\nQuery 2: c", Parsed(parts=("a b", "c"))),
        (" a b\nQuery 2: c", Parsed(parts=("a b", "c"))),  # after the opening
        ("\nQuery 1:a\n\n\nQuery 2 : c<|im_end|>", Parsed(parts=("a", "c"))),
        ("**Query 1:** a\n- query 2: c", Parsed(parts=("a", "c"))),
        ("Query 1: a\nand more\nQuery 2: see Query 1: there", Parsed(parts=("a and more", "see Query 1: there"))),
        ("<think>Query 1: no</think>Query 1: a\nQuery 2: c", Parsed("Query 1: no", ("a", "c"))),
        ("Query 1: 血糖を下げる\nQuery 2: ça", Parsed(parts=("血糖を下げる", "ça"))),
        ("", Parsed(failure="missing part")),
        ("<think>on and on", Parsed(think="on and on", failure="unclosed think")),
        ("I do not know.", Parsed(failure="missing part")),
        ("Query 1: a\nQuery 12: b", Parsed(failure="missing part")),
        ("Query 1: a\nQuery 2:", Parsed(failure="empty part")),
        ("Query 1: <the first>\nQuery 2: a", Parsed(failure="empty part")),
        ("Query 2: a\nQuery 1: b", Parsed(failure="parts out of order")),
        ("Query 1: a\nQuery 2: b\nQuery 2: c", Parsed(failure="repeated part")),
        ("Sure!\nQuery 1: a\nQuery 2: b", Parsed(failure="repeated part")),
        ("<think></think>Sure!\nQuery 1: a\nQuery 2: b", Parsed(failure="text outside parts")),
        ("Query 1: a\nQuery 2: b\n\nI hope this helps!", Parsed(failure="text outside parts")),
    ],
)
def test_labelled_parts_are_read_strictly(text, expected):
    assert LINES.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A passage.<|im_end|>", Parsed(parts=("A passage.",))),
        ("<think>so</think>\n A passage ", Parsed("so", ("A passage",))),
        ("p < 0.05 and <rewrite>x</rewrite>", Parsed(parts=("p < 0.05 and <rewrite>x</rewrite>",))),
        ("  <|im_end|>", Parsed(failure="empty answer")),
        ("<think>so</think>", Parsed("so", failure="empty answer")),
        ("<think>never ends", Parsed("never ends", failure="unclosed think")),
    ],
)
def test_a_whole_answer_is_the_passage(text, expected):
    assert PassageForm().parse(text) == expected


@pytest.mark.parametrize(
    ("form", "text", "parts"),
    [
        (TagForm(), "Sure! <rewrite>insulin</rewrite> Hope this helps.", ("insulin",)),
        (TagForm(), "reasons</think><rewrite>insulin</rewrite>", ("insulin",)),
        (TagForm(), "```xml\n<Rewrite>\ninsulin\nglucose\n</Rewrite>\n```", ("insulin glucose",)),
        (TagForm(), "<think>why</think><rewrite>what the retriever gets</rewrite>", ()),
        (TagForm(), "<think>why</think><rewrite>insulin", ()),
        (TagForm(), "<think>why <rewrite>insulin</rewrite>", ()),
        (LINES, "Here are 2 queries:\n\nQuery 1: a\nQuery 2: b\n\nLet me know if you need more!", ("a", "b")),
        (LINES, "so first a, then</think>\n\n**Query 1:** a\n\n**Query 2:**\nb", ("a", "b")),
        (LINES, "Query 1: a\nQuery 2: b\n\nRevised:\nQuery 1: d", ()),
        (LINES, "Query 1: a", ()),
        (PassageForm(), 'hm</think>Here it is:\n\n"Insulin lowers it."', ("Insulin lowers it.",)),
        (PassageForm(), "<think>Insulin", ()),
    ],
)
def test_of_a_prompted_model_what_stands_around_the_form_is_skipped(form, text, parts):
    assert form.read(text).parts == parts
    assert form.parse(text).parts != form.read(text).parts or not parts, "training stays strict"
