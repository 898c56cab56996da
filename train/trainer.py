"""A thin subclass of TRL's GRPOTrainer: trees instead of independent completions.

Three seams, each held by a contract test against the pinned TRL: rollouts come from `rollout_func` (one row per turn
of every path, `rows.py`); after TRL has scored them, advantages and the loss mask are replaced by those of the tree;
log-probabilities are computed on packed trees. Everything else (optimizer, clipping, KL, schedules, checkpoints) is
TRL's own.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from ..configs.schema import RunConfig
from ..data.types import Question
from ..errors import EnvironmentUnavailableError
from ..rollouts.engine import Weights
from ..rollouts.grow import Grower
from ..rollouts.tree import Tree
from .credit import assign_credit
from .metrics import step_metrics
from .mismatch import Mismatch
from .mix import Mixture, unanswered
from .packing import packed_logps
from .packing_check import attention_kind
from .processes import Processes
from .randomness import random_streams, set_random_streams
from .reuse import load_rollout, save_rollout
from .rows import path_reward, rollout, row_advantages, row_mask
from .run_folder import RunFolder
from .subsampling import subsample
from .together import all_trees
from .zero import deepspeed_asked


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
        mixture: Mixture | None = None,
        processes: Processes | None = None,
        **kwargs: Any,
    ) -> None:
        self.processes = processes or Processes()
        self.run, self.folder, self.grower, self.sampler, self.questions = run, folder, grower, sampler, questions
        self.mixture = mixture
        self.trees: list[Tree] = []
        self.last_metrics: dict[str, float] = {}
        self.dropped: Sequence[Tree] = ()
        self.resampled: dict[str, float] = {}
        self._wanted: Tensor | None = None
        self._loss_inputs: dict[str, Any] | None = None
        self._buffered_inputs: Any = None
        self._staging: Path | None = None
        self._before_step: tuple[int, Any] | None = None
        self.packed_tokens = self.flat_tokens = 0
        self.sampled_tokens = 0
        """Tokens that the policy wrote for the step, replaced trees included; 0 where a step uses a rollout again."""
        self.update_seconds = 0.0
        self.saving_seconds: float | None = None
        """How long the last checkpoint took to save; None before the first."""
        super().__init__(reward_funcs=path_reward, rollout_func=rollout, **kwargs)
        self.mismatch = Mismatch(run.train, self.accelerator.gather)

    @property
    def began(self) -> bool:
        """Whether a first rollout was begun; before it, a resumed run is still reading its checkpoint."""
        return self._before_step is not None

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        """TRL's order of questions, laid out for the whole run."""
        step = self.args.generation_batch_size * self.args.gradient_accumulation_steps
        return WholeRun(super()._get_train_sampler(dataset), self.args.max_steps * step)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's buffering without its shuffle, so that the leaves of a tree stay in one micro-batch."""
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        every = self.args.steps_per_generation * self.num_iterations
        if self._step % every == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(batch, self.args.steps_per_generation)
        elif self._step % self.args.steps_per_generation == 0:
            self._begin_step()
            self.trees = []  # logged with the step that sampled them
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _begin_step(self) -> None:
        self.update_seconds, self.packed_tokens, self.flat_tokens, self.sampled_tokens = 0.0, 0, 0, 0
        self._before_step = self.state.global_step, random_streams()

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Sample trees, then replace TRL's per-row advantages by one per token and the mask by the tree's."""
        self._begin_step()
        if self.mixture is not None:
            inputs = self.mixture.fill(inputs, self.state.global_step)
        output = super()._generate_and_score_completions(inputs)
        started = time.perf_counter()
        config = self.run
        grown = (node for tree in (*self.trees, *self.dropped) for node in tree.walk())
        self.sampled_tokens = sum(len(node.completion_ids) for node in grown)
        own, self.trees = self.trees, all_trees(self.processes, self.trees)
        weights, settings = config.reward.turn_weights, config.train
        credit = assign_credit(self.trees, settings.credit, weights, settings.scale, settings.best_of)
        used, most = credit, settings.samples_per_update
        if most is not None:
            used = subsample(credit, self.trees, most, Random(f"{config.seed}-{self.state.global_step}-update"))
        completion_mask = output["completion_mask"]
        device, cut = completion_mask.device, settings.mask_truncated_completions
        sampled = completion_mask * row_mask(own, None, cut).to(device)[:, None]
        every = settings.acts_without_advantage and most is None
        mask = sampled if every else sampled * row_mask(own, used).to(device)[:, None]
        output["advantages"] = row_advantages(own, used).to(device)
        if settings.loss_type == "bnpo":  # its own mean is over the tokens of the mask
            output["advantages"] *= self._shares(mask, sampled)
        output["tool_mask"] = mask
        # As in TRL, tokens without signal count in the normalizer, so no other term changes the size of this one.
        output["num_items_in_batch"] = self.accelerator.gather(sampled.sum()).sum()
        self.last_metrics = {**step_metrics(self.trees, credit, self.grower.chat), **self.resampled}
        if self.mixture is not None:
            dropped = all_trees(self.processes, list(self.dropped))
            self.mixture.learn([*self.trees, *dropped], self.state.global_step)
            self.last_metrics |= self.mixture.metrics(self.trees, credit, self.grower.chat)
        self.grower.clock.add("score", started)
        self.processes.together(self._refuse_silence)
        return output

    def _shares(self, mask: Tensor, sampled: Tensor) -> Tensor:
        """(rows,) the share of the sampled tokens of each row's micro-batch that the mask keeps."""
        size = self.args.per_device_train_batch_size
        kept, every = (each.sum(1).view(-1, size).sum(1) for each in (mask, sampled))
        return (kept / every.clamp_min(1)).repeat_interleave(size)

    def _refuse_silence(self) -> None:
        """Stop where an environment answered nothing in a whole step: there is nothing to learn from."""
        silent = unanswered(self.run, self.trees)
        if silent is not None:
            environment, deadline = silent
            raise EnvironmentUnavailableError(
                f"no rollout of step {self.state.global_step + 1} could be scored: {environment} did not answer "
                f"before client.deadline ({deadline:g} s). "
                f"Last failure: {getattr(self.grower.client, 'last_failure', None)}. "
                "The run stops with a checkpoint; bring the service back and continue with: querylect train … --resume"
            )

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """TRL's checkpoint, written aside and renamed: it is complete or not there."""
        started = time.perf_counter()
        target = self.folder.checkpoints / f"checkpoint-{self.state.global_step}"
        with self.processes.staged(target) as place:
            self._staging = place
            try:
                self.processes.write(lambda: super(TreeTrainer, self)._save_checkpoint(model, trial))
            finally:
                self._staging = None
            if self.processes.is_first:
                written = place / target.name
                for path in written.iterdir():
                    path.rename(place / path.name)
                written.rmdir()
            if self._unfinished_rollout:
                save_rollout(place, self.processes.rank, self._buffered_inputs, self.last_metrics)
            if self.mixture is not None and self.processes.is_first:
                self.mixture.save(place, self.state.global_step)
        self.processes.first(lambda: self.folder.keep_newest(self.run.train.keep_checkpoints))
        self.saving_seconds = time.perf_counter() - started

    @property
    def _unfinished_rollout(self) -> int:
        """How many optimizer steps the rollout in use has had; 0 where the next step samples anew."""
        return int(self.state.global_step % self.num_iterations)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """TRL's, and where the run was stopped in the middle of a rollout, that rollout."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self._unfinished_rollout:
            loaded = load_rollout(Path(checkpoint), self.processes.rank, self.processes.count, self.accelerator.device)
            self._buffered_inputs, self.last_metrics = loaded
            self._step = self._unfinished_rollout * self.args.gradient_accumulation_steps

    def save_now(self) -> None:
        """Save a checkpoint of the last finished step, unless there is one or none was finished.

        What the unfinished step drew from the random streams is put back: a resumed run samples it again.
        """
        done = self.state.global_step
        saved = self.folder.checkpoints / f"checkpoint-{done}"
        if done and not self.processes.first(saved.exists):
            if self._before_step is not None and self._before_step[0] == done:
                set_random_streams(self._before_step[1])
            self._save_checkpoint(self.model, trial=None)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log; what was counted is that of all processes."""
        if "loss" in logs:
            counted = self.processes.all((self.packed_tokens, self.flat_tokens, self.sampled_tokens))
            self.packed_tokens, self.flat_tokens, self.sampled_tokens = map(sum, zip(*counted, strict=True))
        super().log(logs, start_time)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """A run folder describes itself; TRL's card would name datasets and links that do not apply."""

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's step, timed: what is not rollout is update."""
        before = sum(self.grower.clock.seconds.values())
        started = time.perf_counter()
        loss: Tensor = super().training_step(*args, **kwargs)
        rollout = sum(self.grower.clock.seconds.values()) - before
        self.update_seconds += time.perf_counter() - started - rollout
        return loss

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        self._wanted = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        # TRL multiplies the loss by `importance_sampling_ratio` where it takes itself to run vLLM.
        self._loss_inputs, self.use_vllm = dict(inputs), self.run.train.importance_sampling_correction
        try:
            return super()._compute_loss(model, self._loss_inputs)  # type: ignore[no-any-return]
        finally:
            self._loss_inputs, self.use_vllm = None, False

    def _weigh(self, logps: Tensor) -> None:
        """Put into the inputs of the loss under way how likelier its tokens are now than where they were sampled."""
        if self._loss_inputs is not None:
            inputs = self._loss_inputs
            now = inputs.get("old_per_token_logps")
            mask = inputs["completion_mask"] * inputs["tool_mask"]
            sampler = inputs["sampling_per_token_logps"]
            weights = self.mismatch.weigh(logps if now is None else now, sampler, mask)
            if self.run.train.importance_sampling_correction:  # vespo takes what is there, asked for or not
                inputs["importance_sampling_ratio"] = weights

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Log-probabilities at the sampling temperatures, on packed trees where `train.packing` is on.

        Equal rows are computed once either way.
        """
        if not self.run.train.packing:
            rows, place = torch.stack([input_ids, attention_mask], 1).unique(dim=0, return_inverse=True)
            values, spread, aux_loss = super()._get_per_token_logps_and_entropies(
                model, rows[:, 0], rows[:, 1], logits_to_keep, batch_size, compute_entropy, **kwargs
            )
            self._weigh(values[place])
            return values[place], spread[place] if spread is not None else None, aux_loss
        batch_size = batch_size or len(input_ids)
        temperatures = self._temperatures(len(input_ids), input_ids.device)
        wanted = attention_mask[:, -logits_to_keep:].bool() if self._wanted is None else self._wanted
        if (self.processes.count > 1 or deepspeed_asked()) and not wanted.any():
            # The others wait for this process's gradient: compute one token, which the loss multiplies by zero.
            wanted = torch.zeros_like(wanted)
            wanted[0, 0] = True
        parts = []
        for start in range(0, len(input_ids), batch_size):
            at = slice(start, start + batch_size)
            with self.accelerator.autocast():
                logps, entropies, tokens = packed_logps(
                    model,
                    input_ids[at],
                    attention_mask[at],
                    wanted[at],
                    temperatures[at],
                    compute_entropy,
                    entropy_gradient=self.run.train.rewards_entropy,
                    attention=attention_kind(self.run.train.packed_attention, input_ids.device),
                )
            self.packed_tokens += tokens
            self.flat_tokens += int(attention_mask[at][wanted[at].any(1)].sum())
            parts.append((logps, entropies))
        self._wanted = None
        entropies = torch.cat([e for _, e in parts if e is not None]) if compute_entropy else None
        logps = torch.cat([logps for logps, _ in parts])
        self._weigh(logps)
        return logps, entropies, None

    def _temperatures(self, rows: int, device: torch.device) -> Tensor:
        """(rows,) the sampling temperature of each row; micro-batches are whole trees."""
        rollout = self.run.rollout
        turns = [rollout.temperature_of(turn) for turn in range(1, len(rollout.branching) + 1)]
        return torch.tensor(turns, device=device).repeat(rows // len(turns))


class WholeRun(Sampler[int]):
    """The first `length` indices of endless passes over `passes`, which shuffles anew each time it is iterated.

    A resumed run skips what was asked before; over separate passes it would begin with the first shuffle again.
    """

    def __init__(self, passes: Sampler[int], length: int) -> None:
        self.passes, self.length = passes, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return islice(chain.from_iterable(self.passes for _ in range(self.length)), self.length)
