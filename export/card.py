"""The model card of an export: README.md with the Hub's metadata. Every figure in it comes from the evaluation.

The text is in `card.md.j2`. Its code blocks answer the example question: one with this package; the others build the
prompt and continue with transformers or vLLM, from the chat in `querylect.json`, so that their prompts match the
evaluated ones token by token. Text of answers is put into fences longer than any inside, so that none of it is parsed
as Markdown.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..configs.yaml12 import write_yaml
from ..envs.schemas import EnvironmentInfo
from ..eval.records import TRAINED
from ..eval.table import p_cell, signed
from ..markdown_tables import markdown_table
from .exported import Exported
from .source import BaseModelSource

NAMES = {"ndcg@10": "nDCG@10", "recall@10": "recall@10", "mrr@10": "MRR@10"}
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts for `max_lora_rank`."""


def model_card(exported: Exported, base: BaseModelSource, repository: str | None, rank: int | None) -> str:
    """The complete README.md. `repository` is the Hub id, None for a folder; `rank` the LoRA rank of an adapter.

    Raises ValueError if huggingface_hub rejects its metadata.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    name = repository.rpartition("/")[2] if repository is not None else exported.run.name
    members = exported.environments
    member_name, chat = next(iter(exported.chats.items()))
    measured = [results for results in exported.results.values() if results is not None]
    eval_results = [
        EvalResult(
            task_type="text-retrieval",
            task_name="Retrieval with rewritten queries",
            dataset_type=_tag(results["environment"]["name"]) or "custom",
            dataset_name=f"{results['environment']['name']}, searched by {results['retriever']}",
            dataset_split=results["split"],
            metric_type=metric,
            metric_name=f"{NAMES.get(metric, metric)}, turn {row['turn']}",
            metric_value=round(value, 4),
        )
        for results in measured
        for row in results["systems"]
        if row["system"] == TRAINED  # baselines are only in the card's table
        for metric, value in row["metrics"].items()
        if value is not None
    ]
    retrievers = [str(member.retriever.get("name", "")) for member in members.values()]
    tags = ["querylect", "query-rewriting", "information-retrieval", "reinforcement-learning", "grpo"]
    data = ModelCardData(
        **base.licence,
        library_name="peft" if exported.lora else "transformers",
        pipeline_tag="text-generation",
        base_model=base.hub_id,
        base_model_relation=None if base.hub_id is None else "adapter" if exported.lora else "finetune",
        tags=_distinct([*tags, *filter(None, map(_tag, retrievers))]),
        model_name=name if eval_results else None,
        eval_results=eval_results or None,
    )
    card = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card.md.j2")),
        name=name,
        exported=exported,
        base=base,
        base_link=f"[{base.hub_id}](https://huggingface.co/{base.hub_id})" if base.hub_id else f"`{base.name}`",
        repository=repository,
        max_lora_rank=next((size for size in LORA_RANKS if size >= (rank or 0)), LORA_RANKS[-1]),
        member_name=member_name,
        chat=chat,
        turns=len(exported.config["rollout"]["branching"]),
        retriever=_retriever,
        retrievers=_distinct(map(_retriever, members.values())),
        retriever_names=_distinct(f"`{retriever or '?'}`" for retriever in retrievers),
        results_table=results_table,
        settings=write_yaml(exported.config).rstrip(),
        data_licences=_distinct(results["licence"] for results in measured if results["licence"]),
        fenced=fenced,
        quoted=partial(json.dumps, ensure_ascii=False),
    )
    return f"{str(card).rstrip()}\n"


def _tag(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-")


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _retriever(searched: EnvironmentInfo) -> str:
    return f"the retriever `{searched.retriever.get('name', '?')}` over `{searched.name}`"


def results_table(results: Mapping[str, Any]) -> str:
    """The systems of an evaluation, and below them the comparisons of the trained policy with others."""
    metrics = list(results["systems"][0]["metrics"])
    head = ["system", *(NAMES.get(metric, metric) for metric in metrics), "95% interval", "tokens written"]
    head += ["in format", "repeats the question"]
    rows = []
    for row in results["systems"]:
        scores = [_cell(row["metrics"].get(metric), ".3f") for metric in metrics]
        low, high = row["intervals"].get(metrics[0], (None, None))
        interval = "" if low is None else f"{low:.3f} to {high:.3f}"
        shares = [_cell(row[name], ".1%") for name in ("format_ok", "repeats")]
        model_cells = [_cell(row["tokens"], ".1f"), *shares] if row["turn"] else ["", "", ""]
        rows.append([row["label"], *scores, interval, *model_cells])
    table = markdown_table(head, rows)
    labels = {(row["system"], row["turn"]): row["label"] for row in results["systems"]}
    compared = [
        [
            labels[row["system"], row["turn"]],
            labels[row["against"], row["against_turn"]],
            signed(row["difference"]),
            p_cell(row["p_holm"]),
            f"{row['wins']:g}",
            f"{row['losses']:g}",
        ]
        for row in results["comparisons"]
        if row["system"] == TRAINED
    ]
    comparisons = markdown_table(["", "against", "difference", "p", "better", "worse"], compared, "llrrrr")
    return "\n".join([*table, "", *comparisons] if compared else table)


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def fenced(text: str, language: str) -> str:
    """A Markdown code block whose fence is longer than any in `text`."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
