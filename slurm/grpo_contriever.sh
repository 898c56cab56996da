#!/usr/bin/env bash
# Train a rewriter for Contriever:  sbatch slurm/grpo_contriever.sh [CONFIG] [KEY=VALUE …]
#
# All weights of an 8B policy are trained on the eight GPUs of a node, with ZeRO-2; LoRA needs one:
# sbatch --gpus-per-node=1 --mem=128G slurm/grpo_contriever.sh CONFIG. The retriever runs beside the trainer. The
# variables in lib.sh choose other layouts. Submit the same run again to continue it. `bash slurm/grpo_contriever.sh
# --dry-run` prints the whole job. More: docs/slurm.md.
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
