"""The Python API of a trained rewriter.

    rewriter = Rewriter.from_pretrained("runs/demo")
    result = rewriter.rewrite("pinky finger bent inwards")
    print(result.text, result.plan, result.failure)

Answers are greedy and take the same steps as in `querylect eval`, so a question gets the same ids. The answer is that
of the turn selected on validation; if it is a later turn, the rewriter searches between turns. A rewriter may be shared
by threads and tasks: the questions of a call are answered in one batch, and calls one after another. For many callers
at once, serve the export by vLLM (`endpoint=`).
"""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from ..configs.llm import LlmConfig
from ..configs.schema import environments
from ..data.history import parse_history
from ..data.types import Question, Utterance
from ..envs.plan import SearchPlan, is_unicode
from ..envs.schemas import PlanResult
from ..errors import ConfigError, RequestError
from ..rewriters.registry import make_rewriter
from ..rewriters.retriever_info import RetrieverInfo
from ..rollouts.engines.base import Engine
from ..rollouts.llms import open_llm, policy_llm
from ..rollouts.prompted import PromptedConversation
from ..rollouts.tree_sampler import Conversation, PolicyConversation
from ..sources import optional_packages
from .load import Trained, open_trained, with_retrievers
from .turns import SearchResult, run_turns

log = logging.getLogger(__name__)

QuestionLike = str | Question
History = Sequence[Utterance | Mapping[str, str]]
"""What was said before a question, oldest first: utterances, or {"role": "user" or "assistant", "content": …}."""
Retriever = str | RetrieverInfo | Mapping[str, object]
"""The name of an environment or a retriever, or a retriever's description, also as `GET /v1/environment` returns it."""

_PREFILLED = {"continue_final_message": True, "add_generation_prompt": False}
"""Fields of a request with which vLLM and SGLang continue the last message instead of answering it."""


class Searcher(Protocol):
    """A search client, such as `EnvironmentClient`."""

    def search(self, plans: Sequence[SearchPlan]) -> Sequence[PlanResult]:
        """One result with texts for each plan."""
        ...


