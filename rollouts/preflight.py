"""Mistakes in the settings of a run or an evaluation that can be seen before PyTorch is imported."""

from ..configs.evaluation import SpecConfig
from ..configs.mix import chosen
from ..configs.schema import RunConfig
from ..envs.client.connect import known_services
from ..envs.recipes import recipe_of
from ..errors import IndexFolderError
from ..rewriters.registry import refuse_unknown
from ..rewriters.small import load_prompt
from ..sources import resolve_model


def check_run(config: RunConfig, env: str | None = None) -> None:
    """Refuse names that lead nowhere: of the rewriter, its prompt and the policy, and of what a local service opens.

    `env` names one environment of a mix. Raises ConfigError, ModelError and IndexFolderError.
    """
    for member in chosen(config, env).values():
        refuse_unknown(member.rewriter.name)
        if member.rewriter.name == "small":
            load_prompt(member.rewriter.prompt)
        if known_services(member.env, member.client) is None:
            recipe_of(member.env)
            if not member.env.has_index:
                raise IndexFolderError(f"there is no index at {member.env.index}. Build it: querylect index build.")
    resolve_model(config.policy.model)


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
