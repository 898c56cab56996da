#!/usr/bin/env bash
# Train one run on all GPUs of several nodes:  sbatch --nodes=2 slurm/grpo_nodes.sh [CONFIG] [KEY=VALUE …]
#
# One `accelerate launch` per node, one process per GPU. ZERO=2 or ZERO=3 splits optimizer, gradients and, with 3,
# weights by DeepSpeed; unset, every GPU holds all of them (DDP). Each node runs the retriever as a child, unless
# client.urls names a service. The run folder must lie where all nodes see it. Submitting the same run again continues
# it. Before the time limit Slurm sends USR1: the run saves a checkpoint and goes back into the queue.
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
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
querylect="${QUERYLECT:-.venv/bin/querylect}"
python="${querylect%/*}/python"
srun="${SRUN:-srun}"
config="${1:-paper_contriever}"
shift || true

settings="$("$querylect" train "$config" "$@" --dry-run)"
setting() { "$python" -c 'import sys, functools, yaml
print(functools.reduce(dict.get, sys.argv[1].split("."), yaml.safe_load(sys.stdin)))' "$1" <<<"$settings"; }
run="$(setting output)/$(setting name)"

"$querylect" index build "$config" "$@" --missing
resume=()
[ ! -e "$run/config.yaml" ] || resume=(--resume)

nodes="${SLURM_NNODES:-1}"
per_node="${GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}"
address="$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null | head -n 1 || true)"
launch=(--num_machines "$nodes" --num_processes "$((nodes * per_node))" --mixed_precision no --dynamo_backend no
    --main_process_ip "${address:-127.0.0.1}" --main_process_port "${MASTER_PORT:-29500}")
if [ -n "${ZERO:-}" ]; then
    folder="$("$python" -c 'from importlib.resources import files; print(files("querylect.configs") / "deepspeed")')"
    launch+=(--use_deepspeed --deepspeed_config_file "$folder/zero$ZERO.json" --deepspeed_multinode_launcher standard)
else
    launch+=(--multi_gpu)
fi

# The launcher hands both signals on to the processes and waits for the step under way: longer than its own 30 seconds.
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 PET_SHUTDOWN_TIMEOUT="${GRACE_SECONDS:-540}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((${SLURM_CPUS_PER_TASK:-1} / per_node > 0 ? ${SLURM_CPUS_PER_TASK:-1} / per_node : 1))}"

# A signal that comes before there is a launcher is handed on as soon as there is one.
launcher=
stopped=
signals=0
stop() { stopped="$1" signals=$((signals + 1)); [ -z "$launcher" ] || kill "-$1" "$launcher" 2>/dev/null || true; }
trap 'stop USR1' USR1
trap 'stop TERM' TERM INT

# shellcheck disable=SC2016  # SLURM_NODEID is another one on every node
"$srun" bash -c 'exec "$0" -m accelerate.commands.launch --machine_rank "${SLURM_NODEID:-0}" "$@"' \
    "$python" "${launch[@]}" -m querylect train "$config" "$@" "${resume[@]}" &
launcher=$!
[ -z "$stopped" ] || stop "$stopped"
# A signal cuts `wait` short, and what it then returns says nothing of the launcher: ask again, also where it has ended.
status=1
while true; do
    before="$signals" code=0
    wait "$launcher" || code=$?
    [ "$code" = 127 ] || status="$code"  # 127: it was told before
    [ "$signals" != "$before" ] || break
done
# A launcher that was sent a signal calls itself failed. What counts is whether the last finished step was saved: 75, go on.
finished="$(tail -n 1 "$run/metrics.jsonl" 2>/dev/null | sed -n 's/^{"step": \([0-9]*\),.*/\1/p' || true)"
saved="$(find "$run/checkpoints" -maxdepth 1 -name 'checkpoint-*' 2>/dev/null | sed 's/.*-//' | sort -n | tail -n 1 || true)"
if [ -n "$stopped" ] && [ "$status" != 0 ] && [ "$saved" = "$finished" ]; then status=75; fi
# Who cancels a job (TERM) does not want it back.
if [ "$status" = 75 ] && [ "$stopped" = USR1 ] && [ -n "${SLURM_JOB_ID:-}" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
