"""How similar questions and contents are by their embeddings (the QB-RAG paper, appendix E, table 6).

QB-RAG rests on two differences of mean cosines: questions written for one content against those of different contents,
and questions with their own content against other contents. Every mean is over all pairs; it is taken from sums of
vectors, so that no matrix of pairs is held.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..configs.schema import EnvironmentConfig
from ..data.corpus import open_corpus
from ..envs.recipes import recipe_of
from ..envs.retrievers.encoder import Encoder
from ..envs.retrievers.qb_rag import questions_settings
from ..envs.retrievers.question_index import open_question_index
from ..errors import ConfigError
from .build import documents_of

Vectors = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Similarities:
    """Mean cosines; None where there is no pair."""

    same_content: float | None
    """Questions written for the same content."""
    different_contents: float | None
    """Questions written for different contents."""
    own_content: float | None
    """A question and the content that it was written for."""
    other_contents: float | None
    """A question and all other contents."""


def similarities(questions: Vectors, contents: Vectors, of: Sequence[int]) -> Similarities:
    """From the embeddings (n, d) and (m, d) of any length; question i was written for content `of[i]`."""
    q, c = (_unit(vectors) for vectors in (questions, contents))
    content_of = np.asarray(of, dtype=np.int64)
    n, m = len(q), len(c)
    sums = np.zeros_like(c)
    np.add.at(sums, content_of, q)
    counts = np.bincount(content_of, minlength=m).astype(float)
    lengths = float((q * q).sum())
    within, within_pairs = float((sums * sums).sum()) - lengths, float((counts * (counts - 1)).sum())
    total = q.sum(axis=0)
    between = float(total @ total) - lengths - within
    matched = float((q * c[content_of]).sum())
    return Similarities(
        same_content=_mean(within, within_pairs),
        different_contents=_mean(between, n * (n - 1) - within_pairs),
        own_content=_mean(matched, n),
        other_contents=_mean(float(total @ c.sum(axis=0)) - matched, n * (m - 1)),
    )


def question_similarities(env: EnvironmentConfig) -> Similarities:
    """The similarities of the question index of `env`, by the encoder that ranks its questions.

    A question of several contents counts for the first one that it was written for. Raises ConfigError where there is
    no question index or no encoder, and as opening them.
    """
    if env.question_index is None:
        raise ConfigError("env.question_index is not set; name the folder of the questions and a retriever.")
    recipe = recipe_of(questions_settings(env))
    if recipe.kind != "dense":
        raise ConfigError(
            f"env.question_index.retriever is {recipe.name!r}, which gives no embeddings; name a dense retriever."
        )
    index = open_question_index(env.question_index.folder)
    contents = list(documents_of(open_corpus(env.dataset)))
    position = {content.id: number for number, content in enumerate(contents)}
    content_of: dict[str, int] = {}
    for answer in sorted(index.answers(), key=lambda answer: answer.source != "written"):
        content_of.setdefault(answer.question, position[answer.content])
    questions = [question for question in index.questions() if question.id in content_of]
    encoder = Encoder.open(recipe)
    vectors = [encoder.documents([encoder.recipe.content_of(text) for text in part]) for part in (questions, contents)]
    return similarities(vectors[0], vectors[1], [content_of[question.id] for question in questions])


def _unit(vectors: Vectors) -> npt.NDArray[np.float64]:
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.asarray(vectors / lengths, dtype=np.float64)


def _mean(total: float, pairs: float) -> float | None:
    return total / pairs if pairs else None
