#!/usr/bin/env bash
# Train on one node and generate on another:  sbatch slurm/grpo_vllm_server.sh [CONFIG] [KEY=VALUE …]
#
# The second node runs `trl vllm-serve` with VLLM_ARGS, the first trains with the engine vllm_server and sends it the
# weights at every step. policy.model must be a folder or a Hub id. More: docs/slurm.md.
#SBATCH --job-name=grpo-vllm-server
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
export VLLM_ARGS="${VLLM_ARGS---tensor_parallel_size 8}"
source "${QUERYLECT_SLURM:-${SLURM_SUBMIT_DIR:-.}/slurm}/lib.sh"
vllm_nodes=1
train_job paper_contriever "$@"
