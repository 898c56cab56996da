#!/usr/bin/env bash
# Train one run on all GPUs of several nodes:  sbatch --nodes=2 slurm/grpo_nodes.sh [CONFIG] [KEY=VALUE …]
#
# One `accelerate launch` per node, one process per GPU. DeepSpeed splits optimizer and gradients (SHARDING=zero2), and
# weights too with zero3; fsdp2 does so without DeepSpeed; with ddp every GPU holds all of them. Unset: zero2 where all
# weights are trained, ddp for adapters. Each node runs the retriever as a child, unless
# RETRIEVER_NODES=n gives it the last n nodes or client.urls names a service. The run folder must lie where all nodes see
# it. Submitting the same run again continues it; before the time limit it saves and goes back into the queue. To save
# and end a run on several nodes: scancel --batch --signal=TERM JOB (plain scancel gives up what no checkpoint holds).
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
train_job_on_all paper_contriever "$@"
