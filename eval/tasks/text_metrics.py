"""Metrics of written answers: EM, word precision, recall and F1, ROUGE, BLEU (seed 004, section 3.1). All in [0, 1].

EM and the metrics over words are SQuAD's (answers/metrics.py). ROUGE-1, -2 and -L are F-measures of the package
rouge-score without stemming. BLEU-1 to -4 are cumulative sentence scores of sacrebleu, over the n-gram orders that the
answer is long enough for. Both packages tokenize by spaces. For ROUGE, every Chinese or Japanese character and Korean
syllable counts as a word here; for BLEU, texts with such characters use sacrebleu's tokenizer for Chinese. With several
right answers, each metric takes the best one.

The extra text-metrics installs the packages.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from ...errors import ConfigError
from ...sources import install_command
from ..answers.metrics import best_overlap, contains, exact_match

ROUGE = ("rouge1", "rouge2", "rougeL")
BLEU = {f"bleu{order}": order for order in (1, 2, 3, 4)}
WORDS = ("em", "accuracy", "precision", "recall", "f1")
NAMES = (*WORDS, *ROUGE, *BLEU)

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
    precision, recall, f1 = best_overlap(answer, right)
    scores = {
        "em": exact_match(answer, right),
        "accuracy": contains(answer, right),
        "precision": precision,
        "recall": recall,
        "f1": f1,
    }
    for name in names:
        if name in ROUGE:
            scores[name] = max(_rouge(name, answer, reference) for reference in right)
        elif name in BLEU:
            scores[name] = max(_bleu(BLEU[name], answer, reference) for reference in right)
    return {name: scores[name] for name in names}


def check_metrics(names: Sequence[str]) -> None:
    """Raise ConfigError where a metric is unknown or its package is not installed."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ConfigError(
            f"the metric {unknown[0]!r} is unknown for written answers; known are {', '.join(NAMES)}.",
            code="unknown-metric",
        )
    for package, package_metrics in (("rouge_score", ROUGE), ("sacrebleu", BLEU)):
        requested = [name for name in names if name in package_metrics]
        if requested and find_spec(package) is None:
            raise ConfigError(
                f"the metric {requested[0]!r} needs the package {package}, which is not installed. Install it "
                f"({install_command('text-metrics')}), or leave the metric out.",
                code="missing-package",
            )


def tokens(text: str) -> list[str]:
    """The words of a text in lower case: letters and digits of any script."""
    return _TOKENS.findall(text.lower())


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
def _rouge_scorer(kind: str) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind], tokenizer=_Words())


@cache
def _bleu_scorer(order: int, tokenizer: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU as SacreBleu

    return SacreBleu(max_ngram_order=order, tokenize=tokenizer, effective_order=True)
