"""Proposes prompts: a reflection model reads how a prompt did on training questions and writes another one.

A text that does not make a usable prompt is refused, and the reason is part of the next attempt; after the last attempt
the parent stands for the proposal, which then costs no search and is not better than itself.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..configs.optimize import OptimizeConfig, PromptComponent
from ..data.history import lines_of
from ..data.types import Question
from ..errors import CheckpointError, ConfigError, EngineUnavailableError, QuerylectError
from ..llms.access import Llm
from ..llms.base import LlmResponse, Message, Prompt, SamplingParams, complete_sum
from ..llms.prose import without_thinking
from ..rewriters.small import FewShotPrompt
from ..storage import KeyedJournal
from .prompts import RULES, digest_of, prompt_of
from .scoring import ScoredAnswer

log = logging.getLogger(__name__)

VERSION = "2"
"""Of the wording below: another version is another prompt."""

_TASK = """\
A small language model rewrites questions into queries for a search engine. The better the engine ranks the relevant \
documents for its query, the higher its reward, from 0 to 1. Part of its prompt is

```
<curr_param>
```

{rule}

"""

_REQUEST = f"""\
{_TASK}With that prompt it answered these questions:

<side_info>

Write a better version of this part of the prompt. Find out what the good queries have in common, what the relevant \
documents are called and what the bad queries lack, and tell the model so, in general terms and briefly: it is a small \
model, and the questions to come are others. Give the whole new version, and nothing else, between ``` and ```."""

_REQUEST_WITHOUT_FEEDBACK = f"""\
{_TASK}Write a better version of this part of the prompt, briefly: it is a small model. Give the whole new version, \
and nothing else, between ``` and ```."""

Feedback = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Proposal:
    """One proposal, a line of proposals.jsonl."""

    key: str
    """Its number, from 1."""
    parent: str
    """Digest of the prompt that it changes."""
    candidate: str
    """Digest of the proposed prompt; that of the parent where no attempt was usable."""
    component: str
    text: str
    """The new text of the component; that of the parent where no attempt was usable."""
    refused: tuple[tuple[str, str], ...]
    """Texts of unusable attempts, and why."""
    calls: int
    tokens: int | None
    """Tokens that the reflection model wrote; None where an endpoint does not report them."""
    seconds: float

    @property
    def usable(self) -> bool:
        """Whether one of the attempts was."""
        return self.candidate != self.parent


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


class Reflector:
    """GEPA's proposer: one call of the model per proposal; proposals in the journal are reused."""

    def __init__(
        self,
        settings: OptimizeConfig,
        seed: int,
        start: FewShotPrompt,
        journal: KeyedJournal[Proposal],
        open_model: Callable[[], Llm],
        refusal: Callable[[FewShotPrompt], str],
    ) -> None:
        """`open_model` is called before the first new proposal; `refusal` says why the task model cannot be asked with
        a prompt."""
        self._settings, self._seed, self._start = settings, seed, start
        self._journal, self._open_model, self._refusal = journal, open_model, refusal
        self._model: Llm | None = None
        self._count = 0
        self.failure: QuerylectError | None = None
        """GEPA goes on after an error of its proposer: it is kept here, and the run ends with it."""

    def __call__(self, candidate: dict[str, str], dataset: Feedback, components: list[str]) -> dict[str, str]:
        """The new text of the component that is due."""
        if self.failure is not None:
            raise self.failure
        (component,) = components
        try:
            return {component: self._propose(candidate, dataset[component], cast(PromptComponent, component)).text}
        except QuerylectError as error:
            self.failure = error
            raise

    def _propose(
        self, candidate: dict[str, str], examples: Sequence[Mapping[str, Any]], component: PromptComponent
    ) -> Proposal:
        number, parent = self._count + 1, digest_of(prompt_of(self._start, candidate))
        proposal = self._journal.get(str(number))
        if proposal is None:
            proposal = self._ask(number, parent, candidate, examples, component)
            self._journal.append([proposal])
        elif (proposal.parent, proposal.component) != (parent, component):
            raise CheckpointError(
                f"{self._journal.path} does not fit the run: proposal {number} changes {proposal.component} of "
                f"{proposal.parent}, expected {component} of {parent}. Go on with the version of gepa that the run was "
                "started with (provenance.json), or start a new run (name=…)."
            )
        self._count = number
        return proposal

    def _ask(
        self,
        number: int,
        parent: str,
        candidate: dict[str, str],
        examples: Sequence[Mapping[str, Any]],
        component: PromptComponent,
    ) -> Proposal:
        model = self._model = self._model or self._open_model()
        started, tokens = time.perf_counter(), list[int | None]()
        messages = [Message(role="user", content=_request(candidate[component], examples, component))]
        refused: list[tuple[str, str]] = []
        text, digest = candidate[component], parent
        for attempt in range(1, self._settings.attempts + 1):
            seed = (self._seed * 1_000_003 + number * self._settings.attempts + attempt) % 2**31
            draw = SamplingParams(1, self._settings.reflection_temperature, 1.0, self._settings.reflection_tokens, seed)
            reply = self._reply(model, Prompt(tuple(messages), VERSION), draw, number)
            tokens.append(reply.tokens)
            written = _extract(without_thinking(reply.texts[0].text))
            reason = self._unusable(candidate, component, written)
            if not reason:
                text, digest = written, digest_of(prompt_of(self._start, {**candidate, component: written}))
                break
            refused.append((written, reason))
            messages += [
                Message(role="assistant", content=reply.texts[0].text),
                Message(role="user", content=f"That cannot be used: {reason}. {RULES[component]} Write another one."),
            ]
        total, seconds = complete_sum(tokens), time.perf_counter() - started
        return Proposal(str(number), parent, digest, component, text, tuple(refused), len(tokens), total, seconds)

    def _reply(self, model: Llm, prompt: Prompt, draw: SamplingParams, number: int) -> LlmResponse:
        """The reply to an attempt. Raises EngineUnavailableError where there is none."""
        reasons: list[str] = []
        (reply,) = model.ask([prompt], draw, missing=lambda _, reason: reasons.append(reason))
        if reply is None:
            raise EngineUnavailableError(
                f"the reflection model gave no reply to proposal {number} ({' '.join(reasons)}). Check "
                "optimize.reflection and continue with --resume."
            )
        return reply

    def _unusable(self, candidate: dict[str, str], component: PromptComponent, text: str) -> str:
        """Why a text does not make a usable prompt; "" if it does."""
        try:
            prompt = prompt_of(self._start, {**candidate, component: text})
        except ConfigError as error:
            return str(error)
        if prompt == prompt_of(self._start, candidate):
            return "it is the version that is to be improved"
        return self._refusal(prompt)


def _request(text: str, examples: Sequence[Mapping[str, Any]], component: PromptComponent) -> str:
    """What is asked for, with the feedback where there is any."""
    if not examples:
        return _REQUEST_WITHOUT_FEEDBACK.replace("{rule}", RULES[component]).replace("<curr_param>", text)
    from gepa.strategies.instruction_proposal import InstructionProposalSignature

    template = _REQUEST.replace("{rule}", RULES[component])
    values = {"current_instruction_doc": text, "dataset_with_feedback": examples, "prompt_template": template}
    return str(InstructionProposalSignature.prompt_renderer(values))


def _extract(text: str) -> str:
    """The text between the first and the last fence, as GEPA reads it."""
    from gepa.strategies.instruction_proposal import InstructionProposalSignature

    return str(InstructionProposalSignature.output_extractor(text.strip())["new_instruction"])
