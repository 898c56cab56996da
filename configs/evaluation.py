"""Settings of an evaluation of several systems: environments × datasets × systems, every combination a cell."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ..errors import ConfigError
from ..rewards.metrics import parse_metric
from .environment import DatasetConfig, ServedConfig
from .llm import LlmConfig
from .load import config_file, known_configs, read_yaml, validated, write_yaml
from .methods import TRAINING_FREE, TrainingFreeName
from .schema import EvaluatedConfig, PolicyConfig, RewriterConfig, RolloutConfig, WrittenConfig
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


class SpecEnvironment(ServedConfig):
    """A retriever: local, with one index per dataset, or behind running services.

    `env.index` may contain {dataset}; without it, the index is indexes/DATASET-RETRIEVER, which is built if it is
    missing. `client.urls` serves a single dataset; use `urls` for several.
    """

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
    """Sampling temperature, with `samples`."""
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
        return self

    @property
    def sampled(self) -> bool:
        """Whether the temperature is used."""
        return self.samples is not None

    def takes_part(self, dataset: str, environment: str) -> bool:
        """Whether it is evaluated on a dataset in an environment."""
        return (self.datasets is None or dataset in self.datasets) and (
            self.environments is None or environment in self.environments
        )


class SpecConfig(WrittenConfig, EvaluatedConfig):
    """An evaluation: environments × datasets × systems. The training-free baselines are added to `systems`.

    `policy`, `rewriter` and `rollout` are those of systems without their own; without max_new_tokens, hyde, query2doc,
    chr, hcqr, multi_query and misknow have 512.
    """

    name: Name = "evaluation"
    """Name of the evaluation; results are written to `output/name`."""
    output: str = "evaluations"
    """Parent folder of the results."""
    depth: Annotated[int, Field(ge=1, le=1000)] = 10
    """Documents per ranking; use 100 or 1000 for TREC runs."""
    metrics: Annotated[list[str], Field(min_length=1, max_length=32)] = ["ndcg@10", "recall@10", "mrr@10"]
    """Metrics: ndcg@k, recall@k, mrr@k, map@k, p@k, setp@k, f1@k to f9@k, success@k, judged@k, mrr, map and
    r-precision; the first one is used in the significance tests."""
    baselines: Annotated[list[str], Field(min_length=1, max_length=2)] = [RAW]
    """Systems that all others are tested against, at their last turn: † marks the first, ‡ the second."""
    parts: list[str] = []
    """Datasets whose question ids start with a part name (`covidqa/17`), such as RAGBench: results are reported per
    part and averaged."""
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


_FOLDER = Path(__file__).parent / "specs"
_SPEC_KEYS = ("datasets", "environments", "systems")
"""Keys that a spec has and a run has not."""


def known_specs() -> list[str]:
    """Names of the specs that come with the package, sorted."""
    return known_configs(_FOLDER)


def is_spec(name: str) -> bool:
    """Whether `name` is a packaged spec, or a YAML file that describes a spec and not a run."""
    path = Path(name).expanduser()
    if not path.is_file():
        return name in known_specs()
    return any(key in read_yaml(path) for key in _SPEC_KEYS)


def load_spec(name: str, overrides: Sequence[str] = ()) -> SpecConfig:
    """Read and validate a spec, with overrides `dotted.key=VALUE`. Raises ConfigError."""
    path = config_file(name, _FOLDER)
    return validated(SpecConfig, read_yaml(path), str(path), overrides)


def dump_spec(spec: SpecConfig) -> str:
    """The spec with every setting as YAML; `load_spec` reads it back to an equal one.

    Left out are index folders that the spec does not name, since they follow from the dataset, and the systems that
    `training_free` adds."""
    values = spec.model_dump(mode="json")
    for baseline in spec.training_free:
        if spec.systems[baseline] == SystemConfig(training_free=baseline):
            del values["systems"][baseline]
    for name, environment in spec.environments.items():
        env = values["environments"][name]["env"]
        del env["dataset"]
        if "index" not in environment.env.model_fields_set:
            del env["index"]
    return write_yaml(values)


def chosen_cells(
    spec: SpecConfig, datasets: Sequence[str] = (), environments: Sequence[str] = (), systems: Sequence[str] = ()
) -> SpecConfig:
    """The spec with these datasets, environments and systems alone; all of them where none is named.

    An environment that is named takes part on every dataset. Raises ConfigError.
    """
    for kind, names, valid in (
        ("dataset", datasets, spec.datasets),
        ("environment", environments, spec.environments),
        ("system", systems, spec.systems),
    ):
        for name in names:
            if name not in valid:
                message = f"the {kind} {name!r} is not in {spec.name}, which has {', '.join(valid)}; name one of them."
                raise ConfigError(message)

    def among(names: list[str] | None, chosen: Iterable[str]) -> list[str] | None:
        return None if names is None else [name for name in names if name in chosen]

    sources = {name: source for name, source in spec.datasets.items() if not datasets or name in datasets}
    searched = {}
    for name, environment in spec.environments.items():
        chosen = None if name in environments else among(environment.datasets, sources)
        if chosen != [] and (not environments or name in environments):
            urls = {dataset: urls for dataset, urls in environment.urls.items() if dataset in sources}
            searched[name] = environment.model_copy(update={"datasets": chosen, "urls": urls})
    remaining = {}
    for name, system in spec.systems.items():
        limits = {"datasets": among(system.datasets, sources), "environments": among(system.environments, searched)}
        if (not systems or name in systems) and [] not in limits.values():
            remaining[name] = system.model_copy(update=limits)
    if nowhere := [name for name in systems if name not in remaining]:
        message = f"the system {nowhere[0]!r} of {spec.name} is evaluated on none of the chosen datasets."
        raise ConfigError(f"{message} Choose some of its own environments and datasets, or leave it out.")
    return spec.model_copy(
        update={
            "datasets": sources,
            "environments": searched,
            "systems": remaining,
            "training_free": [name for name in spec.training_free if name in remaining],
            "baselines": [name for name in spec.baselines if name == RAW or name in remaining] or [RAW],
            "parts": among(spec.parts, sources),
        }
    )


def prompted_by(spec: SpecConfig, model: str | None, base_url: str | None) -> SpecConfig:
    """The spec with this model, at an endpoint or in this process, for every system that names no model itself."""
    if model is None:
        if base_url is not None:
            message = f"--endpoint {base_url} serves models by name; name one with --reader."
            raise ConfigError(message)
        return spec
    llm = LlmConfig(model=model, base_url=base_url)
    systems = {
        name: system
        if system.run or system.policy or system.llm or system.training_free
        else system.model_copy(update={"llm": llm})
        for name, system in spec.systems.items()
    }
    return spec.model_copy(update={"systems": systems})
