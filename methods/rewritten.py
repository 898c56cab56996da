"""The simplest methods: a rewriter is asked, its plan is searched, and the results are the context.

Any rewriter of rewriters/registry.py works this way, including those of two stages, whose first stage is asked before.
An answer that cannot be read is sent back once. HyDE samples several passages for one plan.
"""

from ..data.types import Question
from ..llms.base import Prompt, SamplingParams
from ..rewriters.base import RewritingStrategy, StagedQuestion
from ..rewriters.repair import read_reply, repair
from .method import Ask, Result, Search, StageError


async def rewritten(
    question: Question, ask: Ask, search: Search, rewriter: RewritingStrategy, draw: SamplingParams
) -> Result:
    """Ask the first stage where there is one, ask the rewriter, search its plan."""
    notes: dict[str, object] = {}
    if (stage := rewriter.first_stage(question)) is not None:
        answer = await ask.json(stage.prompt, stage.form, stage.draw)
        question = StagedQuestion.of(question, answer)
        notes["first_stage"] = answer.model_dump(mode="json")
    prompt = Prompt(tuple(rewriter.first(question)), rewriter.opening)
    reply = await ask(prompt, draw)
    rewrite = read_reply(rewriter, question, reply)
    if rewrite.plan is None:
        messages = (*prompt.messages, *repair(reply.texts[0].text, rewrite.failure))
        reply = await ask(Prompt(messages, rewriter.opening), draw)
        rewrite = read_reply(rewriter, question, reply)
    notes |= {"rewrites": list(rewrite.rewrites), "texts": [sample.text for sample in reply.texts]}
    if rewrite.plan is None:
        raise StageError(rewrite.failure, **notes)
    return Result((await search(rewrite.plan)).documents, notes)
