#!/usr/bin/env bash
# Evaluate runs and plans as a job array:  sbatch --array=1-3 slurm/eval_array.sh RUN|PLAN… [KEY=VALUE …]
#
# Every task, counted from 1, takes one of them, or more where there are more than tasks; the settings go to all. Where
# a task was killed, name what it had taken once more. More: docs/slurm.md.
#SBATCH --job-name=eval-array
#SBATCH --array=1-1
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus=1
#SBATCH --mem=64G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --output=%x-%A-%a.log
source "${QUERYLECT_SLURM:-${SLURM_SUBMIT_DIR:-.}/slurm}/lib.sh"
eval_job "$@"
