"""TREC files: other programs compute the same nDCG@10 from them."""

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st
from querylect.data.types import Question, Split
from querylect.envs.environment import RankedHit
from querylect.errors import DataError
from querylect.eval.export import falling, write_trec

from ..raising import refused

pytestmark = [pytest.mark.model, pytest.mark.slow]


def pytrec(folder, name):
    """Mean nDCG@10 by pytrec_eval's own parsers, over the questions of the run."""
    with (folder / "qrels.txt").open() as file:
        qrels = pytrec_eval.parse_qrel(file)
    with (folder / f"{name}.run").open() as file:
        run = pytrec_eval.parse_run(file)
    values = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(run)
    return sum(value["ndcg_cut_10"] for value in values.values()) / len(values)


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_scores_fall_strictly_in_single_precision_and_hardly_change(scores):
    scores = sorted(scores, reverse=True)
    values = np.array(falling(scores), dtype=np.float32)
    assert (np.diff(values) < 0).all()
    assert values.tolist() == falling(scores)
    np.testing.assert_allclose(values, scores, rtol=1e-5, atol=1e-5)


def test_equal_scores_keep_our_order(tmp_path):
    """trec_eval would put the last id first."""
    ranking = [RankedHit(name, 1.5) for name in ("a", "b", "c")]
    split = Split([Question("q", "x")], {"q": {"a": 1}})
    write_trec(tmp_path / "out", split, {"tied": {"q": ranking}}, {})
    assert pytrec(tmp_path / "out", "tied") == 1.0


@pytest.mark.parametrize("broken", ["a b", "", "x\ty", " a"])
def test_ids_with_white_space_are_refused(broken, tmp_path):
    for question, document in ((broken, "d"), ("q", broken)):
        split = Split([Question(question, "x")], {question: {document: 1}})
        with refused(DataError, repr(broken)):
            write_trec(tmp_path / "out", split, {}, {})
    split = Split([Question("q", "x")], {"q": {"d": 1}})
    with refused(DataError, repr(broken)):
        write_trec(tmp_path / "out", split, {"raw": {"q": [RankedHit(broken, 1.0)]}}, {})
    assert list(tmp_path.iterdir()) == []
