"""A warm start before GRPO: supervised training on proposals that the environment has graded.

A policy of several turns would copy the question for a long time before learning to choose among retrieved documents.
The proposals for its second turn are the titles of the documents that the question finds: each is searched alone, and
the one with the highest reward is imitated. If none has a sufficient reward, the answer is the question itself, which
leaves the search unchanged, or a stop where the policy may stop; the first turn imitates the question. Where the policy
may stop before any search (`rewriter.stop: answer`) and the reader's answer without documents has a sufficient reward,
no lower than that of the question or a title, the answer to imitate is a stop in the first turn.

A policy of one turn imitates its own best samples and samples again, which is expert iteration (Anthony, Tian and
Barber, "Thinking fast and slow with deep learning and tree search", 2017; also rejection-sampling fine-tuning): of each
question the sample with the highest reward, if it is well-formed, not truncated, and MARGIN above the mean.

Only rewards on training questions are used, never relevance judgements.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..configs.schema import RunConfig, TrainConfig
from ..data.sampling import in_batches
from ..data.types import Document, Question
from ..envs.client.base import ReadingClient
from ..errors import ConfigError
from ..logs import progress_bar
from ..rewriters.delegating import STOP, StoppableRewriter
from ..rewriters.forms import render
from ..rollouts.engines.base import WeightSync, stream
from ..rollouts.tree import Node, Tree
from ..rollouts.tree_sampler import TreeSampler, give_back_freed_memory
from .attention import attention_kind
from .packing import token_logps
from .questions import STEPS_PER_CALL, all_graded, grade, shuffled_passes
from .run_folder import RunFolder
from .step_trees import refuse_outage
from .turns import turns_of

log = logging.getLogger(__name__)

LEAST_REWARD = 0.99
"""Of a title's own search, for it to be imitated."""
UNANSWERED_SHARE = 0.33
"""Share of the questions without such a title that are kept."""
MARGIN = 0.1
ROUNDS = 3
PER_STEP = 8
_WARMUP_STEPS = 3


class Demonstration(NamedTuple):
    """Token ids of a conversation, and the (begin, end) of every span to imitate; `begin` ≥ 1. All other tokens
    (prompt, retrieved documents) are context without loss."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int]]


class TitleExample(NamedTuple):
    """A question, the documents that its own search shows, and the second turn's answer to imitate."""

    question: Question
    documents: Sequence[Document] | None
    """None where `answer` is that of the first turn, and the only one."""
    answer: str


Round = tuple[Sequence[Demonstration], dict[str, float]]
"""The demonstrations of a round in the order of training, and figures that are logged with each of its steps."""


