"""The reflection model, which reads how a prompt did on training questions and writes another one."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..data.history import lines_of
from ..data.types import Question
from ..errors import EngineUnavailableError, QuerylectError
from ..llms.access import Llm
from ..llms.base import Message, Prompt, SamplingParams
from ..llms.prose import without_thinking
from ..storage import append, logged_objects, writing
from .scoring import ScoredAnswer

log = logging.getLogger(__name__)

REQUEST = """\
A small language model rewrites questions into queries for a search engine. The better the engine ranks the relevant \
documents for its query, the higher its reward, from 0 to 1. Part of its prompt is

```
<curr_param>
```

It is the system message, shown as it stands before every question: it has no placeholders.

With that prompt it answered these questions:

<side_info>

Write a better version of this part of the prompt. Find out what the good queries have in common, what the relevant \
documents are called and what the bad queries lack, and tell the model so, in general terms and briefly: it is a small \
model, and the questions to come are others. Give the whole new version, and nothing else, between ``` and ```."""
"""GEPA's template of the request for another system message."""
REFLECTION_TOKENS = 1024
"""Maximum tokens of a proposal, thinking included."""


def feedback(question: Question, evaluation: ScoredAnswer, raw: float, relevant: Sequence[str]) -> dict[str, str]:
    """What the reflection model reads of one training question; `relevant` are titles of relevant documents."""
    lines = [f"The reward is {evaluation.reward:.2f}; the question itself as the query has {raw:.2f}."]
    if not evaluation.format_ok:
        lines.append("The answer did not have the required form and was not searched.")
    if evaluation.titles:
        lines.append(f"Retrieved first: {' | '.join(evaluation.titles)}.")
    if relevant:
        lines.append(f"Relevant: {' | '.join(relevant)}.")
    return {
        **({"Conversation before the question": lines_of(question.history)} if question.history else {}),
        "Question": question.text,
        "Query": " → ".join(evaluation.rewrites) or "(none)",
        "Feedback": " ".join(lines),
    }


class ReflectionModel:
    """GEPA's `reflection_lm`: a request in, a text out. Each reply is a line of proposals.jsonl."""

    def __init__(self, path: Path, seed: int, open_model: Callable[[], Llm]) -> None:
        """`open_model` is called before the first request."""
        self._path, self._seed, self._open_model = path, seed, open_model
        self._model: Llm | None = None
        self.proposals = len(logged_objects(path))
        self.failure: QuerylectError | None = None
        """GEPA goes on after an error of this model: it is kept here, and the run ends with it."""

    def __call__(self, request: str) -> str:
        """The reply. Raises EngineUnavailableError where there is none."""
        if self.failure is not None:
            raise self.failure
        try:
            return self._ask(request)
        except QuerylectError as error:
            self.failure = error
            raise

    def _ask(self, request: str) -> str:
        model = self._model = self._model or self._open_model()
        started, reasons = time.perf_counter(), list[str]()
        seed = (self._seed * 1_000_003 + self.proposals) % 2**31
        prompt = Prompt((Message(role="user", content=request),))
        draw = SamplingParams(1, 1.0, 1.0, REFLECTION_TOKENS, seed)
        (reply,) = model.ask([prompt], draw, missing=lambda _, reason: reasons.append(reason))
        if reply is None:
            raise EngineUnavailableError(
                f"the reflection model gave no reply ({' '.join(reasons)}). Check optimize.reflection and continue "
                "with --resume."
            )
        text = without_thinking(reply.texts[0].text)
        record = {"text": text, "tokens": reply.tokens, "seconds": time.perf_counter() - started}
        with writing(self._path):
            append(self._path, json.dumps(record, ensure_ascii=False) + "\n")
        self.proposals += 1
        return text
