"""`querylect.json`: what makes a model folder a rewriter.

An exported folder is a plain model folder of transformers (or an adapter folder of peft) with this file beside the
weights. Together they say everything that a search plan depends on: what the model is asked, how its answer is read,
which retriever it was trained to speak to, how it was trained and what was measured. Nothing outside of the folder is
needed but the base model of an adapter: prompts of a run are copied into it.

Readers leave out what they do not know, so that a file may gain entries; where the meaning of one changes, `format`
does.
"""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ..configs.llm import LlmConfig
from ..configs.rewriter import RewriterConfig
from ..data.sampling import Sample
from ..envs.plan import SearchPlan
from ..errors import ModelError, StorageError

FILE = "querylect.json"
FORMAT = 1

LLM = ("model", "dtype", "max_prompt_tokens")
"""What an export says of a language model that its rewriter asks, and what readers take from it."""

PROMPT = "prompt.yaml"
"""The few-shot prompt of the rewriter `small`, beside FILE; of a mix `prompt-NAME.yaml`."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ExportedMessage(_Entry):
    """One message of a chat."""

    role: str
    content: str


class ExportedAnswer(_Entry):
    """What the exported policy answered, greedily, when it was exported."""

    text: str
    """Without its opening and its end-of-turn token."""
    ids: list[int]
    """As sampled, the end-of-turn id included where it was."""
    plan: SearchPlan | None
    """What it is read as; None for a format failure."""


class ExportedChat(_Entry):
    """What turn 1 asks. The model gets the chat template's rendering of `messages`, then `opening`."""

    question: str
    """An example question."""
    messages: list[ExportedMessage]
    """The chat for it."""
    template: list[ExportedMessage] | None = None
    """The same with {question} in its place; None where the chat depends on more than the question's text."""
    opening: str = ""
    """Begins the model's answer and is not sampled; what is sampled continues it."""
    stop: list[str]
    """Tokens that end an answer."""
    stop_ids: list[int]
    answer: ExportedAnswer | None = None
    """None where the chat needs the answer of another model first."""


class ExportedEnvironment(_Entry):
    """What was searched, as the environment said of itself."""

    name: str
    corpus_size: int
    corpus_hash: str
    index_hash: str
    gain: str = "linear"
    splits: dict[str, int]
    settings_hash: str = ""


class ExportedSystem(_Entry):
    """One row of an evaluation: a system at a turn, as means per question."""

    system: str
    """raw, untrained, trained, or a baseline."""
    turn: int
    n: int
    """Questions with a score."""
    unscorable: int = 0
    metrics: dict[str, float | None]
    low: float | None = None
    high: float | None = None
    """95% bootstrap interval of the first metric's mean."""
    calls: int
    searches: float
    tokens: float | None = None
    prompt_tokens: float | None = None
    format_ok: float
    repeats: float | None = None
    """Share of rewrites that repeat the question."""
    cut: float | None = None
    """Share of answers that were cut at their token limit."""
    with_fall_back: float | None = None
    """The first metric where a question is searched as it stands if the format of its answer is wrong."""


class ExportedArm(_Entry):
    """A system at a turn."""

    system: str
    turn: int


class ExportedComparison(_Entry):
    """One system against another on the first metric, question by question."""

    system: str
    turn: int
    against: ExportedArm
    n: int
    difference: float
    low: float
    high: float
    p: float
    """Two-sided paired permutation test."""
    p_holm: float
    """Adjusted for all comparisons of the evaluation."""
    wins: int
    ties: int
    losses: int
    significant: bool
    verdict: str


class ExportedSample(_Entry):
    """How many questions of a split were drawn, and how."""

    size: int
    of: int
    seed: int


