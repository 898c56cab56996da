"""Rows that an evaluation of a spec adds for every run: its policy before training, HyDE by that policy, and its policy
before GRPO, without which a table leaves open what GRPO adds."""

from pathlib import Path

from ..configs.evaluation import SpecConfig, SystemConfig
from ..configs.run_settings import load_run_config
from ..configs.schema import RewriterConfig, RolloutConfig, RunConfig
from ..errors import ConfigError
from ..rollouts.checkpoints import WARM_START_FOLDER, find_warm_start, task_model
from .records import HYDE, UNTRAINED

_WARM_START = "warm-start"


def with_run_baselines(spec: SpecConfig) -> SpecConfig:
    """The spec with the systems NAME-untrained, NAME-hyde and NAME-warm-start before each trained system NAME.

    `run_baselines` says which of them. They are not added where the spec has a system of that name, or one with these
    settings. Runs of one base model, rewriter and rollout share the first two, which are not added where the settings
    of the run cannot be read: its own cell reports that.
    """
    systems: dict[str, SystemConfig] = {}
    configs = {name: _config_of_run(system) for name, system in spec.systems.items()}
    present = [_settings(spec, system, configs[name]) for name, system in spec.systems.items()]
    for name, system in spec.systems.items():
        config = configs[name]
        for kind, baseline in _baselines(spec, system, config).items():
            settings = _settings(spec, baseline, config)
            if f"{name}-{kind}" not in spec.systems and settings not in present:
                systems[f"{name}-{kind}"] = baseline
                present.append(settings)
        systems[name] = system
    return spec.model_copy(update={"systems": systems})


def hyde_rollout(rollout: RolloutConfig, turns: int) -> RolloutConfig:
    """The rollout of HyDE at the cost of so many turns: one passage with the tokens of all of them, limited by what the
    engine accepts."""
    tokens = turns * rollout.max_new_tokens
    return rollout.model_copy(update={"max_new_tokens": tokens})


def is_warm_start(system: SystemConfig) -> bool:
    """Whether a system is the policy of its run before GRPO."""
    return system.checkpoint == WARM_START_FOLDER


def _baselines(spec: SpecConfig, system: SystemConfig, config: RunConfig | None) -> dict[str, SystemConfig]:
    """The baselines of a trained system by kind; `config` is that of its run, if it can be read. Where it writes HyDE,
    untrained is HyDE; a run without a warm start has none before GRPO."""
    if system.run is None or _untrained(system):
        return {}
    kinds: dict[str, SystemConfig] = {}
    if config is not None:
        kinds[UNTRAINED] = system.model_copy(update={"checkpoint": UNTRAINED})
        if (system.rewriter or config.rewriter).name != HYDE:
            rollout = hyde_rollout(system.rollout or config.rollout, system.turns)
            changes = {"rewriter": RewriterConfig(name=HYDE), "rollout": rollout, "turns": 1}
            kinds[HYDE] = kinds[UNTRAINED].model_copy(update=changes)
    if not is_warm_start(system) and find_warm_start(Path(system.run).expanduser()):
        kinds[_WARM_START] = system.model_copy(update={"checkpoint": WARM_START_FOLDER})
    return {kind: baseline for kind, baseline in kinds.items() if kind.replace("-", "_") in spec.run_baselines}


def _config_of_run(system: SystemConfig) -> RunConfig | None:
    """The config of a system's run, only to describe it; None without a run, or where it cannot be read."""
    try:
        return load_run_config(Path(system.run).expanduser(), trust=True) if system.run is not None else None
    except ConfigError:
        return None


def _settings(spec: SpecConfig, system: SystemConfig, config: RunConfig | None) -> object:
    """All settings that the answers of an untrained policy depend on; another system as it stands."""
    if system.training_free or system.llm or (system.run is not None and (config is None or not _untrained(system))):
        return system
    policy = config.policy if config is not None else system.policy or spec.policy
    rewriter = system.rewriter or (config.rewriter if config is not None else spec.rewriter)
    rollout = system.rollout or (config.rollout if config is not None else spec.rollout)
    mix = config.mix if config is not None and system.rewriter is None else None
    best = Path(system.run).expanduser() / "best" if system.run else None
    task = task_model(config.optimize, best) if config is not None else None
    how = system.model_dump(exclude={"run", "checkpoint", "policy", "rewriter", "rollout"})
    return policy.model_dump(exclude={"lora"}), rewriter, rollout.model_dump(include=_SHAPES_ANSWERS), mix, task, how


_SHAPES_ANSWERS = {
    "max_new_tokens", "max_prompt_tokens", "documents", "document_tokens", "observation_tokens", "history_tokens",
}  # fmt: skip
"""Settings of a rollout that greedy answers depend on."""


def _untrained(system: SystemConfig) -> bool:
    return system.checkpoint == UNTRAINED
