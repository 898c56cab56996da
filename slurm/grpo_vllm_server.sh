#!/usr/bin/env bash
# Train on one node and generate on another:  sbatch slurm/grpo_vllm_server.sh [CONFIG] [KEY=VALUE …]
#
# The second node serves the policy with `trl vllm-serve`; the first trains with the engine vllm_server and sends its
# weights there at every step. policy.model must be a folder or a Hub id. VLLM_ARGS holds further arguments of the
# server, such as "--tensor_parallel_size 4 --max_model_len 8192"; unset, all eight GPUs of its node share the model. With --nodes=3 and RETRIEVER_NODES=1 the third node
# serves the retriever. More: docs/slurm.md.
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
train_job --vllm-nodes 1 paper_contriever "$@"
