#!/usr/bin/env bash
# Train on one node and generate on another:  sbatch slurm/grpo_vllm_server.sh [CONFIG] [KEY=VALUE …]
#
# The second node serves the policy with `trl vllm-serve`; the first runs grpo_contriever.sh with the engine vllm_server,
# which sends its weights there at every step. policy.model must be a folder or a Hub id. VLLM_ARGS holds further
# arguments of the server, such as "--tensor_parallel_size 4 --max_model_len 8192"; VLLM_PORT is its port.
#SBATCH --job-name=grpo-vllm-server
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --mem=128G
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:?this script needs Slurm: two nodes work together}"
querylect="${QUERYLECT:-.venv/bin/querylect}"
config="${1:-paper_contriever}"
shift || true
port="${VLLM_PORT:-8000}"
read -ra more <<<"${VLLM_ARGS:-}"

settings="$("$querylect" train "$config" "$@" --dry-run)"
model="$("${querylect%/*}/python" -c 'import sys, yaml; print(yaml.safe_load(sys.stdin)["policy"]["model"])' <<<"$settings")"
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

srun --nodes=1 --ntasks=1 --nodelist="${nodes[1]}" "${querylect%/*}/trl" vllm-serve \
    --model "$model" --port "$port" --enable_prefix_caching true "${more[@]}" &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT

# A signal that comes before there is a trainer is handed on as soon as there is one.
trainer=
stopped=
signals=0
stop() { stopped="$1" signals=$((signals + 1)); [ -z "$trainer" ] || kill "-$1" "$trainer" 2>/dev/null || true; }
trap 'stop USR1' USR1
trap 'stop TERM' TERM INT

bash slurm/grpo_contriever.sh "$config" "$@" rollout.engine=vllm_server \
    rollout.server.base_url="http://${nodes[1]}:$port" rollout.server.timeout=1800 &
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
exit "$status"
