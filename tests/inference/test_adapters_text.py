"""Rankings as plain text for a policy, and search plans parsed from its plain replies."""

import pytest
from querylect.envs.adapters import MAX_QUERIES, SNIPPET, plan_of_reply, show
from querylect.envs.schemas import HitBody


def test_a_ranking_is_one_line_a_document():
    hits = [
        HitBody(id="a", score=2, title="A\ntitle", text="one\ntwo " + "x" * 500),
        HitBody(id="b", score=1, title="", text="b"),
    ]
    first, second = show(hits).splitlines()
    assert first == "1. A title: one two " + "x" * (SNIPPET - 8)
    assert second == "2. : b"
    assert show([]) == "Nothing was found."


@pytest.mark.parametrize(
    ("reply", "queries"),
    [
        (" a \n\n b<c \r\n", ["a", "b<c"]),
        ("x</think>y</think>z", ["z"]),
        ("", None),
        ("<think>only thought</think>\n ", None),
        ("half \ud800", None),
        ("\n".join("q" * (MAX_QUERIES + 1)), None),
    ],
)
def test_each_line_of_a_reply_is_a_query(reply, queries):
    plan = plan_of_reply(reply)
    assert (plan and [probe.terms[0].text for probe in plan.probes]) == queries
    assert plan is None or (plan.fuse, plan.k) == ("max", 10)
