"""Exports a run to a self-contained folder or to a repository of the Hugging Face Hub."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..rollouts.chat import Tokenizer
from ..storage import atomic_folder, parse_json
from .card import model_card
from .describe import describe
from .exported import FILE
from .results import find_results
from .source import BaseModelSource, base_of, open_source, refuse_no_run

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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


def export_to_folder(run: Path, target: Path, *, overwrite: bool = False, **options: Any) -> str:
    """Write the export to `target`, whole or not at all, and return its path. `options` are those of `write_export`.

    Raises ConfigError if `target` exists or `run` is no run folder, CheckpointError as `find_results`, ModelError and
    CheckpointError as `load_policy`.
    """
    refuse_no_run(run)
    resolved, folder_of_run = target.resolve(), run.resolve()
    if folder_of_run.is_relative_to(resolved) or (target.exists() and resolved.is_relative_to(folder_of_run)):
        raise ConfigError(f"--to {target} would replace the run {run}, or a part of it. Choose another folder.")
    if not overwrite and target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target} exists. Choose another --to, or replace it with --overwrite.")
    with atomic_folder(resolved) as folder:
        write_export(folder, run, None, **options)
    return str(target)


def export_to_hub(run: Path, repo_id: str, *, public: bool = False, endpoint: str | None = None, **options: Any) -> str:
    """Upload the export in one commit, to a private repository by default, and return its address.

    Files whose content is on the Hub already are not sent again, so repeating an interrupted upload continues it.
    huggingface_hub finds the token itself, and its errors are raised as they are. Also raises as `export_to_folder`,
    and ConfigError for a public repository without `public`.
    """
    from huggingface_hub import HfApi

    refuse_no_run(run)
    if repo_id.count("/") != 1:
        raise ConfigError(f"hub:{repo_id} is no repository. Write hub:OWNER/NAME.")
    api = HfApi(endpoint=endpoint)
    with TemporaryDirectory(prefix=".exporting-", dir=run) as folder:
        title = write_export(Path(folder), run, repo_id, **options)
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
    run: Path,
    repository: str | None,
    *,
    merge_lora: bool = False,
    without_evaluation: bool = False,
    checkpoint: str | None = None,
    base_model: str | None = None,
    licence: str | None = None,
    example: str | None = None,
    trust: bool = False,
) -> str:
    """Write the model files, `querylect.json` and card to `folder`; return a title of the export.

    `merge_lora` writes whole weights instead of an adapter. `without_evaluation` allows a checkpoint that was not
    evaluated. `base_model` is the Hub id of a base model that is loaded from a folder, `licence` that of one that does
    not state it. `example` is the question of the card, by default one of the run. `trust` uses code that the run of
    another user names.
    """
    source = open_source(run, checkpoint, trust)
    base = base_of(source.config.policy.model, base_model, licence)
    results = find_results(source, required=not without_evaluation)
    adapter = source.is_adapter and not merge_lora
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
    exported = describe(source, base, engine, dtype, results, folder, adapter=adapter, example=example)
    rank = None
    if adapter:
        rank = write_adapter(folder, source.checkpoint, base)
    else:
        write_merged(folder, model)
    write_tokenizer(folder, tokenizer, sorted(engine.stop_ids), rollout.max_new_tokens)
    (folder / FILE).write_text(exported.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(model_card(exported, results, base, repository, rank), encoding="utf-8")
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


def write_merged(folder: Path, model: "PreTrainedModel") -> None:
    """Write the weights of a policy, with its adapter merged in: exactly those, in the same dtype, that `querylect
    eval` samples from."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig()  # the base model's may enable sampling
    model.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", weights)  # safetensors makes its files readable to the owner only


def write_adapter(folder: Path, checkpoint: Path, base: BaseModelSource) -> int:
    """Copy the adapter, with its base model set to the Hub id; returns its rank."""
    shutil.copyfile(checkpoint / "adapter_model.safetensors", folder / "adapter_model.safetensors")
    values = parse_json((checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
    values["base_model_name_or_path"] = base.hub_id
    text = json.dumps(values, ensure_ascii=False, indent=2, sort_keys=True)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
    return int(max([values["r"], *(values.get("rank_pattern") or {}).values()]))


def write_tokenizer(folder: Path, tokenizer: Tokenizer, stop_ids: list[int], max_new_tokens: int) -> None:
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
