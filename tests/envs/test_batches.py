"""Batched results equal single ones: compiled BM25, stems known by word, encoder batches by tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.data.types import Document
from querylect.envs.plan import Probe, Term
from querylect.envs.presets import PRESETS
from querylect.envs.retrievers import bm25
from querylect.envs.retrievers.encoder import token_batches

pytestmark = pytest.mark.server

WORDS = [f"{stem}{end}" for stem in ("wing", "heat", "slab", "flow", "lift", "drag") for end in ("", "s", "ing")]
ODD = ["The", "Zebra", "it's", "x", "ÉTÉ", "İstanbul", "-"]
TEXTS = st.lists(st.sampled_from([*WORDS, *ODD]), max_size=6).map(" ".join)
WEIGHTS = st.sampled_from([1.0, 0.5, -1.0, 0.1, -0.3, 0.0]) | st.floats(-2, 2)
PROBES = st.lists(st.builds(Term, text=TEXTS, weight=WEIGHTS), min_size=1, max_size=4).map(
    lambda terms: Probe(terms=tuple(terms))
)


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    """An index of 400 documents, many of them equal."""
    part, folder = tmp_path_factory.mktemp("part"), tmp_path_factory.mktemp("index")
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 5))) for _ in range(400)]
    kind = bm25.Bm25Factory(PRESETS["bm25"], "bm25s", "english")
    kind.write_part(part, [Document(str(number), "", text) for number, text in enumerate(texts)])
    kind.merge([part], folder)
    return kind.load(folder, texts)


@settings(max_examples=150, deadline=None)
@given(batch=st.lists(st.tuples(PROBES, st.sampled_from([1, 2, 10, 399, 1000])), min_size=1, max_size=6))
def test_a_limited_ranking_is_the_head_of_the_whole_one_to_the_last_bit(retriever, batch):
    """The weighted sums of the whole one: tests/envs/test_bm25.py."""
    probes, limits = zip(*batch, strict=True)
    for probe, limit, ranking in zip(probes, limits, retriever.rank(probes, limits), strict=True):
        (whole,) = retriever.rank([probe], [400])
        pairs = list(zip((-whole.scores).tolist(), whole.documents.tolist(), strict=True))
        assert pairs == sorted(pairs), "best first, equal scores in corpus order"
        assert ranking.documents.tolist() == whole.documents[:limit].tolist()
        assert ranking.scores.tolist() == whole.scores[:limit].tolist()


@given(lengths=st.lists(st.integers(1, 600), max_size=60), budget=st.integers(1, 2000))
def test_a_batch_of_texts_keeps_to_its_tokens_and_no_text_is_lost(lengths, budget):
    batches = token_batches(lengths, budget)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[position] for position in batch) <= budget
    padded = [max(lengths[position] for position in batch) for batch in batches]
    assert padded == sorted(padded, reverse=True)
