"""GRPO over branching multi-turn trees, on TRL's trainer.

One step, which `_prepare_inputs` begins and `_compute_loss` ends for each micro-batch:

1. `StepTrees.sample` (step_trees.py) grows a tree for each question of this process: turns sampled from the policy,
   searched, rewarded.
2. `turns_of` (turns.py) makes arrays of the turns, which are gathered from all processes.
3. `assign_credit` (credit.py) gives every turn an advantage: its value less the mean value of the answers to its state.
4. `turn_batch` (loss.py) takes each turn of a micro-batch once, with its advantage and its number of leaves.
5. `token_logps` (packing.py, attention.py, head.py) computes one log-probability for each distinct token of the trees
   of a micro-batch.
6. `policy_loss` (loss.py) clips, corrects for the sampler, adds KL and entropy terms, and normalizes.
7. Gradients, optimizer, schedules, sharding and checkpoints are those of accelerate and transformers.

Differences from textbook GRPO (docs/training.md has the settings):

- A baseline is the mean over the answers to one state: the same question and prompt ids. The value of a first turn
  includes those of the turns after it. Only `credit: trajectory` compares whole paths.
- Advantages are divided by a standard deviation only if `scale` says so. A tie gives exactly 0, and a turn without
  signal is not computed unless another term of the loss needs it.
- A turn weighs as much as the leaves below it.
- A turn whose search failed has no reward: it is in no baseline, and it and the turns below it have advantage 0.
- Documents and the user's messages stand in prompts, which have no loss.
- Means over tokens count the sampled tokens of the whole step in all processes, also those without signal.
- The loss of a token is multiplied by p / q, trainer over sampler, within bounds (loss.py). With `staleness` the
  sampler's log-probabilities are the old ones of the clipped ratio instead.
- There is no KL term and one optimizer step per rollout, unless `beta` or `num_iterations` is set.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
from accelerate.utils import fsdp2_prepare_model
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from ..configs.schema import environments
from ..errors import EnvironmentUnavailableError
from ..rollouts.chat import Tokenizer
from ..rollouts.tree import Tree
from ..rollouts.tree_sampler import give_back_freed_memory
from ..storage import writing
from .answers import reader_metrics
from .attention import attention_kind
from .credit import Credit, assign_credit, subsample
from .loss import Rollout, StepFigures, TurnBatch, importance_weights, policy_loss, turn_batch
from .metrics import mix_metrics, step_metrics
from .packing import token_logps
from .run_folder import RunFolder, remove_traces
from .sharding import (
    enable_fsdp,
    load_optimizer,
    save_optimizer,
    splits_weights,
    uses_deepspeed,
    uses_fsdp,
    whole_weights,
)
from .step_trees import StepTrees, random_states, refuse_outage
from .turns import Turns, describe, gather, turns_of

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel
    from trl import GRPOConfig

STEP_TIMEOUT = timedelta(minutes=30)
"""Of collective calls from the first step on, besides what the searches of a step may wait."""
LOGGED_TREES = 4
"""Trees of a step that are written to rollouts.jsonl."""


class TreeTrainer(GRPOTrainer):
    """GRPO over the trees of `step_trees`."""

    def __init__(
        self,
        *,
        folder: RunFolder,
        step_trees: StepTrees,
        model: "PreTrainedModel | PeftModel",
        args: "GRPOConfig",
        processing_class: Tokenizer,
    ) -> None:
        from datasets import Dataset

        run = self.run = step_trees.run
        self.folder, self.step_trees = folder, step_trees
        self.processes = step_trees.processes
        self.tree_sampler = step_trees.tree_sampler
        self.rollout: Rollout | None = None
        self.packed_tokens = self.flat_tokens = 0
        self.figures = StepFigures()
        self._before_step: tuple[int, Callable[[], None]] | None = None
        if run.train.beta and run.policy.lora is None:  # "auto" would leave on the disk what does not fit beside vLLM
            args.model_init_kwargs = {"device_map": None}
        super().__init__(
            model,
            reward_funcs=_no_reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": list(step_trees.questions)}),
            processing_class=processing_class,
        )
        if uses_fsdp() and self.ref_model is not None:
            fsdp2_prepare_model(self.accelerator, self.ref_model)
        elif self.ref_model is not None:
            self._move_reference("cpu")
        # each turn waits until the deadlines of its searches and of the reader
        longest = max(member.client.deadline for member in environments(run).values())
        longest += run.reward.answer.reader.deadline if run.reward.kind == "answer" else 0
        self.processes.set_timeout(STEP_TIMEOUT + timedelta(seconds=len(run.rollout.branching) * longest))

    def create_accelerator_and_postprocess(self) -> None:
        """As in TRL. Under FSDP only accelerate may know of it: TRL would gather the whole reference at once, and
        transformers would write and read checkpoints in parts."""
        super().create_accelerator_and_postprocess()
        if uses_fsdp():
            enable_fsdp(self.accelerator)
            self.is_fsdp_enabled = False

    def get_train_dataloader(self) -> "DataLoader[int]":
        """One item per micro-batch of the run, whose number says nothing: `_prepare_inputs` knows the step."""
        return DataLoader(range(self.args.max_steps * self.args.gradient_accumulation_steps), collate_fn=list)  # type: ignore[arg-type]

    def _prepare_inputs(self, _: object) -> TurnBatch:
        """The next micro-batch; the first of a step samples its trees."""
        number = int(self._step % self.args.gradient_accumulation_steps)
        if number == 0:
            self._begin_step()
        assert self.rollout is not None
        return self.rollout.batches[number]

    def _begin_step(self) -> None:
        give_back_freed_memory()
        self.packed_tokens = self.flat_tokens = 0
        self.figures = StepFigures()
        self._before_step = self.state.global_step, random_states()
        if self.rollout is not None and self.state.global_step % self.num_iterations:
            self.rollout = replace(self.rollout, counts={}, logged=())
        else:
            self.rollout = self._sample()

    def _sample(self) -> Rollout:
        """Grow the trees of this step, and make its micro-batches of them. Collective.

        Raises EnvironmentUnavailableError if an environment answered no search of the step: in all processes, after a
        checkpoint."""
        settings, processes = self.run.train, self.processes
        trees = self.step_trees.sample(self.state.global_step)
        started = time.perf_counter()
        count = self.tree_sampler.policy.chat.count
        turns, rows = gather(turns_of(trees, self.run.reward.turn_weights, count), processes)
        try:
            subject = f"no rollout of step {self.state.global_step + 1}"
            refuse_outage(turns, self.tree_sampler.client, self.run.mix is not None, subject)
        except EnvironmentUnavailableError as error:
            error.already_reported = not processes.is_main_process
            self.save_now()
            raise
        credit = assign_credit(turns, settings.credit, settings.scale)
        metrics = {**step_metrics(turns, credit), **self.step_trees.metrics}
        if self.run.mix is not None:
            metrics |= mix_metrics(turns, credit)
        grown = [*trees, *self.step_trees.dropped]
        counts = {
            "tokens/sampled": sum(tree.tokens for tree in grown),
            "searches": sum(tree.searches for tree in grown),
            "paths": sum(1 for tree in grown for _ in tree.paths()),
        }
        remaining = max(0, LOGGED_TREES - processes.rank * len(trees))
        logged = [record for part in processes.all_gather([*map(describe, trees[:remaining])]) for record in part]
        tokens = float(turns.leaves @ turns.tokens) / processes.count
        self.tree_sampler.clock.add("score", started)
        return Rollout(self._micro_batches(trees, turns, rows, credit), tokens, metrics, counts, logged)

    def _micro_batches(self, trees: Sequence[Tree], turns: Turns, rows: slice, credit: Credit) -> list[TurnBatch]:
        """`rows`: those of `trees`, which are this process's."""
        settings = self.run.train
        limit, size = settings.samples_per_update, settings.questions_per_micro_batch
        if limit is not None:
            credit = subsample(credit, turns, limit, Random(f"{self.run.seed}-{self.state.global_step}-update"))
        computed = credit.has_signal
        if settings.acts_without_advantage and limit is None:
            computed[:] = True
        collective = self.processes.count > 1 or uses_deepspeed()
        batches, end = list[TurnBatch](), rows.start
        for start in range(0, len(trees), size):
            part = trees[start : start + size]
            begin, end = end, end + sum(1 for tree in part for _ in tree.walk())
            columns = turns.leaves[begin:end], credit.advantages[begin:end], computed[begin:end]
            batches.append(turn_batch(part, *columns, collective, self.accelerator.device))
        if settings.num_iterations > 1:
            batches = [replace(batch, old_logps=self._logps_of(self.model, batch)) for batch in batches]
        if settings.beta:
            logps = self._reference_logps(batches)
            batches = [replace(batch, reference_logps=logp) for batch, logp in zip(batches, logps, strict=True)]
        return batches

    def _reference_logps(self, batches: Sequence[TurnBatch]) -> list[Tensor]:
        """Log-probabilities of the reference: a second model, the policy without its adapter, or a frozen adapter."""
        if self.ref_model is not None:
            self._move_reference(self.accelerator.device)
            logps = [self._logps_of(self.ref_model, batch) for batch in batches]
            self._move_reference("cpu")
            for part in self.ref_model.modules():
                if isinstance(part, FSDPModule):  # no backward pass follows, after which it would release its weights
                    part.reshard()
            return logps
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            return [self._logps_of(self.model, batch) for batch in batches]

    def _move_reference(self, device: torch.device | str) -> None:
        """The reference model is on the GPU only while its log-probabilities are computed, unless it is split over the
        processes."""
        if not splits_weights() and self.accelerator.device.type != "cpu":
            self.accelerator.unwrap_model(self.ref_model).to(device)
            torch.cuda.empty_cache()

    def _logps_of(self, model: nn.Module, batch: TurnBatch) -> Tensor:
        """(n,) log-probabilities without gradient."""
        with torch.no_grad(), disable_gradient_checkpointing(model, self.args.gradient_checkpointing_kwargs):
            return self._score(model, batch)[0]

    def _score(self, model: nn.Module, batch: TurnBatch, entropies: bool = False) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and entropies (n,) at the sampling temperature."""
        if not len(batch.lengths):  # nothing has a signal, and no other process waits
            nothing = torch.zeros(0, device=self.accelerator.device, requires_grad=torch.is_grad_enabled())
            return nothing, nothing
        settings = self.run.train
        sequences, completions = batch.sequences()
        with self.accelerator.autocast():
            logps, entropy, tokens = token_logps(
                model,
                sequences,
                completions,
                self.run.rollout.temperature,
                entropies,
                entropy_gradient=settings.entropy_coef > 0,
                attention=attention_kind(self.accelerator.device) if settings.packing else None,
                budget=settings.max_tokens_per_micro_batch,
                passes=self._most_passes if splits_weights() else None,
            )
        if settings.packing:
            self.packed_tokens += tokens
            self.flat_tokens += int((batch.leaves.cpu() * batch.lengths.cpu()).sum())
        return logps, entropy

    def _most_passes(self, passes: int) -> int:
        """The largest number of forward passes of all processes: each of them gathers weights. Collective."""
        return max(self.processes.all_gather(passes))

    def _compute_loss(self, model: nn.Module, batch: TurnBatch) -> Tensor:
        settings = self.run.train
        logps, entropies = self._score(model, batch, entropies=True)
        assert self.rollout is not None
        assert entropies is not None
        leaves = batch.by_token(batch.leaves)
        old = logps.detach() if batch.old_logps is None else batch.old_logps
        weights, differences = importance_weights(old, batch.sampler_logps)
        self.figures.add_sampling(differences, weights, leaves)
        if settings.staleness:  # a token that the engine recorded no log-probability of has a ratio of 1
            batch = replace(batch, old_logps=torch.where(differences.isnan(), old, batch.sampler_logps))
            weights = torch.ones_like(weights)
        longest = self.run.rollout.max_new_tokens
        loss, figures = policy_loss(batch, logps, entropies, weights, settings, self.rollout, longest)
        for name, values in figures.items():
            self.figures.add(name, values, leaves)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the record of a step, with counts and means over all processes, instead of TRL's own metrics.
        Collective."""
        self._metrics["train"].clear()
        if "loss" not in logs:  # what transformers says at the end of the training
            return
        assert self.rollout is not None
        computed = {"tokens/packed": self.packed_tokens, "tokens/flat": self.flat_tokens}
        counts = self.processes.all_gather({**computed, **self.rollout.counts})
        names = ("tokens/packed", "tokens/flat", "tokens/sampled", "searches", "paths")
        record: dict[str, float] = {
            **self.rollout.metrics,
            **{name: sum(part.get(name, 0) for part in counts) for name in names},
            **reader_metrics(self.tree_sampler.client, self.processes),
            **self.figures.read(self.processes.all_gather),
            **{name: logs[name] for name in ("loss", "grad_norm", "learning_rate") if name in logs},
        }
        self.callback_handler.on_log(self.args, self.state, self.control, record)  # MetricsCallback completes it
        self.state.log_history.append({**record, "step": self.state.global_step})

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        """TRL's checkpoint, written to `output_dir` and moved from there, so it is complete or absent."""
        partial, main = Path(self.args.output_dir), self.processes.is_main_process
        target = self.folder.checkpoints / f"checkpoint-{self.state.global_step}"

        def begin() -> None:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()  # not its parents: a run folder that was removed stays so

        try:
            with writing(target):
                self.processes.on_main_process(begin)
                super()._save_checkpoint(model, trial)
                self.processes.all_gather(None)  # all have written
                if main:
                    (partial / target.name).rename(target)
        finally:
            if main:
                shutil.rmtree(partial, ignore_errors=True)
        self.processes.on_main_process(lambda: self.folder.keep_newest(self.run.train.keep_checkpoints))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """As in TRL; under FSDP the optimizer is gathered."""
        if not uses_fsdp():
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_optimizer(self.optimizer, Path(output_dir) / "optimizer.pt", self.args.should_save)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As in TRL, and under FSDP from the gathered optimizer."""
        if checkpoint is None:
            return
        if uses_fsdp():
            load_optimizer(self.optimizer, Path(checkpoint) / "optimizer.pt")
            self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True))
        else:
            super()._load_optimizer_and_scheduler(checkpoint)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """The policy as TRL saves it, without traces of this machine."""
        super()._save(output_dir, state_dict)
        if self.processes.is_main_process and output_dir is not None:
            remove_traces(Path(output_dir), self.run.policy.model)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in TRL; under FSDP the weights are gathered. Collective."""
        if uses_fsdp():
            self._save(output_dir, whole_weights(self.model, self.args.should_save))
        else:
            super().save_model(output_dir, _internal_call)

    def save_now(self) -> None:
        """Save a checkpoint of the last finished step, unless there is one already or no step was finished.

        The random states from before the unfinished step are restored, so a resumed run samples it identically.
        """
        step = self.state.global_step
        checkpoint = self.folder.checkpoints / f"checkpoint-{step}"
        if step and not self.processes.on_main_process(checkpoint.exists):
            if self._before_step is not None and self._before_step[0] == step:
                self._before_step[1]()
            self._save_checkpoint(self.model, trial=None)

    def save_policy(self, path: Path) -> None:
        """Write the policy and its tokenizer. Collective."""
        self.save_model(str(path))
        if self.processes.is_main_process:
            self.processing_class.save_pretrained(str(path))

    def create_model_card(self, *_: object, **__: object) -> None:
        """Writes nothing: TRL's card would name datasets and links that do not apply."""


def _no_reward(*_: object, **__: object) -> list[float]:
    """TRL asks for a reward function; it is never called, since rewards come with the trees."""
    raise NotImplementedError
