#!/usr/bin/env bash
# Build an index as a job array, one shard per task, then put the shards together:
#
#   job=$(sbatch --parsable slurm/index_shards.sh CONFIG [KEY=VALUE …])
#   sbatch --dependency=afterok:$job --wrap ".venv/bin/querylect index merge CONFIG [KEY=VALUE …]"
#
# env.index must lie on a file system that all nodes share. A task that was killed is submitted again as it was: what is
# finished is kept. For BM25 leave the GPU out: sbatch --gpus=0 …
#SBATCH --job-name=index-shards
#SBATCH --array=1-16
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus=1
#SBATCH --mem=32G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --output=%x-%A-%a.log
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
querylect="${QUERYLECT:-.venv/bin/querylect}"
exec "$querylect" index build "$@" --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
