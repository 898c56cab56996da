"""From a run, a checkpoint and its results to what `querylect.json` says."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..configs.llm import LlmConfig
from ..configs.mix import environments
from ..configs.rewriter import RewriterConfig
from ..configs.schema import RunConfig
from ..data.types import Question
from ..errors import ConfigError
from ..rewriters.base import Rewriter, Staged
from ..rewriters.card import RetrieverCard
from ..rewriters.registry import make_rewriter
from ..rewriters.small import load_prompt, prompt_path
from ..rollouts.chat import Chat
from ..rollouts.checkpoints import base_fingerprint
from ..rollouts.engine import Sampling
from ..rollouts.turns import UsedTurn
from .base import Base
from .exported import (
    LLM,
    PROMPT,
    Exported,
    ExportedAnswer,
    ExportedChat,
    ExportedEnvironment,
    ExportedMember,
    ExportedMessage,
    ExportedPolicy,
    ExportedResults,
    ExportedRollout,
    ExportedRun,
)
from .source import Source, example_question, git_state, run_identity
from .weights import Loaded

_PLACE = "QUERYLECT-QUESTION-PLACE"


def describe(
    source: Source,
    base: Base,
    loaded: Loaded,
    results: Mapping[str, ExportedResults],
    place: Path,
    *,
    adapter: bool,
    example: str | None = None,
) -> Exported:
    """All of `querylect.json`; the prompt files that it names are copied into `place`.

    `results` by the name of their environment, missing where there are none. Raises ConfigError where the retriever or
    the rewriter of the run is unknown here.
    """
    config = source.config
    members = {
        name: _member(source, one, name, base, loaded, results.get(name), place, example)
        for name, one in environments(config).items()
    }
    common: dict[str, Any] = {
        "querylect": __version__,
        "base_model": base.name,
        "lora": adapter,
        "rollout": _rollout(config, source.used),
        "policy": ExportedPolicy(
            dtype=loaded.dtype,
            trust_remote_code=config.policy.trust_remote_code,
            base_fingerprint=base_fingerprint(source.run),
        ),
        "training": training(config, base),
        "license": base.licence.id,
        "run": ExportedRun(
            name=config.name,
            id=run_identity(source.run),
            checkpoint=source.checkpoint.name,
            step=source.step,
            checkpoint_hash=source.checkpoint_hash,
            git=git_state(source.run),
        ),
    }
    if config.mix is not None:
        return Exported(**common, environments=members)
    alone = members[""]
    return Exported(**common, **{name: getattr(alone, name) for name in ExportedMember.model_fields})


def training(config: RunConfig, base: Base) -> dict[str, Any]:
    """The settings that formed the policy. What only this machine knows (folders, addresses, engines) stays here."""
    policy = config.policy.model_dump(mode="json")
    policy["model"] = base.name
    said: dict[str, Any] = {
        "seed": config.seed,
        "policy": policy,
        "rollout": config.rollout.model_dump(mode="json", exclude={"micro_batch", "engine", "vllm", "server"}),
        "reward": config.reward.model_dump(mode="json"),
        "train": config.train.model_dump(mode="json"),
        "dataset": {name: one.env.dataset.kind for name, one in environments(config).items()},
    }
    if config.mix is None:
        said["dataset"] = config.env.dataset.kind
    else:
        weights = {name: member.weight for name, member in config.mix.environments.items()}
        said["mix"] = {"weights": weights, "curriculum": config.mix.curriculum.model_dump(mode="json")}
    return said


def _member(
    source: Source,
    config: RunConfig,
    name: str,
    base: Base,
    loaded: Loaded,
    results: ExportedResults | None,
    place: Path,
    example: str | None,
) -> ExportedMember:
    searched = source.searched[name]
    card = RetrieverCard.from_service(searched["retriever"])
    rewriter = make_rewriter(config.rewriter, card, config.search_depth)
    asked = example or example_question(source.run, name)
    return ExportedMember(
        rewriter=_settings(config.rewriter, name, base, place),
        chat=_chat(config, rewriter, loaded, asked),
        retriever=_without_folders(searched["retriever"]),
        environment=ExportedEnvironment.model_validate(searched),
        results=results,
    )


def _settings(rewriter: RewriterConfig, name: str, base: Base, place: Path) -> RewriterConfig:
    """The rewriter's settings, nothing outside of the export in them but models."""
    changes: dict[str, Any] = {}
    if rewriter.name == "small":
        load_prompt(rewriter.prompt)
        file = PROMPT if not name else f"{Path(PROMPT).stem}-{name}.yaml"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(prompt_path(rewriter.prompt), place / file)
        changes["prompt"] = file
    if rewriter.llm is not None:
        told = rewriter.llm.model_dump(include=set(LLM)) | {"model": findable(rewriter.llm)}
        changes["llm"] = LlmConfig(**told)
    if rewriter.name == "chr":
        changes["chr"] = rewriter.chr.model_copy(update={"similarity": portable(rewriter.chr.similarity)})
    return rewriter.model_copy(update=changes)


