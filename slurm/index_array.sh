#!/usr/bin/env bash
# Build an index as a job array, one shard per task; task 0 puts the shards together:
#
#   job=$(sbatch --parsable slurm/index_array.sh CONFIG [KEY=VALUE …])
#   sbatch --array=0 --dependency=afterok:$job slurm/index_array.sh CONFIG [KEY=VALUE …]
#
# env.index must lie on a file system that all nodes share. Where a task was killed, submit the same array again: what is
# finished is kept. For BM25 leave the GPU out: sbatch --gpus=0 … An index over others (hybrid, qb-rag) has no shards:
# `querylect launch --chain` writes a job without an array for it, and `bash slurm/index_array.sh` builds it here.
#SBATCH --job-name=index-array
#SBATCH --array=1-16
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus=1
#SBATCH --mem=32G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --output=%x-%A-%a.log
source "${QUERYLECT_SLURM:-${SLURM_SUBMIT_DIR:-.}/slurm}/lib.sh"
index_job "$@"
