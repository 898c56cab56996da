"""The model card of an export: README.md with the Hub's metadata. Every figure in it comes from the evaluation.

The text is in `card.md.j2`. Its code blocks answer the example question: one with this package; the others build the
prompt and continue with transformers or vLLM, from the chat in `querylect.json`, so that their prompts match the
evaluated ones token by token. Text of answers is put into fences longer than any inside, so that none of it is parsed
as Markdown.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..eval.records import HISTORY, HYDE, RAW, TRAINED, UNTRAINED, WARM_START
from ..eval.table import Arm
from ..markdown_tables import markdown_table
from .base import BaseModelSource
from .exported import Exported, ExportedMember, ExportedResults, ExportedRollout, ExportedSystem

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

README = "README.md"
TASK = "text-retrieval"
NAMES = {"ndcg@10": "nDCG@10", "recall@10": "recall@10", "mrr@10": "MRR@10"}

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts for `max_lora_rank`."""

_TEMPLATE = Path(__file__).with_name("card.md.j2")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a reader of the card finds the model."""

    name: str
    """A Hub id, or "." for the folder of the card."""
    revision: str | None = None
    """The branch, if it is not the main one."""

    @property
    def on_the_hub(self) -> bool:
        """Whether the model is a Hub repository."""
        return self.name != "."

    @property
    def arguments(self) -> str:
        """Arguments of `from_pretrained` after the name, as code."""
        return f', revision="{self.revision}"' if self.revision else ""


def model_card(
    exported: Exported, base: BaseModelSource, datasets: Sequence[str], address: Address, rank: int | None
) -> str:
    """The complete README.md. `rank` is the LoRA rank of an adapter.

    Raises ValueError if huggingface_hub rejects its metadata.
    """
    from huggingface_hub import ModelCard

    name = address.name.rpartition("/")[2] if address.on_the_hub else exported.run.name
    members = exported.environments
    member_name, first = next(iter(members.items()))
    licences = [member.results.licence for member in members.values() if member.results is not None]
    card = ModelCard.from_template(
        metadata(exported, base, datasets, name),
        template_path=str(_TEMPLATE),
        name=name,
        exported=exported,
        base=base,
        base_link=_model(base),
        address=address,
        max_lora_rank=next((size for size in LORA_RANKS if size >= (rank or 0)), LORA_RANKS[-1]),
        member_name=member_name,
        chat=first.chat,
        retriever=_retriever,
        retrievers=_distinct(_retriever(member) for member in members.values()),
        retriever_names=_distinct(f"`{member.retriever.get('name', '?')}`" for member in members.values()),
        results_table=lambda results: results_table(results, exported.rollout),
        training_table="\n".join(markdown_table(["", ""], _training(exported, base), "ll")),
        data_licences=_distinct(licence for licence in licences if licence),
        fenced=fenced,
        quoted=quoted,
    )
    return f"{str(card).rstrip()}\n"


def metadata(exported: Exported, base: BaseModelSource, datasets: Sequence[str], name: str) -> "ModelCardData":
    """The metadata that the Hub displays and indexes."""
    from huggingface_hub import ModelCardData

    retrievers = [_tag(str(member.retriever.get("name", ""))) for member in exported.environments.values()]
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
        tags=_distinct(tag for tag in tags if tag),
        model_name=name if results else None,
        eval_results=results or None,
    )


def _eval_results(exported: Exported) -> Iterator["EvalResult"]:
    """The trained policy's metrics per turn. Baselines appear only in the card's table."""
    from huggingface_hub import EvalResult

    measured = [member.results for member in exported.environments.values() if member.results is not None]
    trained = [(results, row) for results in measured for row in results.systems if row.system == TRAINED]
    for results, row in trained:
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


def _distinct(texts: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _retriever(member: ExportedMember) -> str:
    return f"the retriever `{member.retriever.get('name', '?')}` over `{member.environment.name}`"


def _model(base: BaseModelSource) -> str:
    if base.hub_id is not None:
        return f"[{base.hub_id}](https://huggingface.co/{base.hub_id})"
    return f"`{base.name}`"


def results_table(results: ExportedResults, rollout: ExportedRollout) -> str:
    """The rows of an evaluation, with a column for each system that the trained policy was compared with."""
    metrics, best = list(results.systems[0].metrics), results.best_training_free
    head = ["system", *(NAMES.get(metric, metric) for metric in metrics), "95% interval", "tokens written"]
    head += ["in format", "repeats the question", "cut at the token limit", "with fall-back to the question"]
    measured = {row.system for row in results.systems}
    baselines: list[tuple[str, str, int | None]] = [
        ("the raw question", RAW, 0),
        ("untrained, same turn", UNTRAINED, None),
    ]
    baselines += [("the best training-free baseline", best, 0)] if best is not None else []
    baselines += [("the history and the question", HISTORY, 0)] if HISTORY in measured else []
    baselines += [("HyDE at equal cost", HYDE, 1)] if HYDE in measured else []
    baselines += [("the warm start, same turn", WARM_START, None)] if WARM_START in measured else []
    rows = []
    for row in results.systems:
        cells = [_label(row, rollout), *(_number(row.metrics.get(metric)) for metric in metrics)]
        cells.append(f"{_number(row.low)} to {_number(row.high)}")
        if row.turn:
            tokens = "" if row.tokens is None else f"{row.tokens:.1f}"
            cells += [tokens, _share(row.format_ok), _share(row.repeats), _share(row.cut), _number(row.with_fall_back)]
        else:
            cells += [""] * 5
        for _, system, turn in baselines:
            cells.append(_comparison(results, row, Arm(system, row.turn if turn is None else turn)))
        rows.append(cells)
    align = "l" + "r" * (len(metrics) + 6) + "l" * len(baselines)
    return "\n".join(markdown_table([*head, *(f"against {name}" for name, *_ in baselines)], rows, align))


def _label(row: ExportedSystem, rollout: ExportedRollout) -> str:
    label = Arm(row.system, row.turn).phrase.removeprefix("the ").replace(" at turn", ", turn")
    if row.system != TRAINED:
        return label
    used = row.turn == rollout.turn and rollout.turns > 1
    return f"**{label}, which is used**" if used else f"**{label}**"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _comparison(results: ExportedResults, row: ExportedSystem, baseline: Arm) -> str:
    for comparison in results.comparisons:
        against = comparison.against
        if (comparison.system, comparison.turn, against.system, against.turn) == (row.system, row.turn, *baseline):
            difference = f"{comparison.difference:+.3f}".replace("-", "−")
            p = f"p = {comparison.p_holm:.3f}" if comparison.p_holm >= 0.001 else "p < 0.001"
            return f"{difference} ({p}), {comparison.wins} better, {comparison.losses} worse"
    return ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _training(exported: Exported, base: BaseModelSource) -> list[tuple[str, str]]:
    training, run = exported.training, exported.run
    train, rollout, policy = training["train"], training["rollout"], training["policy"]
    step = f"after {run.step} steps" if run.step is not None else "after an unknown number of steps"
    facts = [
        ("checkpoint", f"`{run.checkpoint}` of the run `{run.name}`, {step}"),
        ("base model", _model(base) + (", de-quantised from GGUF" if base.dequantised else "")),
        ("weights", f"LoRA, r = {policy['lora']['r']}" if policy.get("lora") else "all of them"),
        ("rollouts", f"branching {rollout['branching']}, temperature {rollout['temperature']}"),
        ("reward", f"{_rewarded(training['reward'])}, format weight {training['reward']['format_weight']}"),
        ("credit", f"{train['credit']}, learning rate {train['learning_rate']}, KL {train['beta']}"),
        ("questions per step", str(train["questions_per_step"])),
    ]
    if train["warm_start"]["questions"]:
        facts.append(("warm start", f"{_warm_start(train['warm_start'])} before GRPO"))
    for key, member in exported.environments.items():
        environment = member.environment
        searched = f"{environment.corpus_size:,} documents, corpus `{environment.corpus_hash}`"
        facts.append((f"environment {key}".rstrip(), f"{_retriever(member)}, {searched}"))
        if trained := member.retriever.get("trained"):
            facts.append((f"retriever {key}".rstrip(), str(trained)))
    for name, state in (run.git or {}).items():
        if isinstance(state, dict) and state.get("commit"):
            facts.append((f"git, {name}", f"`{state['commit']}`"))
    return [*facts, ("versions", f"querylect {exported.querylect}")]


def _rewarded(reward: Mapping[str, Any]) -> str:
    """What is rewarded: the metric of a ranking, the score of a reader's answers, or a mixture of both."""
    if reward.get("kind", "metric") == "metric":
        return str(reward["metric"])
    answer = reward["answer"]
    text = f"{answer['metric']} of answers by `{answer['reader']['model']}` from the top {answer['top']} documents"
    text += ", as gain over those of the question" if answer["gain"] else ""
    weight = answer["weight"]
    return text if weight == 1 else f"{weight:g} {text}; {1 - weight:.3g} {reward['metric']}"


def _warm_start(settings: Mapping[str, object]) -> str:
    return f"imitation of graded answers to {settings['questions']} questions"


def fenced(text: str, language: str) -> str:
    """A Markdown code block whose fence is longer than any in `text`."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def quoted(text: str) -> str:
    """`text` as a Python string literal, in double quotes unless that needs more escapes."""
    plain = repr(text)
    if plain.startswith("'") and '"' not in plain and "\\'" not in plain:
        return f'"{plain[1:-1]}"'
    return plain
