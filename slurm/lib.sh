# shellcheck shell=bash
# What the job scripts share. Sourced, not run.
#
# A job consists of components (index, retriever, vllm, trainer), each with its output in RUN/logs/NAME.log. If one ends
# early, the job ends the others, shows the last lines of that log and fails. After USR1, which Slurm sends before the
# time limit, the trainer saves and the job is requeued; after TERM it saves and the job ends.
#
# RETRIEVER_DEVICE=cpu   no GPU for the retriever, which runs beside the trainer, or as a child of it on several nodes
# VLLM_GPUS=n            the last n GPUs of the only node that trains serve vLLM
# SHARDING=zero2         what several processes split: zero2 or zero3 (DeepSpeed), fsdp2, or nothing (ddp). Unset: zero2
#                        if all weights are trained, ddp for adapters
# READY_SECONDS=1800     how long a retriever may take to open its index
set -euo pipefail
export PYTHONSAFEPATH=1   # Python does not import modules from the folder of submission

refuse() { echo "$*" >&2; exit 2; }
say() { echo "$(date +%T) $*"; }

slurm="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "${SLURM_SUBMIT_DIR:-.}"
container=() step=()
cluster="${QUERYLECT_CLUSTER:-$slurm/cluster.sh}"
[ -r "$cluster" ] || refuse "The cluster file $cluster cannot be read. Set QUERYLECT_CLUSTER to another one, or unset it."
set +eu   # the user's file may end with a failing test and read unset variables
# shellcheck source=slurm/cluster.sh
source "$cluster"
set -eu
export SHARDING="${SHARDING:-}"

querylect="${QUERYLECT:-.venv/bin/querylect}"
[ -x "$querylect" ] || [ "${#container[@]}" != 0 ] || querylect="$(command -v "${QUERYLECT:-querylect}")" ||
    refuse "There is no querylect at ${QUERYLECT:-.venv/bin/querylect} and none on the PATH. Install it here, or set" \
        "QUERYLECT in $cluster to the command."
bin="$(dirname "$querylect")"

# ── Arguments and nodes ─────────────────────────────────────────────────────────────────────────────────────────────

dry="" items=() changes=()

# Splits the arguments of a job into items (configs, runs, specs) and changes (KEY=VALUE).
read_arguments() {
    local argument
    for argument in "$@"; do
        case "$argument" in
            --dry-run) dry=yes ;;
            -*) refuse "There is no option $argument: a job takes a config, KEY=VALUE settings and --dry-run. Options of" \
                "sbatch come before the script." ;;
            *=*) if [ -e "$argument" ]; then items+=("$argument"); else changes+=("$argument"); fi ;;
            *) items+=("$argument") ;;
        esac
    done
}

# Sets the variables that slurm/job_env.py prints for the config: GPUS ON_ALL.
read_config() {
    local variables
    variables="$("${container[@]}" "$bin/python" -m querylect.slurm.job_env "$1" "$2" "${arguments[@]}")" || exit
    eval "$variables"
}

# The value of an #SBATCH option of the running script.
requested() { sed -n "s/^#SBATCH --$1=//p" "$0"; }

