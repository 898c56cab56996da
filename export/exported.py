"""`querylect.json`: the file that makes a model folder a rewriter.

An exported folder is a plain model folder of transformers (or an adapter folder of peft) with this file beside the
weights: the settings of the run without what belongs to its machine, the environment that it was trained on, what was
measured. The folder is self-contained except for the base model of an adapter: the prompts of the run are copied into
it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from ..configs.llm import LlmConfig
from ..configs.schema import (
    MixConfig,
    MixMemberConfig,
    PolicyConfig,
    RewardConfig,
    RewriterConfig,
    RolloutConfig,
    RunConfig,
)
from ..envs.schemas import EnvironmentInfo
from ..errors import ModelError

FILE = "querylect.json"
LLM = ("model", "dtype")
"""The fields of `rewriter.llm` that an export contains and that readers use."""
OF_MACHINE = {"micro_batch", "engine", "vllm", "server"}
"""Settings of `rollout` that belong to a machine."""


class ExportedChat(BaseModel, frozen=True):
    """The prompt of turn 1: the chat template's rendering of `messages`, then `opening`."""

    question: str
    """An example question."""
    history: list[dict[str, str]] = []
    """What was said before it."""
    messages: list[dict[str, str]]
    """The chat for `question`."""
    template: list[dict[str, str]] | None = None
    """`messages` with a {question} placeholder; None if the chat depends on more than the question's text."""
    opening: str = ""
    """Prefix of the model's answer; sampling continues it."""
    stop_ids: list[int]
    """Tokens that end an answer."""
    answer: str | None = None
    """The greedy answer at the time of the export, without its opening; None if it depends on another model's."""


class ExportedRun(BaseModel, frozen=True):
    """The training run of the weights."""

    name: str
    checkpoint: str
    """best, final or checkpoint-N."""
    step: int | None = None
    """Training steps of these weights, if known."""
    checkpoint_hash: str
    """sha256 over the files of the checkpoint (eval/environments.py)."""
    base_fingerprint: str | None = None
    """Fingerprint of the weights before training (rollouts/policy.py); None if the run did not record it."""


class Exported(BaseModel, frozen=True):
    """The content of `querylect.json`."""

    querylect: str
    """The querylect version that wrote the file."""
    base_model: str
    """Hub id of the base model, or its name if it has no Hub id."""
    lora: bool
    """Whether the folder is an adapter on `base_model`."""
    config: dict[str, Any]
    """Settings of the run, without addresses and folders; `policy.dtype` is that of the weights."""
    environment: dict[str, Any]
    """environment.json of the run."""
    turn: Annotated[int, Field(ge=1)]
    """The turn whose rewrite is used, selected on validation."""
    turn_reason: str
    """Why `turn` was selected."""
    chats: Annotated[dict[str, ExportedChat], Field(min_length=1)]
    """By name of the environment of a mix; {"": …} without a mix."""
    results: dict[str, dict[str, Any] | None]
    """Likewise the held-out evaluation of exactly these weights, as `querylect eval` wrote it; None without."""
    license: str
    """Hub licence identifier; `unknown` if the base model does not state one."""
    run: ExportedRun

    @property
    def environments(self) -> dict[str, EnvironmentInfo]:
        """The environments that were searched in training, as they describe themselves."""
        searched: Mapping[str, Any] = self.environment.get("environments") or {"": self.environment}
        return {name: EnvironmentInfo.model_validate(values) for name, values in searched.items()}


def settings_of(exported: Exported, folder: Path) -> RunConfig:
    """The settings with which the export in `folder` is used.

    The folder may be a stranger's, so only these sections are taken, and of `rewriter.llm` only the fields in LLM: it
    must not be able to send questions and keys to another address, or to read or write a file of its choice.
    """
    config = RunConfig.model_validate(exported.config)
    model = exported.base_model if exported.lora else str(folder)
    policy = PolicyConfig(model=model, dtype=config.policy.dtype)
    members = config.mix.environments.items() if config.mix is not None else ()
    rewriters = {name: MixMemberConfig(rewriter=_own_rewriter(member.rewriter, folder)) for name, member in members}
    return RunConfig(
        name=config.name,
        policy=policy,
        rewriter=_own_rewriter(config.rewriter, folder),
        rollout=RolloutConfig(**config.rollout.model_dump(exclude=OF_MACHINE)),
        reward=RewardConfig(**config.reward.model_dump(include={"kind", "metric", "turn_weights"})),
        mix=MixConfig(environments=rewriters) if rewriters else None,
    )


def _own_rewriter(rewriter: RewriterConfig, folder: Path) -> RewriterConfig:
    changes: dict[str, object] = {}
    if rewriter.name == "few_shot":
        changes["prompt"] = str(folder / Path(rewriter.prompt).name)
    if rewriter.llm is not None:
        changes["llm"] = LlmConfig(**rewriter.llm.model_dump(include=set(LLM)))
    return rewriter.model_copy(update=changes)


def read_exported(folder: Path) -> Exported:
    """Read FILE of an exported folder. Raises ModelError if it is missing or does not describe a rewriter."""
    try:
        exported = Exported.model_validate_json((folder / FILE).read_bytes())
        RunConfig.model_validate(exported.config)
        assert exported.environments, "it names no environment"
    except (OSError, ValidationError) as error:
        raise ModelError(
            f"{folder / FILE} describes no rewriter of this version of querylect: {error} Give a folder or Hub "
            "repository that `querylect export` wrote."
        ) from error
    return exported
