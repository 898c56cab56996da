"""Settings of an evaluation of several systems: environments × datasets × systems, every combination a cell."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..errors import ConfigError
from ..rewards.metrics import parse_metric
from .environment import ClientConfig, DatasetConfig, EnvironmentConfig
from .llm import LlmConfig
from .methods import TRAINING_FREE, TrainingFreeName
from .schema import PolicyConfig, RewriterConfig, RolloutConfig
from .section import Name, Section

RAW = "raw"
"""The system that searches every question unchanged; it is part of every evaluation."""

HISTORY = "history+question"
"""The system that searches the texts of a question's history and the question, joined."""
REFERENCE = "reference+rewrite"
"""The system that searches the rewrites that a dataset has for its own questions."""
UNWRITTEN = (RAW, HISTORY, REFERENCE)
"""Systems that search a text of a question for which nothing is generated; the latter two only for conversations."""

BEST_FREE = "best_training_free"
"""Of the training-free baselines the one that is best on validation questions; a row of every table that has one."""


LONG_WRITERS = ("hyde", "query2doc", "chr", "hcqr", "multi_query", "misknow")
LONG_TOKENS = 512
"""rollout.max_new_tokens of systems with one of these rewriters, as `max_tokens` of the same methods: a passage has
several sentences, an answer several queries, and chat models write remarks around them."""


class SpecEnvironment(Section):
    """A retriever: local, with one index per dataset, or behind running services."""

    env: EnvironmentConfig = EnvironmentConfig()
    """The retriever. `env.index` may contain {dataset}; without it, the index is indexes/DATASET-RETRIEVER,
    which is built if it is missing."""
    client: ClientConfig = ClientConfig()
    """How to connect. `client.urls` serves a single dataset; use `urls` for several."""
    urls: dict[str, list[str]] = {}
    """URLs of the services by dataset, instead of local search."""
    datasets: list[str] | None = None
    """Datasets of this environment; None: all."""

    @model_validator(mode="after")
    def _check_dataset(self) -> "SpecEnvironment":
        if "dataset" in self.env.model_fields_set:
            raise ValueError("the dataset stands in `datasets` of the spec, by name; remove it from env")
        return self


class SystemConfig(Section):
    """What rewrites the questions: a policy, prompted or trained (`run`), a frozen model (`llm`), or no model."""

    run: str | None = None
    """Run folder; supplies the policy, rewriter and rollout that the system does not set."""
    checkpoint: str | None = None
    """`best`, `final` or `checkpoint-N` of the run; `warm_start`: its policy before GRPO; `untrained`: its base model.
    None: `best`, else `final`, else the checkpoint with the highest step."""
    policy: PolicyConfig | None = None
    """The model; None: the `policy` of the evaluation, unless `run` is set."""
    llm: LlmConfig | None = None
    """A prompted (frozen) model instead of a policy: at an OpenAI-compatible endpoint, or local."""
    rewriter: RewriterConfig | None = None
    rollout: RolloutConfig | None = None
    """Token budgets, documents shown, engine. Its branching, temperature and top_p are not used."""
    turns: Annotated[int, Field(ge=1)] = 1
    """Number of turns; each turn is a row of the tables."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Answers sampled per question, whose scores are averaged; None: one greedy answer."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature, with `samples` or several `passages`."""
    passages: Annotated[int, Field(ge=1)] = 1
    """hyde with `llm`: passages sampled per answer and searched together."""
    training_free: TrainingFreeName | None = None
    """A training-free baseline, instead of a model."""
    environments: list[str] | None = None
    """Evaluate only in these environments; None: all."""
    datasets: list[str] | None = None
    """Evaluate only on these datasets; None: all."""

    @model_validator(mode="after")
    def _check_model(self) -> "SystemConfig":
        sources = [name for name in ("run", "policy", "llm", "training_free") if getattr(self, name) is not None]
        if len(sources) > 1:
            raise ValueError(f"{' and '.join(sources)} exclude each other: each says what writes the queries; name one")
        if self.checkpoint is not None and self.run is None:
            raise ValueError(f"checkpoint is {self.checkpoint!r} and run is missing; name the run folder too")
        if self.passages > 1 and (self.llm is None or self.turns > 1):
            raise ValueError(
                f"passages is {self.passages}: that takes an llm, and one turn (a second turn answers one text)"
            )
        return self

    @property
    def sampled(self) -> bool:
        """Whether the temperature is used."""
        return self.samples is not None or self.passages > 1

    def takes_part(self, dataset: str, environment: str) -> bool:
        """Whether it is evaluated on a dataset in an environment."""
        return (self.datasets is None or dataset in self.datasets) and (
            self.environments is None or environment in self.environments
        )


