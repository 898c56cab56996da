#!/usr/bin/env bash
# Train a rewriter for Contriever:  sbatch slurm/grpo_contriever.sh [CONFIG] [KEY=VALUE …]
#
# All weights of an 8B policy take the eight GPUs of a node, with ZeRO-2 (SHARDING=zero3, fsdp2 or ddp: another one);
# for LoRA one is enough: sbatch --gpus-per-node=1 --mem=128G slurm/grpo_contriever.sh CONFIG. `querylect doctor CONFIG`
# says what a config needs. The retriever runs beside the trainer; RETRIEVER_DEVICE=cpu keeps it off the GPUs, and with
# RETRIEVER_NODES=1 and --nodes=2 it has a node of its own. With VLLM_GPUS=3, train.staleness=1 and
# train.questions_per_step=510 three of the GPUs sample the next step while five train. Submitting the same run again
# continues it. Ten minutes before the time limit the run saves a checkpoint and goes back into the queue. --dry-run, from
# the shell (bash slurm/grpo_contriever.sh --dry-run), prints the whole job; without it that trains here. More:
# docs/slurm.md.
#SBATCH --job-name=grpo-contriever
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
source "${QUERYLECT_SLURM:-${SLURM_SUBMIT_DIR:-.}/slurm}/lib.sh"
train_job paper_contriever "$@"
