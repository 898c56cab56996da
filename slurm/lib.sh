# shellcheck shell=bash
# What the jobs of this folder share: who runs where, how they find each other, and how a job ends. Sourced, not run.
#
# A job is made of components: the index build, retrievers, a vLLM server, the trainer. Each writes RUN/logs/NAME.log.
# When one of them ends before its time, the others are ended too, its last lines are shown and the job has failed.
# USR1, what Slurm sends ahead of the time limit, has the trainer save, and puts the job back into the queue.
#
# RETRIEVER_NODES=n      the last n nodes serve the retriever, the others train. Else it runs beside the trainer, or as a
#                        child on every node of several
# RETRIEVER_DEVICE=cpu   no GPU for the retriever
# VLLM_GPUS=n            the last n GPUs of the only node that trains serve vLLM, the others train
# SHARDING=zero2         what several processes split: zero2 or zero3 (DeepSpeed), fsdp2, or nothing (ddp). Unset: zero2
#                        where all weights are trained, ddp for adapters
# READY_SECONDS=1800     how long a retriever may take to answer
set -euo pipefail
export PYTHONSAFEPATH=1   # no Python here imports a module that lies in the folder of submission

slurm="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "${SLURM_SUBMIT_DIR:-.}"
container=() step=()
cluster="${QUERYLECT_CLUSTER:-$slurm/cluster.sh}"
[ -r "$cluster" ] ||
    { echo "The cluster file $cluster cannot be read. Name another one in QUERYLECT_CLUSTER, or unset it." >&2; exit 2; }
set +eu   # the user's own file: it may end with a test that fails, and ask for what is not set
# shellcheck source=slurm/cluster.sh
source "$cluster"
set -eu
[ -z "${SHARDING+set}" ] || export SHARDING   # querylect reads it

querylect="${QUERYLECT:-.venv/bin/querylect}"
[ -x "$querylect" ] || [ "${#container[@]}" != 0 ] || querylect="$(command -v "${QUERYLECT:-querylect}")" ||
    { echo "There is no querylect at ${QUERYLECT:-.venv/bin/querylect} and none on the PATH. Install it here, or name" \
        "the command in $slurm/cluster.sh (QUERYLECT=…)." >&2; exit 2; }
bin="$(dirname "$querylect")"

dry=
arguments=()

# The arguments of the job without --dry-run, which is noted. No other option exists.
read_arguments() {
    local one
    for one in "$@"; do
        case "$one" in
            --dry-run) dry=yes ;;
            -*) echo "There is no option $one: a job takes a config, KEY=VALUE settings and --dry-run. Options of" \
                "sbatch come before the script." >&2
                exit 2 ;;
            *) arguments+=("$one") ;;
        esac
    done
}

# A python of the installation, with what follows as its arguments.
python() { "${container[@]}" "$bin/python" "$@"; }

# What the job has to know of its config, as variables of the shell; "$@": options of slurm/facts.py.
read_config() {
    local facts
    facts="$(python -m querylect.slurm.facts "$@" "${arguments[@]}")" || exit
    eval "$facts"
}

say() { echo "$(date +%T) $*"; }

# ── Nodes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

trainers=() servers=() retrievers=()
seen_by_trainer=() seen_by_vllm=()

