#!/usr/bin/env bash
# Train a rewriter for Contriever on one node:  sbatch slurm/grpo_contriever.sh [CONFIG] [KEY=VALUE …]
#
# The retriever runs as a child of the job. Submitting the same run again continues it. Ten minutes before the time
# limit Slurm sends USR1: the run saves a checkpoint (train.usr1_grace_seconds says how long it may take) and ends with
# exit code 75, and the job puts itself back into the queue. Without Slurm:  bash slurm/grpo_contriever.sh
#SBATCH --job-name=grpo-contriever
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus=1
#SBATCH --mem=128G
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
querylect="${QUERYLECT:-.venv/bin/querylect}"
config="${1:-paper_contriever}"
shift || true

settings="$("$querylect" train "$config" "$@" --dry-run)"
setting() { "${querylect%/*}/python" -c 'import sys, functools, yaml
print(functools.reduce(dict.get, sys.argv[1].split("."), yaml.safe_load(sys.stdin)))' "$1" <<<"$settings"; }
run="$(setting output)/$(setting name)"

"$querylect" index build "$config" "$@" --missing
resume=()
[ ! -e "$run/config.yaml" ] || resume=(--resume)

# A signal that comes before there is a trainer is handed on as soon as there is one.
trainer=
stopped=
signals=0
stop() { stopped="$1" signals=$((signals + 1)); [ -z "$trainer" ] || kill "-$1" "$trainer" 2>/dev/null || true; }
trap 'stop USR1' USR1
trap 'stop TERM' TERM INT

"$querylect" train "$config" "$@" "${resume[@]}" &
trainer=$!
[ -z "$stopped" ] || stop "$stopped"
# A signal cuts `wait` short, and what it then returns says nothing of the trainer: ask again, also where it has ended.
status=1
while true; do
    before="$signals" code=0
    wait "$trainer" || code=$?
    [ "$code" = 127 ] || status="$code"  # 127: it was told before
    [ "$signals" != "$before" ] || break
done
# 75: a signal came before the run had ended. Who cancels a job (TERM) does not want it back.
if [ "$status" = 75 ] && [ "$stopped" = USR1 ] && [ -n "${SLURM_JOB_ID:-}" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
