"""From settings to a frozen language model, behind an endpoint or in this process."""

from ..configs.llm import LlmConfig, WordedLlmConfig
from ..llms.access import Llm
from ..llms.base import Backend
from ..llms.cache import ReplyCache, cache_file
from ..llms.wording import MODEL_STAGES, read_wordings


def open_llm(config: LlmConfig) -> Llm:
    """The model of `config`, behind its cache. A local model is loaded when it is first asked something new.

    Raises ModelError for a local model that does not exist, ConfigError for an unusable URL or prompts, StorageError
    for an unusable cache.
    """
    path = config.prompts if isinstance(config, WordedLlmConfig) else None
    wordings = read_wordings(MODEL_STAGES, path, "the setting `prompts` of a model") if path is not None else {}
    backend: Backend
    if config.base_url is None:
        from .local_model import LocalModel

        backend = LocalModel(config)
    else:
        from ..llms.endpoint import Endpoint

        backend = Endpoint(config)
    file = cache_file(config.cache)
    response_format = config.response_format if config.base_url is not None else "never"
    return Llm(backend, ReplyCache(file) if file is not None else None, response_format, wordings)
