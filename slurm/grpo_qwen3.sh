#!/usr/bin/env bash
# Train a rewriter for Qwen3-Embedding:  sbatch slurm/grpo_qwen3.sh [CONFIG] [KEY=VALUE …]
#
# The retriever runs beside the trainer, whose GPU it shares; RETRIEVER_NODES=1 with --nodes=2 gives it one of its own.
# Otherwise as grpo_contriever.sh. More: docs/slurm.md.
#SBATCH --job-name=grpo-qwen3
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
train_job paper_qwen3 "$@"
