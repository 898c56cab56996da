"""Settings of an evaluation of several systems: environments × datasets × systems, every combination a cell."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from .environment import ClientConfig, DatasetConfig, EnvironmentConfig
from .llm import LlmConfig
from .methods import TRAINING_FREE, TrainingFreeName
from .schema import PolicyConfig, RewriterConfig, RolloutConfig
from .section import Section

RAW = "raw"
"""The system that searches every question as it stands; it takes part in every evaluation."""

BEST_FREE = "best_training_free"
"""Of the training-free baselines the one that is best on validation questions; a row of every table that has one."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_METRIC = re.compile(r"(?:ndcg|recall|mrr)@([1-9][0-9]*)|mrr")


class PlanEnvironment(Section):
    """A retriever: searched here, in an index of each dataset, or by services that already run."""

    env: EnvironmentConfig = EnvironmentConfig()
    """The retriever. `env.index` may hold {dataset}; left out, it is INDEXES/DATASET-RETRIEVER."""
    client: ClientConfig = ClientConfig()
    """`client.urls` is for a plan of one dataset; `urls` is for several."""
    urls: dict[str, list[str]] = {}
    """Services by dataset, instead of a search on this machine."""
    datasets: list[str] | None = None
    """Only these datasets; None takes all."""

    @model_validator(mode="after")
    def _dataset_of_the_plan(self) -> "PlanEnvironment":
        if "dataset" in self.env.model_fields_set:
            raise ValueError("the dataset stands in `datasets` of the plan, by name; remove it from env")
        return self


class SystemConfig(Section):
    """What rewrites the questions: a prompted model, a model that is asked (`llm`), the policy of a run, or none."""

    run: str | None = None
    """A run folder; its policy, rewriter and rollout are taken where the system has none of its own."""
    checkpoint: str | None = None
    """`best`, `final` or `checkpoint-N` of the run, the first there is where None; `untrained` is its policy before."""
    policy: PolicyConfig | None = None
    """The model; that of the plan where None and there is no run."""
    llm: LlmConfig | None = None
    """A model that is asked as it stands instead of a policy: an OpenAI-compatible endpoint, or one of this machine."""
    rewriter: RewriterConfig | None = None
    rollout: RolloutConfig | None = None
    """Token budgets, documents shown, engine. Branching, temperature and top_p of it are not used."""
    turns: Annotated[int, Field(ge=1)] = 1
    """Every turn is a row of the tables."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Answers sampled for every question, whose mean counts; None decodes one greedily."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Of samples."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of samples."""
    passages: Annotated[int, Field(ge=1)] = 1
    """hyde over an llm: passages sampled for one answer, which are searched together."""
    training_free: TrainingFreeName | None = None
    """A baseline without a model, instead of all the others."""
    weights: dict[str, float] | None = None
    """Its settings (docs/methods.md); None chooses them on validation questions."""
    environments: list[str] | None = None
    """Only in these environments; None takes all."""
    datasets: list[str] | None = None
    """Only on these datasets; None takes all."""

    @model_validator(mode="after")
    def _checkpoint_of_a_run(self) -> "SystemConfig":
        if self.checkpoint is not None and self.run is None:
            raise ValueError(f"checkpoint is {self.checkpoint!r} and run is missing; name the run folder too")
        if self.run is not None and self.policy is not None:
            raise ValueError("run and policy exclude each other: a run brings its policy; remove one of the two")
        if self.llm is not None and (self.run is not None or self.policy is not None):
            raise ValueError("llm is asked instead of a policy; remove llm, or run and policy")
        return self

    @model_validator(mode="after")
    def _without_a_model(self) -> "SystemConfig":
        if self.training_free is None:
            if self.weights is not None:
                raise ValueError("weights are those of a training_free baseline, and none is named")
            return self
        allowed = {"training_free", "weights", "environments", "datasets"}
        if others := sorted(name for name in self.model_fields_set - allowed if getattr(self, name) is not None):
            others = [name for name in others if getattr(self, name) != type(self).model_fields[name].default]
        if others:
            raise ValueError(f"training_free {self.training_free} has no model; remove {', '.join(others)}")
        TRAINING_FREE[self.training_free].model_validate(self.weights or {})
        return self

    @model_validator(mode="after")
    def _passages_of_an_llm(self) -> "SystemConfig":
        if self.passages > 1 and (self.llm is None or self.turns > 1):
            raise ValueError(
                f"passages is {self.passages}: that takes an llm, and one turn (a second turn answers one text)"
            )
        return self

    @property
    def sampled(self) -> bool:
        """Whether temperature and top_p are used."""
        return self.samples is not None or self.passages > 1


