"""Transfer matrix: how a policy trained with one retriever performs with the others (Yuan et al., RQ1.2).

Rows are the trained systems of a spec, each with its training environment; columns are the evaluated environments. A
cell holds the first metric at the system's last turn and its gain over the raw question.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ..configs.environment import EnvironmentConfig
from ..configs.evaluation import RAW, SpecConfig
from ..rewriters.card import RetrieverCard
from .pages.figures import SERIES, Drawing, Square, heat_map
from .systems import RewritingSystem
from .table import Arm, Table, decimal, signed

_COLOURS = "--ink: #1b2130; --line: #dfe2ea; --series-1: #2456c7; --series-2: #b34a0f; --sans: system-ui, sans-serif"
"""Colours of a standalone drawing; on a page, the page's style sheet sets them."""
_RETRIEVER_FIELDS = {"retriever", "model", "recipe", "rerank", "hybrid", "question_index", "engine"}
_DARKEST = 0.75
"""Opacity of the cell with the largest gain or loss."""


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


def trained_in(system: RewritingSystem, spec: SpecConfig, cards: Mapping[str, RetrieverCard]) -> str:
    """Names of the environments that the run was trained in, joined by `+`; "" if it is untrained.

    Names are those of the spec, or the retriever's name if the spec lacks the environment. A local environment is
    matched by its retriever settings, a service by the name on its card (`cards`, by environment).
    """
    names: dict[str, str] = {}
    for name, environment in spec.environments.items():
        if environment.client.urls == "local" and not environment.urls:
            names.setdefault(_signature(environment.env), name)
        elif name in cards:
            names.setdefault(cards[name].name, name)
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


def draw_transfer(matrix: Transfer, name: str = "transfer") -> Drawing:
    """The matrix as a heat map: blue for a gain over the raw question, orange for a loss."""
    gains = [gain for policy in matrix.policies for gain in policy.gains.values() if gain is not None]
    largest = max(map(abs, gains), default=0.0) or 1.0
    title = f"Transfer: {matrix.title}"
    caption = (
        f"Mean {matrix.metric} of each policy (row, with the environment that it was trained in) in each environment "
        "(column), and its difference from the raw question there. Framed: the environment of its training."
    )

    def square(policy: Policy, environment: str) -> Square:
        value, gain = policy.values[environment], policy.gains[environment]
        text = decimal(value) + (f"\n{signed(gain)}" if gain is not None else "")
        shade, colour = _DARKEST * abs(gain or 0.0) / largest, SERIES[0] if (gain or 0.0) >= 0 else SERIES[1]
        return Square(text, shade, colour, framed=policy.at_home(environment))

    squares = [[square(policy, environment) for environment in matrix.environments] for policy in matrix.policies]
    rows = [f"{policy.system}\n({policy.trained_in})" for policy in matrix.policies]
    return Drawing(title, caption, [heat_map(rows, matrix.environments, squares, name, f"{title}. {caption}")])


def standalone_svg(drawing: Drawing) -> str:
    """The drawing as a file of its own."""
    opening, body = drawing.svgs[0].split(">", 1)
    return f"{opening}><style>:root {{ {_COLOURS}; }}</style>{body}\n"