def _without_folders(card: Mapping[str, Any]) -> dict[str, Any]:
    """The retriever's card, models that lie on the machine of the service named by the last part of their path."""
    told: dict[str, Any] = {}
    for key, value in card.items():
        if isinstance(value, Mapping):
            told[key] = _without_folders(value)
        else:
            told[key] = portable(value) if key in ("model", "query_model") and isinstance(value, str) else value
    return told


def findable(llm: LlmConfig) -> str:
    """A frozen model's name where others get the model by it, "" where only this machine or an endpoint knows it."""
    if llm.model.startswith((".", "~", "/")) or Path(llm.model).exists():
        return ""
    if llm.base_url is not None and llm.model.count("/") != 1:
        return ""
    return llm.model


def portable(name: str) -> str:
    """A model's name as others are told it: of a folder on this machine the last part."""
    place = Path(name).expanduser()
    return place.resolve().name if place.is_absolute() or name.startswith((".", "~")) else name


def _rollout(config: RunConfig, used: UsedTurn) -> ExportedRollout:
    rollout, turns = config.rollout, len(config.rollout.branching)
    return ExportedRollout(
        turns=turns,
        turn=used.turn,
        turn_reason=used.reason,
        max_new_tokens=[rollout.new_tokens(turn) for turn in range(1, turns + 1)],
        max_prompt_tokens=rollout.max_prompt_tokens,
        documents=rollout.documents,
        document_tokens=rollout.document_tokens,
        observation_tokens=rollout.observation_tokens,
        keep_rewrites_weight=rollout.keep_rewrites_weight,
        k=config.search_depth,
    )


def _chat(config: RunConfig, rewriter: Rewriter, loaded: Loaded, asked: str) -> ExportedChat:
    chat = Chat(loaded.tokenizer, set(loaded.stop_ids))
    question = chat.plain_question(Question("example", asked))
    staged = isinstance(rewriter, Staged) and rewriter.stage(question) is not None
    if isinstance(rewriter, Staged) and staged:
        rewriter.learn_example(question)
    messages = [ExportedMessage.model_validate(message) for message in rewriter.first(question)]
    stop = [str(token) for token in loaded.tokenizer.convert_ids_to_tokens(loaded.stop_ids)]
    return ExportedChat(
        question=question.text,
        messages=messages,
        template=None if staged else _template(rewriter),
        opening=rewriter.opening,
        stop=stop,
        stop_ids=loaded.stop_ids,
        answer=None if staged else _answer(config, rewriter, loaded, chat, question),
    )


def _template(rewriter: Rewriter) -> list[ExportedMessage]:
    """The chat with {question} where the question goes. Raises ConfigError where a prompt holds that by itself."""
    messages = rewriter.first(Question("template", _PLACE))
    if any("{question}" in message["content"] for message in messages):
        raise ConfigError(
            "the rewriter's prompt holds {question} besides the place of the question, so a reader could not tell them "
            "apart. Word it differently, train again, or export with the version that trained it."
        )
    return [
        ExportedMessage(role=message["role"], content=message["content"].replace(_PLACE, "{question}"))
        for message in messages
    ]


def _answer(
    config: RunConfig, rewriter: Rewriter, loaded: Loaded, chat: Chat, question: Question
) -> ExportedAnswer | None:
    prompt = chat.first(rewriter.first(question), rewriter.opening)
    if len(prompt) > config.rollout.max_prompt_tokens:
        return None
    sampling = Sampling(temperature=0.0, max_new_tokens=config.rollout.new_tokens(1))
    ids = loaded.engine.generate([prompt], 1, sampling)[0][0].ids
    text = chat.text(ids)
    return ExportedAnswer(text=text, ids=ids, plan=rewriter.parse(question, text, 1).plan)
