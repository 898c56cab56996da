"""Mistakes in the spec of an evaluation that can be seen before PyTorch is imported."""

from ..configs.evaluation import SpecConfig
from ..envs.recipes import recipe_of
from ..errors import IndexFolderError
from ..rewriters.registry import refuse_unknown


def check_spec(spec: SpecConfig) -> None:
    """Refuse unknown names of rewriters and retrievers; whatever else is missing fails its own cells.

    Raises ConfigError.
    """
    for environment in spec.environments.values():
        if environment.client.urls == "local" and not environment.urls:
            recipe_of(environment.env)
    systems = [spec.rewriter, *(system.rewriter for system in spec.systems.values())]
    for rewriter in filter(None, systems):
        refuse_unknown(rewriter.name)
