#!/usr/bin/env bash
# Evaluate runs and specs as a job array:  sbatch --array=1-3 slurm/eval_array.sh RUN|SPEC … [KEY=VALUE …]
#
# Each task evaluates one of them, or several if there are more than tasks; the settings apply to all.
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
