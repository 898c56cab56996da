"""A warm start before GRPO: imitate the best of a few proposals that the environment has graded.

A small policy copies the question long before it learns to choose among what was found, and sampling rarely shows it
how. Here the proposals are the titles that the next turn is shown: each is searched alone, and the one that earns the
most is the answer to imitate. Where none earns anything the question itself is, which leaves its search as it was; the
first turn imitates that too. Only rewards on training questions are used, never a judgement.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor, nn

from ..configs.schema import RunConfig, TrainConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..envs.wire import Step
from ..errors import ConfigError
from ..logs import progress_bar
from ..rewriters.base import Rewriter
from ..rewriters.parse import render
from ..rollouts.grow import Grower
from ..rollouts.memory import give_back_freed_memory
from .grading import grade
from .packing import packed_logps, row_logps
from .packing_check import attention_kind
from .run_folder import RunFolder

log = logging.getLogger(__name__)

_ASKED_AT_ONCE = 512
_WARMUP_STEPS = 3
_GIVE_BACK_EVERY = 10


@dataclass(frozen=True, slots=True)
class Lesson:
    """One question, what its own search shows, and the answer of the second turn to imitate."""

    question: Question
    documents: Sequence[Document]
    answer: str


def warm_start(
    config: RunConfig, policy: nn.Module, grower: Grower, questions: Sequence[Question], folder: RunFolder
) -> None:
    """Train `policy` in place on `train.warm_start.questions` lessons; one line per step goes to warm_start.jsonl.

    Raises EnvironmentUnavailableError where proposals could not be graded, ConfigError where none is left to imitate.
    """
    settings = config.train.warm_start
    _refuse_other_answers(grower.rewriter, questions)
    lessons = list(_lessons(config, grower, questions))
    if not lessons:
        raise ConfigError(
            f"no training question has a title that earns train.warm_start.least_reward {settings.least_reward:g}, and "
            f"train.warm_start.unanswered_share {settings.unanswered_share:g} keeps none of the others. Change one of "
            "the two, or set train.warm_start.questions to 0."
        )
    size = settings.questions_per_step
    batches = [lessons[at : at + size] for at in range(0, len(lessons), size)]
    trainable = [weights for weights in policy.parameters() if weights.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=settings.learning_rate, weight_decay=0.0)
    policy.train()
    with progress_bar("warm start") as advance:
        for number, batch in enumerate(batches):
            advance(number, len(batches))
            for group in optimizer.param_groups:
                rise, fall = min(1.0, (number + 1) / _WARMUP_STEPS), 1 - number / len(batches)
                group["lr"] = settings.learning_rate * rise * fall
            loss = imitation_loss(policy, grower, batch, config.train)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(trainable, config.train.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            if number % _GIVE_BACK_EVERY == 0:
                give_back_freed_memory()
            folder.append(folder.warm_start, {"step": number + 1, "loss": round(loss.item(), 6)})
        advance(len(batches), len(batches))
    log.info("warm start: %d lessons in %d steps, last loss %.3f", len(lessons), len(batches), loss.item())


def _refuse_other_answers(rewriter: Rewriter, questions: Sequence[Question]) -> None:
    """Raise ConfigError where the rewriter does not read the tagged answers that lessons teach."""
    taught = render("", ["a title"]).removeprefix(rewriter.opening)
    for question in questions[:1]:
        if rewriter.parse(question, taught, 1).rewrites != ("a title",):
            raise ConfigError(
                f"the warm start teaches answers in <rewrite> tags, which rewriter.name {rewriter.name!r} does not "
                "read. Set train.warm_start.questions to 0, or choose another rewriter."
            )


def _lessons(config: RunConfig, grower: Grower, questions: Sequence[Question]) -> Iterator[Lesson]:
    """Lessons in a seeded order until there are enough. Questions without a title that earns anything are thinned."""
    settings = config.train.warm_start
    draw = Random(config.seed)
    order = draw.sample(list(questions), len(questions))
    given = 0
    for start in range(0, len(order), _ASKED_AT_ONCE):
        part = order[start : start + _ASKED_AT_ONCE]
        shown = _search(config, grower, [Step(question_id=q.id, plan=SearchPlan.of(q.text)) for q in part])
        titles = [
            Step(question_id=question.id, plan=SearchPlan.of(document.title))
            for question, (_, documents) in zip(part, shown, strict=True)
            for document in documents
            if document.title
        ]
        graded = iter(_search(config, grower, titles))
        for question, (_, documents) in zip(part, shown, strict=True):
            grades = [(next(graded)[0] if document.title else 0.0) for document in documents]
            best = max(range(len(documents)), key=grades.__getitem__, default=None)
            earned = best is not None and grades[best] >= settings.least_reward
            if not earned and draw.random() >= settings.unanswered_share:
                continue
            answer = documents[best].title if earned and best is not None else question.text
            yield Lesson(question, documents, answer.lower())
            given += 1
            if given == settings.questions:
                return


def _search(config: RunConfig, grower: Grower, steps: Sequence[Step]) -> list[tuple[float, list[Document]]]:
    """Metric and shown documents of each step."""
    return [
        (result.metrics[config.reward.metric], [hit.document for hit in result.ranking[: config.rollout.documents]])
        for result in grade(config, grower.client, steps, "proposals of the warm start", with_text=True)
    ]


def imitation_loss(
    policy: nn.Module, grower: Grower, lessons: Sequence[Lesson], config: TrainConfig | None = None
) -> Tensor:
    """Mean negative log-likelihood of the answers' tokens, all lessons packed in one row where `packing` is on."""
    config = config or TrainConfig()
    rows, spans = [], []
    for lesson in lessons:
        prompt, first, shown, second = _turns(grower, lesson)
        rows.append(prompt + first + shown + second)
        end = len(rows[-1])
        spans.append([(len(prompt), len(prompt) + len(first)), (end - len(second), end)])
    width = max(map(len, rows))
    device = next(policy.parameters()).device
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask, wanted = torch.zeros_like(ids), torch.zeros(len(rows), width - 1, dtype=torch.bool)
    for row, (tokens, pairs) in enumerate(zip(rows, spans, strict=True)):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
        for begin, stop in pairs:
            wanted[row, begin - 1 : stop - 1] = True
    ids, mask, wanted = ids.to(device), mask.to(device), wanted.to(device)
    dtype = next(policy.parameters()).dtype
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        if config.packing:
            kind = attention_kind(config.packed_attention, device)
            logps, _, _ = packed_logps(policy, ids, mask, wanted, 1.0, attention=kind)
        else:
            logps = row_logps(policy, ids, mask, wanted, 1.0)
    return -(logps * wanted).sum() / wanted.sum()


def _turns(grower: Grower, lesson: Lesson) -> tuple[list[int], list[int], list[int], list[int]]:
    """Ids of the prompt, the first answer, what is shown, and the second answer."""
    chat, rewriter, opening = grower.chat, grower.rewriter, grower.rewriter.opening
    question = chat.plain_question(lesson.question)
    messages = rewriter.first(question)
    first = chat.answer(render("", [question.text.lower()]).removeprefix(opening))
    message = rewriter.follow_up(question, grower.shown(lesson.documents), 2)
    second = chat.answer(render("", [chat.plain(lesson.answer)]).removeprefix(opening))
    return chat.first(messages, opening), first, chat.continuation(messages, message, first, opening), second
