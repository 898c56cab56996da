"""A run of `querylect optimize`: GEPA (arXiv 2507.19457) on the environment, reward and questions of training.

The folder is that of a training run (train/run_folder.py), with the optimised prompt in best/ in place of weights, and
in gepa/ GEPA's own run folder, from which it resumes (its state before each iteration, all candidates in
candidates.json, its log), and every answer (store.jsonl), so that none is generated again.
"""

import json
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from types import SimpleNamespace

from gepa import optimize as gepa_optimize

from ..configs.load import is_own
from ..configs.schema import ClientConfig, EnvironmentConfig, RolloutConfig, RunConfig, TrainConfig, only
from ..data.corpus import load_dataset
from ..data.types import Question, relevant
from ..envs.client.connect import open_environment
from ..envs.index import open_index
from ..errors import CheckpointError, ConfigError, EngineUnavailableError, QuerylectError
from ..eval.records import open_store
from ..llms.access import Llm
from ..llms.base import Prompt, SamplingParams
from ..llms.prose import without_thinking
from ..provenance import this_start
from ..rewriters.few_shot import FewShotRewriter
from ..rollouts.checkpoints import PROMPT_FILE
from ..rollouts.engines.base import Engine
from ..rollouts.llms import open_llm, policy_llm
from ..rollouts.tree_sampler import rewriter_for
from ..storage import atomic_folder, only_command, text_sha256
from ..train.questions import draw_validation, worth_training
from ..train.run_folder import RunFolder
from .adapter import COMPONENT, PromptAdapter, prompt_yaml, title_of

log = logging.getLogger(__name__)

COMMAND = "optimize"
_MINIBATCH = 8
"""Training questions that a proposal is made from; it is validated only if it beats its parent on them."""
_TITLES = 3
"""Titles of relevant documents that the reflection model is shown for each question."""
REFLECTION_TOKENS = 1024
"""Maximum tokens of a proposal, thinking included."""


def optimize(config: RunConfig, resume: bool = False) -> Path:
    """Optimise the prompt of `config` and return the run folder.

    Raises ConfigError, ModelError, DataError, IndexFolderError or CheckpointError before anything is written;
    EnvironmentUnavailableError and EngineUnavailableError if the environment, the task model or the reflection model
    does not answer, after which --resume continues.
    """
    config = only(config, None)
    folder = RunFolder(config.run_folder)
    if not resume:
        folder.refuse_existing()
    elif folder.path.exists() and not is_own(folder.path):
        raise CheckpointError(
            f"{folder.path} is not yours, and GEPA's state in it is a pickle, which can run code when read. If you "
            "trust its author, make it yours."
        )
    with only_command(folder.path), open_environment(config.env, config.client) as client, ExitStack() as models:
        environment = client.info().model_dump(mode="json")
        if resume:
            folder.reopen(config, command=COMMAND)
            folder.same_environment(environment)
        split = client.questions("train")
        train = worth_training(config, client, split)
        validation = draw_validation(config.train.validation_questions, client, split)
        turns = len(config.rollout.branching)
        budget = config.optimize.searches or searches_of_training(config.train, config.rollout)
        if not train or budget < len(validation) * turns:
            raise ConfigError(
                f"{len(train)} training questions are left after train.raw_reward {config.train.raw_reward}, and of "
                f"{budget} searches the first prompt alone takes {len(validation) * turns} on {len(validation)} "
                "validation questions. Widen train.raw_reward, raise optimize.searches, or lower "
                "train.validation_questions."
            )
        model, base = _task_model(config, models)
        if not resume:
            folder.create(config.model_dump(mode="json"), COMMAND)
        if base:
            folder.same_base(config.policy.model, base, resume)
        folder.write("environment.json", environment)
        folder.note_start(this_start(int(resume), environment))
        rewriter = rewriter_for(config.rewriter, config.mix, client, config.search_depth)
        assert isinstance(rewriter, FewShotRewriter), "the command refuses others"
        titles = relevant_titles(config.env, config.client, train)
        store = models.enter_context(open_store(folder.path / "gepa"))
        adapter = PromptAdapter(config, client, rewriter, model, store, [*train, *validation], titles)
        llm = models.enter_context(open_llm(config.optimize.reflection or policy_llm(config.policy)))
        failures: list[QuerylectError] = []
        result = gepa_optimize(
            seed_candidate={COMPONENT: rewriter.prompt.system},
            trainset=train,
            valset=validation,
            adapter=adapter,
            reflection_lm=_reflecting(llm, config.seed, failures),
            reflection_minibatch_size=min(_MINIBATCH, len(train)),
            max_metric_calls=budget // turns,
            stop_callbacks=lambda state: bool(failures),
            logger=SimpleNamespace(log=log.debug),
            run_dir=str(folder.path / "gepa"),
            track_best_outputs=False,
            display_progress_bar=sys.stderr.isatty(),
            seed=config.seed,
        )
        if failures:
            raise failures[0]
        prompt = adapter.prompt_of(result.candidates[result.best_idx])
        record = {"step": result.best_idx, **adapter.means(prompt, validation)}
        with atomic_folder(folder.best) as path:
            (path / PROMPT_FILE).write_text(prompt_yaml(prompt), encoding="utf-8")
            (path / "best.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return folder.path


def _reflecting(llm: Llm, seed: int, failures: list[QuerylectError]) -> Callable[[str], str]:
    """GEPA's `reflection_lm`: a request in, a text out. GEPA goes on after an error of this model: it is kept in
    `failures`, and the run ends with it."""

    def reflect(request: str) -> str:
        own_seed = int(text_sha256(f"{seed} {request}")[:7], 16)
        try:
            (reply,) = llm.ask([Prompt.of(request)], SamplingParams(1, 1.0, 1.0, REFLECTION_TOKENS, own_seed))
            if reply is None:
                raise EngineUnavailableError(
                    f"the reflection model {llm.identity} gave no reply. Check optimize.reflection and continue with "
                    "--resume."
                )
        except QuerylectError as error:
            failures.append(error)
            raise
        return without_thinking(reply.texts[0].text)

    return reflect


def _task_model(config: RunConfig, models: ExitStack) -> tuple[Engine | Llm, str]:
    """The model that answers, and the fingerprint of its weights; "" for one of `optimize.task`."""
    if config.optimize.task is not None:
        return models.enter_context(open_llm(config.optimize.task)), ""
    from ..rollouts.engines.open import load_engine
    from ..rollouts.policy import fingerprint

    engine = load_engine(config.policy, config.rollout, config.seed, None)
    model = getattr(engine, "model", None)  # another process may hold it
    return engine, fingerprint(model) if model is not None else ""


def searches_of_training(train: TrainConfig, rollout: RolloutConfig) -> int:
    """The searches of all rollouts of a training run: one for each turn of each tree."""
    turns = sum(prod(rollout.branching[: depth + 1]) for depth in range(len(rollout.branching)))
    return train.steps * train.questions_per_step * turns


def relevant_titles(env: EnvironmentConfig, client: ClientConfig, train: Sequence[Question]) -> dict[str, list[str]]:
    """Titles of the best relevant documents of training questions, read from the index; {} where the dataset is on
    another machine."""
    if client.urls != "local":
        return {}
    documents = open_index(env.index_folder).documents
    qrels = load_dataset(env.dataset, documents).splits["train"].qrels
    best: dict[str, list[str]] = {}
    for question in train:
        grades = relevant(qrels.get(question.id, {}))
        best[question.id] = sorted(grades, key=lambda document: (-grades[document], document))[:_TITLES]
    return {name: [title_of(documents.at(documents.position(key))) for key in keys] for name, keys in best.items()}
