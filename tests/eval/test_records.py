"""Records of greedy trees, written and read back."""

from hypothesis import given
from hypothesis import strategies as st
from querylect.data.types import Question
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import HitBody, StepResult
from querylect.eval.records import (
    EvalRecord,
    read_records,
    record_of_search,
    records_of_trees,
    write_records,
)
from querylect.rewriters.base import Rewrite
from querylect.rollouts.tree import Node, Tree

SCORES = {"ndcg@10": 0.63, "recall@10": 1.0, "mrr@10": 0.5}
QUESTION = Question("q1", "weak grip")


def step_result(metrics):
    """The environment's result: one document."""
    hit = HitBody(id="d1", score=2.5)
    return StepResult(question_id="q1", ranking=[hit], reward=0.5, metrics=metrics)


def node(turn, prompt, completion, rewrite=None, metrics=SCORES, reward=0.6, children=(), number=0):
    rewrite = rewrite or Rewrite(SearchPlan.of("grip"), "thought", ("grip",))
    ranking = [HitBody(id="d2", score=2.0), HitBody(id="d1", score=1.0)] if rewrite.plan else []
    ids = [0] * prompt, [0] * completion, []
    answer = Node(turn, *ids, True, "", rewrite, ranking, dict(metrics), reward, list(children), number=number)
    answer.tokens, answer.prompt_tokens = completion, prompt
    return answer


def test_a_path_becomes_one_record_per_turn_with_running_costs():
    tree = Tree(QUESTION, [node(1, 10, 4, children=[node(2, 20, 3)])])
    first, second = records_of_trees("trained", [tree])
    assert (first.turn, first.tokens, first.prompt_tokens, first.searches) == (1, 4, 10, 1)
    assert (second.turn, second.tokens, second.prompt_tokens, second.searches) == (2, 7, 20, 2)
    assert (first.system, first.question_id, first.question) == ("trained", "q1", "weak grip")
    assert (first.think, first.rewrites, first.ranking) == ("thought", ("grip",), ("d2", "d1"))
    assert first.metrics == SCORES
    assert first.format_ok


def test_an_outage_is_none_and_never_zero():
    (record,) = records_of_trees("untrained", [Tree(QUESTION, [node(1, 10, 4, metrics={}, reward=None)])])
    assert set(record.metrics.values()) == {None}
    lost = record_of_search("raw", QUESTION, ["weak grip"], SearchPlan.of("weak grip"), None, list(SCORES))
    assert set(lost.metrics.values()) == {None}
    assert record.searches == 1


def test_later_turns_repeat_a_failed_search_and_no_missing_answer():
    lost, unanswered = node(1, 10, 4, metrics={}, reward=None), node(1, 10, 4)
    rows = [records_of_trees("untrained", [Tree(QUESTION, [root], (1, 1))]) for root in (lost, unanswered)]
    assert [[(row.turn, row.searches, row.metrics["mrr@10"]) for row in path] for path in rows] == [
        [(1, 1, None), (2, 1, None)],
        [(1, 1, 0.5)],
    ]


def test_every_sample_is_a_record_of_its_own_with_the_seconds_up_to_its_turn():
    paths = [node(1, 10, 4, children=[node(2, 20, 3)]), node(1, 10, 5, children=[node(2, 20, 1)], number=1)]
    rows = records_of_trees("sampled", [Tree(QUESTION, paths)], seconds=[0.5, 0.25])
    costs = [(row.sample, row.turn, row.tokens, row.seconds) for row in rows]
    assert costs == [(0, 1, 4, 0.5), (0, 2, 7, 0.75), (1, 1, 5, 0.5), (1, 2, 6, 0.75)]


def test_the_search_is_recorded_as_it_was_sent_with_the_scores_of_its_documents():
    fine, failed = node(1, 1, 1), node(1, 1, 1, Rewrite(None, failure="no tag"), metrics={"ndcg@10": 0.0}, reward=0.0)
    first, second = (records_of_trees("trained", [Tree(QUESTION, [root])])[0] for root in (fine, failed))
    assert (SearchPlan.model_validate(first.plan), first.scores) == (SearchPlan.of("grip"), (2.0, 1.0))
    assert (second.plan, second.scores) == (None, ())
    plan = SearchPlan.of("weak grip", k=7)
    raw = record_of_search("raw", QUESTION, plan.texts, plan, step_result(SCORES), list(SCORES))
    assert (SearchPlan.model_validate(raw.plan).k, raw.scores) == (7, (2.5,))


texts = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    st.lists(
        st.builds(
            EvalRecord,
            system=texts,
            turn=st.integers(0, 3),
            question_id=texts,
            question=texts,
            think=texts,
            rewrites=st.lists(texts, max_size=3).map(tuple),
            ranking=st.lists(texts, max_size=3).map(tuple),
            metrics=st.fixed_dictionaries(dict.fromkeys(SCORES, st.none() | st.floats(0, 1))),
            tokens=st.integers(0, 99),
            prompt_tokens=st.integers(0, 99),
            searches=st.integers(0, 3),
            format_ok=st.booleans(),
            scores=st.lists(st.floats(-9, 9), max_size=3).map(tuple),
            plan=st.none() | texts.map(lambda text: SearchPlan.of(text).model_dump(mode="json")),
            seconds=st.floats(0, 9),
            sample=st.integers(0, 3),
        ),
        max_size=4,
    )
)
def test_records_survive_the_disk(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("records") / "eval.jsonl"
    write_records(path, records)
    assert read_records(path) == records
