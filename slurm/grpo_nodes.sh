#!/usr/bin/env bash
# Train one run on all GPUs of several nodes:  sbatch --nodes=2 slurm/grpo_nodes.sh [CONFIG] [KEY=VALUE …]
#
# One `accelerate launch` per node, one process per GPU, also for adapters. Each node runs the retriever as a child of its
# trainer, unless client.urls says otherwise. All nodes must see the run folder. To save and end the
# run: scancel --batch --signal=TERM JOB (plain scancel loses what no checkpoint holds). More: docs/slurm.md.
#SBATCH --job-name=grpo-nodes
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
on_all=yes
train_job paper_contriever "$@"