class SpecConfig(Section):
    """An evaluation: environments × datasets × systems."""

    name: Name = "evaluation"
    """Name of the evaluation; results are written to `output/name`."""
    output: str = "evaluations"
    """Parent folder of the results."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Random seed of sampled answers, of the choice of baselines' weights, and of the tests."""
    split: Literal["validation", "test"] = "test"
    """Split whose questions are evaluated."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Size of a random sample per dataset, or per part of one, which a smaller sample is a subset of; None: all."""
    depth: Annotated[int, Field(ge=1, le=1000)] = 10
    """Documents per ranking; use 100 or 1000 for TREC runs."""
    metrics: Annotated[list[str], Field(min_length=1, max_length=32)] = ["ndcg@10", "recall@10", "mrr@10"]
    """Metrics: ndcg@k, recall@k, mrr@k, map@k, p@k, success@k, judged@k, mrr, map and r-precision; the first one is
    used in the significance tests."""
    permutations: Annotated[int, Field(ge=1)] = 10_000
    """Permutations of the paired permutation test."""
    bootstrap: Annotated[int, Field(ge=1)] = 10_000
    """Bootstrap samples of the confidence intervals."""
    baselines: Annotated[list[str], Field(min_length=1, max_length=2)] = [RAW]
    """Systems that all others are tested against, at their last turn: † marks the first, ‡ the second."""
    training_free: list[TrainingFreeName] = list(TRAINING_FREE)
    """Training-free baselines that are added to `systems`; []: none."""
    run_baselines: list[Literal["untrained", "hyde", "warm_start"]] = ["untrained", "hyde", "warm_start"]
    """Rows that are added to `systems` for every trained run NAME: NAME-untrained, its policy before training;
    NAME-hyde, HyDE by that policy with as many tokens; NAME-warm-start, its policy before GRPO, if it had a warm start.
    Runs whose rows would be equal share them. []: none."""
    parts: list[str] = []
    """Datasets whose question ids start with a part name (`covidqa/17`), such as RAGBench: results are reported per
    part and averaged."""
    policy: PolicyConfig = PolicyConfig()
    """Default policy of systems without one."""
    rewriter: RewriterConfig = RewriterConfig()
    """Default rewriter of systems without one."""
    rollout: RolloutConfig = RolloutConfig()
    """Default rollout settings of systems without any. Without max_new_tokens, hyde, query2doc, chr,
    hcqr, multi_query and misknow have 512."""
    datasets: Annotated[dict[Name, DatasetConfig | None], Field(min_length=1)]
    """Datasets by name; null for one that is available only from services."""
    environments: Annotated[dict[Name, SpecEnvironment], Field(min_length=1)]
    systems: dict[Name, SystemConfig] = {}
    """Systems by name; the raw question is always included."""

    @model_validator(mode="before")
    @classmethod
    def _fill_systems(cls, values: object) -> object:
        """The systems of `training_free` come first, unless the spec itself has one of that name; LONG_WRITERS have
        LONG_TOKENS, where neither they nor the spec set max_new_tokens."""
        if not isinstance(values, dict) or not isinstance(values.get("systems") or {}, dict):
            return values
        systems = dict(values.get("systems") or {})
        names = values.get("training_free", list(TRAINING_FREE))
        if isinstance(names, list) and all(name in TRAINING_FREE for name in names):
            systems = {name: {"training_free": name} for name in names if name not in systems} | systems
        for name, system in systems.items():
            if not isinstance(system, dict) or system.get("run") or system.get("training_free"):
                continue
            rewriter, rollout = (system.get(key) or values.get(key) or {} for key in ("rewriter", "rollout"))
            if not isinstance(rewriter, dict) or not isinstance(rollout, dict) or "max_new_tokens" in rollout:
                continue
            if rewriter.get("name") in LONG_WRITERS:
                systems[name] = {**system, "rollout": {**rollout, "max_new_tokens": LONG_TOKENS}}
        return {**values, "systems": systems}

    @model_validator(mode="after")
    def _check_references(self) -> "SpecConfig":
        if taken := {RAW, BEST_FREE} & {*self.datasets, *self.environments, *self.systems}:
            raise ValueError(f"the name {taken.pop()!r} is that of a row of every table; choose another")
        for path, names, valid in self._references():
            unknown = [name for name in names if name not in valid]
            if unknown:
                raise ValueError(f"{path} names {unknown[0]!r}; the spec has {', '.join(valid)}")
        try:
            deepest = max(parse_metric(name)[1] or 1 for name in self.metrics)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if deepest > self.depth:
            raise ValueError(f"metrics look {deepest} documents deep and depth is {self.depth}; raise depth")
        for name, environment in self.environments.items():
            datasets = environment.datasets or list(self.datasets)
            if environment.client.urls != "local" and len(datasets) > 1:
                raise ValueError(
                    f"environments.{name}.client.urls serves one dataset and the spec has {len(datasets)}; give "
                    f"environments.{name}.urls by dataset, or environments.{name}.datasets with one"
                )
        return self

    @property
    def free_systems(self) -> list[str]:
        """The systems without a model: training-free baselines."""
        return [name for name, system in self.systems.items() if system.training_free is not None]

    def _references(self) -> Iterable[tuple[str, Iterable[str], Iterable[str]]]:
        """Settings of the spec that name other parts of it, as (path, names used, names defined)."""
        for name, environment in self.environments.items():
            yield f"environments.{name}.datasets", environment.datasets or (), self.datasets
            yield f"environments.{name}.urls", environment.urls, self.datasets
        for name, system in self.systems.items():
            yield f"systems.{name}.datasets", system.datasets or (), self.datasets
            yield f"systems.{name}.environments", system.environments or (), self.environments
        yield "parts", self.parts, self.datasets
        yield "baselines", self.baselines, [RAW, *self.systems, HISTORY, REFERENCE]
