"""Exports a run to a self-contained folder or to a repository of the Hugging Face Hub."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from ..configs.llm import LlmConfig
from ..configs.schema import RewriterConfig, RunConfig, environments
from ..data.history import records_of
from ..data.types import Question
from ..errors import ConfigError
from ..eval.results import EvalResults
from ..llms.base import Message
from ..rewriters.base import StagedQuestion
from ..rewriters.few_shot import prompt_path
from ..rewriters.registry import make_rewriter
from ..rewriters.retriever_info import RetrieverInfo
from ..rollouts.checkpoints import base_fingerprint, optimized_prompt, with_prompt
from ..rollouts.engines.base import Engine
from ..rollouts.tree_sampler import PolicyConversation
from ..sources import portable
from ..storage import atomic_folder, json_object, parse_json
from ..version import __version__
from .card import model_card
from .exported import FILE, LLM, OF_MACHINE, Exported, ExportedChat, ExportedRun
from .source import BaseModelSource, CheckpointSource, base_of, example_question, find_results, open_source

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..rollouts.chat import Tokenizer

OURS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "adapter_config.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "prompt*.yaml",
    "tokenizer*",
    FILE,
)
"""File patterns of an export. A matching file on the Hub that the new export lacks is deleted."""
_READER = {"answer": {"gold": True, "reader": set(LlmConfig.model_fields) - {"model"}}}
"""Settings of `reward` that belong to a machine."""


def export_to_folder(
    run: Path,
    target: Path,
    *,
    overwrite: bool = False,
    checkpoint: str | None = None,
    trust: bool = False,
    **options: Any,
) -> str:
    """Write the export to `target`, whole or not at all, and return its path. `options` are those of `write_export`.

    Raises ConfigError if `target` exists or holds the run, CheckpointError as `find_results`, and as `open_source` and
    `load_policy`.
    """
    source = open_source(run, checkpoint, trust)
    resolved, folder_of_run = target.resolve(), run.resolve()
    if folder_of_run.is_relative_to(resolved) or (target.exists() and resolved.is_relative_to(folder_of_run)):
        raise ConfigError(f"--to {target} would replace the run {run}, or a part of it. Choose another folder.")
    if not overwrite and target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target} exists. Choose another --to, or replace it with --overwrite.")
    with atomic_folder(resolved) as folder:
        write_export(folder, source, None, **options)
    return str(target)


def export_to_hub(
    run: Path,
    repo_id: str,
    *,
    public: bool = False,
    endpoint: str | None = None,
    checkpoint: str | None = None,
    trust: bool = False,
    **options: Any,
) -> str:
    """Upload the export in one commit, to a private repository by default, and return its address.

    Files whose content is on the Hub already are not sent again, so repeating an interrupted upload continues it.
    huggingface_hub finds the token itself, and its errors are raised as they are. Also raises as `export_to_folder`,
    and ConfigError for a public repository without `public`.
    """
    from huggingface_hub import HfApi

    source, api = open_source(run, checkpoint, trust), HfApi(endpoint=endpoint)
    with TemporaryDirectory(prefix=".exporting-", dir=run) as folder:
        title = write_export(Path(folder), source, repo_id, **options)
        api.create_repo(repo_id, private=not public, exist_ok=True)
        if not public and not api.model_info(repo_id).private:
            raise ConfigError(
                f"{repo_id} is public, and everyone would see the export. Give --public if that is wanted, else "
                "another repository or make this one private."
            )
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=title, delete_patterns=list(OURS))
    return f"{api.endpoint}/{repo_id}"


def write_export(
    folder: Path,
    source: CheckpointSource,
    repository: str | None,
    *,
    merge_lora: bool = False,
    without_evaluation: bool = False,
    base_model: str | None = None,
    licence: str | None = None,
) -> str:
    """Write the model files, `querylect.json` and card to `folder`; return a title of the export.

    `merge_lora` writes whole weights instead of an adapter. `without_evaluation` allows a checkpoint that was not
    evaluated. `base_model` is the Hub id of a base model that is loaded from a folder, `licence` that of one that does
    not state it.
    """
    base = base_of(source.config.policy.model, base_model, licence)
    results = find_results(source, required=not without_evaluation)
    adapter = (source.checkpoint / "adapter_config.json").is_file() and not merge_lora
    if adapter:
        refuse_lone_adapter(base, source.checkpoint)
    from ..rollouts.engines.transformers import TransformersEngine
    from ..rollouts.policy import load_policy

    policy, rollout = source.config.policy, source.config.rollout
    dtypes = {measured.provenance["dtype"] for measured in results.values()}
    if len(dtypes) == 1 and (dtype := dtypes.pop()):
        policy = policy.model_copy(update={"dtype": dtype})  # in which it was evaluated
    model, tokenizer = load_policy(policy, source.checkpoint)
    engine = TransformersEngine(model, tokenizer, rollout.micro_batch, rollout.longest_sequence)
    dtype = str(model.dtype).removeprefix("torch.")
    exported = _describe(source, base, engine, dtype, results, folder, adapter)
    if adapter:
        _write_adapter(folder, source.checkpoint, base)
    else:
        _write_merged(folder, model)
    _write_tokenizer(folder, tokenizer, sorted(engine.stop_ids), rollout.max_new_tokens)
    (folder / FILE).write_text(exported.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(model_card(exported, results, base, repository), encoding="utf-8")
    after = f", after {source.step} steps" if source.step is not None else ""
    return f"Export {source.checkpoint.name} of the run {source.config.name}{after}"


def refuse_lone_adapter(base: BaseModelSource, checkpoint: Path) -> None:
    """Raise ConfigError if the base weights of the adapter in `checkpoint` are not publicly available."""
    if base.dequantised or base.hub_id is None:
        reason = "was read from a quantised GGUF file" if base.dequantised else "lies only on this machine"
        remedy = "" if base.dequantised else ", or say with --base-model under which Hub id the same weights are found"
        raise ConfigError(
            f"{checkpoint} is an adapter, and its base {base.name} {reason}, so others do not have its weights. Give "
            f"--merge-lora to export whole weights{remedy}."
        )


def _write_merged(folder: Path, model: "PreTrainedModel") -> None:
    """Write the weights of a policy, with its adapter merged in: exactly those, in the same dtype, that `querylect
    eval` samples from."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig()  # the base model's may enable sampling
    model.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", weights)  # safetensors makes its files readable to the owner only