class ExportedResults(_Entry):
    """A held-out evaluation of exactly these weights."""

    created: str
    split: str
    questions: int
    sample: ExportedSample | None = None
    """Where not all questions of the split were asked."""
    metric: str = "ndcg@10"
    """The one that was tested; the others stand beside it."""
    systems: list[ExportedSystem]
    best_training_free: str | None = None
    """Which of the systems is the best training-free baseline."""
    comparisons: list[ExportedComparison]
    environment: ExportedEnvironment
    """Where it was measured: not always where the policy was trained."""
    retriever: str
    """Name of the retriever there."""
    headline: str
    explanation: str
    seed: int
    versions: dict[str, str]
    licence: str = ""
    """Licence and citation of the questions and documents, where they are known."""

    @property
    def count(self) -> str:
        """How many questions were asked, in words: "611", or "20 of 611, drawn with seed 0"."""
        sample = self.sample
        return str(self.questions) if sample is None else str(Sample(sample.size, sample.of, sample.seed))


def _known(section: type[BaseModel], values: Any) -> Any:
    """The settings of a section without those that a later version has added."""
    if not isinstance(values, dict):
        return values
    kept: dict[str, Any] = {}
    for name in values.keys() & section.model_fields.keys():
        options = get_args(section.model_fields[name].annotation) or (section.model_fields[name].annotation,)
        inner = next((one for one in options if isinstance(one, type) and issubclass(one, BaseModel)), None)
        kept[name] = values[name] if inner is None else _known(inner, values[name])
    return kept


ExportedRewriter = Annotated[RewriterConfig, BeforeValidator(partial(_known, RewriterConfig))]
"""The rewriter's section of a run's settings."""


class ExportedMember(_Entry):
    """The rewriter for one environment."""

    rewriter: ExportedRewriter
    """Whole; `prompt` is a file beside FILE where the rewriter has one: see `rewriter_of`."""
    chat: ExportedChat
    retriever: dict[str, Any]
    """Its card, as `GET /v1/environment` gives it."""
    environment: ExportedEnvironment
    results: ExportedResults | None = None


class ExportedPolicy(_Entry):
    """What loading the weights needs."""

    dtype: str
    """float32 or bfloat16: that of the exported weights, or of an adapter's base."""
    trust_remote_code: bool = False
    base_fingerprint: str | None = None
    """Of the weights that training started from (rollouts/fingerprint.py); None where the run did not write it down."""


class ExportedRollout(_Entry):
    """How the policy is sampled, and what later turns are shown."""

    turns: Annotated[int, Field(ge=1)]
    """As it was trained."""
    turn: Annotated[int, Field(ge=1)] | None = None
    """The turn whose rewrite is the answer, which won on validation; None in an older file: the last one."""
    turn_reason: str = ""
    """Why that one."""
    max_new_tokens: list[Annotated[int, Field(ge=1)]]
    """Per turn; turns beyond the list have its last."""
    max_prompt_tokens: int
    documents: int
    document_tokens: int
    observation_tokens: int | None = None
    keep_rewrites_weight: float = 0.0
    k: Annotated[int, Field(ge=1)]
    """Documents that a search plan asks for."""

    @property
    def used_turn(self) -> int:
        """The turn whose rewrite is the answer."""
        return self.turn or self.turns


class ExportedRun(_Entry):
    """Where the weights come from."""

    name: str
    id: str
    """Tells it from another run of the same name."""
    checkpoint: str
    """best, final or checkpoint-N."""
    step: int | None = None
    """Training steps behind these weights, where that is known."""
    checkpoint_hash: str
    """sha256 over the files of the checkpoint (eval/identity.py)."""
    git: dict[str, Any] | None = None
    """State of the source that trained it, where the run wrote it down."""


