"""A run as an evaluation spec: its policy after training, before it, after its warm start, and HyDE at equal cost.

Without these rows a table leaves open what GRPO adds.
"""

import re
from pathlib import Path

from ..configs.environment import DatasetConfig, EnvironmentConfig
from ..configs.evaluation import SpecConfig, SpecEnvironment, SystemConfig
from ..configs.load import load_run_config
from ..configs.schema import RewriterConfig, RunConfig, chosen
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
    policy = SystemConfig(turns=config.eval.turns)
    if run is not None:
        folder = find_checkpoint(run, checkpoint)
        if folder.name == "best" and is_command_at_work(run):
            raise CheckpointError(
                f"{folder} may change while another command is at work in {run}. Wait for it, or name a checkpoint "
                "that stays, such as --checkpoint checkpoint-20."
            )
        policy = SystemConfig(run=str(run), checkpoint=folder.name, turns=config.eval.turns)
    kinds = {UNTRAINED: policy, **baselines_of(policy, config)}
    requested = {"untrained", *config.eval.run_baselines}
    systems = {
        kind: kinds[kind]
        for kind in (HYDE, UNTRAINED, WARM_START)
        if kind in kinds and kind.replace("-", "_") in requested
    }
    if run is not None:
        systems[TRAINED] = policy
    return SpecConfig(
        name=config.name,
        seed=config.seed,
        split=config.eval.split,
        limit=config.eval.limit,
        depth=config.search_depth,
        metrics=list(dict.fromkeys([*METRICS, config.reward.metric])),
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
    configs = {name: _policy_config(spec, system) for name, system in spec.systems.items()}
    present = [_untrained_settings(spec.systems[name], config) for name, config in configs.items() if config]
    for name, system in spec.systems.items():
        config, trained = configs[name], system.run and system.checkpoint not in (UNTRAINED, WARM_START_FOLDER)
        if config is not None and trained:
            for kind, baseline in baselines_of(system, config).items():
                settings, title = _untrained_settings(baseline, config), f"{name}-{kind}"
                requested = kind.replace("-", "_") in spec.run_baselines
                if requested and title not in spec.systems and settings not in present:
                    systems[title] = baseline
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
        rollout = system.rollout or config.rollout
        passage = rollout.model_copy(update={"max_new_tokens": system.turns * rollout.max_new_tokens})
        changes = {"rewriter": RewriterConfig(name=HYDE), "rollout": passage, "turns": 1}
        kinds[HYDE] = kinds.get(UNTRAINED, system).model_copy(update=changes)
    if system.run is not None and find_warm_start(Path(system.run).expanduser()):
        kinds[WARM_START] = system.model_copy(update={"checkpoint": WARM_START_FOLDER})
    return kinds


def _policy_config(spec: SpecConfig, system: SystemConfig) -> RunConfig | None:
    """The settings of a policy, only to compare them; None for other systems, and where a run's are unreadable."""
    if system.llm or system.training_free:
        return None
    if system.run is None:
        shared = {"policy": system.policy or spec.policy, "rewriter": spec.rewriter, "rollout": spec.rollout}
        return RunConfig(name=spec.name).model_copy(update=shared)
    try:
        return load_run_config(Path(system.run).expanduser(), trust=True)
    except (ConfigError, OSError):
        return None


def _untrained_settings(system: SystemConfig, config: RunConfig) -> object:
    """All that the answers of an untrained policy depend on; a trained one as it stands."""
    if system.run and system.checkpoint != UNTRAINED:
        return system
    rewriter, mix = system.rewriter or config.rewriter, config.mix if system.rewriter is None else None
    settings = config.model_copy(update={"rollout": system.rollout or config.rollout})
    task = task_model(config.optimize, Path(system.run).expanduser() / "best") if system.run else None
    limits = [system.datasets, system.environments]
    return config.policy.model, answer_settings(system, settings, rewriter), mix, task, limits


def _slug(name: str) -> str:
    """The name as one of a spec."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "data"
