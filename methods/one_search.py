"""Methods of one search: a rewriter's plan, CHR as published, QA-RAG, and a cross-encoder on top."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..configs.methods import ChrMethodConfig, QaRagConfig, RerankMethodConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..llms.base import Prompt, SamplingParams
from ..llms.prose import passage_of
from ..llms.structured import FormPrompt, worked
from ..rewriters.base import RewritingStrategy, StagedQuestion, read_reply, repair
from ..rewriters.case import case_text
from ..rewriters.passages import contrast, role_of
from .method import Ask, Result, Search, StageError, sampling
from .prompts import prompts_of

Hypothesis = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Hypotheses(BaseModel):
    """The two hypotheses as the paper's JSON object."""

    model_config = ConfigDict(frozen=True)

    plus: Hypothesis = Field(alias="H_plus", description="The target hypothesis.")
    minus: Hypothesis = Field(alias="H_minus", description="The mimic hypothesis.")


async def rewritten(
    question: Question, ask: Ask, search: Search, rewriter: RewritingStrategy, draw: SamplingParams
) -> Result:
    """Any rewriter of rewriters/registry.py, after its first stage where it has one. An answer that cannot be read is
    sent back once. HyDE samples several passages for one plan."""
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


async def chr_method(question: Question, ask: Ask, search: Search, settings: ChrMethodConfig) -> Result:
    """CHR as published (its paper, sections 3 and B): one call for a JSON object of two hypotheses, one search for one
    and against the other. rewriters/passages.py has the task and the plan, which a policy in training shares."""
    prompts = prompts_of("chr", settings)
    prompt = FormPrompt(role_of(settings), case_text(question), worked(prompts.examples, Hypotheses), prompts.request())
    both = await ask.json(prompt, Hypotheses, sampling(settings))
    ranking = await search(contrast(both.plus, both.minus, settings.penalty, settings.k))
    return Result(ranking.documents, {"H_plus": both.plus, "H_minus": both.minus, "penalty": settings.penalty})


async def qa_rag(question: Question, ask: Ask, search: Search, settings: QaRagConfig) -> Result:
    """QA-RAG (Kim and Min 2024) as in the QB-RAG paper, appendix B, item 3: one search with a written answer alone.

    The original also searches with the question, a cross-encoder keeps the best of both sets, and its answers come from
    a fine-tuned model.
    """
    prompt = prompts_of("qa_rag", settings).answer(question)
    reply = await ask(prompt, SamplingParams(max_tokens=settings.max_tokens))
    passage = passage_of(reply.texts[0].text)
    if passage.failure:
        raise StageError(passage.failure, written=reply.texts[0].text)
    ranking = await search(SearchPlan.of(passage.answer, k=settings.k))
    return Result(ranking.documents, {"written": passage.answer})


async def rerank(question: Question, ask: Ask, search: Search, settings: RerankMethodConfig) -> Result:
    """A cross-encoder scores each candidate that the question finds and selects the best (the HCQR paper, B.6).

    Candidates of equal score stay in the retriever's order. `env.rerank` does the same inside an environment.
    """
    ranking = await search(SearchPlan.of(question.text, k=settings.candidates))
    scores = await search.scores(question.text, ranking.documents) if ranking.documents else ()
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: settings.k]
    notes = {"candidates": len(ranking.documents), "scores": [float(scores[index]) for index in order]}
    return Result(tuple(ranking.documents[index] for index in order), notes)
