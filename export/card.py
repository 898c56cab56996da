"""The model card of an export: README.md with the Hub's metadata. Every figure in it comes from the evaluation.

Text of questions, answers and prompts is put into fenced blocks whose fence is longer than any inside, so that none of
it is parsed as Markdown.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..eval.table import Arm
from .base import BaseModelSource
from .exported import Exported, ExportedChat, ExportedMember, ExportedResults, ExportedSystem
from .snippets import Address, prompt_snippet, querylect_snippet, transformers_snippet, vllm_snippet

README = "README.md"
TASK = "text-retrieval"
NAMES = {"ndcg@10": "nDCG@10", "recall@10": "recall@10", "mrr@10": "MRR@10"}


def model_card(
    exported: Exported, base: BaseModelSource, datasets: Sequence[str], address: Address, rank: int | None
) -> str:
    """The complete README.md. Raises ValueError if huggingface_hub rejects its metadata."""
    from huggingface_hub import ModelCard

    name = address.name.rpartition("/")[2] if address.on_the_hub else exported.run.name
    head = metadata(exported, base, datasets, name).to_yaml()
    text = f"---\n{head}\n---\n\n{_body(exported, base, name, address, rank)}"
    ModelCard(text)  # parses the metadata, and raises ValueError if it is invalid
    return text


def metadata(exported: Exported, base: BaseModelSource, datasets: Sequence[str], name: str) -> Any:
    """The metadata that the Hub displays and indexes (huggingface_hub.ModelCardData)."""
    from huggingface_hub import ModelCardData

    retrievers = [_tag(str(member.retriever.get("name", ""))) for member in exported.members.values()]
    tags = ["querylect", "query-rewriting", "information-retrieval", "reinforcement-learning", "grpo", *retrievers]
    results = list(_eval_results(exported))
    return ModelCardData(
        license=base.licence.id,
        license_name=base.licence.name,
        license_link=base.licence.link,
        library_name="peft" if exported.lora else "transformers",
        pipeline_tag="text-generation",
        base_model=base.hub_id,
        base_model_relation=None if base.hub_id is None else "adapter" if exported.lora else "finetune",
        datasets=list(datasets) or None,
        tags=list(dict.fromkeys(tag for tag in tags if tag)),
        model_name=name if results else None,
        eval_results=results or None,
    )


def _eval_results(exported: Exported) -> Iterator[Any]:
    """The trained policy's metrics per turn. Baselines appear only in the card's table."""
    from huggingface_hub import EvalResult

    for member in exported.members.values():
        results = member.results
        for row in results.systems if results is not None else ():
            if results is None or row.system != "trained":
                continue
            for metric, value in row.metrics.items():
                if value is None:
                    continue
                yield EvalResult(
                    task_type=TASK,
                    task_name="Retrieval with rewritten queries",
                    dataset_type=_tag(results.environment.name) or "custom",
                    dataset_name=f"{results.environment.name}, searched by {results.retriever}",
                    dataset_split=results.split,
                    metric_type=metric,
                    metric_name=f"{NAMES.get(metric, metric)}, turn {row.turn}",
                    metric_value=round(value, 4),
                )


def _tag(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-")


def _body(exported: Exported, base: BaseModelSource, name: str, address: Address, rank: int | None) -> str:
    members = exported.members
    parts = [f"# {name}", _summary(exported, base)]
    parts += ["## What was measured", *(_evaluation(exported, key, member) for key, member in members.items())]
    parts += ["## How to use it", *_usage(exported, base, address, rank)]
    parts += ["## How it was trained", _training(exported, base)]
    parts += ["## Limits", _limits(exported)]
    parts += ["## Licence", _licence(exported, base)]
    return "\n\n".join(parts) + "\n"


def _summary(exported: Exported, base: BaseModelSource) -> str:
    retrievers = [_retriever(member) for member in exported.members.values()]
    targets = " and ".join(dict.fromkeys(retrievers))
    text = (
        f"A language model that turns a question into a query for {targets}. It was trained from "
        f"{_model(base)} by GRPO with querylect: its rewrites were sent to the served retriever, and what came back "
        "was the reward."
    )
    if exported.lora:
        text += " This repository holds a LoRA adapter; the base model is loaded beside it."
    return text


def _retriever(member: ExportedMember) -> str:
    return f"the retriever `{member.retriever.get('name', '?')}` over `{member.environment.name}`"


def _model(base: BaseModelSource) -> str:
    if base.hub_id is not None:
        return f"[{base.hub_id}](https://huggingface.co/{base.hub_id})"
    return f"`{base.name}`"


def _evaluation(exported: Exported, key: str, member: ExportedMember) -> str:
    heading = f"### {key}\n\n" if key else ""
    results = member.results
    if results is None:
        step = f" (step {exported.run.step})" if exported.run.step is not None else ""
        return (
            f"{heading}Nothing: these weights, `{exported.run.checkpoint}`{step} of the run, were exported without a "
            "held-out evaluation. Measure them before you rely on them."
        )
    caveat = ""
    if results.environment.index_hash != member.environment.index_hash:
        caveat = (
            f"\n\nThis was measured on `{results.environment.name}`, searched by `{results.retriever}`; the policy was "
            f"trained against {_retriever(member)}."
        )
    environment = results.environment
    setup = (
        f"{_question_count(results)} of `{environment.name}`, none of them trained on; greedy decoding; "
        f"{environment.corpus_size:,} documents (corpus `{environment.corpus_hash[:12]}`, "
        f"index `{environment.index_hash[:12]}`). "
        "Intervals are 95% bootstrap intervals of the mean; p is of a two-sided paired permutation test, adjusted by "
        "Holm over all comparisons of this evaluation. Every turn is one call of the language model."
    )
    return (
        "\n\n".join([f"{heading}**{results.headline}** {results.explanation}", _table(results, exported), setup])
        + caveat
    )


def _question_count(results: ExportedResults) -> str:
    """Number of questions and their split, with the sample size if they are a sample."""
    drawn = f" ({results.count})" if results.sample is not None else ""
    return f"{results.questions} {results.split} questions{drawn}"


def _table(results: ExportedResults, exported: Exported) -> str:
    metrics, best = list(results.systems[0].metrics), results.best_training_free
    head = ["system", *(NAMES.get(metric, metric) for metric in metrics), "95% interval", "tokens written"]
    head += ["in format", "repeats the question", "cut at the token limit", "with fall-back to the question"]
    baselines = [("the raw question", "raw"), ("untrained, same turn", "untrained")]
    baselines += [("the best training-free baseline", best)] if best is not None else []
    head += [f"against {name}" for name, _ in baselines]
    lines = [f"| {' | '.join(head)} |", f"|---|{'--:|' * (len(metrics) + 6)}{'---|' * len(baselines)}"]
    for row in results.systems:
        cells = [_label(row, exported), *(_number(row.metrics.get(metric)) for metric in metrics)]
        cells.append(f"{_number(row.low)} to {_number(row.high)}")
        tokens = "" if row.turn == 0 or row.tokens is None else f"{row.tokens:.1f}"
        cells += [tokens, *([f"{row.format_ok:.1%}", _share(row.repeats), _share(row.cut)] if row.turn else [""] * 3)]
        cells.append(_number(row.with_fall_back) if row.turn else "")
        cells += [
            _comparison(results, row, system, row.turn if system == "untrained" else 0) for _, system in baselines
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _label(row: ExportedSystem, exported: Exported) -> str:
    label = Arm(row.system, row.turn).phrase.removeprefix("the ").replace(" at turn", ", turn")
    if row.system != "trained":
        return label
    used = row.turn == exported.rollout.used_turn and exported.rollout.turns > 1
    return f"**{label}, which is used**" if used else f"**{label}**"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _comparison(results: ExportedResults, row: ExportedSystem, system: str, turn: int) -> str:
    if (row.system, row.turn) == (system, turn):
        return ""
    for comparison in results.comparisons:
        baseline = comparison.against
        if (comparison.system, comparison.turn, baseline.system, baseline.turn) == (row.system, row.turn, system, turn):
            difference = f"{comparison.difference:+.3f}".replace("-", "−")
            p = f"p = {comparison.p_holm:.3f}" if comparison.p_holm >= 0.001 else "p < 0.001"
            return f"{difference} ({p}), {comparison.wins} better, {comparison.losses} worse"
    return ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _usage(exported: Exported, base: BaseModelSource, address: Address, rank: int | None) -> Iterator[str]:
    member = next(iter(exported.members))
    chat = exported.members[member].chat
    rollout = exported.rollout
    yield "With querylect, whose `rewrite` also gives the search plan, and with a retriever what it finds:"
    yield fenced(querylect_snippet(exported, address, member), "python")
    if rollout.turns > 1:
        reason = f" ({rollout.turn_reason})" if rollout.turn_reason else ""
        yield f"The answer is that of turn {rollout.used_turn}{reason}; `turn=` asks for another."
    if rollout.used_turn > 1:
        yield (
            "It is shown what the turn before found, so the rewriter searches in between: `settings` says where, here "
            "in a running `querylect serve`."
        )
    yield "Without it: the prompt of the first turn,"
    yield fenced(prompt_snippet(exported, address, member), "python")
    if chat.template is None:
        yield (
            "The chat of a question holds what another model said of it first, so only the example's stands here, with "
            "names of fields in its place; querylect asks both."
        )
    yield f"then, with transformers{' and peft' if exported.lora else ''},"
    yield fenced(transformers_snippet(exported, address, base.hub_id), "python")
    yield "or with vLLM:"
    yield fenced(vllm_snippet(exported, address, base.hub_id, rank), "python")
    yield from _example(chat)
    yield (
        "This is the first turn. Later turns are shown the documents that the turn before found, so they need the "
        "retriever: `querylect.json` holds what querylect needs to ask them, and to make search plans of all answers."
    )


def _example(chat: ExportedChat) -> Iterator[str]:
    if chat.answer is None:
        return
    yield "For the question in the example the answer, when this was exported, was:"
    yield fenced(chat.opening + chat.answer.text, "text")
    if chat.answer.plan is None:
        yield "It does not keep to the form that was asked for, so nothing is searched with it."
        return
    yield "It is read as this search plan (probes are weighted sums of texts, and their rankings are fused):"
    yield fenced(json.dumps(chat.answer.plan.model_dump(mode="json"), ensure_ascii=False, indent=2), "json")


def _training(exported: Exported, base: BaseModelSource) -> str:
    training, run = exported.training, exported.run
    train, rollout, policy = training["train"], training["rollout"], training["policy"]
    step = f"after {run.step} steps" if run.step is not None else "after an unknown number of steps"
    facts = [
        ("checkpoint", f"`{run.checkpoint}` of the run `{run.name}`, {step}"),
        ("base model", _model(base) + (", de-quantised from GGUF" if base.dequantised else "")),
        ("weights", f"LoRA, r = {policy['lora']['r']}" if policy.get("lora") else "all of them"),
        ("rollouts", f"branching {rollout['branching']}, temperature {rollout['temperature']}"),
        ("reward", f"{training['reward']['metric']}, format weight {training['reward']['format_weight']}"),
        ("credit", f"{train['credit']}, learning rate {train['learning_rate']}, KL {train['beta']}"),
        ("questions per step", str(train["questions_per_step"])),
    ]
    if train["warm_start"]["questions"]:
        facts.append(("warm start", f"{_warm_start(train['warm_start'])} before GRPO"))
    for key, member in exported.members.items():
        environment = member.environment
        searched = f"{environment.corpus_size:,} documents, corpus `{environment.corpus_hash}`"
        facts.append((f"environment {key}".rstrip(), f"{_retriever(member)}, {searched}"))
        if trained := member.retriever.get("trained"):
            facts.append((f"retriever {key}".rstrip(), str(trained).replace("|", "\\|")))
    for name, state in (run.git or {}).items():
        if isinstance(state, dict) and state.get("commit"):
            changed = ", with changes" if state.get("dirty") else ""
            facts.append((f"git, {name}", f"`{state['commit']}`{changed}"))
    facts.append(("versions", f"querylect {exported.querylect}"))
    lines = "\n".join(f"| {name} | {value} |" for name, value in facts)
    return f"| | |\n|---|---|\n{lines}\n\nAll settings stand in `querylect.json` under `training`."


def _warm_start(settings: Mapping[str, Any]) -> str:
    if settings.get("kind") == "expert_iteration":
        return f"{settings['rounds']} rounds of expert iteration on {settings['questions']} questions each"
    return f"{settings['questions']} graded proposals imitated"


def _limits(exported: Exported) -> str:
    names = [f"`{member.retriever.get('name', '?')}`" for member in exported.members.values()]
    return (
        f"It learned the queries that {' and '.join(dict.fromkeys(names))} rewards on these documents. With another "
        "retriever, another collection or another kind of question it may do worse than the question as it stands. A "
        "rewrite may name things that are not true: it is there to be searched with, not to be read as an answer."
    )


def _licence(exported: Exported, base: BaseModelSource) -> str:
    licence = base.licence
    name = f" ({licence.name})" if licence.name else ""
    link = f", {licence.link}" if licence.link else ""
    text = f"`{licence.id}`{name}{link}, as the base model {_model(base)}."
    if licence.id == "unknown":
        text = f"The base model {_model(base)} does not state its licence, so none can be given here."
    licences = [
        member.results.licence
        for member in exported.members.values()
        if member.results is not None and member.results.licence
    ]
    return "\n\n".join([text, *(f"Questions and documents: {terms}" for terms in dict.fromkeys(licences))])


def fenced(text: str, language: str) -> str:
    """A Markdown code block whose fence is longer than any in `text`."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
