"""A warm start before GRPO: supervised training on proposals that the environment has graded.

A policy of one turn imitates its own best samples (train/expert_iteration.py). Titles, below, are for policies of
several turns that would copy the question for a long time before learning to choose among retrieved documents. The
proposals are the titles of the documents shown to the second turn: each is searched alone, and the one with the
highest reward is the answer to imitate. If none has a sufficient reward, the answer is the question itself, which
leaves the search unchanged, or a stop where the policy may stop; the first turn imitates the question. Where the policy
may stop before any search (`rewriter.stop: answer`) and the reader's answer without documents has a sufficient reward,
no lower than that of the question or a title, the answer to imitate is a stop in the first turn. Only rewards on
training questions are used, never relevance judgements.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from torch import nn

from ..configs.schema import RunConfig
from ..data.sampling import in_batches
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..envs.schemas import Step
from ..errors import CheckpointError, ConfigError
from ..rewriters.forms import render
from ..rewriters.stop import STOP, StoppableRewriter
from ..rollouts.engines.base import WeightSync
from ..rollouts.tree_sampler import TreeSampler
from .expert_iteration import MARGIN, ROUNDS, expert_rounds
from .imitation import Demonstration, Round, imitate
from .questions import grade
from .run_folder import RunFolder

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

_BATCH_SIZE = 512
LEAST_REWARD = 0.99
"""Of a title's own search, for it to be imitated."""
UNANSWERED_SHARE = 0.33
"""Share of the questions without such a title that are kept."""


@dataclass(frozen=True, slots=True)
class TitleExample:
    """A question, the documents that its own search shows, and the second turn's answer to imitate."""

    question: Question
    documents: Sequence[Document] | None
    """None where `answer` is that of the first turn, and the only one."""
    answer: str


def warm_start(
    config: RunConfig,
    policy: nn.Module,
    tree_sampler: TreeSampler,
    weight_sync: WeightSync,
    questions: Sequence[Question],
    folder: RunFolder,
) -> None:
    """Train `policy` in place as configured in `train.warm_start`; logs each optimizer step to warm_start.jsonl.

    `weight_sync` copies the weights of `policy` to the engine of `tree_sampler`. Raises EnvironmentUnavailableError if
    proposals could not be graded, ConfigError if there is nothing to imitate.
    """
    if len(config.rollout.branching) == 1:
        rounds, count = expert_rounds(config, policy, tree_sampler, weight_sync, questions), ROUNDS
        lacks = f"no sample of a training question is {MARGIN} above the mean of its samples"
    else:
        rounds, count = _title_round(config, tree_sampler, questions), 1
        lacks = f"no training question has a title that earns {LEAST_REWARD}, and of the others none was kept"
    if not imitate(policy, rounds, count, config.train, folder):
        raise ConfigError(
            f"{lacks}: the warm start has nothing to imitate. Raise train.warm_start.questions, or set it to 0."
        )


def _title_round(config: RunConfig, tree_sampler: TreeSampler, questions: Sequence[Question]) -> Iterator[Round]:
    """The single round of titles. Raises ConfigError if the rewriter cannot parse their tagged answers."""
    rewriter = tree_sampler.rewriter
    example = render("", ["a title"]).removeprefix(rewriter.opening)
    if rewriter.parse(questions[0], example, 1).rewrites != ("a title",):
        raise ConfigError(
            f"the warm start teaches answers in <rewrite> tags, which rewriter.name {rewriter.name!r} does not "
            "read. Set train.warm_start.questions to 0, or choose another rewriter."
        )
    yield Round([demonstration(tree_sampler, example) for example in title_examples(config, tree_sampler, questions)])