class Rewriter:
    """Rewrites questions with one policy, and searches with the rewrites."""

    def __init__(
        self,
        trained: Trained,
        engine: Engine | None = None,
        *,
        endpoint: LlmConfig | None = None,
        turn: int | None = None,
    ) -> None:
        """Load the policy, or use an `engine` that has loaded it, or an `endpoint`. There a trained policy gets the
        messages of training and the prefilled beginning of its answer, and any other model is prompted. `turn` as in
        `from_pretrained`.

        Raises ModelError, CheckpointError, MissingPackageError.
        """
        if engine is None and endpoint is None:
            with optional_packages("local"):
                from ..rollouts.engines.open import load_engine

                config = trained.config
                engine = load_engine(
                    config.policy, config.rollout, config.seed, trained.checkpoint, trained.base_fingerprint
                )
        self.name = trained.name
        """The path, id or config name that the user passed."""
        self.turn = turn or trained.used.turn
        """The turn whose rewrite is used."""
        self.turns = len(trained.config.rollout.branching)
        """Number of turns in training."""
        if self.turns > 1:
            reason = trained.used.reason if turn is None else "it was asked for"
            log.info("%s: the rewrite of turn %d is used (%s)", trained.name, self.turn, reason)
        self._trained, self._engine, self._endpoint = trained, engine, endpoint
        self._models: dict[tuple[str | None, RetrieverInfo], Conversation] = {}
        self._searchers: dict[str, Searcher] = {}
        self._stack, self._opening, self._answering = ExitStack(), threading.RLock(), threading.Lock()
        self._threads = ThreadPoolExecutor(32)  # not asyncio's own: its users would wait for the model

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str | Path,
        *,
        revision: str | None = None,
        checkpoint: str | None = None,
        settings: Sequence[str] = (),
        trust: bool = False,
        turn: int | None = None,
        endpoint: str | LlmConfig | None = None,
        model: str | None = None,
    ) -> Self:
        """The rewriter of an exported folder, a Hub repository, a run folder, or a config (its untrained policy).

        `turn` overrides the turn selected on validation. `endpoint` is the URL of an OpenAI-compatible endpoint that
        serves the policy as `model`, or any other model if `path_or_id` is a config: then no weights are loaded, and
        PyTorch is not needed. The other arguments and errors are those of `open_trained`; it also raises as
        `load_policy`, and ConfigError for an endpoint without URL or name of a model.
        """
        trained = open_trained(
            str(path_or_id), revision=revision, checkpoint=checkpoint, settings=settings, trust=trust
        )
        if isinstance(endpoint, str):
            endpoint = LlmConfig(model="", base_url=endpoint, cache=None)
        if endpoint is not None:
            endpoint = endpoint.model_copy(update={"model": model or endpoint.model})
            if endpoint.base_url is None or not endpoint.model:
                raise ConfigError(
                    "an endpoint needs its URL (http://HOST:PORT/v1) and the name of a model, as `GET URL/models` "
                    "lists it."
                )
        return cls(trained, endpoint=endpoint, turn=turn)

    def __repr__(self) -> str:
        model = f", endpoint model {self._endpoint.model!r}" if self._endpoint is not None else ""
        return f"Rewriter({self.name!r}, turn={self.turn}{model})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections to services and endpoints."""
        self._threads.shutdown(wait=False)
        self._stack.close()

    def rewrite(
        self,
        questions: QuestionLike | Sequence[QuestionLike],
        *,
        retriever: Retriever | None = None,
        turn: int | None = None,
        history: History | None = None,
        client: Searcher | None = None,
    ) -> Any:
        """Rewrite one question, or several in one batch, and return the answer of `turn` (default: `self.turn`): a
        RewriteResult, or a list of them.

        Before a later turn, `client` is searched with the answer of the previous turn (default: the environment of the
        run). `retriever` selects the retriever of a policy trained for several; for a policy trained for one it is
        compared with that of training, and a difference is logged. `history` is what was said before the question,
        oldest first; of several questions, each Question has its own.

        A failed answer returns the question, with the reason in `failure`. Raises ConfigError for an unknown or
        ambiguous retriever and for a later turn without anything to search, RequestError for an invalid question, such
        as a blank text or None, and the errors of the search.
        """
        results = self._run(questions, history, retriever, turn, client, search_last=False)
        rewrites = [result.rewrite for result in results]
        return rewrites if isinstance(questions, list | tuple) else rewrites[0]

    def search(
        self,
        questions: QuestionLike | Sequence[QuestionLike],
        client: Searcher,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
        history: History | None = None,
    ) -> Any:
        """Rewrite and search for `turns` turns (default: `self.turn`), each shown the documents of the previous one: a
        SearchResult, or a list of them.

        If the last answer failed, the question itself is searched; a native query that the retriever refuses is sent
        back once before, with its error. If `retriever` is None, the client's environment names it. `k` overrides the
        number of documents in the last turn. `history` as in `rewrite`. Raises as `rewrite` and as the client.
        """
        if retriever is None and hasattr(client, "info"):
            retriever = client.info().retriever
        results = self._run(questions, history, retriever, turns, client, k=k)
        return results if isinstance(questions, list | tuple) else results[0]

    async def arewrite(self, questions: QuestionLike | Sequence[QuestionLike], **options: Any) -> Any:
        """`rewrite` in a thread, for an event loop."""
        call = partial(self.rewrite, questions, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def asearch(self, questions: QuestionLike | Sequence[QuestionLike], client: Searcher, **options: Any) -> Any:
        """`search` in a thread, for an event loop."""
        call = partial(self.search, questions, client, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _run(
        self,
        questions: QuestionLike | Sequence[QuestionLike],
        history: History | None,
        retriever: Retriever | None,
        turns: int | None,
        client: Searcher | None,
        k: int | None = None,
        search_last: bool = True,
    ) -> list[SearchResult]:
        if turns is not None and turns < 1:
            raise RequestError(f"turn is {turns}; turns are counted from 1.")
        turns, batch = turns or self.turn, parse_questions(questions, history)
        with self._opening:
            member, model = self.select(retriever)
            if client is None and turns > 1:
                client = self._environment(member, turns)
        return run_turns(
            model,
            batch,
            turns,
            client.search if client is not None else None,
            lock=self._answering if self._endpoint is None else nullcontext(),
            base=self._endpoint or policy_llm(self._trained.base),
            depth=self._trained.config.search_depth,
            k=k,
            search_last=search_last,
        )

    def select(self, retriever: Retriever | None) -> tuple[str | None, Conversation]:
        """The environment of training and the model with the prompts for a retriever; None selects the only one.

        A retriever by its description may be one that the policy was not trained for: that is logged once, and it has
        no environment of training (None). Raises ConfigError for an unknown or ambiguous one, and as
        `open_environments` if no file describes the retrievers of training.
        """
        info = RetrieverInfo.from_service(retriever) if isinstance(retriever, Mapping) else retriever
        described, label = (info, info.name) if isinstance(info, RetrieverInfo) else (None, info)
        with self._opening:
            if described is None:
                self._trained = with_retrievers(self._trained)
            members = self._trained.members
            names = {name: member.retriever.name if member.retriever else name for name, member in members.items()}
            matches = [name for name in names if label in (None, "", name, names[name])]
            if described is not None:
                matches = [name for name in matches if members[name].retriever == described] or matches[:1]
            elif label is not None and label in members:
                matches = [label]
            is_other = described is not None and not matches and len(members) == 1
            if is_other:
                matches = list(members)
            if len(matches) != 1:
                trained_for = ", ".join(name or names[name] for name in names)
                raise ConfigError(
                    f"{self.name} was trained for {trained_for}, and {label!r} names none: retriever=NAME (--env)"
                )
            member = members[matches[0]]
            target = described or member.retriever
            assert target is not None, "the environment was asked for it"
            key = None if is_other else matches[0], target
            if key not in self._models:
                if is_other and member.retriever is not None:
                    log.warning(
                        "the retriever %r will search, and %s was trained for %r: its rewrites suit that one. Measure "
                        "it with `querylect eval` before you rely on it",
                        target.name, self.name, member.retriever.name,
                    )  # fmt: skip
                rewriter = make_rewriter(member.rewriter, target, self._trained.config.search_depth)
                rollout, endpoint, trained = self._trained.config.rollout, self._endpoint, self._trained.is_trained
                if endpoint is None:
                    assert self._engine is not None
                    self._models[key] = PolicyConversation(self._engine, rewriter, rollout)
                else:
                    if trained and rewriter.opening:
                        endpoint = endpoint.model_copy(update={"extra": {**_PREFILLED, **endpoint.extra}})
                    llm = self._stack.enter_context(open_llm(endpoint))
                    self._models[key] = PromptedConversation(llm, rewriter, rollout, trained=trained)
            return key[0], self._models[key]

    def _environment(self, member: str | None, turn: int) -> Searcher:
        """The environment of the run, which is opened at its first search: in this process, or its service."""
        if member is None or not self._trained.searchable:
            lacks = "was not trained for this retriever" if member is None else "has no environment"
            raise ConfigError(
                f"{self.name} {lacks}, and turn {turn} is shown what the turn before found. Give what is "
                "searched: client=… in Python, the setting client.urls='[\"http://HOST:PORT\"]' of a running "
                "`querylect serve`, or env.index=FOLDER with env.retriever and env.dataset. Or take the first turn "
                "alone: turn=1 (--turn 1)."
            )
        from ..envs.client.connect import open_unserved

        if member not in self._searchers:
            settings = environments(self._trained.config)
            config = settings.get(member) or settings[""]
            self._searchers[member] = self._stack.enter_context(open_unserved(config.env, config.client))
        return self._searchers[member]


def parse_questions(questions: object, history: History | None = None) -> list[Question]:
    """One or several questions as a list; `history` is that of a single one.

    Raises RequestError that names the invalid one, and for a history of several.
    """
    items: list[Any] = list(questions) if isinstance(questions, list | tuple) else [questions]
    if history is not None and isinstance(questions, list | tuple):
        raise RequestError("history belongs to one question; give each of several a Question with its own.")
    parsed = []
    for number, item in enumerate(items, start=1):
        question = item if isinstance(item, Question) else Question("", item)
        label = f"question {number} of {len(items)}"
        if not (isinstance(question.text, str) and question.text.strip() and is_unicode(question.text)):
            raise RequestError(f"{label} is {question.text!r}; expected a text that is not blank, or a Question.")
        try:
            utterances = parse_history(question.history if history is None else history)
        except ValueError as error:
            raise RequestError(f"{label}: {error}.") from error
        parsed.append(replace(question, history=utterances))
    return parsed
