"""Tables, the verdict sentence and the choice of examples, on made-up records with known outcomes."""

import pytest
from querylect.eval.records import EvalRecord
from querylect.eval.report.examples import choose_examples
from querylect.eval.run import examples_of_run
from querylect.eval.run_table import headline, tabulate_run
from querylect.eval.table import Arm
from querylect.eval.tabulate import answers_of

RAW, U1, U2, T1, T2 = Arm("raw", 0), Arm("untrained", 1), Arm("untrained", 2), Arm("trained", 1), Arm("trained", 2)


def record(arm, question, value, format_ok=True):
    metrics = {"ndcg@10": value, "recall@10": value and 1.0, "mrr@10": value}
    text = f"{arm.system}{arm.turn} of {question}"
    fields = (arm.system, arm.turn, question, f"text of {question}", "", (text,), ("d",))
    return EvalRecord(*fields, metrics, 5 * arm.turn, 7, 1, format_ok, calls=arm.turn)


def records(**columns):
    """Records from columns of values: raw=[…], untrained1=[…], trained2=[…]."""
    return [
        record(Arm(name.rstrip("0123456789"), int(name[-1]) if name[-1].isdigit() else 0), f"q{i:02}", value)
        for name, values in columns.items()
        for i, value in enumerate(values)
    ]


def table(rows):
    return tabulate_run(rows, resamples=500, permutations=2000, seed=0)


def test_systems_are_compared_with_raw_and_trained_with_untrained_per_turn():
    results = table(records(raw=[0.1], untrained1=[0.2], untrained2=[0.3], trained1=[0.4], trained2=[0.5]))
    compared = {(row.arm, row.baseline) for row in results.table.comparisons}
    assert compared == {(U1, RAW), (U2, RAW), (T1, RAW), (T2, RAW), (T1, U1), (T2, U2)}


def test_means_differences_and_costs_by_hand():
    results = table(records(raw=[0.0, 0.5, 1.0], trained2=[0.5, 0.5, 0.8]))
    row = results.rows[1]
    score = results.score(row)
    assert score.metrics["ndcg@10"] == pytest.approx(0.6)
    assert (row.costs.calls, row.costs.tokens_out, score.n, score.of) == (2, 10.0, 3, 3)
    test = results.comparison(T2, RAW).test
    assert test.difference == pytest.approx(0.1)
    assert (test.wins, test.ties, test.losses) == (1, 1, 1)


def test_failed_and_missing_records_are_left_out_and_said():
    rows = records(raw=[0.2, 0.4, None], trained1=[0.9, None, 0.9])
    rows = [r for r in rows if not (r.system == "trained" and r.question_id == "q02")]
    results = table(rows)
    scores = [results.score(row) for row in results.rows]
    assert [(score.n, score.of) for score in scores] == [(2, 3), (1, 3)]
    assert scores[0].metrics["ndcg@10"] == pytest.approx(0.3)
    test = results.comparison(T1, RAW).test
    assert (test.n, test.left_out) == (1, 2)


def test_two_records_for_one_question_are_refused():
    with pytest.raises(ValueError, match="'q00'"):
        table([record(RAW, "q00", 0.1), record(RAW, "q00", 0.2)])


def spread(base, step, n=40):
    return [base + step * (i % 3 + 1) for i in range(n)]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"raw": [0.2] * 40, "untrained2": [0.1] * 40, "trained2": spread(0.2, 0.1)},
            "At turn 2, the trained policy beats the untrained policy and the raw question.",
        ),
        (
            {"raw": [0.3, 0.5] * 20, "untrained2": [0.1] * 40, "trained2": [0.4] * 40},
            "At turn 2, the trained policy beats the untrained policy, but does not beat the raw question.",
        ),
        (
            {"raw": [0.9] * 40, "untrained1": [0.8] * 40, "trained1": spread(0.1, 0.1)},
            "At turn 1, the trained policy is worse than the untrained policy and the raw question.",
        ),
        (
            {f"{system}{turn}": [0.3] * 40 for system in ("untrained", "trained") for turn in (1, 2)}
            | {"raw": [0.3] * 40, "untrained1": [0.2] * 40, "trained1": [0.9] * 40},
            "At turn 2, the trained policy does not beat the untrained policy or the raw question.",
        ),
        (
            {"raw": [0.9] * 20, "untrained1": spread(0, 0.1, 20)},
            "At turn 1, the untrained policy is worse than the raw question.",
        ),
    ],
    ids=["beats both", "one is not beaten", "harm", "the last turn and not the best", "untrained alone"],
)
def test_the_verdict(columns, sentence):
    assert headline(table(records(**columns))) == sentence


def test_significance_needs_the_adjusted_p():
    results = table(records(raw=[0.0] * 6, untrained1=[0.1] * 6, trained1=[0.9] * 6))
    row = results.comparison(T1, RAW)
    assert row.test.p < 0.05 < row.p_holm
    assert row.verdict == "does not beat"


def sides(**columns):
    """The answers of each column, by its name."""
    ids = [f"q{n:02}" for n in range(len(next(iter(columns.values()))))]
    answers = {name: answers_of(ids, records(**{name: values}), 1) for name, values in columns.items()}
    return {name: next(iter(by_turn.values())) for name, by_turn in answers.items()}


def test_examples_are_the_largest_gains_losses_and_spread_unchanged():
    baseline = [0.5] * 12
    trained = [0.6, 0.9, 0.7, 0.1, 0.4, 0.3, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    chosen = choose_examples(sides(raw=baseline, untrained2=baseline, trained2=trained), "ndcg@10", count=6)
    examples = [(row.change, row.question.removeprefix("text of ")) for row in chosen.rows]
    gains, losses = [(0.4, "q01"), (0.2, "q02")], [(-0.4, "q03"), (-0.2, "q05")]
    assert examples == [*gains, *losses, (0.0, "q06"), (0.0, "q09")]
    assert "3 gained, 3 lost and 6 stayed the same" in chosen.rule
    assert chosen.labels == ["raw", "untrained2", "trained2"]
    rewrites = [side.rewrites for side in chosen.rows[0].sides]
    assert rewrites == [(), ("untrained2 of q01",), ("trained2 of q01",)]


def test_examples_leave_the_places_of_an_empty_group_empty():
    chosen = choose_examples(sides(raw=[0.5] * 9, trained1=[0.6] * 9), "ndcg@10", count=6)
    assert [row.change for row in chosen.rows] == [0.1, 0.1]
    assert choose_examples(sides(raw=[None], trained1=[0.5]), "ndcg@10").rows == [], "without a score"
    assert choose_examples(sides(raw=[0.1]), "ndcg@10").rows == [], "nothing to compare"


def test_the_examples_of_a_run_are_of_the_last_turns():
    rows = records(raw=[0.1], untrained1=[0.2], untrained2=[0.3], trained1=[0.4], trained2=[0.5])
    assert examples_of_run(rows).labels == ["Raw question", "Untrained, turn 2", "Trained, turn 2"]
    assert examples_of_run(records(raw=[0.1], untrained1=[0.5])).labels == ["Raw question", "Untrained, turn 1"]