def title_examples(
    config: RunConfig, tree_sampler: TreeSampler, questions: Sequence[Question]
) -> Iterator[TitleExample]:
    """Examples in a seeded order until there are enough; questions without a rewarded title are subsampled."""
    stoppable = isinstance(tree_sampler.rewriter, StoppableRewriter)
    rng = Random(config.seed)
    order = rng.sample(list(questions), len(questions))
    count = 0
    for batch in in_batches(order, _BATCH_SIZE):
        raw = [Step(question_id=question.id, plan=SearchPlan.of(question.text)) for question in batch]
        results = _search(config, tree_sampler, raw)
        titles = [
            Step(question_id=question.id, plan=SearchPlan.of(document.title))
            for question, (_, documents) in zip(batch, results, strict=True)
            for document in documents
            if document.title
        ]
        graded = iter(_search(config, tree_sampler, titles))
        unsearched = _unsearched_rewards(config, tree_sampler, batch)
        for question, (raw_reward, documents), stop_reward in zip(batch, results, unsearched, strict=True):
            grades = [next(graded)[0] if document.title else 0.0 for document in documents]
            best = max(range(len(documents)), key=grades.__getitem__, default=None)
            if stop_reward is not None and stop_reward >= max(LEAST_REWARD, raw_reward, *grades):
                yield TitleExample(question, None, STOP)
            elif best is not None and grades[best] >= LEAST_REWARD:
                yield TitleExample(question, documents, documents[best].title.lower())
            elif rng.random() < UNANSWERED_SHARE:
                yield TitleExample(question, documents, (STOP if stoppable else question.text).lower())
            else:
                continue
            count += 1
            if count == config.train.warm_start.questions:
                return


def _search(config: RunConfig, tree_sampler: TreeSampler, steps: Sequence[Step]) -> list[tuple[float, list[Document]]]:
    """What is rewarded of each step, and the documents that a turn is shown."""
    results = grade(config, tree_sampler.client, steps, "proposals of the warm start", with_text=True)
    metric, shown = config.reward.signal, config.rollout.documents
    return [(result.metrics[metric], [hit.document for hit in result.ranking[:shown]]) for result in results]


def _unsearched_rewards(
    config: RunConfig, tree_sampler: TreeSampler, questions: Sequence[Question]
) -> list[float | None]:
    """What is rewarded of each question that is answered without a search; None where the policy may not do that."""
    rewriter = tree_sampler.rewriter
    if not (isinstance(rewriter, StoppableRewriter) and rewriter.unsearched):
        return [None] * len(questions)
    ids = [question.id for question in questions]
    results = grade(config, tree_sampler.client, ids, "questions without a search")
    return [result.metrics[config.reward.signal] for result in results]


def demonstration(tree_sampler: TreeSampler, example: TitleExample) -> Demonstration:
    """The conversation of an example: the question as first answer, the documents of its search, the second answer; of
    one without documents its first answer alone."""
    chat, rewriter, opening = tree_sampler.chat, tree_sampler.rewriter, tree_sampler.rewriter.opening
    question = tree_sampler.with_cut_history(example.question)
    messages = rewriter.first(question)
    prompt = chat.first(messages, opening)
    first_text = question.text.lower() if example.documents is not None else example.answer
    first = chat.answer(render("", [first_text]).removeprefix(opening))
    if example.documents is None:
        return Demonstration([*prompt, *first], [(len(prompt), len(prompt) + len(first))])
    message = rewriter.follow_up(question, tree_sampler.cut_documents(example.documents), 2)
    second = chat.answer(render("", [chat.plain(example.answer)]).removeprefix(opening))
    context = [*prompt, *first, *chat.continuation(messages, message, first, opening)]
    spans = [(len(prompt), len(prompt) + len(first)), (len(context), len(context) + len(second))]
    return Demonstration([*context, *second], spans)


def name_reference(config: RunConfig, folder: RunFolder, model: "PreTrainedModel | PeftModel") -> None:
    """Set `model.config.name_or_path` to the warm-started policy if the reference model is loaded from there.

    Raises CheckpointError if that policy is needed but missing.
    """
    settings = config.train
    if not (settings.beta > 0 and config.policy.lora is None and settings.warm_start.questions):
        return
    if not (folder.warm / "config.json").is_file():
        raise CheckpointError(
            f"{folder.warm} is gone: train.beta {settings.beta:g} compares with the policy after the warm start, "
            "which was saved there. Put it back, or start a new run under another name."
        )
    model.config.name_or_path = str(folder.warm)