# Shares the nodes of the job out; the first one, where this script runs, trains. $1: how many of them serve vLLM.
share_out_nodes() {
    local nodes=() serving="${RETRIEVER_NODES:-0}" generating="$1"
    if [ -n "${SLURM_JOB_NODELIST:-}" ]; then
        mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    elif [ -n "$dry" ]; then
        mapfile -t nodes < <(seq -f node-%g "$(asked_nodes)")
    else
        nodes=("$(hostname)")
    fi
    local training=$((${#nodes[@]} - serving - generating))
    if [ "$training" -lt 1 ]; then
        echo "The job has ${#nodes[@]} nodes: with $serving for the retriever and $generating for vLLM none is left to" \
            "train. Ask for more: sbatch --nodes=$((serving + generating + 1)) …" >&2
        exit 2
    fi
    trainers=("${nodes[@]:0:training}") servers=("${nodes[@]:training:generating}")
    [ "$serving" = 0 ] || retrievers=("${nodes[@]:training + generating}")
}

# How many nodes the script that is looked at asks for.
asked_nodes() {
    local asked
    asked="$(sed -n 's/^#SBATCH --nodes=//p' "$0")"
    echo "${NODES:-${asked:-1}}"
}

# How many GPUs a node of the job has: as Slurm says, in a dry run as the script asks, and one outside of Slurm.
gpus_per_node() {
    local asked=
    [ -z "$dry" ] || asked="$(sed -n 's/^#SBATCH --gpus-per-node=//p' "$0")"
    echo "${GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-${asked:-1}}}"
}

# Divides the GPUs of the only node that trains between vLLM and the trainer, as VLLM_GPUS says: sets `trainer_gpus`, and
# for each of the two the GPUs that it sees.
share_out_gpus() {
    local all gpus generating="${VLLM_GPUS:-0}"
    all="$(gpus_per_node)"
    trainer_gpus=$((${#trainers[@]} * all))
    [ "$generating" != 0 ] || return 0
    trainer_gpus=$((all - generating))
    if [ "${#trainers[@]}" != 1 ] || [ "${#servers[@]}" != 0 ] || [ "$trainer_gpus" -lt 1 ]; then
        echo "VLLM_GPUS is $generating, of $all GPUs on each of ${#trainers[@]} nodes that train, with ${#servers[@]} more" \
            "for vLLM. It takes GPUs of one node that trains alone, and leaves it at least one." >&2
        exit 2
    fi
    IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((all - 1)))}"
    seen_by_trainer=(env "CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]:0:trainer_gpus}")")
    seen_by_vllm=(env "CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]:trainer_gpus}")")
}

# The address by which the cluster knows a node.
address_of() {
    local found=
    [ -n "$dry" ] || found="$(scontrol show node "$1" -o 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')"
    echo "${found:-$1}"
}

# Starts a component as a step on another node, with the CPUs of a task of the job: NAME NODE COMMAND…
start_on() {
    local name="$1" node="$2"
    shift 2
    start "$name" srun --nodes=1 --ntasks=1 --nodelist="$node" --overlap \
        --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "${step[@]}" "${container[@]}" "$@"
}

# A port that other jobs on a node do not take: $1 from 0 to 7. Where a program can be given port 0, that is better.
job_port() { echo $((10000 + (${SLURM_JOB_ID:-$$} * 8 + $1) % 22000)); }

# ── Components ──────────────────────────────────────────────────────────────────────────────────────────────────────

declare -A running=()   # name → process
stopped=                # the signal that the job was sent
before=                 # what the run had finished when this job took it
services=               # the folder in which services tell their addresses, once this job has made it
by_srun=                # USR1 where the trainer is srun, which hands that on and answers TERM by killing its tasks
ended=                  # the component that ended last …
status=0                # … and its exit code

# Starts a component: NAME COMMAND…
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
    [ -z "$stopped" ] || stop "$stopped"   # a signal that came before
    say "$name started, its output in $run/logs/$name.log"
}

# Waits until one of the components has ended. A signal cuts `wait` short and only then runs its trap, so this looks
# once a second who is still there, and asks for the exit code afterwards, again where a signal came in between.
one_ended() {
    local name code before nap
    while true; do
        for name in "${!running[@]}"; do
            kill -0 "${running[$name]}" 2>/dev/null && continue
            status=1
            while true; do
                before="$signals" code=0
                wait "${running[$name]}" || code=$?
                [ "$code" = 127 ] || status="$code"   # 127: it was told before
                [ "$signals" != "$before" ] || break
            done
            ended="$name"
            unset "running[$name]"
            return
        done
        sleep 1 &
        nap=$!
        wait "$nap" || true
    done
}

# Waits for one component; its exit code is $status. Where another one ends before it, the job has failed.
await() {
    [ -z "$dry" ] || return 0
    while true; do
        one_ended
        [ "$ended" != "$1" ] || return 0
        [ -z "$stopped" ] || continue   # a signal may have reached it too
        show_end "$ended"
        finish 1
    done
}

# Waits for a component without which nothing else can begin.
must_end_well() {
    await "$1"
    [ "$status" = 0 ] && [ -z "$stopped" ] && return
    if [ -n "$stopped" ]; then finish 75; fi
    show_end "$1"
    finish "$status"
}

show_end() {
    say "$1 ended with exit code $status. The last lines of $run/logs/$1.log:" >&2
    tail -n 20 "$run/logs/$1.log" | sed 's/^/    /' >&2
}

# A signal to the job: the trainer saves and ends; what comes before it is given up.
signals=0
stop() {
    local name
    stopped="$1" signals=$((signals + 1))
    for name in index waiting; do
        [ -z "${running[$name]:-}" ] || kill "${running[$name]}" 2>/dev/null || true
    done
    signal_trainer "$1"
}

signal_trainer() {
    [ -z "${running[trainer]:-}" ] || kill "-${by_srun:-$1}" "${running[trainer]}" 2>/dev/null || true
}

# Ends all components: the trainer may save what it has finished.
end_all() {
    local name process tries most=600
    [ -z "$by_srun" ] || most=6000   # the grace period of USR1 is the longer one
    signal_trainer TERM
    for name in "${!running[@]}"; do
        [ "$name" = trainer ] || kill "${running[$name]}" 2>/dev/null || true
    done
    for ((tries = 1; tries <= most; tries++)); do
        for process in "${running[@]}"; do
            if kill -0 "$process" 2>/dev/null; then sleep 0.1; continue 2; fi
        done
        break
    done
    for process in "${running[@]}"; do kill -9 "$process" 2>/dev/null || true; done
    running=()
    [ "$tries" -le "$most" ] || say "a component had to be killed"
    [ -z "$services" ] || [ -n "$dry" ] || rm -rf "$services"
}

# Ends the job. 75: a signal came before the run had ended, and USR1 alone wants it back; who cancels a job (TERM) does not.
finish() {
    end_all
    if [ "$1" = 75 ] && [ "$stopped" = USR1 ] && [ -n "${SLURM_JOB_ID:-}" ] && gets_on; then
        say "the job goes back into the queue and goes on from its last checkpoint"
        scontrol requeue "$SLURM_JOB_ID" || say "it could not be requeued; submit it again, as it was, to go on"
    fi
    [ "$1" != 0 ] || say "done: $run"
    exit "$1"
}

# Whether this start, or one of the two before it, has finished something; else the time limit leaves no time to.
gets_on() {
    local idle
    idle="$(cat "$run/.idle" 2>/dev/null || echo 0)"
    if [ "$(progress)" != "$before" ]; then idle=0; else idle=$((idle + 1)); fi
    echo "$idle" >"$run/.idle" || true
    [ "$idle" -lt 3 ] && return
    say "nothing was finished in $idle starts: raise --time or lower --signal" >&2
    return 1
}

# What has been finished so far: steps, checkpoints, parts of indexes, whole indexes.
progress() {
    local lock
    wc -l "$run/metrics.jsonl" 2>/dev/null || true
    newest_checkpoint
    for lock in "${index_locks[@]}"; do find "${lock%.job}.parts" -type f 2>/dev/null | wc -l || true; done
    echo "$built"
}

newest_checkpoint() {
    find "$run/checkpoints" -maxdepth 1 -name 'checkpoint-*' 2>/dev/null | sed 's/.*-//' | sort -n | tail -n 1 || true
}

# ── Parts of a training job ─────────────────────────────────────────────────────────────────────────────────────────

# The folders of the run. The trainer's own lock refuses a second job of one run; each has a folder for its services,
# and nobody else reads what is handed over in it.
open_run() {
    services="$run/services-${SLURM_JOB_ID:-$([ -n "$dry" ] && echo JOB || echo $$)}"
    [ -z "$dry" ] || return 0
    mkdir -p "$run/logs"
    rm -rf "$services"
    (umask 077 && mkdir "$services" && python -c 'import secrets; print(secrets.token_urlsafe(32))' >"$services/token") ||
        { echo "The job's token cannot be written to $services/token. Free some space, or choose output=…." >&2; exit 2; }
    [ "${SLURM_RESTART_COUNT:-0}" != 0 ] || rm -f "$run/.idle"
    before="$(progress)"
}

built=0   # indexes that this job has built

# The indexes that local services would open and that are not there. Jobs that want the same one wait for each other.
build_index() {
    local place chosen
    for place in "${!building[@]}"; do
        choose "${building[place]}"
        [ -n "$dry" ] || mkdir -p "$(dirname "${index_locks[place]}")"
        start index flock --no-fork "${index_locks[place]}" \
            "${container[@]}" "$querylect" index build "${arguments[@]}" "${chosen[@]}" --missing
        must_end_well index
        built=$((built + 1))
    done
}

# Sets `chosen` to the option that names an environment of a mix; "" is that of no mix.
choose() { if [ -n "$1" ]; then chosen=(--env "$1"); else chosen=(); fi; }

# The services that the config leaves to us. They tell their addresses in $services, where the trainer reads them.
start_retrievers() {
    [ "${#serving[@]}" != 0 ] || return 0
    if [ "${#retrievers[@]}" = 0 ] && [ "${#trainers[@]}" -gt 1 ]; then
        [ -z "$dry" ] || echo "retriever: the trainer's own, one on every node"
        return 0
    fi
    export QUERYLECT_SERVICES="$services"
    local environment node name device=() chosen count=0 token_env
    for token_env in "${token_envs[@]}"; do
        unset "$token_env"   # a token of the shell that submitted comes before the file
        export "${token_env}_FILE=$services/token"
    done
    [ "${RETRIEVER_DEVICE:-}" != cpu ] || device=(env CUDA_VISIBLE_DEVICES=)
    for environment in "${serving[@]}"; do
        name="retriever${environment:+-$environment}"
        choose "$environment"
        if [ "${#retrievers[@]}" = 0 ]; then
            count=$((count + 1))
            start "$name" "${device[@]}" "${container[@]}" "$querylect" serve "${arguments[@]}" "${chosen[@]}" \
                --tell "$services/$name.json"
        fi
        local base="$name"
        for node in "${retrievers[@]}"; do
            count=$((count + 1)) name="$base-$node"
            start_on "$name" "$node" "${device[@]}" "$querylect" serve "${arguments[@]}" "${chosen[@]}" \
                --tell "$services/$name.json" --facing "$(address_of "${trainers[0]}")"
        done
    done
    start waiting "${container[@]}" "$bin/python" -m querylect.slurm.ready \
        "$services" "$count" "${READY_SECONDS:-1800}"
    must_end_well waiting
}

# `trl vllm-serve` on its own node, where other nodes of the cluster reach it, or on GPUs of the node that trains.
start_vllm() {
    generates_apart || return 0
    local port more host=127.0.0.1 command
    port="${VLLM_PORT:-$(job_port 1)}"
    command=("$bin/trl" vllm-serve --model "$model" --port "$port" --enable_prefix_caching true)
    if [ "${#servers[@]}" = 0 ]; then
        read -ra more <<<"${VLLM_ARGS---data_parallel_size $VLLM_GPUS}"
        start vllm "${seen_by_vllm[@]}" "${container[@]}" "${command[@]}" "${more[@]}" --host "$host"
    else
        read -ra more <<<"${VLLM_ARGS:-}"
        host="$(address_of "${servers[0]}")"
        # shellcheck disable=SC2016  # the address is known where the server runs
        start_on vllm "${servers[0]}" bash -c 'host="$("$1" -m querylect.envs.client.services "$2")" && shift 2 && exec "$@" --host "$host"' \
            vllm "$bin/python" "$(address_of "${trainers[0]}")" "${command[@]}" "${more[@]}"
    fi
    arguments+=(rollout.server.base_url="http://$host:$port"
        rollout.server.group_port="$(job_port 2)" rollout.server.timeout="${READY_SECONDS:-1800}")
}

# Whether vLLM has GPUs to itself.
generates_apart() { [ "${#servers[@]}" != 0 ] || [ "${VLLM_GPUS:-0}" != 0 ]; }

start_trainer() {
    local resume=()
    [ ! -e "$run/config.yaml" ] || resume=(--resume)
    start trainer "${seen_by_trainer[@]}" "$@" train "${arguments[@]}" "${resume[@]}"
}

# What a script asks Slurm for, and what the cluster file adds.
show_request() {
    echo "sbatch"
    sed -n 's/^#SBATCH /    /p' "$0"
    env | sed -n 's/^SBATCH_/    SBATCH_/p' | sort
}

# ── Jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────────

# train_job [--vllm-nodes N] DEFAULT_CONFIG ARGUMENTS…: adapters are trained by one process, on the first node; all
# weights by one process per GPU on all nodes that train, since no single GPU holds what their optimizer needs.
train_job() { whole_training "" "$@"; }

# One process per GPU on all nodes that train, whatever is trained.
train_job_on_all() { whole_training --on-all "$@"; }

whole_training() {
    local on_all="$1" generating=0 default
    shift
    if [ "$1" = --vllm-nodes ]; then generating="$2"; shift 2; fi
    default="$1"
    shift
    trap 'stop USR1' USR1
    trap 'stop TERM' TERM INT HUP
    trap end_all EXIT
    read_arguments "$@"
    # The first argument that is no setting is the config.
    if [ "${#arguments[@]}" = 0 ] || { [[ "${arguments[0]}" == *=* ]] && [ ! -e "${arguments[0]}" ]; }; then
        arguments=("$default" "${arguments[@]}")
    fi
    share_out_nodes "$generating"
    share_out_gpus
    ! generates_apart || arguments+=(rollout.engine=vllm_server)
    # shellcheck disable=SC2086  # no option where it is empty
    read_config --gpus "$trainer_gpus" $on_all
    [ -z "$dry" ] || { show_request; echo "run"; show_command "$run"; }
    open_run
    build_index
    start_retrievers
    start_vllm
    if [ -n "$on_all" ] || [ "$processes" -gt 1 ]; then all_gpus; else one_process; fi
    await trainer
    [ -z "$dry" ] || exit 0
    settle_status
    [ "$status" = 0 ] || [ "$status" = 75 ] || show_end trainer
    finish "$status"
}

# A signal that came before the trainer listened has killed it: nothing is lost.
settle_status() { case "$stopped $status" in "USR1 138" | "TERM 143" | "TERM 129") status=75 ;; esac; }

one_process() { start_trainer "${container[@]}" "$querylect"; }

all_gpus() {
    local nodes="${#trainers[@]}" launch cpus configs
    launch=(--num_machines "$nodes" --num_processes "$processes" --mixed_precision no --dynamo_backend no
        --main_process_ip "$([ "$nodes" = 1 ] && echo 127.0.0.1 || address_of "${trainers[0]}")"
        --main_process_port "${MASTER_PORT:-$(job_port 0)}")
    configs="$(python -c 'from importlib.resources import files; print(files("querylect.configs"))')"
    case "$sharding" in
        ddp) launch+=(--multi_gpu) ;;
        fsdp2) launch+=(--config_file "$configs/fsdp/fsdp2.yaml") ;;
        *) launch+=(--use_deepspeed --deepspeed_config_file "$configs/deepspeed/$sharding.json"
            --deepspeed_multinode_launcher standard) ;;
    esac
    # The launcher hands both signals on to the processes and waits for the step under way: longer than its own 30 seconds.
    export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 PET_SHUTDOWN_TIMEOUT="${GRACE_SECONDS:-540}"
    cpus=$((${SLURM_CPUS_PER_TASK:-1} * nodes / processes))
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cpus > 0 ? cpus : 1))}"
    settle_status() { settle_launcher; }
    if [ "$nodes" = 1 ]; then
        start_trainer "${container[@]}" \
            "$bin/python" -m accelerate.commands.launch --machine_rank 0 "${launch[@]}" -m querylect
        return
    fi
    by_srun=USR1
    # shellcheck disable=SC2016  # SLURM_NODEID is another one on every node
    start_trainer srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --overlap \
        --nodelist="$(IFS=,; echo "${trainers[*]}")" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
        "${step[@]}" "${container[@]}" \
        bash -c 'exec "$0" -m accelerate.commands.launch --machine_rank "${SLURM_NODEID:-0}" "$@"' \
        "$bin/python" "${launch[@]}" -m querylect
}