# Divides the nodes and GPUs of the job between training and vLLM. This script runs on the first node, which trains.
# $1: number of nodes that serve vLLM, the last.
share_out() {
    local nodes gpus seen on_nodes="$1" on_gpus="${VLLM_GPUS:-0}" training
    nodes=("$(hostname)") gpus="${GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}"
    if [ -n "${SLURM_JOB_NODELIST:-}" ]; then
        mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    elif [ -n "$dry" ]; then
        mapfile -t nodes < <(seq -f node-%g "${NODES:-$(requested nodes)}")
        gpus="${GPUS_PER_NODE:-$(requested gpus-per-node)}"
    fi
    training=$((${#nodes[@]} - on_nodes))
    [ "$training" -ge 1 ] || refuse "The job has ${#nodes[@]} nodes, which serve vLLM. Ask for more: sbatch --nodes=2 …"
    trainers=("${nodes[@]:0:training}") vllm_node=""
    [ "$on_nodes" = 0 ] || vllm_node="${nodes[training]}"
    trainer_gpus=$((training * (gpus > 0 ? gpus : 1))) seen_by_trainer=() seen_by_vllm=()
    [ "$on_gpus" != 0 ] || return 0
    trainer_gpus=$((gpus - on_gpus))
    [ "$training $on_nodes" = "1 0" ] && [ "$trainer_gpus" -ge 1 ] ||
        refuse "VLLM_GPUS is $on_gpus, of $gpus GPUs on each of $training nodes that train, with $on_nodes more for vLLM." \
            "It takes GPUs of one node that trains alone, and leaves it at least one."
    IFS=, read -ra seen <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((gpus - 1)))}"
    seen_by_trainer=(env "CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${seen[*]:0:trainer_gpus}")")
    seen_by_vllm=(env "CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${seen[*]:trainer_gpus}")")
}

# The address by which the cluster knows a node.
address_of() {
    local address
    address="$(scontrol show node "$1" -o 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')" || true
    echo "${address:-$1}"
}

# The IP address at which this node reaches another one.
ip_of() {
    local address
    address="$(getent ahostsv4 "$(address_of "$1")" | awk 'NR == 1 { print $1 }')" || true
    echo "${address:-$1}"
}

# A port that no other job on the node takes; $1: 0 or 1. For programs that do not take a free port themselves.
job_port() { echo $((10000 + (${SLURM_JOB_ID:-$$} * 2 + $1) % 22000)); }

# ── Components ──────────────────────────────────────────────────────────────────────────────────────────────────────

declare -A running=()   # process id by component
stopped=                # the last signal that the job received
services=               # folder of this job's service addresses and token

# Starts a component, or prints its command: NAME COMMAND…
start() {
    local name="$1"
    shift
    if [ -n "$dry" ]; then
        echo "$name"
        show_command "$@"
        return
    fi
    "$@" >>"$run/logs/$name.log" 2>&1 &
    running[$name]=$!
    [ -z "$stopped" ] || stop "$stopped"   # the signal came before the process id was known
    say "$name started, its output in $run/logs/$name.log"
}

# Starts a component on each of some nodes, with the CPUs of a task of the job: NAME COUNT NODES COMMAND…
start_on() {
    start "$1" srun --nodes="$2" --ntasks="$2" --ntasks-per-node=1 --nodelist="$3" --overlap \
        --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "${step[@]}" "${container[@]}" "${@:4}"
}

# Handles a signal to the job. The trainer saves on USR1, which srun and the launcher pass on; on TERM srun would kill it.
stop() {
    local name
    stopped="$1"
    for name in index trainer; do
        [ -z "${running[$name]:-}" ] || kill -USR1 "${running[$name]}" 2>/dev/null || true
    done
}

has_ended() { ! kill -0 "${running[$1]}" 2>/dev/null; }

# Waits until the command "$@" succeeds. Fails the job if a component other than $expected ends before.
wait_until() {
    local name
    until "$@"; do
        for name in "${!running[@]}"; do
            if [ "$name" != "$expected" ] && [ -z "$stopped" ] && has_ended "$name"; then fail "$name"; fi
        done
        sleep 1 &
        wait $! || true   # a signal ends this at once
    done
}

# Waits for a component to end. After a failure, or a signal to the job, this does not return.
await() {
    local expected="$1" code=0
    [ -z "$dry" ] || return 0
    wait_until has_ended "$1"
    wait "${running[$1]}" || code=$?
    [ "$code" != 0 ] || { unset "running[$1]"; return; }
    # After a signal the launcher's exit code says nothing. A failure of the trainer shows up again at the next start.
    [ -z "$stopped" ] || leave
    fail "$1" "$code"
}

# Shows how a component ended and fails the job: NAME [CODE].
fail() {
    local code="${2:-0}"
    [ "$code" != 0 ] || wait "${running[$1]}" || code=$?
    say "$1 ended with exit code $code. The last lines of $run/logs/$1.log:" >&2
    tail -n 20 "$run/logs/$1.log" | sed 's/^/    /' >&2
    exit "${2:-1}"
}

# Ends the job after a signal. After USR1 it is requeued, unless three starts in a row have finished nothing.
leave() {
    local idle=0
    if [ "$stopped" = USR1 ] && [ -n "${SLURM_JOB_ID:-}" ]; then
        if [ -z "$(find "${finished[@]}" -mindepth 1 -newer "$services/token" -print -quit 2>/dev/null)" ]; then
            idle=$(($(cat "$run/.idle" 2>/dev/null || echo 0) + 1))
        fi
        echo "$idle" >"$run/.idle"
        end_all
        if [ "$idle" -ge 3 ]; then
            say "nothing was finished in $idle starts: raise --time or lower --signal" >&2
        else
            say "the job goes back into the queue and goes on from its last checkpoint"
            scontrol requeue "$SLURM_JOB_ID" || say "it could not be requeued; submit it again, as it was, to go on"
        fi
    fi
    exit 75
}

# Ends all components. A trainer that is still running has a minute to save what it has finished.
end_all() {
    local name tries
    stop "$stopped"
    for name in "${!running[@]}"; do
        [ "$name" = trainer ] || kill "${running[$name]}" 2>/dev/null || true
    done
    for ((tries = 0; tries < 600; tries++)); do
        kill -0 "${running[@]}" 2>/dev/null || break
        sleep 0.1
    done
    kill -9 "${running[@]}" 2>/dev/null || true
    running=()
    [ -n "$dry" ] || rm -rf "$services"
}

# ── Parts of a training job ─────────────────────────────────────────────────────────────────────────────────────────

# Makes the folders of the run and this job's token. A second job of the run is refused by the trainer's lock.
open_run() {
    services="$run/services-${SLURM_JOB_ID:-$$}"
    [ -z "$dry" ] || return 0
    mkdir -p "$run/logs"
    rm -rf "$services"
    (umask 077 && mkdir "$services" && head -c 32 /dev/urandom | base64 >"$services/token")
    [ "${SLURM_RESTART_COUNT:-0}" != 0 ] || rm -f "$run/.idle"
}

# Starts the services that the config leaves to the job. They write their addresses into $services, where the trainer
# reads them.
start_retrievers() {
    local environment name token_env device=() since=$SECONDS expected=
    [ "${#serving[@]}" != 0 ] || return 0
    if [ "${#trainers[@]}" -gt 1 ]; then
        [ -z "$dry" ] || echo "retriever: the trainer's own, one on every node"
        return 0
    fi
    export QUERYLECT_SERVICES="$services"
    for token_env in "${token_envs[@]}"; do
        export "${token_env}_FILE=$services/token"
        unset "$token_env"   # the token of the submitting shell would take precedence over the file
    done
    [ "${RETRIEVER_DEVICE:-}" != cpu ] || device=(env CUDA_VISIBLE_DEVICES=)
    for environment in "${serving[@]}"; do
        name="retriever${environment:+-$environment}"
        start "$name" "${container[@]}" "${device[@]}" "$querylect" serve "${arguments[@]}" \
            ${environment:+--env "$environment"} --tell "$services/$name.json"
    done
    [ -n "$dry" ] || wait_until are_ready "${#serving[@]}" "$since"
}

# Whether $1 services take requests, or a signal came; fails the job READY_SECONDS after $2.
are_ready() {
    local ready
    ready="$(find "$services" -name '*.json' | wc -l)"
    [ -z "$stopped" ] && [ "$ready" -lt "$1" ] || return 0
    [ $((SECONDS - $2)) -lt "${READY_SECONDS:-1800}" ] && return 1
    say "after ${READY_SECONDS:-1800} s $ready of $1 retrievers take requests. Read their logs in $run/logs;" \
        "READY_SECONDS=… waits longer." >&2
    exit 1
}

# Starts `trl vllm-serve` on its own node, or on GPUs of the node that trains.
start_vllm() {
    local port host=127.0.0.1 command more
    [ -n "$vllm_node" ] || [ "${#seen_by_vllm[@]}" != 0 ] || return 0
    port="$(job_port 1)"
    command=("$bin/trl" vllm-serve --model "$model" --port "$port" --enable_prefix_caching true)
    if [ -z "$vllm_node" ]; then
        read -ra more <<<"${VLLM_ARGS---data_parallel_size $VLLM_GPUS}"
        start vllm "${seen_by_vllm[@]}" "${container[@]}" "${command[@]}" "${more[@]}" --host "$host"
    else
        read -ra more <<<"${VLLM_ARGS:-}"
        host="$(ip_of "$vllm_node")"
        start_on vllm 1 "$vllm_node" "${command[@]}" "${more[@]}" --host "$host"
    fi
    arguments+=(rollout.server.base_url="http://$host:$port")
}

# Starts the trainer: one process, or `accelerate launch` on each node with one process per GPU.
start_trainer() {
    local nodes="${#trainers[@]}" cpus train launch
    train=(train "${arguments[@]}")
    [ ! -e "$run/config.yaml" ] || train+=(--resume)
    if [ "${#launcher[@]}" = 0 ]; then
        start trainer "${seen_by_trainer[@]}" "${container[@]}" "$querylect" "${train[@]}"
        return
    fi
    launch=(--num_machines "$nodes" "${launcher[@]}"
        --main_process_ip "$([ "$nodes" = 1 ] && echo 127.0.0.1 || address_of "${trainers[0]}")"
        --main_process_port "$(job_port 0)" -m querylect "${train[@]}")
    # The launcher passes signals on and waits until the step under way is saved: its default is 30 seconds.
    export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 PET_SHUTDOWN_TIMEOUT=540
    cpus=$((${SLURM_CPUS_PER_TASK:-1} * nodes / trainer_gpus))
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cpus > 0 ? cpus : 1))}"
    if [ "$nodes" = 1 ]; then
        start trainer "${seen_by_trainer[@]}" "${container[@]}" \
            "$bin/python" -m accelerate.commands.launch --machine_rank 0 "${launch[@]}"
    else
        # shellcheck disable=SC2016  # SLURM_NODEID differs between nodes
        start_on trainer "$nodes" "$(IFS=,; echo "${trainers[*]}")" \
            bash -c 'exec "$0" -m accelerate.commands.launch --machine_rank "${SLURM_NODEID:-0}" "$@"' \
            "$bin/python" "${launch[@]}"
    fi
}

