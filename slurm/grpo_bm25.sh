#!/usr/bin/env bash
# Train a rewriter for BM25:  sbatch slurm/grpo_bm25.sh [CONFIG] [KEY=VALUE …]
#
# As grpo_contriever.sh; the retriever runs beside the trainer, on CPUs. More: docs/slurm.md.
#SBATCH --job-name=grpo-bm25
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
train_job paper_bm25 "$@"