# A launcher that was sent a signal calls itself failed. What counts is whether the last finished step was saved: 75, go on.
settle_launcher() {
    local finished saved
    finished="$(tail -n 1 "$run/metrics.jsonl" 2>/dev/null | sed -n 's/^{"step": \([0-9]*\),.*/\1/p' || true)"
    saved="$(newest_checkpoint)"
    if [ -n "$stopped" ] && [ "$status" != 0 ] && [ "$saved" = "$finished" ]; then status=75; fi
}

# index_job CONFIG [KEY=VALUE …]: what is missing of its indexes: shard i of n in a job array of tasks 1 to n, all of
# them put together in task 0, everything at once in no array.
index_job() {
    local environment chosen what task="${SLURM_ARRAY_TASK_ID:-}" tasks="${SLURM_ARRAY_TASK_COUNT:-n}"
    read_arguments "$@"
    [ "${#arguments[@]}" != 0 ] ||
        { echo "Name the config: sbatch slurm/index_array.sh CONFIG [KEY=VALUE …]" >&2; exit 2; }
    read_config
    [ -z "$dry" ] || show_request
    [ -z "$dry" ] || task="${task:-$(sed -n 's/^#SBATCH --array=\([0-9]*\).*/\1/p' "$0")}"
    case "$task" in
        "") what=(build --missing) ;;
        0) what=(merge) ;;
        *) what=(build --shard "$task/$tasks") ;;
    esac
    for environment in "${building[@]}"; do
        choose "$environment"
        now_or_dry "${container[@]}" "$querylect" index "${what[@]}" "${arguments[@]}" "${chosen[@]}"
    done
}

