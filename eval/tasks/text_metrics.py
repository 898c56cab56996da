"""Metrics of written answers: EM, word precision, recall and F1, ROUGE, BLEU (seed 004, section 3.1). All in [0, 1].

EM and the metrics over words are SQuAD's (answers/metrics.py). ROUGE-1, -2 and -L are the F-measures of the package
rouge-score without stemming, BLEU-1 to -4 those of sacrebleu for single sentences, cumulative and over the orders that
an answer is long enough for. Both packages split text into words for scripts with spaces; here every Chinese or
Japanese character and Korean syllable counts as a word for ROUGE, and sacrebleu's tokenizer for Chinese is taken where
a text holds such characters. Of several right answers the best one counts, by each metric.

The packages are those of the extra text-metrics.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from ...errors import ConfigError
from ..answers.metrics import contains, exact_match, normalise

ROUGE = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougeL"}
BLEU = {f"bleu{order}": order for order in (1, 2, 3, 4)}
WORDS = ("em", "accuracy", "precision", "recall", "f1")
NAMES = (*WORDS, *ROUGE, *BLEU)

_SINGLE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_SPACELESS = re.compile(f"[{_SINGLE}]")
_TOKENS = re.compile(rf"[{_SINGLE}]|[^\W_{_SINGLE}]+")


def score_text(answer: str, right: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """The named metrics of an answer against the right ones.

    Raises ConfigError where a metric is unknown or its package is not installed, ValueError without a right answer.
    """
    if not right:
        raise ValueError("there is no right answer to compare with")
    check_metrics(names)
    precision, recall, f1 = max((_overlap(answer, one) for one in right), key=lambda found: found[2])
    found = {
        "em": exact_match(answer, right),
        "accuracy": contains(answer, right),
        "precision": precision,
        "recall": recall,
        "f1": f1,
    }
    for name in names:
        if name in ROUGE:
            found[name] = max(_rouge(ROUGE[name], answer, one) for one in right)
        elif name in BLEU:
            found[name] = max(_bleu(BLEU[name], answer, one) for one in right)
    return {name: found[name] for name in names}


def check_metrics(names: Sequence[str]) -> None:
    """Raises ConfigError where a metric is unknown or its package is not installed."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ConfigError(f"the metric {unknown[0]!r} is unknown for written answers; known are {', '.join(NAMES)}.")
    for package, own in (("rouge_score", ROUGE), ("sacrebleu", BLEU)):
        wanted = [name for name in names if name in own]
        if wanted and find_spec(package) is None:
            raise ConfigError(
                f"the metric {wanted[0]!r} needs the package {package}, which is not installed. Install it with "
                "pip install 'querylect[text-metrics]', or leave the metric out."
            )


def tokens(text: str) -> list[str]:
    """The words of a text in lower case, by letters and figures of any script."""
    return _TOKENS.findall(text.lower())


def _overlap(answer: str, right: str) -> tuple[float, float, float]:
    """Precision, recall and F1 over words; all 1 where both are empty, all 0 where one is."""
    said, wanted = normalise(answer).split(), normalise(right).split()
    if not said or not wanted:
        return (float(said == wanted),) * 3
    shared = sum((Counter(said) & Counter(wanted)).values())
    return shared / len(said), shared / len(wanted), 2 * shared / (len(said) + len(wanted))


def _rouge(kind: str, answer: str, right: str) -> float:
    return float(_rouge_scorer(kind)(right, answer))


def _bleu(order: int, answer: str, right: str) -> float:
    spaceless = bool(_SPACELESS.search(answer + right))
    return float(_bleu_scorer(order, "zh" if spaceless else "13a").sentence_score(answer, [right]).score) / 100


@cache
def _rouge_scorer(kind: str) -> Callable[[str, str], float]:
    from rouge_score.rouge_scorer import RougeScorer

    class Words:
        """The form in which rouge-score takes a tokenizer."""

        def tokenize(self, text: str) -> list[str]:
            """The words of a text."""
            return tokens(text)

    scorer = RougeScorer([kind], tokenizer=Words())

    def score(right: str, answer: str) -> float:
        return float(scorer.score(right, answer)[kind].fmeasure)

    return score


@cache
def _bleu_scorer(order: int, tokenizer: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU as SacreBleu

    return SacreBleu(max_ngram_order=order, tokenize=tokenizer, effective_order=True)
