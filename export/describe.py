"""Builds the content of `querylect.json` from a run, a checkpoint and its results."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ..configs.llm import LlmConfig
from ..configs.mix import environments
from ..configs.rewriter import RewriterConfig
from ..configs.schema import RewardConfig, RolloutConfig, RunConfig
from ..data.types import Question
from ..rewriters.base import RewritingStrategy, Staged
from ..rewriters.registry import make_rewriter
from ..rewriters.retriever_info import RetrieverInfo
from ..rewriters.small import load_prompt, prompt_path
from ..rollouts.chat import Chat
from ..rollouts.checkpoints import UsedTurn, base_fingerprint, optimized_prompt, with_prompt
from ..rollouts.engines.base import Sampling
from ..sources import portable
from ..version import __version__
from .base import BaseModelSource
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
    ExportedRollout,
    ExportedRun,
)
from .source import CheckpointSource, example_question, run_identity
from .weights import Loaded


def describe(
    source: CheckpointSource,
    base: BaseModelSource,
    loaded: Loaded,
    results: Mapping[str, dict[str, Any]],
    folder: Path,
    *,
    adapter: bool,
    example: str | None = None,
) -> Exported:
    """All of `querylect.json`; the prompt files that it names are copied into `folder`.

    `results` is keyed by environment name; environments without results are missing.
    """
    config = with_prompt(source.config, source.checkpoint)
    return Exported(
        querylect=__version__,
        base_model=base.name,
        lora=adapter,
        environments={
            name: _member(source, member_config.rewriter, name, base, loaded, results.get(name), folder, example)
            for name, member_config in environments(config).items()
        },
        rollout=_rollout(config.rollout, config.search_depth, source.used),
        policy=ExportedPolicy(
            dtype=loaded.dtype,
            trust_remote_code=config.policy.trust_remote_code,
            base_fingerprint=base_fingerprint(source.run),
        ),
        training=training(config, base) | _optimization(source),
        license=base.licence.id,
        run=ExportedRun(
            name=config.name,
            id=run_identity(source.run),
            checkpoint=source.checkpoint.name,
            step=source.step,
            checkpoint_hash=source.checkpoint_hash,
        ),
    )


def training(config: RunConfig, base: BaseModelSource) -> dict[str, JsonValue]:
    """The training settings, without those specific to this machine (folders, addresses, engines)."""
    policy = config.policy.model_dump(mode="json")
    policy["model"] = base.name
    settings: dict[str, JsonValue] = {
        "seed": config.seed,
        "policy": policy,
        "rollout": config.rollout.model_dump(mode="json", exclude={"micro_batch", "engine", "vllm", "server"}),
        "reward": _reward(config.reward),
        "train": config.train.model_dump(mode="json"),
        "dataset": {name: member_config.env.dataset.kind for name, member_config in environments(config).items()},
    }
    if config.mix is None:
        settings["dataset"] = config.env.dataset.kind
    else:
        weights: dict[str, JsonValue] = {name: member.weight for name, member in config.mix.environments.items()}
        settings["mix"] = {"weights": weights}
    return settings


def _reward(reward: RewardConfig) -> dict[str, JsonValue]:
    if reward.kind == "metric":
        return reward.model_dump(mode="json", exclude={"answer"})
    reader: dict[str, JsonValue] = {"model": portable(reward.answer.reader.model)}
    answer = reward.answer.model_dump(mode="json", exclude={"reader", "gold"}) | {"reader": reader}
    return {**reward.model_dump(mode="json", exclude={"answer"}), "answer": answer}


def _optimization(source: CheckpointSource) -> dict[str, JsonValue]:
    """How the prompt was optimised, for a checkpoint without weights of its own."""
    if optimized_prompt(source.checkpoint) is None:
        return {}
    settings = source.config.optimize
    reflection = portable(settings.reflection.model) if settings.reflection is not None else None
    return {"optimize": {**settings.model_dump(mode="json", exclude={"reflection", "task"}), "reflection": reflection}}


def _member(
    source: CheckpointSource,
    settings: RewriterConfig,
    name: str,
    base: BaseModelSource,
    loaded: Loaded,
    results: dict[str, Any] | None,
    folder: Path,
    example: str | None,
) -> ExportedMember:
    searched, config = source.searched[name], source.config
    retriever = RetrieverInfo.from_service(searched["retriever"])
    rewriter = make_rewriter(settings, retriever, config.search_depth)
    question = Question("example", example) if example else example_question(source.run, name)
    return ExportedMember(
        rewriter=_settings(settings, name, base, folder),
        chat=_chat(config.rollout, rewriter, loaded, question),
        retriever=_without_folders(searched["retriever"]),
        environment=ExportedEnvironment.model_validate(searched),
        results=results,
    )


def _settings(rewriter: RewriterConfig, name: str, base: BaseModelSource, folder: Path) -> RewriterConfig:
    """The rewriter's settings, changed to refer only to models and to files inside the export."""
    changes: dict[str, object] = {}
    if rewriter.name == "small":
        load_prompt(rewriter.prompt)
        file = PROMPT if not name else f"{Path(PROMPT).stem}-{name}.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(prompt_path(rewriter.prompt), folder / file)
        changes["prompt"] = file
    if rewriter.llm is not None:
        llm_values = rewriter.llm.model_dump(include=set(LLM)) | {"model": findable(rewriter.llm)}
        changes["llm"] = LlmConfig(**llm_values)
    return rewriter.model_copy(update=changes)


