#!/usr/bin/env bash
# Train a rewriter for Contriever on one node:  sbatch slurm/grpo_contriever.sh [CONFIG] [KEY=VALUE …]
#
# The retriever runs as a child of the job. Submitting the same run again continues it. Before the time limit Slurm
# sends USR1, and the run saves a checkpoint after the step under way. Without Slurm:  bash slurm/grpo_contriever.sh
#SBATCH --job-name=grpo-contriever
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus=1
#SBATCH --mem=128G
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --output=%x-%j.log
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
querylect="${QUERYLECT:-.venv/bin/querylect}"
config="${1:-paper_contriever}"
shift || true

settings="$("$querylect" train "$config" "$@" --dry-run)"
setting() { "${querylect%/*}/python" -c 'import sys, functools, yaml
print(functools.reduce(dict.get, sys.argv[1].split("."), yaml.safe_load(sys.stdin)))' "$1" <<<"$settings"; }
index="$(setting env.index)"
run="$(setting output)/$(setting name)"

[ -e "$index/manifest.json" ] || "$querylect" index build "$config" "$@"
resume=()
[ ! -e "$run/config.yaml" ] || resume=(--resume)

"$querylect" train "$config" "$@" "${resume[@]}" &
trainer=$!
trap 'kill -USR1 "$trainer"' USR1
trap 'kill -TERM "$trainer"' TERM INT
# `wait` returns when a signal comes; go on until the trainer has really ended.
while true; do
    wait "$trainer" && status=0 || status=$?
    kill -0 "$trainer" 2>/dev/null || exit "$status"
done
