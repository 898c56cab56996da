"""A run as an evaluation spec: its policy after training, before it, after its warm start, and HyDE at equal cost.

Without these rows a table leaves open what GRPO adds.
"""

import re
from pathlib import Path

from ..configs.environment import DatasetConfig, EnvironmentConfig
from ..configs.evaluation import SpecConfig, SpecEnvironment, SystemConfig
from ..configs.load import load_run_config
from ..configs.schema import RewriterConfig, RolloutConfig, RunConfig, chosen
from ..errors import CheckpointError, ConfigError
from ..rollouts.checkpoints import WARM_START_FOLDER, find_checkpoint, find_warm_start, task_model
from ..storage import data_sha256, is_command_at_work
from .records import HYDE, METRICS, TRAINED, UNTRAINED, WARM_START
from .systems import answer_settings

EVALUATIONS = "evaluations"
"""Folder in a run of evaluations with other settings, checkpoints or samples than the run's own."""


def spec_of_run(
    config: RunConfig, run: Path | None, checkpoint: str | None = None, environment: str | None = None
) -> SpecConfig:
    """The evaluation of a run, or of the untrained policy where `run` is None.

    In a mix every environment is one of the spec, or only the one named. Raises ConfigError for an unknown environment,
    CheckpointError where the run has no such policy, or trains on while `best` is to be evaluated.
    """
    datasets: dict[str, DatasetConfig | None] = {}
    environments: dict[str, SpecEnvironment] = {}
    for name, member in chosen(config, environment).items():
        source = member.env.dataset
        dataset = _slug(Path(source.path).name)
        local = source if member.client.urls == "local" else None  # a service has its own questions
        while datasets.setdefault(dataset, local) != local:
            dataset += f"-{name}"
        env = EnvironmentConfig.model_validate(member.env.model_dump(exclude={"dataset"}))
        environments[name or _slug(env.retriever)] = SpecEnvironment(env=env, client=member.client, datasets=[dataset])
    systems: dict[str, SystemConfig] = {}
    policy = SystemConfig(turns=config.eval.turns)
    if run is not None:
        folder = find_checkpoint(run, checkpoint)
        if folder.name == "best" and is_command_at_work(run):
            raise CheckpointError(
                f"{folder} may change while another command is at work in {run}. Wait for it, or name a checkpoint "
                "that stays, such as --checkpoint checkpoint-20."
            )
        policy = SystemConfig(run=str(run), checkpoint=folder.name, turns=config.eval.turns)
    kinds = baselines_of(policy, config)
    chosen_kinds = [kind for kind in kinds if kind.replace("-", "_") in config.eval.run_baselines]
    if HYDE in chosen_kinds:
        systems[HYDE] = kinds[HYDE]
    systems[UNTRAINED] = kinds.get(UNTRAINED, policy)  # what a trained policy is compared with
    if run is not None:
        systems |= {name: kinds[name] for name in (WARM_START,) if name in chosen_kinds}
        systems[TRAINED] = policy
    return SpecConfig(
        name=config.name,
        seed=config.seed,
        split=config.eval.split,
        limit=config.eval.limit,
        depth=config.search_depth,
        metrics=list(METRICS),
        permutations=config.eval.permutations,
        bootstrap=config.eval.bootstrap,
        training_free=config.eval.training_free,
        run_baselines=[],
        policy=config.policy,
        rewriter=config.rewriter,
        rollout=config.rollout,
        datasets=datasets,
        environments=environments,
        systems=systems,
    )


def results_folder(spec: SpecConfig, config: RunConfig, run: Path | None) -> Path:
    """Where the evaluation of a run is written: its folder, if `spec` is of the run's own settings and best policy."""
    if run is None:
        return config.run_folder.with_name(f"{config.name}-untrained")

    def answers(spec: SpecConfig) -> dict[str, object]:
        return spec.model_dump(mode="json", exclude={"name", "permutations", "bootstrap"})

    if answers(spec) == answers(spec_of_run(load_run_config(run, trust=True), run)):
        return run
    title = f"{spec.split}-{spec.limit or 'all'}-{spec.systems[TRAINED].checkpoint}"
    return run / EVALUATIONS / f"{title}-{data_sha256(answers(spec))[:8]}"


