"""Metrics of an answer in [0, 1].

Exact match (em), precision, recall and F1 over words are those of SQuAD (Rajpurkar et al. 2016): lower case, no
punctuation, no articles, single spaces. cover_em is 1 where the answer contains a right answer word for word. With
several right answers, each metric takes the best one; precision and recall go with the best F1. A right answer without
words ("A", "+", "The The") is compared with the answer as both are written: an answer without words is never right.

ROUGE-1, -2 and -L are F-measures of the package rouge-score without stemming. BLEU-1 to -4 are cumulative sentence
scores of sacrebleu, over the n-gram orders that the answer is long enough for. Both packages tokenize by spaces. For
ROUGE, every Chinese or Japanese character and Korean syllable counts as a word here; for BLEU, texts with such
characters use sacrebleu's tokenizer for Chinese. The extra text-metrics installs the packages.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_SPACELESS = re.compile(f"[{_CJK}]")
_TOKENS = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")

TITLES = {
    "em": "EM",
    "cover_em": "cover EM",
    "f1": "F1",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
}
"""Names of metrics in tables, where they are others."""


def score_text(answer: str, right: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """The metrics `names` of an answer against the right answers, of which there is one at least."""
    precision, recall, f1 = max((_overlap(answer, reference) for reference in right), key=lambda scores: scores[2])
    by_words = {"precision": precision, "recall": recall, "f1": f1}
    return {
        name: by_words[name] if name in by_words else max(_score(name, answer, reference) for reference in right)
        for name in names
    }


def normalise(text: str) -> str:
    """SQuAD's form of an answer."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def tokens(text: str) -> list[str]:
    """The words of a text for ROUGE: CJK characters one by one, other letters and digits of any script in runs."""
    return _TOKENS.findall(text.lower())


def _comparable(answer: str, right: str) -> tuple[str, str]:
    """Both normalised; as they are written where the right answer has no words."""
    if expected := normalise(right):
        return normalise(answer), expected
    return " ".join(answer.lower().split()), " ".join(right.lower().split())


def _overlap(answer: str, right: str) -> tuple[float, float, float]:
    """Precision, recall and F1 over words."""
    words, expected = (text.split() for text in _comparable(answer, right))
    shared = sum((Counter(words) & Counter(expected)).values())
    return (
        (shared / len(words), shared / len(expected), 2 * shared / (len(words) + len(expected)))
        if shared
        else (0.0,) * 3
    )


def _score(name: str, answer: str, right: str) -> float:
    words, expected = _comparable(answer, right)
    if name == "em":
        return float(words == expected)
    if name == "cover_em":
        return float(f" {expected} " in f" {words} ")
    if name.startswith("rouge"):
        return float(_rouge(name).score(right, answer)[name].fmeasure)
    tokenizer = "zh" if _SPACELESS.search(answer + right) else "13a"
    return float(_bleu(int(name.removeprefix("bleu")), tokenizer).sentence_score(answer, [right]).score) / 100


class _Words:
    """The tokenizer that rouge-score asks for."""

    def tokenize(self, text: str) -> list[str]:
        """The words of a text."""
        return tokens(text)


@cache
def _rouge(kind: str) -> "RougeScorer":
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind], tokenizer=_Words())


@cache
def _bleu(order: int, tokenizer: str) -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(max_ngram_order=order, tokenize=tokenizer, effective_order=True)