class PlanConfig(Section):
    """A whole evaluation."""

    name: str = "evaluation"
    """The folder of the results is `output/name`."""
    output: str = "evaluations"
    """The folder of folders of results."""
    indexes: str = "indexes"
    """Where index folders stand that are not named; missing ones are built."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of sampled answers, of the questions that `limit` draws, and of the tests."""
    split: Literal["validation", "test"] = "test"
    """Which questions."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """So many questions of every dataset, or of every part of it, drawn with `seed`; None takes all."""
    depth: Annotated[int, Field(ge=1, le=1000)] = 10
    """Documents of every ranking; 100 or 1000 for TREC runs."""
    metrics: Annotated[list[str], Field(min_length=1, max_length=32)] = ["ndcg@10", "recall@10", "mrr@10"]
    """ndcg@k, recall@k, mrr@k or mrr; the first one is tested for significance."""
    batch: Annotated[int, Field(ge=1)] = 64
    """Questions that are answered together, and then written: what a killed evaluation loses at most, twice."""
    permutations: Annotated[int, Field(ge=1)] = 10_000
    """Draws of the paired permutation test."""
    bootstrap: Annotated[int, Field(ge=1)] = 10_000
    """Draws of the confidence intervals."""
    baselines: Annotated[list[str], Field(min_length=1, max_length=2)] = [RAW]
    """Systems that all others are tested against, at their last turn: † for the first, ‡ for the second."""
    training_free: list[TrainingFreeName] = list(TRAINING_FREE)
    """Baselines without a model that are systems of the plan beside those named below; [] leaves them out."""
    tuning_questions: Annotated[int, Field(ge=0)] = 300
    """Validation questions at most that choose the weights of training-free baselines; 0 takes the defaults."""
    parts: list[str] = []
    """Datasets whose question ids begin with a part (`covidqa/17`): figures are given for each part and averaged. Those
    of kind ragbench are such anyway."""
    trec: bool = True
    """Write TREC runs, and qrels of datasets on this machine."""
    policy: PolicyConfig = PolicyConfig()
    """Of systems without one."""
    rewriter: RewriterConfig = RewriterConfig()
    """Of systems without one."""
    rollout: RolloutConfig = RolloutConfig()
    """Of systems without one."""
    datasets: Annotated[dict[str, DatasetConfig | None], Field(min_length=1)]
    """By name; null for one that only services hold."""
    environments: Annotated[dict[str, PlanEnvironment], Field(min_length=1)]
    systems: dict[str, SystemConfig] = {}
    """Besides the raw question."""

    @field_validator("datasets", "environments", "systems")
    @classmethod
    def _names_for_files(cls, members: dict[str, object]) -> dict[str, object]:
        for name in members:
            if not _NAME.fullmatch(name):
                raise ValueError(f"the name {name!r} must be of letters, digits, '.', - and _, for it names files")
        if RAW in members:
            raise ValueError(f"the name {RAW!r} is that of the raw question, which always takes part; choose another")
        if BEST_FREE in members:
            raise ValueError(f"the name {BEST_FREE!r} is that of a row of the tables; choose another")
        return members

    @model_validator(mode="before")
    @classmethod
    def _baselines_without_a_model(cls, values: Any) -> Any:
        """The systems of `training_free` stand before the others, unless the plan itself has one of that name."""
        if not isinstance(values, dict) or not isinstance(values.get("systems") or {}, dict):
            return values
        names = values.get("training_free", list(TRAINING_FREE))
        own = dict(values.get("systems") or {})
        if not isinstance(names, list) or not all(name in TRAINING_FREE for name in names):
            return values
        added = {name: {"training_free": name} for name in names if name not in own}
        return {**values, "systems": {**added, **own}}

    @field_validator("metrics")
    @classmethod
    def _metrics_known(cls, names: list[str]) -> list[str]:
        for name in names:
            if not _METRIC.fullmatch(name):
                raise ValueError(f"metric {name!r} is not known; known are ndcg@k, recall@k, mrr@k and mrr")
        if len(set(names)) != len(names):
            raise ValueError(f"metrics {names} names one of them twice")
        return names

    @model_validator(mode="after")
    def _everything_named(self) -> "PlanConfig":
        for where, names, known in self._mentions():
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ValueError(f"{where} names {unknown[0]!r}; the plan has {', '.join(known)}")
        deepest = max(int(found[1] or 1) for name in self.metrics if (found := _METRIC.fullmatch(name)))
        if deepest > self.depth:
            raise ValueError(f"metrics look {deepest} documents deep and depth is {self.depth}; raise depth")
        for name, environment in self.environments.items():
            asked = environment.datasets or list(self.datasets)
            if environment.client.urls != "local" and len(asked) > 1:
                raise ValueError(
                    f"environments.{name}.client.urls serves one dataset and the plan has {len(asked)}; give "
                    f"environments.{name}.urls by dataset, or environments.{name}.datasets with one"
                )
        return self

    @property
    def free_systems(self) -> list[str]:
        """The systems without a model: training-free baselines."""
        return [name for name, system in self.systems.items() if system.training_free is not None]

    def has_parts(self, dataset: str) -> bool:
        """Whether question ids of a dataset begin with the name of a part."""
        source = self.datasets[dataset]
        return dataset in self.parts or (source is not None and str(source.kind) == "ragbench")

    def _mentions(self) -> Iterable[tuple[str, Iterable[str], Iterable[str]]]:
        """Where the plan speaks of its own parts: the place, what it names, what there is."""
        for name, environment in self.environments.items():
            yield f"environments.{name}.datasets", environment.datasets or (), self.datasets
            yield f"environments.{name}.urls", environment.urls, self.datasets
        for name, system in self.systems.items():
            yield f"systems.{name}.datasets", system.datasets or (), self.datasets
            yield f"systems.{name}.environments", system.environments or (), self.environments
        yield "parts", self.parts, self.datasets
        yield "baselines", self.baselines, [RAW, *self.systems]
