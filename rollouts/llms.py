"""From settings to a frozen language model, behind an endpoint or in this process."""

from ..configs.llm import LlmConfig
from ..llms.access import Llm
from ..llms.base import Backend
from ..llms.cache import ReplyCache, cache_file


def open_llm(config: LlmConfig) -> Llm:
    """The model of `config`, behind its cache. A local model is loaded when it is first asked something new.

    Raises ModelError for a local model that does not exist, ConfigError for an unusable URL, StorageError for an
    unusable cache.
    """
    backend: Backend
    if config.base_url is None:
        from .local_model import LocalModel

        backend = LocalModel(config)
    else:
        from ..llms.endpoint import Endpoint

        backend = Endpoint(config)
    file = cache_file(config.cache)
    return Llm(backend, ReplyCache(file) if file is not None else None, schemas=config.base_url is not None)
