"""The model card of an export: README.md with the Hub's metadata. Every figure in it comes from the evaluation.

The text is in `card.md.j2`. Its code blocks answer the example question: one with this package; the others build the
prompt and continue with transformers or vLLM, from the chat in `querylect.json`, so that their prompts match the
evaluated ones token by token. Text of answers is put into fences longer than any inside, so that none of it is parsed
as Markdown.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.yaml12 import write_yaml
from ..eval.records import TRAINED
from ..eval.table import Arm
from ..markdown_tables import markdown_table
from .base import BaseModelSource
from .exported import Exported, ExportedMember, ExportedRollout

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

README = "README.md"
TASK = "text-retrieval"
NAMES = {"ndcg@10": "nDCG@10", "recall@10": "recall@10", "mrr@10": "MRR@10"}

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts for `max_lora_rank`."""

_TEMPLATE = Path(__file__).with_name("card.md.j2")


def model_card(exported: Exported, base: BaseModelSource, repository: str | None, rank: int | None) -> str:
    """The complete README.md. `repository` is the Hub id, None for a folder; `rank` the LoRA rank of an adapter.

    Raises ValueError if huggingface_hub rejects its metadata.
    """
    from huggingface_hub import ModelCard

    name = repository.rpartition("/")[2] if repository is not None else exported.run.name
    members = exported.environments
    member_name, first = next(iter(members.items()))
    licences = [member.results["licence"] for member in members.values() if member.results is not None]
    card = ModelCard.from_template(
        metadata(exported, base, name),
        template_path=str(_TEMPLATE),
        name=name,
        exported=exported,
        base=base,
        base_link=_model(base),
        repository=repository,
        max_lora_rank=next((size for size in LORA_RANKS if size >= (rank or 0)), LORA_RANKS[-1]),
        member_name=member_name,
        chat=first.chat,
        retriever=_retriever,
        retrievers=_distinct(_retriever(member) for member in members.values()),
        retriever_names=_distinct(f"`{member.retriever.get('name', '?')}`" for member in members.values()),
        results_table=lambda results: results_table(results, exported.rollout),
        origin="\n".join(markdown_table(["", ""], _origin(exported, base), "ll")),
        settings=write_yaml(exported.training).rstrip(),
        data_licences=_distinct(licence for licence in licences if licence),
        fenced=fenced,
        quoted=quoted,
    )
    return f"{str(card).rstrip()}\n"


def metadata(exported: Exported, base: BaseModelSource, name: str) -> "ModelCardData":
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
        tags=_distinct(tag for tag in tags if tag),
        model_name=name if results else None,
        eval_results=results or None,
    )


def _eval_results(exported: Exported) -> Iterator["EvalResult"]:
    """The trained policy's metrics per turn. Baselines appear only in the card's table."""
    from huggingface_hub import EvalResult

    measured = [member.results for member in exported.environments.values() if member.results is not None]
    trained = [(results, row) for results in measured for row in results["systems"] if row["system"] == TRAINED]
    for results, row in trained:
        name = results["environment"]["name"]
        for metric, value in row["metrics"].items():
            if value is None:
                continue
            yield EvalResult(
                task_type=TASK,
                task_name="Retrieval with rewritten queries",
                dataset_type=_tag(name) or "custom",
                dataset_name=f"{name}, searched by {results['retriever']}",
                dataset_split=results["split"],
                metric_type=metric,
                metric_name=f"{NAMES.get(metric, metric)}, turn {row['turn']}",
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


def results_table(results: Mapping[str, Any], rollout: ExportedRollout) -> str:
    """The systems of an evaluation, and below them the comparisons of the trained policy with others."""
    metrics = list(results["systems"][0]["metrics"])
    head = ["system", *(NAMES.get(metric, metric) for metric in metrics), "95% interval", "tokens written"]
    head += ["in format", "repeats the question", "cut at the token limit", "with fall-back to the question"]
    rows = []
    for row in results["systems"]:
        cells = [_label(row, rollout), *(_number(row["metrics"].get(metric)) for metric in metrics)]
        cells.append(f"{_number(row['low'])} to {_number(row['high'])}")
        if row["turn"]:
            tokens = "" if row["tokens"] is None else f"{row['tokens']:.1f}"
            shares = [_share(row["format_ok"]), _share(row["repeats"]), _share(row["cut"])]
            cells += [tokens, *shares, _number(row["with_fall_back"])]
        else:
            cells += [""] * 5
        rows.append(cells)
    table = markdown_table(head, rows, "l" + "r" * (len(metrics) + 6))
    compared = [
        [
            Arm(row["system"], row["turn"]).phrase,
            Arm(row["against"]["system"], row["against"]["turn"]).phrase,
            f"{row['difference']:+.3f}".replace("-", "−"),
            f"{row['p_holm']:.3f}" if row["p_holm"] >= 0.001 else "< 0.001",
            *(str(row[name]) for name in ("wins", "losses")),
        ]
        for row in results["comparisons"]
        if row["system"] == TRAINED
    ]
    comparisons = markdown_table(["", "against", "difference", "p", "better", "worse"], compared, "llrrrr")
    return "\n".join([*table, "", *comparisons] if compared else table)


def _label(row: Mapping[str, Any], rollout: ExportedRollout) -> str:
    label = Arm(row["system"], row["turn"]).phrase.removeprefix("the ").replace(" at turn", ", turn")
    if row["system"] != TRAINED:
        return label
    used = row["turn"] == rollout.turn and rollout.turns > 1
    return f"**{label}, which is used**" if used else f"**{label}**"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _origin(exported: Exported, base: BaseModelSource) -> list[tuple[str, str]]:
    """What the weights came from, by name."""
    run = exported.run
    step = f"after {run.step} steps" if run.step is not None else "after an unknown number of steps"
    facts = [
        ("checkpoint", f"`{run.checkpoint}` of the run `{run.name}`, {step}"),
        ("base model", _model(base) + (", de-quantised from GGUF" if base.dequantised else "")),
    ]
    for key, member in exported.environments.items():
        environment = member.environment
        searched = f"{environment.corpus_size:,} documents, corpus `{environment.corpus_hash}`"
        facts.append((f"environment {key}".rstrip(), f"{_retriever(member)}, {searched}"))
    return [*facts, ("versions", f"querylect {exported.querylect}")]


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