# Prints what a script requests from Slurm, with what the cluster file adds.
show_request() {
    echo "sbatch"
    sed -n 's/^#SBATCH /    /p' "$0"
    env | sed -n 's/^SBATCH_/    SBATCH_/p' | sort
}

# Prints a command as it can be pasted into a shell.
show_command() {
    printf '   '
    printf ' %q' "$@"
    echo
}

run_or_show() { if [ -n "$dry" ]; then show_command "$@"; else "$@"; fi; }

# ── Jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────────

# train_job DEFAULT_CONFIG [CONFIG …] [KEY=VALUE …]: task i of a job array trains config i. All weights are trained by one
# process per GPU, adapters by one process, or, where `on_all` is set, by one per GPU too. Where `vllm_nodes` is 1, one of
# the nodes serves vLLM.
train_job() {
    local default="$1"
    trap 'stop USR1' USR1
    trap 'stop TERM' TERM INT HUP
    trap end_all EXIT
    read_arguments "${@:2}"
    [ "${SLURM_ARRAY_TASK_ID:-0}" -le "${#items[@]}" ] ||
        refuse "This is task $SLURM_ARRAY_TASK_ID of ${#items[@]} configs: sbatch --array=1-${#items[@]} …"
    [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || items=("${items[SLURM_ARRAY_TASK_ID - 1]}")
    arguments=("${items[@]:-$default}" "${changes[@]}")
    share_out "${vllm_nodes:-0}"
    [ -z "$vllm_node" ] && [ "${#seen_by_vllm[@]}" = 0 ] || arguments+=(rollout.engine=vllm_server)
    read_config "$trainer_gpus" "${on_all:-}"
    [ -z "$dry" ] || show_request
    open_run
    if [ "${#building[@]}" != 0 ]; then
        start index "${container[@]}" "$querylect" index build "${arguments[@]}" --missing
        await index
    fi
    start_retrievers
    start_vllm
    start_trainer
    await trainer
    [ -n "$dry" ] || say "done: $run"
}

# index_job CONFIG [KEY=VALUE …]: builds the missing indexes of the config. Task i of a job array of 1 to n writes shard i,
# task 0 merges the shards; one task alone, or no array, builds everything.
index_job() {
    local environment what task tasks="${SLURM_ARRAY_TASK_COUNT:-n}"
    read_arguments "$@"
    [ "${#items[@]}" = 1 ] || refuse "Name the config: sbatch slurm/index_array.sh CONFIG [KEY=VALUE …]"
    arguments=("${items[@]}" "${changes[@]}")
    read_config 1 ""
    [ -z "$dry" ] || show_request
    task="${SLURM_ARRAY_TASK_ID:-${dry:+1}}"
    case "$task/$tasks" in
        /* | 1/1) run_or_show "${container[@]}" "$querylect" index build "${arguments[@]}" --missing; return ;;
        0/*) what=(merge) ;;
        *) what=(build --shard "$task/$tasks") ;;
    esac
    for environment in "${building[@]}"; do
        run_or_show "${container[@]}" "$querylect" index "${what[@]}" "${arguments[@]}" ${environment:+--env "$environment"}
    done
}

# eval_job RUN|SPEC … [KEY=VALUE …]: each task evaluates its share; one that fails does not hold back the others.
eval_job() {
    local place code=0 task="${SLURM_ARRAY_TASK_ID:-1}" tasks="${SLURM_ARRAY_TASK_MAX:-1}"
    read_arguments "$@"
    [ "${#items[@]}" != 0 ] || refuse "Name what is to be evaluated: sbatch slurm/eval_array.sh RUN|SPEC …"
    [ "$task" -ge 1 ] || refuse "Tasks are counted from 1: sbatch --array=1-${#items[@]} …"
    [ -z "$dry" ] || show_request
    for ((place = task - 1; place < ${#items[@]}; place += tasks)); do
        run_or_show "${container[@]}" "$querylect" eval "${items[place]}" "${changes[@]}" || code=$?
    done
    exit "$code"
}
