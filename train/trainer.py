"""A thin subclass of TRL's GRPOTrainer: trees instead of independent completions.

The path of one step; contract tests hold the pinned TRL to it:

1. `rollout` (rows.py), TRL's `rollout_func`, grows a tree per question (rollouts/grow.py) and returns one row per turn
   of every path.
2. `_generate_and_score_completions` replaces TRL's advantages and loss mask by those of the trees (credit.py).
3. `_get_per_token_logps_and_entropies` computes log-probabilities on packed trees (packing/).
4. Loss, clipping, KL, optimizer, schedules and checkpoints are TRL's own.

Differences from textbook GRPO (docs/training.md has the settings):

- A baseline is the mean over the answers to one state: the same question and prompt ids. The value of a first turn
  includes those of the turns after it. Only `credit: trajectory` compares whole paths.
- Advantages are divided by a standard deviation only if `scale` says so. A tie gives exactly 0, and a group without
  signal is not computed unless another term of the loss needs it.
- A shared turn has a row in the path of every leaf below it, and so weighs as much as these leaves.
- A turn whose search failed has no reward: it is in no baseline, and it and the turns below it have advantage 0.
- A row is one sampled turn. Documents and the user's messages stand in prompts, which have no loss.
- The loss of a token is multiplied by p / q, trainer over sampler, within bounds (mismatch.py).
- There is no KL term and one optimizer step per rollout, unless `beta` or `num_iterations` is set.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, islice
from math import isnan
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
from accelerate.utils import fsdp2_prepare_model
from torch import Tensor, nn
from torch.utils.data import Sampler
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler, split_tensor_dict

from ..configs.mix import deadlines
from ..configs.schema import RunConfig
from ..data.types import Question
from ..rollouts.engines.base import Weights
from ..rollouts.grow import Grower
from ..rollouts.memory import give_back_freed_memory
from ..rollouts.tokenizer import Tokenizer
from ..rollouts.tree import Tree
from .ahead import TreesAhead
from .answers import reader_metrics
from .credit import Credit, assign_credit
from .distributed.collectives import all_trees
from .distributed.processes import Processes
from .fsdp import enable_fsdp, load_optimizer, save_optimizer, splits_weights, uses_fsdp, whole_weights
from .metrics import step_metrics
from .mismatch import Mismatch
from .mix import mix_metrics, refuse_outage
from .packing.check import attention_kind
from .packing.head import joined
from .packing.packing import packed_logps
from .reference import loaded_on_the_cpu, offload, offloads, on_device, release
from .reuse import Batch, load_rollout, random_streams, save_rollout
from .rows import path_reward, question_streams, rollout, row_advantages, row_mask
from .run_folder import RunFolder, remove_traces
from .staged import StagedQuestions
from .subsampling import subsample
from .zero import uses_deepspeed

if TYPE_CHECKING:
    from datasets import Dataset
    from peft import PeftModel
    from transformers import PreTrainedModel, TrainerCallback
    from trl import GRPOConfig


class TreeTrainer(GRPOTrainer):
    """GRPO over branching multi-turn trees. `grower` samples, `questions` maps the ids in the prompt column."""

    def __init__(
        self,
        *,
        run: RunConfig,
        folder: RunFolder,
        grower: Grower,
        sampler: Weights,
        questions: Mapping[str, Question],
        processes: Processes | None = None,
        staged: StagedQuestions | None = None,
        model: "PreTrainedModel | PeftModel",
        args: "GRPOConfig",
        train_dataset: "Dataset",
        processing_class: Tokenizer,
        callbacks: "Sequence[TrainerCallback]" = (),
    ) -> None:
        self.processes = processes or Processes()
        self.run, self.folder, self.grower, self.sampler, self.questions = run, folder, grower, sampler, questions
        self.staged = staged
        self.trees: list[Tree] = []
        self.last_metrics: dict[str, float] = {}
        self.dropped: Sequence[Tree] = ()
        self.resampled: dict[str, float] = {}
        self._loss_mask: Tensor | None = None
        self._loss_inputs: dict[str, Tensor] | None = None
        self._buffered_inputs: Sequence[Batch] | None = None
        self._staging: Path | None = None
        self._before_step: tuple[int, Callable[[], None]] | None = None
        self.packed_tokens = self.flat_tokens = 0
        self.staleness = 0.0
        """Updates that the weights which sampled the trees of the step were behind."""
        self.rollout_seconds: dict[str, float] = {}
        """Seconds of generation and retrieval for the step that ran beside the training of earlier ones."""
        self.sampled_tokens = self.sampled_paths = self.searches = 0
        """Tokens and paths sampled and searches made for the step, replaced trees included; 0 if the step reuses a
        rollout."""
        self.reader_metrics: Mapping[str, float] = {}
        self.make_record: Callable[[Mapping[str, float]], dict[str, float]] | None = None
        """In the main process: the record of the step that has ended, from the figures of its loss."""
        self.update_seconds = 0.0
        with loaded_on_the_cpu(args):
            super().__init__(
                model,
                reward_funcs=path_reward,
                args=args,
                train_dataset=train_dataset,
                processing_class=processing_class,
                callbacks=list(callbacks),
                rollout_func=rollout,
            )
        if uses_fsdp() and self.ref_model is not None:
            fsdp2_prepare_model(self.accelerator, self.ref_model)
        self.offloads_reference = self.ref_model is not None and offloads(self.accelerator.device)
        """Whether the reference model is on the GPU only while its log-probabilities are computed."""
        if self.offloads_reference:
            offload(self.ref_model)
        self.ahead: TreesAhead | None = None
        if staleness := run.train.staleness:
            steps = run.train.steps
            self.ahead = TreesAhead(staleness, steps, grower, sampler, self._grow_ahead, self.processes)
            self._order = self._questions_by_step()
            self._foreseen: list[list[str]] = []
        self.mismatch = Mismatch(self.accelerator.gather)

    def create_accelerator_and_postprocess(self) -> None:
        """As in TRL. Under FSDP only accelerate may know of it: TRL would gather the whole reference at once, and
        transformers would write and read checkpoints in parts."""
        super().create_accelerator_and_postprocess()
        if uses_fsdp():
            enable_fsdp(self.accelerator)
            self.is_fsdp_enabled = False

    def _get_train_sampler(self, dataset: "Dataset | None" = None) -> Sampler[int]:
        """TRL's order of questions, extended over all steps of the run."""
        step = self.args.generation_batch_size * self.args.gradient_accumulation_steps
        return WholeRun(super()._get_train_sampler(dataset), self.args.max_steps * step)

    def _questions_by_step(self) -> Iterator[list[str]]:
        """The ids of the questions of each step, over all processes, in the order of `_get_train_sampler`."""
        size = self.args.generation_batch_size // self.num_generations
        order = RepeatSampler(self.train_dataset, 1, batch_size=size, shuffle=self.shuffle_dataset, seed=self.args.seed)
        rows = iter(WholeRun(order, self.args.max_steps * size))
        while ids := [self.train_dataset[row]["prompt"] for row in islice(rows, size)]:
            yield ids

    def _grow_ahead(self, grower: Grower, step: int) -> list[Tree]:
        """This process's trees of a step, which may be a later one; as `rollout` samples."""
        while len(self._foreseen) <= step:
            self._foreseen.append(next(self._order))
        ids, rank, count = self._foreseen[step], self.processes.rank, self.processes.count
        share = len(ids) // count
        questions = [self.questions[name] for name in ids[rank * share : (rank + 1) * share]]
        streams = question_streams(self.run.seed, step, questions, Counter(ids[: rank * share]))
        return grower.grow(questions, self.run.rollout.branching, streams=streams)

    def _prepare_inputs(self, generation_batch: list[dict[str, str]]) -> Batch:
        """TRL's buffering without its shuffle, so that all rows of a tree stay in one micro-batch."""
        if not self.model.training:
            full: Batch = super()._prepare_inputs(generation_batch)
            return full
        period = self.args.steps_per_generation * self.num_iterations
        if self._step % period == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(batch, self.args.steps_per_generation)
        elif self._step % self.args.steps_per_generation == 0:
            self._begin_step()
            self.trees = []  # already logged with the step that sampled them
        micro_batch: Batch = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return micro_batch

    def _begin_step(self) -> None:
        give_back_freed_memory()
        self.update_seconds, self.packed_tokens, self.flat_tokens = 0.0, 0, 0
        self.sampled_tokens = self.sampled_paths = self.searches = 0
        self.rollout_seconds = {}
        self._before_step = self.state.global_step, random_streams()

    def _generate_and_score_completions(self, inputs: list[dict[str, str]]) -> dict[str, Tensor]:
        """Sample trees, then replace TRL's advantages and loss mask by those of the trees."""
        self._begin_step()
        output: dict[str, Tensor] = super()._generate_and_score_completions(inputs)
        started = time.perf_counter()
        grown = [*self.trees, *self.dropped]
        self.sampled_tokens = sum(tree.tokens for tree in grown)
        self.sampled_paths = sum(1 for tree in grown for _ in tree.paths())
        self.searches = sum(tree.searches for tree in grown)
        local_trees = self.trees
        self.trees = all_trees(self.processes, local_trees)
        settings, weights = self.run.train, self.run.reward.turn_weights
        credit = assign_credit(self.trees, settings.credit, weights, settings.scale)
        self._apply_credit(output, local_trees, credit)
        self._record_step(credit)
        self.grower.clock.add("score", started)
        self.processes.on_every_process(self._refuse_silence)
        return output

    def _apply_credit(self, output: dict[str, Tensor], local_trees: Sequence[Tree], credit: Credit) -> None:
        """Write advantages, loss mask and normalizer of this process's rows into TRL's batch."""
        settings, limit = self.run.train, self.run.train.samples_per_update
        if limit is not None:
            credit = subsample(credit, self.trees, limit, Random(f"{self.run.seed}-{self.state.global_step}-update"))
        completion_mask = output["completion_mask"]
        device = completion_mask.device
        eligible = row_mask(local_trees, None)
        sampled = completion_mask * eligible.to(device)[:, None]
        all_tokens = settings.acts_without_advantage and limit is None
        mask = sampled if all_tokens else sampled * row_mask(local_trees, credit).to(device)[:, None]
        output["advantages"] = row_advantages(local_trees, credit).to(device)
        output["tool_mask"] = mask
        # As in TRL, the normalizer counts all sampled tokens, also those without signal.
        output["num_items_in_batch"] = self.accelerator.gather(sampled.sum()).sum()

    def _record_step(self, credit: Credit) -> None:
        """Compute the metrics of the step's trees."""
        self.last_metrics = {**step_metrics(self.trees, credit, self.grower.chat), **self.resampled}
        if self.ahead is not None:
            self.last_metrics["sampling/staleness"] = self.staleness
        if self.run.mix is not None:
            self.last_metrics |= mix_metrics(self.trees, credit, self.grower.chat)

    def _refuse_silence(self) -> None:
        """Raise EnvironmentUnavailableError if an environment answered no search of the step."""
        subject = f"no rollout of step {self.state.global_step + 1}"
        remedy = "The run stops with a checkpoint; bring the service back and continue with: querylect train … --resume"
        refuse_outage(self.trees, self.grower.client, deadlines(self.run), self.run.reward, subject, remedy)

    def _get_output_dir(self, trial: object) -> str:
        return str(self._staging or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        """TRL's checkpoint, written to a temporary folder and renamed, so it is complete or absent."""
        target = self.folder.checkpoints / f"checkpoint-{self.state.global_step}"
        with self.processes.staged(target) as staging:
            self._staging = staging
            try:
                self.processes.write(lambda: super(TreeTrainer, self)._save_checkpoint(model, trial))
            finally:
                self._staging = None
            if self.processes.is_main_process:
                output = staging / target.name
                for path in output.iterdir():
                    path.rename(staging / path.name)
                output.rmdir()
            if self._unfinished_rollout:
                assert self._buffered_inputs is not None
                save_rollout(staging, self.processes.rank, self._buffered_inputs, self.last_metrics)
        self.processes.on_main_process(lambda: self.folder.keep_newest(self.run.train.keep_checkpoints))

    @property
    def _unfinished_rollout(self) -> int:
        """Number of optimizer steps done on the current rollout; 0 if the next step samples a new one."""
        return int(self.state.global_step % self.num_iterations)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """As in TRL; under FSDP the optimizer is gathered."""
        if not uses_fsdp():
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_optimizer(self.optimizer, Path(output_dir) / "optimizer.pt", self.args.should_save)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")
        self.processes.all_gather(None)  # where the main process fails, no other one writes into the folder after it

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As in TRL; also loads the rollout if the checkpoint is in the middle of one."""
        if uses_fsdp():
            self.is_deepspeed_enabled = True  # with which transformers leaves the optimizer out
        super()._load_optimizer_and_scheduler(checkpoint)
        if uses_fsdp():
            self.is_deepspeed_enabled = False
            if checkpoint is not None:
                load_optimizer(self.optimizer, Path(checkpoint) / "optimizer.pt")
        if checkpoint is not None and self._unfinished_rollout:
            loaded = load_rollout(Path(checkpoint), self.processes.rank, self.processes.count, self.accelerator.device)
            self._buffered_inputs, self.last_metrics = loaded
            self._step = self._unfinished_rollout * self.args.gradient_accumulation_steps

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

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the record of a step, with counts of tokens, searches and the reader summed over all processes, instead
        of TRL's own metrics. Collective."""
        if "loss" not in logs:  # what transformers says at the end of the training
            return
        counts = self.packed_tokens, self.flat_tokens, self.sampled_tokens, self.sampled_paths, self.searches
        totals = map(sum, zip(*self.processes.all_gather(counts), strict=True))
        self.packed_tokens, self.flat_tokens, self.sampled_tokens, self.sampled_paths, self.searches = totals
        self.reader_metrics = reader_metrics(self.grower.client, self.processes)
        figures: dict[str, float] = {
            name: logs[name] for name in ("loss", "grad_norm", "learning_rate") if name in logs
        }
        for name in ("entropy", "kl", "clip_ratio/region_mean", "cispo_clip_ratio"):
            if values := [value for value in self._metrics["train"].get(name, ()) if not isnan(value)]:
                figures[name] = sum(values) / len(values)
        self._metrics["train"].clear()
        record = figures if self.make_record is None else self.make_record(figures)
        self.state.log_history.append({**record, "step": self.state.global_step})
        self.callback_handler.on_log(self.args, self.state, self.control, record)

    def create_model_card(self, *_: object, **__: object) -> None:
        """Writes nothing: TRL's card would name datasets and links that do not apply."""

    def training_step(
        self, model: nn.Module, inputs: list[dict[str, str]], num_items_in_batch: Tensor | int | None
    ) -> Tensor:
        """TRL's step; its time without the rollout is added to `update_seconds`."""
        previous = sum(self.grower.clock.seconds.values())
        started = time.perf_counter()
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        rollout = sum(self.grower.clock.seconds.values()) - previous
        self.update_seconds += time.perf_counter() - started - rollout
        return loss

    def _compute_loss(self, model: nn.Module, inputs: Batch) -> Tensor:
        self._loss_mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        # TRL multiplies the loss by `importance_sampling_ratio` only if `use_vllm` is set.
        self._loss_inputs, self.use_vllm = dict(inputs), True
        try:
            return super()._compute_loss(model, self._loss_inputs)  # type: ignore[no-any-return]
        finally:
            self._loss_inputs, self.use_vllm = None, False

    def _weigh(self, logps: Tensor) -> None:
        """Compute importance weights (trainer / sampler) and add them to the inputs of the current loss."""
        if self._loss_inputs is not None:
            inputs = self._loss_inputs
            old_logps = inputs.get("old_per_token_logps")
            mask = inputs["completion_mask"] * inputs["tool_mask"]
            sampler = inputs["sampling_per_token_logps"]
            weights = self.mismatch.weigh(logps if old_logps is None else old_logps, sampler, mask)
            inputs["importance_sampling_ratio"] = weights

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **_: object,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Log-probabilities at the sampling temperatures, on packed trees if `train.packing` is on, and of at most
        `train.max_tokens_per_micro_batch` tokens at a time."""
        offloaded = model is self.ref_model and self.offloads_reference
        with on_device(model, self.accelerator.device) if offloaded else nullcontext():
            target_mask = self._target_mask(attention_mask[:, -logits_to_keep:])
            size = batch_size or len(input_ids)
            logps, entropies = self._logps(model, input_ids, attention_mask, target_mask, size, compute_entropy)
        if model is self.ref_model:
            release(model)
        self._weigh(logps)
        return logps, entropies, None

    def _target_mask(self, completion_mask: Tensor) -> Tensor:
        """(rows, completion) True where a log-probability is needed: in a loss only where it is not masked."""
        target_mask = completion_mask.bool() if self._loss_mask is None else self._loss_mask
        self._loss_mask = None
        if (self.processes.count > 1 or uses_deepspeed()) and not target_mask.any():
            # Other processes wait for this gradient: compute one token, which the loss multiplies by zero.
            target_mask = torch.zeros_like(target_mask)
            target_mask[0, 0] = True
        return target_mask

    def _logps(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        target_mask: Tensor,
        batch_size: int,
        compute_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and entropies (rows, completion), of `batch_size` rows at a time."""
        settings = self.run.train
        kind = attention_kind(input_ids.device) if settings.packing else None
        parts = []
        for start in range(0, len(input_ids), batch_size):
            chunk = slice(start, start + batch_size)
            with self.accelerator.autocast():
                logps, entropies, tokens = packed_logps(
                    model,
                    input_ids[chunk],
                    attention_mask[chunk],
                    target_mask[chunk],
                    self.run.rollout.temperature,
                    compute_entropy,
                    entropy_gradient=settings.entropy_coef > 0,
                    attention=kind,
                    budget=settings.max_tokens_per_micro_batch,
                    passes=self._most_passes if splits_weights() else None,
                )
            if settings.packing:
                self.packed_tokens += tokens
                self.flat_tokens += int(attention_mask[chunk][target_mask[chunk].any(1)].sum())
            parts.append((logps, entropies))
        return joined(parts)

    def _most_passes(self, passes: int) -> int:
        """The largest number of forward passes of all processes: each of them gathers weights. Collective."""
        return max(self.processes.all_gather(passes))


class WholeRun(Sampler[int]):
    """The first `length` indices of repeated passes over `passes`, which reshuffles in every iteration.

    A resumed run skips the indices already used; with separate passes it would restart at the first shuffle.
    """

    def __init__(self, passes: Sampler[int], length: int) -> None:
        self.passes, self.length = passes, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return islice(chain.from_iterable(self.passes for _ in range(self.length)), self.length)