def _without_folders(retriever: Mapping[str, object]) -> dict[str, object]:
    """The retriever's description, with local model paths reduced to their last component."""
    cleaned: dict[str, object] = {}
    for key, value in retriever.items():
        if isinstance(value, Mapping):
            cleaned[key] = _without_folders(value)
        else:
            cleaned[key] = portable(value) if key in ("model", "query_model") and isinstance(value, str) else value
    return cleaned


def findable(llm: LlmConfig) -> str:
    """A frozen model's name if it is publicly resolvable, "" if it exists only on this machine or an endpoint."""
    if llm.model.startswith((".", "~", "/")) or Path(llm.model).exists():
        return ""
    if llm.base_url is not None and llm.model.count("/") != 1:
        return ""
    return llm.model


def _rollout(rollout: RolloutConfig, search_depth: int, used: UsedTurn) -> ExportedRollout:
    turns = len(rollout.branching)
    return ExportedRollout(
        turns=turns,
        turn=used.turn,
        turn_reason=used.reason,
        max_new_tokens=[rollout.max_new_tokens] * turns,
        max_prompt_tokens=rollout.max_prompt_tokens,
        documents=rollout.documents,
        document_tokens=rollout.document_tokens,
        observation_tokens=rollout.observation_tokens,
        history_tokens=rollout.history_tokens,
        k=search_depth,
    )


def _chat(rollout: RolloutConfig, rewriter: RewritingStrategy, loaded: Loaded, example: Question) -> ExportedChat:
    chat = Chat(loaded.tokenizer, set(loaded.stop_ids))
    question = chat.plain_question(example, rollout.history_tokens)
    staged = isinstance(rewriter, Staged) and rewriter.stage(question) is not None
    if isinstance(rewriter, Staged) and staged:
        rewriter.learn_example(question)
    messages = [ExportedMessage.model_validate(message) for message in rewriter.first(question)]
    stop = [str(token) for token in loaded.tokenizer.convert_ids_to_tokens(loaded.stop_ids)]
    return ExportedChat(
        question=question.text,
        history=[ExportedMessage(role=utterance.role, content=utterance.text) for utterance in question.history],
        messages=messages,
        template=None if staged or question.history else _template(rewriter),
        opening=rewriter.opening,
        stop=stop,
        stop_ids=loaded.stop_ids,
        answer=None if staged else _answer(rollout, rewriter, loaded, chat, question),
    )


def _template(rewriter: RewritingStrategy) -> list[ExportedMessage]:
    """The chat with a {question} placeholder."""
    messages = rewriter.first(Question("template", "{question}"))
    return [ExportedMessage.model_validate(message) for message in messages]


def _answer(
    rollout: RolloutConfig, rewriter: RewritingStrategy, loaded: Loaded, chat: Chat, question: Question
) -> ExportedAnswer | None:
    prompt = chat.first(rewriter.first(question), rewriter.opening)
    if len(prompt) > rollout.max_prompt_tokens:
        return None
    sampling = Sampling(temperature=0.0, max_new_tokens=rollout.max_new_tokens)
    ids = loaded.engine.generate([prompt], 1, sampling)[0][0].ids
    text = chat.text(ids)
    return ExportedAnswer(text=text, ids=ids, plan=rewriter.parse(question, text, 1).plan)
