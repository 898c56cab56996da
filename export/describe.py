"""Builds the content of `querylect.json` from a run, a checkpoint and its results."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from ..configs.llm import LlmConfig
from ..configs.schema import RewriterConfig, RunConfig, environments
from ..data.history import records_of
from ..data.types import Question
from ..eval.results import EvalResults
from ..llms.base import Message
from ..rewriters.base import StagedQuestion
from ..rewriters.few_shot import prompt_path
from ..rewriters.registry import make_rewriter
from ..rewriters.retriever_info import RetrieverInfo
from ..rollouts.checkpoints import base_fingerprint, optimized_prompt, with_prompt
from ..rollouts.conversation import PolicyConversation
from ..rollouts.engines.base import Engine
from ..sources import portable
from ..storage import json_object
from ..version import __version__
from .exported import LLM, OF_MACHINE, Exported, ExportedChat, ExportedRun
from .source import BaseModelSource, CheckpointSource, example_question

_READER = {"answer": {"gold": True, "reader": set(LlmConfig.model_fields) - {"model"}}}
"""Settings of `reward` that belong to a machine."""


def describe(
    source: CheckpointSource,
    base: BaseModelSource,
    engine: Engine,
    dtype: str,
    results: Mapping[str, EvalResults],
    folder: Path,
    *,
    adapter: bool,
    example: str | None = None,
) -> Exported:
    """All of `querylect.json`; the prompt files that it names are copied into `folder`.

    `results` is keyed by environment name; environments without results are missing.
    """
    config, chats = with_prompt(source.config, source.checkpoint), {}
    for name, settings in environments(config).items():
        question = Question("example", example) if example else example_question(source.run, name)
        chats[name] = _chat(settings, RetrieverInfo.from_service(source.searched[name].retriever), engine, question)
    values = published(config, base, folder, optimized_prompt(source.checkpoint) is not None)
    values["policy"]["dtype"] = dtype
    return Exported(
        querylect=__version__,
        base_model=base.name,
        lora=adapter,
        config=values,
        environment=_without_folders(json_object(source.run / "environment.json") or {}),
        turn=source.used.turn,
        turn_reason=source.used.reason,
        chats=chats,
        results={name: to_jsonable_python(results.get(name)) for name in chats},
        license=base.licence["license"],
        run=ExportedRun(
            name=config.name,
            checkpoint=source.checkpoint.name,
            step=source.step,
            checkpoint_hash=source.checkpoint_hash,
            base_fingerprint=base_fingerprint(source.run),
        ),
    )


def published(config: RunConfig, base: BaseModelSource, folder: Path, optimized: bool = False) -> dict[str, Any]:
    """The settings of a run, without those specific to its machine (folders, addresses, engines); with
    those of the optimisation of a prompt. Prompt files are copied into `folder`."""
    sections = {"name", "seed", "policy", "rollout", "reward", "train"}
    machine = {"rollout": OF_MACHINE, "reward": _READER}
    values = config.model_dump(mode="json", include=sections, exclude=machine)  # type: ignore[arg-type]
    values["policy"]["model"] = base.name
    values["rewriter"] = _published_rewriter(config.rewriter, "", folder).model_dump(mode="json")
    if config.reward.kind == "metric":
        del values["reward"]["answer"]
    else:
        values["reward"]["answer"]["reader"]["model"] = portable(config.reward.answer.reader.model)
    if config.mix is not None:
        members = {
            name: {
                "weight": member.weight,
                "rewriter": _published_rewriter(member.rewriter, name, folder).model_dump(mode="json"),
            }
            for name, member in config.mix.environments.items()
        }
        values["mix"] = {"environments": members}
    if optimized:
        values["optimize"] = config.optimize.model_dump(mode="json", include={"searches"})
    return values


def _published_rewriter(rewriter: RewriterConfig, name: str, folder: Path) -> RewriterConfig:
    """The rewriter's settings, changed to refer only to models and to files inside the export."""
    changes: dict[str, object] = {}
    if rewriter.name == "few_shot":
        changes["prompt"] = f"prompt-{name}.yaml" if name else "prompt.yaml"
        shutil.copyfile(prompt_path(rewriter.prompt), folder / str(changes["prompt"]))
    if rewriter.llm is not None:
        changes["llm"] = LlmConfig(**rewriter.llm.model_dump(include=set(LLM)) | {"model": findable(rewriter.llm)})
    return rewriter.model_copy(update=changes)


def findable(llm: LlmConfig) -> str:
    """A frozen model's name if it is publicly resolvable, "" if it exists only on this machine or an endpoint."""
    is_local = llm.model.startswith((".", "~", "/")) or Path(llm.model).exists()
    return "" if is_local or (llm.base_url is not None and llm.model.count("/") != 1) else llm.model


def _without_folders(values: Mapping[str, Any]) -> dict[str, Any]:
    """A description of environments, with local model paths reduced to their last component."""
    cleaned: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            value = _without_folders(value)
        elif key in ("model", "query_model") and isinstance(value, str):
            value = portable(value)
        cleaned[key] = value
    return cleaned


def _chat(settings: RunConfig, retriever: RetrieverInfo, engine: Engine, example: Question) -> ExportedChat:
    rewriter = make_rewriter(settings.rewriter, retriever, settings.search_depth)
    conversation = PolicyConversation(engine, rewriter, settings.rollout)
    question = conversation.with_cut_history(example)
    stage, answer = rewriter.first_stage(question), None
    if stage is not None:
        question = StagedQuestion.of(question, stage.placeholder)
    else:
        branch = conversation.begin(question)
        ((_, node),) = conversation.generate([branch], 1, 1, greedy=True)
        answer = node.text
    is_template = stage is None and not question.history
    return ExportedChat(
        question=question.text,
        history=records_of(question.history),
        messages=_plain(rewriter.first(question)),
        template=_plain(rewriter.first(Question("", "{question}"))) if is_template else None,
        opening=rewriter.opening,
        stop_ids=sorted(conversation.chat.stop_ids),
        answer=answer,
    )


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message["role"], "content": message["content"]} for message in messages]