class Exported(_Entry):
    """All of `querylect.json`. One environment stands in the entries of ExportedMember, several in `environments`."""

    format: int = FORMAT
    querylect: str
    """The version that wrote this."""
    base_model: str | None
    """Hub id of the model that was trained, or its name where it has none."""
    lora: bool
    """Whether the folder is an adapter on `base_model`."""
    rewriter: ExportedRewriter | None = None
    chat: ExportedChat | None = None
    retriever: dict[str, Any] | None = None
    environment: ExportedEnvironment | None = None
    results: ExportedResults | None = None
    environments: dict[str, ExportedMember] | None = None
    """Of a policy that was trained on several at once, by name."""
    rollout: ExportedRollout
    policy: ExportedPolicy
    training: dict[str, Any]
    """The settings of the run that formed the policy, without addresses and folders."""
    license: str
    """As the Hub calls it; `unknown` where the base model does not say."""
    run: ExportedRun

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        alone = (self.rewriter, self.chat, self.retriever, self.environment)
        if self.environments is None and None in alone:
            raise ValueError("rewriter, chat, retriever and environment are needed where there are no environments")
        if self.environments is not None and (any(part is not None for part in alone) or not self.environments):
            raise ValueError("environments stands for rewriter, chat, retriever and environment, and is not empty")
        return self

    @property
    def members(self) -> dict[str, ExportedMember]:
        """The rewriters by the name of their environment; {"": …} where there is one environment."""
        if self.environments is not None:
            return dict(self.environments)
        parts = {name: getattr(self, name) for name in ExportedMember.model_fields}
        return {"": ExportedMember.model_construct(**parts)}

    def member(self, name: str | None = None) -> ExportedMember:
        """The rewriter for one environment; None where there is only one. Raises ModelError."""
        members = self.members
        if name is None and len(members) == 1:
            return next(iter(members.values()))
        if name is None or name not in members:
            if self.environments is None:
                raise ModelError(f"the rewriter was trained for one environment, which has no name like {name!r}.")
            raise ModelError(
                f"the rewriter was trained for {', '.join(members)}, and {name!r} was asked for. Name one."
            )
        return members[name]


def rewriter_of(member: ExportedMember, folder: Path) -> RewriterConfig:
    """The rewriter's settings with its prompt file found in `folder`, ready for `make_rewriter`.

    Of a language model that they ask only what says which one it is: the folder may be a stranger's, and neither sends
    questions and keys to an address of their choice nor writes into a file of theirs.
    """
    rewriter = member.rewriter
    changes: dict[str, Any] = {}
    if rewriter.name == "small":
        changes["prompt"] = str(folder / Path(rewriter.prompt).name)
    if rewriter.llm is not None:
        changes["llm"] = LlmConfig(**rewriter.llm.model_dump(include=set(LLM)))
    return rewriter.model_copy(update=changes)


def read_exported(folder: Path) -> Exported:
    """Read FILE of an exported folder.

    Raises ModelError where there is none, where it was cut or belongs to another format, or lacks an entry.
    """
    path = folder / FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(
            f"{folder} holds no {FILE}, so nothing says how its model is asked. Give a folder or Hub repository that "
            "`querylect export` wrote; a run folder is exported first."
        ) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}). Export or download it again.") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds a {type(values).__name__}; expected an object. Export or download it again.")
    written = values.get("format")
    if written != FORMAT:
        raise ModelError(
            f"{path} has format {written!r}, written by querylect {values.get('querylect', 'of an unknown version')}, "
            f"and this version reads format {FORMAT}. Install the version that wrote it, or a newer one."
        )
    try:
        return Exported.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, wrong["loc"])) or "the whole"
        raise ModelError(
            f"{path} does not describe a rewriter: {place}: {wrong['msg']} ({error.error_count()} such places). "
            f"It was written by querylect {values.get('querylect')}: install that version, or export again."
        ) from error


def write_exported(folder: Path, exported: Exported) -> Path:
    """Write FILE into a folder that is being made. Raises StorageError."""
    path = folder / FILE
    values = exported.model_dump(mode="json", exclude_none=False)
    for name in ("environments",) if exported.environments is None else ExportedMember.model_fields:
        values.pop(name)
    try:
        path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path} could not be written ({error.strerror}). Free some space and export again."
        ) from error
    return path