def with_run_baselines(spec: SpecConfig) -> SpecConfig:
    """The spec with the systems NAME-untrained, NAME-hyde and NAME-warm-start before each trained system NAME.

    `run_baselines` says which of them. They are not added where the spec has a system of that name, or one with these
    settings: runs of one base model, rewriter and rollout share the first two. A run whose settings cannot be read has
    none: its own cell reports that.
    """
    systems: dict[str, SystemConfig] = {}
    configs = {name: _config_of_run(system) for name, system in spec.systems.items()}
    present = [_untrained_settings(spec, system, configs[name]) for name, system in spec.systems.items()]
    for name, system in spec.systems.items():
        config = configs[name]
        trained = config is not None and system.checkpoint != UNTRAINED
        for kind, baseline in baselines_of(system, config).items() if trained and config is not None else ():
            settings = _untrained_settings(spec, baseline, config)
            requested = kind.replace("-", "_") in spec.run_baselines
            if requested and f"{name}-{kind}" not in spec.systems and settings not in present:
                systems[f"{name}-{kind}"] = baseline
                present.append(settings)
        systems[name] = system
    return spec.model_copy(update={"systems": systems})


def baselines_of(system: SystemConfig, config: RunConfig) -> dict[str, SystemConfig]:
    """The baselines of a policy by kind: untrained and warm start of one that is a run, HyDE of one that does not
    write HyDE itself. `config` are the run's settings."""
    kinds: dict[str, SystemConfig] = {}
    if system.run is not None:
        kinds[UNTRAINED] = system.model_copy(update={"checkpoint": UNTRAINED})
    if (system.rewriter or config.rewriter).name != HYDE:
        rollout = hyde_rollout(system.rollout or config.rollout, system.turns)
        changes = {"rewriter": RewriterConfig(name=HYDE), "rollout": rollout, "turns": 1}
        kinds[HYDE] = kinds.get(UNTRAINED, system).model_copy(update=changes)
    if system.run is not None and not is_warm_start(system) and find_warm_start(Path(system.run).expanduser()):
        kinds[WARM_START] = system.model_copy(update={"checkpoint": WARM_START_FOLDER})
    return kinds


def hyde_rollout(rollout: RolloutConfig, turns: int) -> RolloutConfig:
    """The rollout of HyDE at the cost of so many turns: one passage with the tokens of all of them."""
    return rollout.model_copy(update={"max_new_tokens": turns * rollout.max_new_tokens})


def is_warm_start(system: SystemConfig) -> bool:
    """Whether a system is the policy of its run before GRPO."""
    return system.checkpoint == WARM_START_FOLDER


def _config_of_run(system: SystemConfig) -> RunConfig | None:
    """The config of a system's run, only to describe it; None without a run, or where it cannot be read."""
    try:
        return load_run_config(Path(system.run).expanduser(), trust=True) if system.run is not None else None
    except (ConfigError, OSError):
        return None


def _untrained_settings(spec: SpecConfig, system: SystemConfig, config: RunConfig | None) -> object:
    """All that the answers of an untrained policy depend on; another system as it stands."""
    if system.training_free or system.llm or (system.run and (config is None or system.checkpoint != UNTRAINED)):
        return system
    base = config or RunConfig(name="spec").model_copy(
        update={"policy": system.policy or spec.policy, "rewriter": spec.rewriter, "rollout": spec.rollout}
    )
    rewriter = system.rewriter or base.rewriter
    task = task_model(base.optimize, Path(system.run).expanduser() / "best") if system.run else None
    mix = base.mix if system.rewriter is None else None
    settings = base.model_copy(update={"rollout": system.rollout or base.rollout})
    limits = [system.datasets, system.environments]
    return base.policy.model, answer_settings(system, settings, rewriter), mix, task, limits


def _slug(name: str) -> str:
    """The name as one of a spec."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "data"