def warm_start(
    config: RunConfig,
    policy: nn.Module,
    tree_sampler: TreeSampler,
    weight_sync: WeightSync,
    questions: Sequence[Question],
    folder: RunFolder,
) -> None:
    """Train `policy` in place as configured in `train.warm_start`; each optimizer step appends to warm_start.jsonl.

    The learning rate warms up over three steps and decays linearly to 0 at the end of the last round. `weight_sync`
    copies the weights of `policy` to the engine of `tree_sampler`. Raises EnvironmentUnavailableError if proposals
    could not be graded, ConfigError if there is nothing to imitate.
    """
    settings = config.train.warm_start
    if len(config.rollout.branching) == 1:
        rounds, number_of_rounds = expert_rounds(config, policy, tree_sampler, weight_sync, questions), ROUNDS
        lacks = f"no sample of a training question is {MARGIN} above the mean of its samples"
    else:
        rounds, number_of_rounds = _title_round(config, tree_sampler, questions), 1
        lacks = f"no training question has a title that earns {LEAST_REWARD}, and of the others none was kept"
    trainable = [weights for weights in policy.parameters() if weights.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=settings.learning_rate, weight_decay=0.0)
    step = 0
    for number, (demonstrations, figures) in enumerate(rounds):
        batches = list(in_batches(demonstrations, PER_STEP))
        policy.train()
        with progress_bar("warm start") as advance:
            for index, batch in enumerate(batches):
                advance(index, len(batches))
                rise = min(1.0, (step + 1) / _WARMUP_STEPS)
                fall = 1 - (number + index / len(batches)) / number_of_rounds
                optimizer.param_groups[0]["lr"] = settings.learning_rate * rise * fall
                loss = imitation_loss(policy, batch, config.train)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(trainable, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                if step % 10 == 0:
                    give_back_freed_memory()
                step += 1
                folder.append(folder.warm_start, {"step": step, "loss": round(loss.item(), 6), **figures})
    if not step:
        raise ConfigError(
            f"{lacks}: the warm start has nothing to imitate. Raise train.warm_start.questions, or set it to 0."
        )
    log.info("warm start: %d steps", step)


def imitation_loss(policy: nn.Module, demonstrations: Sequence[Demonstration], config: TrainConfig) -> Tensor:
    """Mean negative log-likelihood of the tokens in the spans, all packed in one row where `packing` is on."""
    weights = next(policy.parameters())
    sequences = [np.array(demonstration.ids, np.int64) for demonstration in demonstrations]
    targets = [np.concatenate([np.arange(*span) for span in demonstration.spans]) for demonstration in demonstrations]
    with torch.autocast(weights.device.type, torch.bfloat16, enabled=weights.dtype == torch.bfloat16):
        kind = attention_kind(weights.device) if config.packing else None
        budget = config.max_tokens_per_micro_batch
        logps, _, _ = token_logps(policy, sequences, targets, 1.0, attention=kind, budget=budget)
    return -logps.mean()


def _title_round(config: RunConfig, tree_sampler: TreeSampler, questions: Sequence[Question]) -> Iterator[Round]:
    """The single round of titles. Raises ConfigError if the rewriter cannot parse their tagged answers."""
    rewriter = tree_sampler.policy.rewriter
    example = render("", ["a title"]).removeprefix(rewriter.opening)
    if rewriter.parse(questions[0], example, 1).rewrites != ("a title",):
        raise ConfigError(
            f"the warm start teaches answers in <rewrite> tags, which rewriter.name {rewriter.name!r} does not "
            "read. Set train.warm_start.questions to 0, or choose another rewriter."
        )
    examples = islice(title_examples(config, tree_sampler, questions), config.train.warm_start.questions)
    yield [demonstration(tree_sampler, example) for example in examples], {}


def title_examples(
    config: RunConfig, tree_sampler: TreeSampler, questions: Sequence[Question]
) -> Iterator[TitleExample]:
    """Examples in a seeded order; questions without a rewarded title are subsampled."""
    client, rewriter, metric = tree_sampler.client, tree_sampler.policy.rewriter, config.reward.signal
    searched, depth, label = config.reward.metric, config.search_depth, "proposals of the warm start"
    rng = Random(config.seed)
    for batch in in_batches(rng.sample(list(questions), len(questions)), STEPS_PER_CALL):
        raw = [(question.id, question.text) for question in batch]
        results = grade(client, raw, searched, depth, label, with_text=config.rollout.documents)
        visible = [[hit.document for hit in result.ranking[: config.rollout.documents]] for result in results]
        pairs = zip(batch, visible, strict=True)
        titles = [(question.id, document.title) for question, listed in pairs for document in listed if document.title]
        graded = iter(grade(client, titles, searched, depth, label))
        stop_rewards = [-1.0] * len(batch)
        if isinstance(rewriter, StoppableRewriter) and rewriter.unsearched and isinstance(client, ReadingClient):
            unsearched = client.step_and_read([], [question.id for question in batch], metrics=[searched])
            stop_rewards = [result.metrics[metric] for result in all_graded(unsearched, client, label)]
        for question, result, documents, stop_reward in zip(batch, results, visible, stop_rewards, strict=True):
            grades = [next(graded).metrics[metric] if document.title else 0.0 for document in documents]
            best = max(range(len(documents)), key=grades.__getitem__, default=None)
            if stop_reward >= max(LEAST_REWARD, result.metrics[metric], *grades):
                yield TitleExample(question, None, STOP)
            elif best is not None and grades[best] >= LEAST_REWARD:
                yield TitleExample(question, documents, documents[best].title.lower())
            elif rng.random() < UNANSWERED_SHARE:
                answer = STOP if isinstance(rewriter, StoppableRewriter) else question.text
                yield TitleExample(question, documents, answer.lower())


def demonstration(tree_sampler: TreeSampler, example: TitleExample) -> Demonstration:
    """The conversation of an example: the question as first answer, the documents of its search, the second answer; of
    one without documents its first answer alone."""
    policy = tree_sampler.policy
    chat, rewriter, opening = policy.chat, policy.rewriter, policy.rewriter.opening
    question = policy.with_cut_history(example.question)
    messages = rewriter.first(question)
    prompt = chat.first(messages, opening)
    first_text = question.text.lower() if example.documents is not None else example.answer
    first = chat.answer(render("", [first_text]).removeprefix(opening))
    ids, spans = [*prompt, *first], [(len(prompt), len(prompt) + len(first))]
    if example.documents is not None:
        message = rewriter.follow_up(question, policy.cut_documents(example.documents), 2)
        ids += chat.continuation(messages, message, first, opening)
        second = chat.answer(render("", [chat.plain(example.answer)]).removeprefix(opening))
        spans.append((len(ids), len(ids) + len(second)))
        ids += second
    return Demonstration(ids, spans)


def expert_rounds(
    config: RunConfig,
    policy: nn.Module,
    tree_sampler: TreeSampler,
    weight_sync: WeightSync,
    questions: Sequence[Question],
) -> Iterator[Round]:
    """The rounds of expert iteration, each sampled lazily from the current policy as in a rollout.

    Raises EnvironmentUnavailableError where the environment answers nothing.
    """
    settings = config.train.warm_start
    passes = shuffled_passes(questions, f"{config.seed}/expert iteration")
    for number in range(1, ROUNDS + 1):
        policy.eval()
        weight_sync.refresh()
        trees: list[Tree] = []
        for batch in in_batches(list(islice(passes, settings.questions)), config.train.questions_per_step):
            streams = [stream(config.seed, "expert iteration", epoch, question.id) for epoch, question in batch]
            grown = tree_sampler.grow([question for _, question in batch], config.rollout.branching, streams=streams)
            turns = turns_of(grown, config.reward.turn_weights)
            subject = f"no sample of round {number} of the warm start"
            refuse_outage(turns, tree_sampler.client, config.mix is not None, subject)
            trees += grown
        weight_sync.sleep()
        best = [sample for tree in trees if (sample := best_sample(tree)) is not None]
        rewards = [root.reward for tree in trees for root in tree.roots if root.reward is not None]
        figures = {"round": number, "imitated_share": round(len(best) / len(trees), 6)}
        figures["reward_mean"] = round(fmean(rewards), 6) if rewards else 0.0
        log.info("expert iteration, round %d of %d: %s", number, ROUNDS, figures)
        sequences = [(node, [*node.prompt_ids, *node.completion_ids]) for node in best]
        yield [Demonstration(ids, [(len(node.prompt_ids), len(ids))]) for node, ids in sequences], figures


def best_sample(tree: Tree) -> Node | None:
    """The sample to imitate; None where none is far enough above the mean."""
    scored = [(node.reward, node) for node in tree.roots if node.reward is not None]
    lowest = fmean(reward for reward, _ in scored) + MARGIN if scored else 0.0
    good = [(reward, node) for reward, node in scored if reward > lowest and node.finished and not node.rewrite.failure]
    return max(good, key=lambda pair: pair[0])[1] if good else None
