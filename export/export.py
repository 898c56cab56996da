"""Exports a run to a self-contained folder or to a repository of the Hugging Face Hub."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import ConfigError
from ..storage import atomic_folder, parse_json
from .card import model_card
from .describe import describe
from .exported import FILE
from .results import find_results
from .source import base_of, open_source
from .weights import refuse_lone_adapter, write_adapter, write_merged, write_tokenizer

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

    Raises ConfigError if `target` exists, CheckpointError as `find_results`, ModelError and CheckpointError as
    `load_policy`.
    """
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

    if repo_id.count("/") != 1:
        raise ConfigError(f"hub:{repo_id} is no repository. Write hub:OWNER/NAME.")
    api = HfApi(endpoint=endpoint)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix=".exporting-", dir=run)))
        title = write_export(folder, run, repo_id, **options)
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
    dtypes = {values["dtype"] for values in results.values()}
    if len(dtypes) == 1 and (dtype := dtypes.pop()):
        policy = policy.model_copy(update={"dtype": dtype})  # in which it was evaluated
    model, tokenizer = load_policy(policy, source.checkpoint)
    engine = TransformersEngine(model, tokenizer, rollout.micro_batch, rollout.longest_sequence)
    dtype = str(model.dtype).removeprefix("torch.")
    exported = describe(source, base, engine, dtype, results, folder, adapter=adapter, example=example)
    if adapter:
        write_adapter(folder, source.checkpoint, base)
    else:
        write_merged(folder, model)
    write_tokenizer(folder, tokenizer, sorted(engine.stop_ids), rollout.max_new_tokens)
    (folder / FILE).write_text(exported.model_dump_json(indent=2) + "\n", encoding="utf-8")
    rank = None
    if adapter:
        values = parse_json((source.checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
        rank = max([int(values["r"]), *(values.get("rank_pattern") or {}).values()])
    (folder / "README.md").write_text(model_card(exported, base, repository, rank), encoding="utf-8")
    after = f", after {source.step} steps" if source.step is not None else ""
    return f"Export {source.checkpoint.name} of the run {source.config.name}{after}"
