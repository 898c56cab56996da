"""`querylect.json`: the file that makes a model folder a rewriter.

An exported folder is a plain model folder of transformers (or an adapter folder of peft) with this file beside the
weights. Together they determine the search plan of a question: the prompt, the parser of the answer, the target
retriever, the training settings and the evaluation results. The folder is self-contained except for the base model of
an adapter: the prompts of the run are copied into it.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..configs.llm import LlmConfig
from ..configs.rewriter import RewriterConfig
from ..envs.schemas import EnvironmentInfo
from ..errors import ModelError

FILE = "querylect.json"
LLM = ("model", "dtype")
"""The fields of `rewriter.llm` that an export contains and that readers use."""

Positive = Annotated[int, Field(ge=1)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True)


class ExportedChat(_Entry):
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


class ExportedMember(_Entry):
    """The rewriter for one environment."""

    rewriter: RewriterConfig
    """All settings; `prompt`, if the rewriter has one, is a file beside FILE (see `rewriter_of`)."""
    chat: ExportedChat
    environment: EnvironmentInfo
    """The environment that was searched in training, as it describes itself."""
    results: dict[str, Any] | None = None
    """The held-out evaluation of exactly these weights, as `querylect eval` wrote it to results.json; None without."""


class ExportedPolicy(_Entry):
    """Settings needed to load the weights."""

    dtype: str
    """float32 or bfloat16; for an adapter, the dtype of its base model."""
    trust_remote_code: bool = False
    base_fingerprint: str | None = None
    """Fingerprint of the weights before training (rollouts/policy.py); None if the run did not record it."""


class ExportedRollout(_Entry):
    """Sampling settings, and the document limits of later turns."""

    turns: Positive
    """Turns of training."""
    turn: Positive
    """The turn whose rewrite is used, selected on validation."""
    turn_reason: str
    """Why `turn` was selected."""
    k: Positive
    """Number of documents that a search plan requests."""
    max_new_tokens: Positive
    max_prompt_tokens: Positive
    documents: int
    document_tokens: int
    observation_tokens: int | None
    history_tokens: Positive


class ExportedRun(_Entry):
    """The training run of the weights."""

    name: str
    checkpoint: str
    """best, final or checkpoint-N."""
    step: int | None = None
    """Training steps of these weights, if known."""
    checkpoint_hash: str
    """sha256 over the files of the checkpoint (eval/identity.py)."""


class Exported(_Entry):
    """The content of `querylect.json`."""

    querylect: str
    """The querylect version that wrote the file."""
    base_model: str | None
    """Hub id of the base model, or its name if it has no Hub id."""
    lora: bool
    """Whether the folder is an adapter on `base_model`."""
    environments: Annotated[dict[str, ExportedMember], Field(min_length=1)]
    """The rewriter of each environment by name; {"": …} if there is only one."""
    rollout: ExportedRollout
    policy: ExportedPolicy
    training: dict[str, Any]
    """The training settings of the run, without addresses and folders."""
    license: str
    """Hub licence identifier; `unknown` if the base model does not state one."""
    run: ExportedRun


def rewriter_of(member: ExportedMember, folder: Path) -> RewriterConfig:
    """The rewriter's settings for `make_rewriter`, with the prompt path resolved against `folder`.

    Of `rewriter.llm` only the fields in LLM are taken, because the folder is untrusted: it must not be able to send
    questions and keys to another address, or to write to a file of its choice.
    """
    rewriter = member.rewriter
    changes: dict[str, object] = {}
    if rewriter.name == "few_shot":
        changes["prompt"] = str(folder / Path(rewriter.prompt).name)
    if rewriter.llm is not None:
        changes["llm"] = LlmConfig(**rewriter.llm.model_dump(include=set(LLM)))
    return rewriter.model_copy(update=changes)


def read_exported(folder: Path) -> Exported:
    """Read FILE of an exported folder. Raises ModelError if it is missing or does not describe a rewriter."""
    try:
        return Exported.model_validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise ModelError(
            f"{folder / FILE} describes no rewriter of this version of querylect: {error} Give a folder or Hub "
            "repository that `querylect export` wrote."
        ) from error
