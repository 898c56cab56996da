#!/usr/bin/env bash
# Train a rewriter for two turns, 4 × 4, on Contriever:  sbatch slurm/grpo_two_turn.sh [CONFIG] [KEY=VALUE …]
#
# The paper's branching; `sbatch slurm/grpo_two_turn.sh paper_independent` is what it is compared with. Otherwise as
# grpo_contriever.sh. More: docs/slurm.md.
#SBATCH --job-name=grpo-two-turn
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
train_job paper_branching "$@"
