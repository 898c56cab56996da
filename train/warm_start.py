"""A warm start before GRPO: imitate proposals that the environment has graded.

`kind: expert_iteration` imitates the policy's own best samples (train/expert_iteration.py). `kind: titles`, below, is
for policies that copy the question long before they learn to choose among the retrieved documents: the proposals are
the titles that the next turn is shown. Each is searched alone, and the one that earns the most is the answer to
imitate. Where none earns anything the question itself is, which leaves its search as it was; the first turn imitates
that too. Only rewards on training questions are used, never a judgement.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from torch import nn

from ..configs.schema import RunConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..envs.wire import Step
from ..errors import ConfigError
from ..rewriters.base import Rewriter
from ..rewriters.parse import render
from ..rollouts.engine import Weights
from ..rollouts.grow import Grower
from .expert_iteration import expert_rounds
from .grading import grade
from .imitation import Demonstration, Round, imitate
from .run_folder import RunFolder

log = logging.getLogger(__name__)

_ASKED_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Lesson:
    """One question, what its own search shows, and the answer of the second turn to imitate."""

    question: Question
    documents: Sequence[Document]
    answer: str


def warm_start(
    config: RunConfig,
    policy: nn.Module,
    grower: Grower,
    sampler: Weights,
    questions: Sequence[Question],
    folder: RunFolder,
) -> None:
    """Train `policy` in place as `train.warm_start` says; one line per optimizer step goes to warm_start.jsonl.

    `sampler` brings the engine of `grower` to the weights of `policy`. Raises EnvironmentUnavailableError where
    proposals could not be graded, ConfigError where none is left to imitate.
    """
    settings = config.train.warm_start
    if settings.kind == "expert_iteration":
        rounds, count = expert_rounds(config, policy, grower, sampler, questions), settings.rounds
    else:
        rounds, count = _title_round(config, grower, questions), 1
    done = imitate(policy, rounds, count, config.train, folder)
    if not done.steps:
        raise ConfigError(
            f"no sample of a training question beats its baseline by more than train.warm_start.margin "
            f"{settings.margin:g}, so expert iteration has nothing to imitate. Lower it, raise "
            "train.warm_start.questions or train.warm_start.samples, or set train.warm_start.questions to 0."
        )
    log.info("warm start: %d lessons in %d steps, last loss %.3f", done.demonstrations, done.steps, done.last_loss)


def _title_round(config: RunConfig, grower: Grower, questions: Sequence[Question]) -> Iterator[Round]:
    """The one round of `kind: titles`. Raises ConfigError where there is nothing to imitate or nobody to read it."""
    settings = config.train.warm_start
    _refuse_other_answers(grower.rewriter, questions)
    lessons = [[demonstration(grower, lesson)] for lesson in _lessons(config, grower, questions)]
    if not lessons:
        raise ConfigError(
            f"no training question has a title that earns train.warm_start.least_reward {settings.least_reward:g}, and "
            f"train.warm_start.unanswered_share {settings.unanswered_share:g} keeps none of the others. Change one of "
            "the two, or set train.warm_start.questions to 0."
        )
    yield Round(lessons)


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


def demonstration(grower: Grower, lesson: Lesson) -> Demonstration:
    """The conversation of a lesson: the question as first answer, what its search shows, and the second answer."""
    chat, rewriter, opening = grower.chat, grower.rewriter, grower.rewriter.opening
    question = chat.plain_question(lesson.question)
    messages = rewriter.first(question)
    prompt = chat.first(messages, opening)
    first = chat.answer(render("", [question.text.lower()]).removeprefix(opening))
    message = rewriter.follow_up(question, grower.shown(lesson.documents), 2)
    second = chat.answer(render("", [chat.plain(lesson.answer)]).removeprefix(opening))
    shown = [*prompt, *first, *chat.continuation(messages, message, first, opening)]
    spans = [(len(prompt), len(prompt) + len(first)), (len(shown), len(shown) + len(second))]
    return Demonstration([*shown, *second], spans)
