"""The model card of an export: README.md with the Hub's metadata. Every figure in it comes from the evaluation.

The text is in `card.md.j2`. Its code answers the example question with this package, and without it from the chat in
`querylect.json`, so that the prompt matches the evaluated one token by token. Text of answers is put into fences longer
than any inside, so that none of it is parsed as Markdown.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from ..configs.load import write_yaml
from ..envs.schemas import EnvironmentInfo
from ..eval.records import TRAINED
from ..eval.results import EvalResults
from ..markdown_tables import markdown_table
from .exported import Exported
from .source import BaseModelSource, questions_asked


def model_card(
    exported: Exported, measured: Mapping[str, EvalResults], base: BaseModelSource, repository: str | None
) -> str:
    """The complete README.md. `measured` are the results by environment; `repository` is the Hub id, None for a folder.

    Raises ValueError if huggingface_hub rejects its metadata.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    name = repository.rpartition("/")[2] if repository is not None else exported.run.name
    members = exported.environments
    member_name, chat = next(iter(exported.chats.items()))
    eval_results = [
        EvalResult(
            task_type="text-retrieval",
            task_name="Retrieval with rewritten queries",
            dataset_type=_tag(results.provenance["environment"]["name"]) or "custom",
            dataset_name=f"{results.provenance['environment']['name']}, searched by {results.provenance['retriever']}",
            dataset_split=results.split,
            metric_type=metric,
            metric_name=f"{metric.replace('ndcg', 'nDCG').replace('mrr', 'MRR')}, turn {score.turn}",
            metric_value=round(value, 4),
        )
        for results in measured.values()
        for score in results.scores
        if score.system == TRAINED  # baselines are only in the card's table
        for metric, value in score.metrics.items()
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
        member_name=member_name,
        chat=chat,
        turns=len(exported.config["rollout"]["branching"]),
        retriever=_retriever,
        retrievers=_distinct(map(_retriever, members.values())),
        retriever_names=_distinct(f"`{retriever or '?'}`" for retriever in retrievers),
        measured=measured,
        tables=_tables,
        asked=questions_asked,
        settings=write_yaml(exported.config).rstrip(),
        data_licences=_distinct(filter(None, (results.provenance["licence"] for results in measured.values()))),
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


def _tables(results: EvalResults) -> str:
    """The scores of an evaluation, what was written, and the tested differences."""
    from ..eval.text import metrics_table, tests_table, written_table

    dataset = results.datasets[-1]
    tables = [metrics_table(results, dataset), written_table(results), tests_table(results, dataset, "")]
    lines = (markdown_table(list(table.columns), table.to_numpy().tolist()) for table in tables if len(table))
    return "\n\n".join(map("\n".join, lines))


def fenced(text: str, language: str) -> str:
    """A Markdown code block whose fence is longer than any in `text`."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
