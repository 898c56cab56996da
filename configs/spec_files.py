"""The spec of an evaluation from a YAML file; unknown keys are refused as in the settings of a run."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import ConfigError
from .evaluation import RAW, SpecConfig, SystemConfig
from .llm import LlmConfig
from .load import config_file, known_configs, read_yaml, validated
from .yaml12 import write_yaml

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