def _write_adapter(folder: Path, checkpoint: Path, base: BaseModelSource) -> None:
    """Copy the adapter, with its base model set to the Hub id."""
    shutil.copyfile(checkpoint / "adapter_model.safetensors", folder / "adapter_model.safetensors")
    values = parse_json((checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
    values["base_model_name_or_path"] = base.hub_id
    text = json.dumps(values, ensure_ascii=False, indent=2, sort_keys=True)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def _write_tokenizer(folder: Path, tokenizer: "Tokenizer", stop_ids: list[int], max_new_tokens: int) -> None:
    """Also the configuration of greedy decoding with the token limit and stop tokens of turn 1 in evaluation."""
    from transformers import GenerationConfig

    tokenizer.save_pretrained(folder)
    GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=stop_ids[0] if len(stop_ids) == 1 else stop_ids,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    ).save_pretrained(folder)


def _describe(
    source: CheckpointSource,
    base: BaseModelSource,
    engine: Engine,
    dtype: str,
    results: Mapping[str, EvalResults],
    folder: Path,
    adapter: bool,
) -> Exported:
    """All of `querylect.json`; the prompt files that it names are copied into `folder`."""
    config, chats = with_prompt(source.config, source.checkpoint), {}
    for name, settings in environments(config).items():
        retriever = RetrieverInfo.from_service(source.searched[name].retriever)
        chats[name] = _chat(settings, retriever, engine, example_question(source.run, name))
    values = published(config, base, folder, optimized_prompt(source.checkpoint) is not None)
    values["policy"]["dtype"] = dtype
    return Exported(
        querylect=__version__,
        base_model=base.name,
        lora=adapter,
        config=values,
        environment=_without_folders(json_object(source.run / "environment.json") or {}),
        turn=source.used.turn,
        turn_reason=source.used.reason,
        chats=chats,
        results={name: to_jsonable_python(results.get(name)) for name in chats},
        license=base.licence["license"],
        run=ExportedRun(
            name=config.name,
            checkpoint=source.checkpoint.name,
            step=source.step,
            checkpoint_hash=source.checkpoint_hash,
            base_fingerprint=base_fingerprint(source.run),
        ),
    )


def published(config: RunConfig, base: BaseModelSource, folder: Path, optimized: bool = False) -> dict[str, Any]:
    """The settings of a run, without those specific to its machine (folders, addresses, engines); with those of the
    optimisation of a prompt. Prompt files are copied into `folder`."""
    sections = {"name", "seed", "policy", "rollout", "reward", "train"}
    machine = {"rollout": OF_MACHINE, "reward": _READER}
    values = config.model_dump(mode="json", include=sections, exclude=machine)  # type: ignore[arg-type]
    values["policy"]["model"] = base.name
    values["rewriter"] = _published_rewriter(config.rewriter, "", folder)
    if config.reward.kind == "metric":
        del values["reward"]["answer"]
    else:
        values["reward"]["answer"]["reader"]["model"] = portable(config.reward.answer.reader.model)
    if config.mix is not None:
        members = config.mix.environments.items()
        values["mix"] = {
            "environments": {
                name: {"weight": member.weight, "rewriter": _published_rewriter(member.rewriter, name, folder)}
                for name, member in members
            }
        }
    if optimized:
        values["optimize"] = config.optimize.model_dump(mode="json", include={"searches"})
    return values


def _published_rewriter(rewriter: RewriterConfig, name: str, folder: Path) -> dict[str, Any]:
    """The rewriter's settings, changed to refer only to models and to files inside the export."""
    changes: dict[str, object] = {}
    if rewriter.name == "few_shot":
        changes["prompt"] = f"prompt-{name}.yaml" if name else "prompt.yaml"
        shutil.copyfile(prompt_path(rewriter.prompt), folder / str(changes["prompt"]))
    if (llm := rewriter.llm) is not None:
        changes["llm"] = LlmConfig(**llm.model_dump(include=set(LLM)) | {"model": portable(llm.model)})
    return rewriter.model_copy(update=changes).model_dump(mode="json")


def _without_folders(values: Mapping[str, Any]) -> dict[str, Any]:
    """A description of environments, with local model paths reduced to their last component."""
    cleaned: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            value = _without_folders(value)
        elif key in ("model", "query_model") and isinstance(value, str):
            value = portable(value)
        cleaned[key] = value
    return cleaned


def _chat(settings: RunConfig, retriever: RetrieverInfo, engine: Engine, example: Question) -> ExportedChat:
    rewriter = make_rewriter(settings.rewriter, retriever, settings.search_depth)
    conversation = PolicyConversation(engine, rewriter, settings.rollout)
    question = conversation.with_cut_history(example)
    stage, answer = rewriter.first_stage(question), None
    if stage is not None:
        question = StagedQuestion.of(question, stage.placeholder)
    else:
        ((_, node),) = conversation.generate([conversation.begin(question)], 1, 1, greedy=True)
        answer = node.text
    is_template = stage is None and not question.history
    return ExportedChat(
        question=question.text,
        history=records_of(question.history),
        messages=_plain(rewriter.first(question)),
        template=_plain(rewriter.first(Question("", "{question}"))) if is_template else None,
        opening=rewriter.opening,
        stop_ids=sorted(conversation.chat.stop_ids),
        answer=answer,
    )


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message["role"], "content": message["content"]} for message in messages]
