"""Transfer matrix: how a policy trained with one retriever performs with the others (Yuan et al., RQ1.2).

Rows are the trained systems of a spec, each with its training environment; columns are the evaluated environments. A
cell holds the first metric at the system's last turn and its gain over the raw question.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ..configs.environment import EnvironmentConfig
from ..configs.evaluation import RAW, SpecConfig
from ..rewriters.retriever_info import RetrieverInfo
from .systems import RewritingSystem
from .table import Arm, Table

_RETRIEVER_FIELDS = {"retriever", "model", "recipe", "rerank", "hybrid", "question_index", "engine"}


@dataclass(frozen=True, slots=True)
class Policy:
    """One row."""

    system: str
    trained_in: str
    """Names of its training environments, joined by `+`."""
    values: dict[str, float | None]
    """By environment."""
    gains: dict[str, float | None]
    """Gains over the raw question in the same environment, by environment."""

    def at_home(self, environment: str) -> bool:
        """Whether it was trained in that environment."""
        return environment in self.trained_in.split("+")


@dataclass(frozen=True, slots=True)
class Transfer:
    """The matrix of one table."""

    title: str
    metric: str
    environments: list[str]
    policies: list[Policy]


def trained_in(system: RewritingSystem, spec: SpecConfig, retrievers: Mapping[str, RetrieverInfo]) -> str:
    """Names of the environments that the run was trained in, joined by `+`; "" if it is untrained.

    Names are those of the spec, or the retriever's name if the spec lacks the environment. A local environment is
    matched by its retriever settings, a service by the name of its retriever (`retrievers`, by environment).
    """
    names: dict[str, str] = {}
    for name, environment in spec.environments.items():
        if environment.client.urls == "local" and not environment.urls:
            names.setdefault(_signature(environment.env), name)
        elif name in retrievers:
            names.setdefault(retrievers[name].name, name)
    environments = [member.env for member in system.training_environments]
    return "+".join(
        dict.fromkeys(names.get(_signature(env), names.get(env.retriever, env.retriever)) for env in environments)
    )


def _signature(env: EnvironmentConfig) -> str:
    return json.dumps(env.model_dump(mode="json", include=_RETRIEVER_FIELDS), sort_keys=True)


def transfer(table: Table, metric: str, trained_in: Mapping[str, str]) -> Transfer | None:
    """The transfer matrix of a table; None unless its systems were trained in at least two different environments.

    `trained_in` maps trained systems to their training environments.
    """
    if len(set(trained_in.values())) < 2:
        return None
    policies = []
    for system, trained_environment in trained_in.items():
        if (last := table.last(system)) is not None:
            values = {name: table.mean(last, name, metric) for name in table.environments}
            gains = {name: table.gain(last, Arm(RAW, 0), name, metric) for name in table.environments}
            policies.append(Policy(system, trained_environment, values, gains))
    if len({policy.trained_in for policy in policies}) < 2:
        return None
    return Transfer(table.title, metric, list(table.environments), policies)
