#!/usr/bin/env bash
# Build an index as a job array, one shard per task; task 0 merges the shards:
#
#   job=$(sbatch --parsable slurm/index_array.sh CONFIG [KEY=VALUE …])
#   sbatch --array=0 --dependency=afterok:$job slurm/index_array.sh CONFIG [KEY=VALUE …]
#
# All nodes must see env.index. Submit the same array again if a task was killed: finished parts are kept. BM25 needs no
# GPU (--gpus=0). An index over others (hybrid, qb-rag) has no shards: --array=1 builds it in one task.
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
