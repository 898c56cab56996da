"""The tests of seed 002, section 6.3: a one-sided exact binomial test on discordant pairs, and Wilcoxon's signed ranks.

Values of yes and no (0 and 1) take the binomial test: of the questions on which two systems differ, would a fair coin
side with the first one as often? Other values take the signed-rank test. As in statistics.py a value of None leaves its
pair out, and the count of pairs left out stands in the result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .statistics import Alternative

Kind = Literal["binomial", "wilcoxon"]


@dataclass(frozen=True, slots=True)
class ExactComparison:
    """System `a` against system `b` on the questions that both have a value for."""

    test: Kind
    alternative: Alternative
    """`greater` asks whether the values of `a` are the larger ones, `less` whether they are the smaller ones."""
    n: int
    """Pairs compared."""
    left_out: int
    mean_a: float
    mean_b: float
    higher: int
    """Pairs in which `a` has the larger value, and in which it has the smaller one."""
    lower: int
    p: float
    """1 where no pair differs."""


def compare_exactly(
    a: Sequence[float | None], b: Sequence[float | None], alternative: Alternative = "greater"
) -> ExactComparison:
    """Test `a` against `b`, question by question, with the test that fits the values.

    Raises ValueError for unequal lengths, where no question has a value for both, and for values that are not finite.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values cannot be paired; expected one of each per question")
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if not pairs:
        raise ValueError("no question has a value for both systems; nothing can be compared")
    left, right = [x for x, _ in pairs], [y for _, y in pairs]
    binary = {*left, *right} <= {0.0, 1.0}
    test: Kind = "binomial" if binary else "wilcoxon"
    p = binomial_test(left, right, alternative) if binary else signed_rank_test(left, right, alternative)
    return ExactComparison(
        test=test,
        alternative=alternative,
        n=len(pairs),
        left_out=len(a) - len(pairs),
        mean_a=math.fsum(left) / len(pairs),
        mean_b=math.fsum(right) / len(pairs),
        higher=sum(x > y for x, y in pairs),
        lower=sum(x < y for x, y in pairs),
        p=p,
    )


def binomial_test(a: Sequence[float], b: Sequence[float], alternative: Alternative = "greater") -> float:
    """The exact binomial test on discordant pairs (McNemar's, exact); 1 where no pair is discordant.

    Raises ValueError for values other than 0 and 1.
    """
    from scipy.stats import binomtest

    if not {*a, *b} <= {0.0, 1.0}:
        raise ValueError(f"the values {sorted({*a, *b} - {0.0, 1.0})[:3]} are neither 0 nor 1")
    higher = sum(x > y for x, y in zip(a, b, strict=True))
    lower = sum(x < y for x, y in zip(a, b, strict=True))
    if not higher + lower:
        return 1.0
    return float(binomtest(higher, higher + lower, 0.5, alternative=alternative).pvalue)


def signed_rank_test(a: Sequence[float], b: Sequence[float], alternative: Alternative = "greater") -> float:
    """Wilcoxon's signed-rank test; pairs without a difference are dropped, and 1 where none is left.

    Raises ValueError for values that are not finite.
    """
    from scipy.stats import wilcoxon

    differences = [x - y for x, y in zip(a, b, strict=True)]
    if not all(map(math.isfinite, differences)):
        raise ValueError("a value is not finite; leave unscorable questions out first")
    moving = [difference for difference in differences if difference]
    return float(wilcoxon(moving, alternative=alternative).pvalue) if moving else 1.0
