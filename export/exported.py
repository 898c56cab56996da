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
from ..envs.plan import SearchPlan
from ..errors import ModelError
from ..storage import writing

FILE = "querylect.json"

LLM = ("model", "dtype")
"""The fields of `rewriter.llm` that an export contains and that readers use."""

PROMPT = "prompt.yaml"
"""File name of the few-shot prompt of the rewriter `small`, beside FILE; for a mix it is `prompt-NAME.yaml`."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ExportedMessage(_Entry):
    """One message of a chat."""

    role: str
    content: str


class ExportedAnswer(_Entry):
    """The greedy answer of the policy at the time of the export."""

    text: str
    """Without its opening and its end-of-turn token."""
    ids: list[int]
    """As sampled, including the end-of-turn id if one was sampled."""
    plan: SearchPlan | None
    """The parsed answer; None for a format failure."""


class ExportedChat(_Entry):
    """The prompt of turn 1: the chat template's rendering of `messages`, then `opening`."""

    question: str
    """An example question."""
    history: list[ExportedMessage] = []
    """What was said before it."""
    messages: list[ExportedMessage]
    """The chat for `question`."""
    template: list[ExportedMessage] | None = None
    """`messages` with a {question} placeholder; None if the chat depends on more than the question's text."""
    opening: str = ""
    """Prefix of the model's answer; sampling continues it."""
    stop: list[str]
    """Tokens that end an answer."""
    stop_ids: list[int]
    answer: ExportedAnswer | None = None
    """None if the chat depends on the answer of another model."""


class ExportedEnvironment(_Entry):
    """The searched environment, as it describes itself."""

    name: str
    corpus_size: int
    corpus_hash: str
    index_hash: str
    gain: str = "linear"
    splits: dict[str, int]
    settings_hash: str = ""


class ExportedMember(_Entry):
    """The rewriter for one environment."""

    rewriter: RewriterConfig
    """All settings; `prompt`, if the rewriter has one, is a file beside FILE (see `rewriter_of`)."""
    chat: ExportedChat
    retriever: dict[str, object]
    """The retriever's card, as returned by `GET /v1/environment`."""
    environment: ExportedEnvironment
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

    turns: Annotated[int, Field(ge=1)]
    """Turns of training."""
    turn: Annotated[int, Field(ge=1)]
    """The turn whose rewrite is used, selected on validation."""
    turn_reason: str
    """Why `turn` was selected."""
    max_new_tokens: list[Annotated[int, Field(ge=1)]]
    """Per turn; later turns use the last entry."""
    max_prompt_tokens: int
    documents: int
    document_tokens: int
    observation_tokens: int | None
    history_tokens: Annotated[int, Field(ge=1)]
    k: Annotated[int, Field(ge=1)]
    """Number of documents that a search plan requests."""


class ExportedRun(_Entry):
    """The training run of the weights."""

    name: str
    id: str
    """Distinguishes runs of the same name."""
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
    if rewriter.name == "small":
        changes["prompt"] = str(folder / Path(rewriter.prompt).name)
    if rewriter.llm is not None:
        changes["llm"] = LlmConfig(**rewriter.llm.model_dump(include=set(LLM)))
    return rewriter.model_copy(update=changes)


def read_exported(folder: Path) -> Exported:
    """Read FILE of an exported folder. Raises ModelError if it is missing or does not describe a rewriter."""
    path = folder / FILE
    try:
        return Exported.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ModelError(
            f"{path} describes no rewriter of this version of querylect: {error} Give a folder or Hub repository that "
            "`querylect export` wrote."
        ) from error


def write_exported(folder: Path, exported: Exported) -> None:
    """Write FILE to `folder`. Raises StorageError."""
    path = folder / FILE
    with writing(path):
        path.write_text(exported.model_dump_json(indent=2) + "\n", encoding="utf-8")
