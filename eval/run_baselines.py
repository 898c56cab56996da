"""Rows for the untrained policy of a run and for HyDE, in evaluations of specs as in the evaluation of a run."""

from pathlib import Path

from ..configs.evaluation import SpecConfig, SystemConfig
from ..configs.run_settings import load_run_config
from ..configs.schema import RewriterConfig, RolloutConfig, RunConfig
from ..errors import ConfigError
from ..rollouts.checkpoints import task_model
from .placement import answer_settings
from .records import HYDE, UNTRAINED
from .warm_starts import with_warm_starts

_LABELS = {UNTRAINED: "untrained", HYDE: "HyDE at equal cost"}


def with_rows_of_runs(spec: SpecConfig) -> SpecConfig:
    """The spec with all systems that `run_baselines` adds for its runs."""
    return with_warm_starts(with_run_baselines(spec))


def with_run_baselines(spec: SpecConfig) -> SpecConfig:
    """The spec with the systems NAME-untrained and NAME-hyde before each trained system NAME (`run_baselines`).

    Runs of one base model, rewriter and rollout share them. They are not added where the spec has a system of that
    name, or one with these settings, or where the settings of the run cannot be read: its own cell reports that.
    """
    systems: dict[str, SystemConfig] = {}
    configs = {name: _config_of_run(system) for name, system in spec.systems.items()}
    present = [_settings(spec, system, configs[name]) for name, system in spec.systems.items()]
    for name, system in spec.systems.items():
        config = configs[name]
        if config is not None and not _untrained(system):
            for kind, baseline in _baselines(spec, system, config.rewriter, config.rollout).items():
                settings = _settings(spec, baseline, config)
                if f"{name}-{kind}" not in spec.systems and settings not in present:
                    systems[f"{name}-{kind}"] = baseline
                    present.append(settings)
        systems[name] = system
    return spec.model_copy(update={"systems": systems})


def untrained_twin(spec: SpecConfig, name: str) -> str | None:
    """The system of a spec that is the policy of a trained system before training; None if there is none."""
    system = spec.systems[name]
    config = _config_of_run(system)
    if config is None or _untrained(system):
        return None
    untrained = _settings(spec, system.model_copy(update={"checkpoint": UNTRAINED}), config)
    settings = {label: _settings(spec, twin, _config_of_run(twin)) for label, twin in spec.systems.items()}
    return next((label for label, twin in settings.items() if twin == untrained), None)


def hyde_rollout(rollout: RolloutConfig, turns: int) -> RolloutConfig:
    """The rollout of HyDE at the cost of so many turns: one passage with the tokens of all of them, limited by what the
    engine accepts."""
    tokens = sum(rollout.new_tokens(turn) for turn in range(1, turns + 1))
    if rollout.engine == "vllm" and rollout.vllm.max_model_len is not None:
        tokens = min(tokens, rollout.vllm.max_model_len - rollout.max_prompt_tokens)
    return rollout.model_copy(update={"max_new_tokens": tokens})


def baseline_label(name: str, system: SystemConfig) -> str:
    """The display name of a system of a spec, without its turn, if it has the name of one that is added."""
    run, _, kind = name.rpartition("-")
    writes_hyde = system.rewriter is not None and system.rewriter.name == HYDE
    added = bool(run) and _untrained(system) and (kind == UNTRAINED or (kind == HYDE and writes_hyde))
    return f"{run}, {_LABELS[kind]}" if added else name


def _baselines(
    spec: SpecConfig, system: SystemConfig, rewriter: RewriterConfig, rollout: RolloutConfig
) -> dict[str, SystemConfig]:
    """The baselines of a system by kind; `rewriter` and `rollout` are those of its run. Where it writes HyDE, untrained
    is HyDE."""
    untrained = system.model_copy(update={"checkpoint": UNTRAINED})
    changes = {"rewriter": RewriterConfig(name=HYDE), "rollout": hyde_rollout(system.rollout or rollout, system.turns)}
    hyde = untrained.model_copy(update={**changes, "turns": 1})
    kinds = {UNTRAINED: untrained, HYDE: hyde}
    if (system.rewriter or rewriter).name == HYDE:
        del kinds[HYDE]
    return {kind: baseline for kind, baseline in kinds.items() if kind in spec.run_baselines}


def _config_of_run(system: SystemConfig) -> RunConfig | None:
    """The config of a system's run, only to describe it; None without a run, or where it cannot be read."""
    try:
        return load_run_config(Path(system.run).expanduser(), trust=True) if system.run is not None else None
    except ConfigError:
        return None


def _settings(spec: SpecConfig, system: SystemConfig, config: RunConfig | None) -> object:
    """All settings that the answers of an untrained policy depend on; None for a system that is none."""
    if system.training_free or system.llm or (system.run is not None and (config is None or not _untrained(system))):
        return None
    policy = config.policy if config is not None else system.policy or spec.policy
    rewriter = system.rewriter or (config.rewriter if config is not None else spec.rewriter)
    rollout = system.rollout or (config.rollout if config is not None else spec.rollout)
    mix = config.mix if config is not None and system.rewriter is None else None
    best = Path(system.run).expanduser() / "best" if system.run else None
    task = task_model(config.optimize, best) if config is not None else None
    how = system.model_dump(exclude={"run", "checkpoint", "policy", "rewriter", "rollout"})
    untrained = RunConfig().model_copy(update={"policy": policy, "rewriter": rewriter, "rollout": rollout})
    return answer_settings(untrained), mix, task, how


def _untrained(system: SystemConfig) -> bool:
    return system.checkpoint == UNTRAINED
