"""Metrics of an answer in [0, 1].

Exact match (em), precision, recall and F1 over words are those of SQuAD (Rajpurkar et al. 2016, and 2018 for empty
answers): lower case, no punctuation, no articles, single spaces. Accuracy is 1 where the answer contains a right answer
word for word. With several right answers, each metric takes the best one; precision and recall go with the best F1.

ROUGE-1, -2 and -L are F-measures of the package rouge-score without stemming. BLEU-1 to -4 are cumulative sentence
scores of sacrebleu, over the n-gram orders that the answer is long enough for. Both packages tokenize by spaces. For
ROUGE, every Chinese or Japanese character and Korean syllable counts as a word here; for BLEU, texts with such
characters use sacrebleu's tokenizer for Chinese. The extra text-metrics installs the packages.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...sources import install_command

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU as SacreBleu

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_SPACELESS = re.compile(f"[{_CJK}]")
_TOKENS = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")


def score_text(answer: str, right: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """The metrics `names` of an answer against the right answers.

    Raises ConfigError where a metric is unknown or its package is not installed, ValueError without a right answer.
    """
    if not right:
        raise ValueError("there is no right answer to compare with")
    check_metrics(names)
    overlap = max((_overlap(answer, reference) for reference in right), key=lambda scores: scores[2])
    by_words = dict(zip(OVERLAP, overlap, strict=True))
    return {
        name: by_words[name] if name in by_words else max(_METRICS[name](answer, reference) for reference in right)
        for name in names
    }


def check_metrics(names: Sequence[str]) -> None:
    """Raise ConfigError where a metric is unknown or its package is not installed."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ConfigError(f"the metric {unknown[0]!r} is unknown for written answers; known are {', '.join(NAMES)}.")
    for package, package_metrics in (("rouge_score", ROUGE), ("sacrebleu", BLEU)):
        requested = [name for name in names if name in package_metrics]
        if requested and find_spec(package) is None:
            raise ConfigError(
                f"the metric {requested[0]!r} needs the package {package}, which is not installed. Install it "
                f"({install_command('text-metrics')}), or leave the metric out."
            )


def normalise(text: str) -> str:
    """Lower-case the text, remove punctuation and articles, and collapse spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def tokens(text: str) -> list[str]:
    """The words of a text in lower case: letters and digits of any script."""
    return _TOKENS.findall(text.lower())


def letter(index: int | None) -> str:
    """The letter of an option, counted from 0; "" for none."""
    return "" if index is None else string.ascii_uppercase[index]


def _exact_match(answer: str, right: str) -> float:
    return float(normalise(answer) == normalise(right))


def _contains(answer: str, right: str) -> float:
    phrase = normalise(right)
    return float(bool(phrase) and f" {phrase} " in f" {normalise(answer)} ")


def _overlap(answer: str, right: str) -> tuple[float, float, float]:
    """Precision, recall and F1 over words; all 1 where both texts are empty, all 0 where one is."""
    predicted, expected = normalise(answer).split(), normalise(right).split()
    if not predicted or not expected:
        return (float(predicted == expected),) * 3
    shared = sum((Counter(predicted) & Counter(expected)).values())
    return shared / len(predicted), shared / len(expected), 2 * shared / (len(predicted) + len(expected))


class _Words:
    """The tokenizer that rouge-score asks for."""

    def tokenize(self, text: str) -> list[str]:
        """The words of a text."""
        return tokens(text)


def _rouge(kind: str, answer: str, right: str) -> float:
    return float(_rouge_scorer(kind).score(right, answer)[kind].fmeasure)


def _bleu(order: int, answer: str, right: str) -> float:
    spaceless = bool(_SPACELESS.search(answer + right))
    return float(_bleu_scorer(order, "zh" if spaceless else "13a").sentence_score(answer, [right]).score) / 100


@cache
def _rouge_scorer(kind: str) -> "RougeScorer":
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind], tokenizer=_Words())


@cache
def _bleu_scorer(order: int, tokenizer: str) -> "SacreBleu":
    from sacrebleu.metrics.bleu import BLEU as SacreBleu

    return SacreBleu(max_ngram_order=order, tokenize=tokenizer, effective_order=True)


OVERLAP = ("precision", "recall", "f1")
ROUGE = ("rouge1", "rouge2", "rougeL")
BLEU = {f"bleu{order}": order for order in (1, 2, 3, 4)}
_METRICS: Mapping[str, Callable[[str, str], float]] = {
    "em": _exact_match,
    "accuracy": _contains,
    **{name: partial(_rouge, name) for name in ROUGE},
    **{name: partial(_bleu, order) for name, order in BLEU.items()},
}
"""Metrics of an answer against one right answer."""
NAMES = ("em", "accuracy", *OVERLAP, *ROUGE, *BLEU)
TITLES = {"em": "EM", "f1": "F1", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
"""Names of metrics in tables, where they are others."""