now_or_dry() { if [ -n "$dry" ]; then show_command "$@"; else "$@"; fi; }

# A command as it can be pasted into a shell.
show_command() {
    printf '   '
    printf ' %q' "$@"
    echo
}

# eval_job RUN|PLAN… [KEY=VALUE …]: every task takes its share of them; one that fails does not keep back the others.
eval_job() {
    local one items=() changes=() place code=0
    local task="${SLURM_ARRAY_TASK_ID:-1}" most="${SLURM_ARRAY_TASK_MAX:-1}"
    read_arguments "$@"
    for one in "${arguments[@]}"; do
        if [[ "$one" == *=* ]] && [ ! -e "$one" ]; then changes+=("$one"); else items+=("$one"); fi
    done
    [ "${#items[@]}" != 0 ] || { echo "Name what is to be evaluated: sbatch slurm/eval_array.sh RUN|PLAN…" >&2; exit 2; }
    [ -z "$dry" ] || show_request
    [ "$task" -ge 1 ] || { echo "Tasks are counted from 1: sbatch --array=1-${#items[@]} …" >&2; exit 2; }
    for ((place = task - 1; place < ${#items[@]}; place += most)); do
        now_or_dry "${container[@]}" "$querylect" eval "${items[place]}" "${changes[@]}" || code=$?
    done
    exit "$code"
}
