#!/usr/bin/env bash
# A job of four workers under real launchers, which this installs as far as they are missing (Debian; needs root): each must
# end with the weights of `ringstep train --workers 4`, to the bit; also after Slurm has preempted and requeued it, and with a cable
# pulled and put back. Three minutes without the installation.
#   tests/clusters.sh [openmpi] [mpich] [torchrun] [slurm] [hosts] [tls] [ssh]       # all of them by default
#   tests/clusters.sh mpi      # --transport mpi, built for Open MPI and for MPICH: every way of synchronising, and faults
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $(id -u) == 0 ]] || { echo "error: Slurm and network namespaces need root" >&2; exit 1; }
cargo build --release --quiet
ringstep=$PWD/target/release/ringstep
repository=$PWD
venv=$PWD/target/peers/venv
folder=$(mktemp -d)
cd "$folder"
# Programs that jobs are to find before all others.
mkdir bin
job="train --sync ddp --epochs 5 --timeout 20"
# Long enough for something to happen on the way.
long="--sync ddp --epochs 4000 --timeout 20"
RINGSTEP_SECRET=$(head -c 32 /dev/urandom | sha256sum | cut -d ' ' -f 1)

started=()
clean() {
    for process in "${started[@]}"; do kill "$process" 2>/dev/null || true; done
    # What they still write would be left.
    for process in "${started[@]}"; do wait "$process" 2>/dev/null || true; done
    for host in 0 1 2 3; do ip netns delete "ringstep-host$host" 2>/dev/null || true; done
    ip link delete ringstep-bridge 2>/dev/null || true
    rm -rf "$folder"
}
trap clean EXIT

need() { # COMMAND PACKAGE...
    command -v "$1" > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${@:2}"; } > /dev/null
}

same() { # NAME [UNDISTURBED]
    cmp -s "${2:-alone}/model.safetensors" "$1/model.safetensors" || {
        echo "FAILED: $1: other weights" >&2
        # Whether it came to its end, and what it said.
        grep -E '"(interrupted|steps|algorithm|instructions)":' "$1/summary.json" >&2 || true
        ls "$1" "$1/checkpoints" >&2 || true
        tail -n 50 "$1.out" >&2 || true
        exit 1
    }
    echo "ok: $1"
}

openmpi() {
    need mpirun.openmpi openmpi-bin
    mpirun.openmpi --allow-run-as-root --oversubscribe -n 4 "$ringstep" $job --out openmpi > /dev/null
    same openmpi
    # The command that ringstep writes; and the one for jobs that go on, under which a rank is killed.
    programs mpirun.openmpi
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    "$ringstep" launch mpi --workers 4 -- ${job#train } --out launched-openmpi | PATH=$folder/bin:$PATH sh > /dev/null
    same launched-openmpi
    "$ringstep" launch mpi --workers 4 -- $long --elastic 2:4 --out fewer-openmpi | PATH=$folder/bin:$PATH sh > fewer-openmpi.out 2>&1 &
    goes_on_without OMPI_COMM_WORLD_RANK=2 fewer-openmpi $!
}

# Finds mpirun and ringstep where scripts that ringstep writes look for them.
programs() { # MPIRUN
    ln -sf "$(command -v "$1")" bin/mpirun
    ln -sf "$ringstep" bin/ringstep
}

# Kills the rank with this variable, and waits for the others' end.
goes_on_without() { # VARIABLE RUN LAUNCHER
    wait_for test -s "$2/steps.jsonl"
    for process in /proc/[0-9]*; do
        if tr '\0' ' ' 2> /dev/null < "$process/cmdline" | grep -q "ringstep train .*--out $2" &&
            tr '\0' '\n' 2> /dev/null < "$process/environ" | grep -q "^$1\$"; then
            kill -KILL "${process#/proc/}"
        fi
    done
    # srun ends with the exit code of the task that was killed.
    wait "$3" || true
    grep -q '"interrupted": false' "$2/summary.json" || { echo "FAILED: $2 did not go on" >&2; tail -n 20 "$2.out" >&2; exit 1; }
    grep -q 'going on from step .* with 3 workers' "$2.out" || { echo "FAILED: $2: nobody was missed" >&2; cat "$2.out" >&2; exit 1; }
    echo "ok: $2"
}

mpich() {
    need mpirun.mpich mpich
    mpirun.mpich -n 4 "$ringstep" $job --out mpich > /dev/null
    same mpich
}

# MPI as an engine: a program for each MPI.
mpi() {
    need mpicc.openmpi libopenmpi-dev openmpi-bin
    need mpicc.mpich libmpich-dev mpich
    refusal=$("$ringstep" train --transport mpi 2>&1 || true)
    [[ $refusal == *"transport 'mpi' is not in this build: cargo build --release --features mpi"* ]] ||
        { echo "FAILED: no refusal without the feature: $refusal" >&2; exit 1; }
    for library in openmpi mpich; do
        (cd "$repository" && MPICC=mpicc.$library cargo build --release --quiet --features mpi --target-dir "target/mpi/$library")
        with_mpi "$library" "$repository/target/mpi/$library/release/ringstep"
    done
}

with_mpi() { # LIBRARY PROGRAM
    program=$2
    case $1 in
        openmpi) start="mpirun.openmpi --allow-run-as-root --oversubscribe" ;;
        mpich) start="mpirun.mpich" ;;
    esac
    # Every collective, element type and operation, messages of all lengths, sub-groups, ranks that disagree.
    (cd "$repository" && MPICC=mpicc.$1 cargo build --release --quiet -p ringstep-comm --features mpi --target-dir "target/mpi/$1" \
        --example over_mpi)
    for ranks in 1 2 3 4; do $start -n $ranks "$repository/target/mpi/$1/release/examples/over_mpi" > /dev/null; done
    echo "ok: $1: collectives and messages of 1 to 4 ranks"
    # Ringstep's schedule by MPI's messages: the same bits. MPI's own: the same again, and the same to rounding.
    $start -n 4 "$program" $job --transport mpi --algorithm ring --out "$1-ring" > /dev/null
    same "$1-ring"
    $start -n 4 "$program" $job --transport mpi --out "$1-own" > /dev/null
    $start -n 4 "$program" $job --transport mpi --out "$1-own-again" > /dev/null
    cmp -s "$1-own/model.safetensors" "$1-own-again/model.safetensors" ||
        { echo "FAILED: $1: MPI's all-reduce does not repeat" >&2; exit 1; }
    close "$1-own" alone
    # Each way beside itself without MPI; those whose workers race only have to end.
    for way in gather-scatter all-reduce local-sgd post-local-sgd diloco sma none parameter-server stale async; do
        ranks=4
        case $way in parameter-server | stale | async) ranks=5 ;; esac
        quick="train --sync $way --epochs 2 --timeout 20"
        "$ringstep" $quick --workers 4 --out "$1-$way-alone" > /dev/null
        $start -n $ranks "$program" $quick --workers 4 --transport mpi --out "$1-$way" > /dev/null
        case $way in stale | async) ;; *) close "$1-$way" "$1-$way-alone" ;; esac
        echo "ok: $1: $way"
    done
    # Servers that are threads of the workers' processes; batch norm on a group of its own; compressed gradients.
    $start -n 4 "$program" train --sync parameter-server --servers colocated --workers 4 --epochs 2 --transport mpi \
        --out "$1-colocated" > /dev/null
    $start -n 2 "$program" train --sync ddp --model resnet20 --dataset synthetic --samples 64 --batch 8 --epochs 1 \
        --batch-norm sync --transport mpi --out "$1-norm" > /dev/null
    $start -n 4 "$program" $job --compress top-k --transport mpi --out "$1-top-k" > /dev/null
    # What MPI does nobody predicts.
    $start -n 2 "$program" compare --sync all-reduce,ddp --epochs 2 --transport mpi --out "$1-compared" > /dev/null
    echo "ok: $1: colocated servers, synchronised batch norm, codes, a comparison"
    stopped "$1"
}

# A rank that is stopped is named after the timeout, and nobody is left.
stopped() { # LIBRARY
    for way in "all-reduce mpi" "all-reduce ring" "ddp mpi"; do
        read -r sync algorithm <<< "$way"
        run=$1-stopped-$sync-$algorithm
        $start -n 3 "$program" train --sync $sync --epochs 100000 --timeout 2 --transport mpi --algorithm $algorithm \
            --out "$run" > "$1-stopped" 2>&1 &
        launcher=$!
        wait_for test -s "$run/steps.jsonl"
        victim=$(pgrep -f "^$program.*$run" | while read -r process; do
            if tr '\0' '\n' < "/proc/$process/environ" | grep -qE '^(OMPI_COMM_WORLD_RANK|PMI_RANK)=1$'; then echo "$process"; fi
        done)
        kill -STOP "$victim"
        wait $launcher && { echo "FAILED: $1: nobody missed a stopped rank" >&2; exit 1; }
        grep -qE "^error: rank 1 .*does not answer any more" "$1-stopped" ||
            { echo "FAILED: $1: $way: a stopped rank is not named: $(grep -m 1 error "$1-stopped")" >&2; exit 1; }
        pgrep -f "^$program.*$run" > /dev/null && { echo "FAILED: $1: processes are left" >&2; exit 1; }
        echo "ok: $1: a stopped rank is named ($way)"
    done
}

close() { # RUN RUN: their last losses are the same to rounding
    python3 - "$1" "$2" <<'PYTHON' || { echo "FAILED: $1: other results than $2" >&2; exit 1; }
import json, sys
one, other = (json.load(open(f"{run}/summary.json"))["runs"][0]["train_loss"] for run in sys.argv[1:])
sys.exit(abs(one - other) > 1e-3 * abs(other))
PYTHON
}

torchrun() {
    if [[ ! -x $venv/bin/torchrun ]]; then
        need python3 python3 python3-venv
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet torch numpy
    fi
    "$venv/bin/torchrun" --nproc-per-node 4 --no-python "$ringstep" $job --out torchrun > /dev/null 2>&1
    same torchrun
}

# munge, a controller and one node, without systemd.
slurm() {
    need slurmctld slurm-wlm munge
    mkdir -p slurm/state slurm/spool slurm/munge
    head -c 1024 /dev/urandom > slurm/munge/key
    chmod 700 slurm/munge && chmod 600 slurm/munge/key
    cat > slurm/slurm.conf <<CONF
ClusterName=ringstep
SlurmctldHost=$(hostname -s)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/slurm/munge/socket
CredType=cred/munge
StateSaveLocation=$folder/slurm/state
SlurmdSpoolDir=$folder/slurm/spool
SlurmctldPidFile=$folder/slurm/slurmctld.pid
SlurmdPidFile=$folder/slurm/slurmd.pid
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/linear
ReturnToService=2
KillWait=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
MpiDefault=none
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
CONF
    export SLURM_CONF=$folder/slurm/slurm.conf
    munged --foreground --force --socket="$folder/slurm/munge/socket" --key-file="$folder/slurm/munge/key" \
        --pid-file="$folder/slurm/munge/pid" --log-file="$folder/slurm/munge/log" \
        --seed-file="$folder/slurm/munge/seed" > slurm/munged.out 2>&1 &
    started+=($!)
    wait_for test -S slurm/munge/socket
    slurmctld -D -f "$SLURM_CONF" > slurm/slurmctld.out 2>&1 &
    started+=($!)
    slurmd -D -f "$SLURM_CONF" > slurm/slurmd.out 2>&1 &
    started+=($!)
    wait_for eval 'sinfo -h -o %T 2>/dev/null | grep -q idle'
    srun -n 4 --overcommit "$ringstep" $job --out srun > /dev/null
    same srun
    # The script that ringstep writes, as far as a cluster of one small node can hold it.
    "$ringstep" launch slurm --workers 4 -- ${job#train } --out launched |
        PATH=$(dirname "$ringstep"):$PATH sbatch --wait --overcommit --output=launched.out > /dev/null
    same launched
    # A batch script is not a step: there ringstep starts its own workers.
    printf '#!/bin/sh\nexec %s %s --workers 4 --out %s/sbatch\n' "$ringstep" "$job" "$folder" > batch.sh
    sbatch --wait --overcommit --ntasks 4 --output=batch.out batch.sh > /dev/null
    same sbatch
    "$ringstep" launch slurm --workers 4 -- $long --elastic 2:4 --out fewer-slurm |
        PATH=$(dirname "$ringstep"):$PATH sbatch --wait --overcommit --output=fewer-slurm.out > /dev/null &
    goes_on_without SLURM_PROCID=2 fewer-slurm $!
    preempted
}

# The recipe of docs/checkpoints.md: a job of higher priority takes the node away in the middle.
preempted() {
    undisturbed
    cat > preempted.sh <<SCRIPT
#!/bin/bash
#SBATCH --signal=B:USR1@60 --requeue --partition low --ntasks 4 --overcommit --open-mode append --output $folder/preempted.out
cd $folder
$ringstep train $long --workers 4 --out preempted & trap 'kill -USR1 \$!' USR1; wait \$!; code=\$?
[ \$code -lt 128 ] || { wait \$!; code=\$?; }
[ \$code -ne 75 ] || scontrol requeue "\$SLURM_JOB_ID"
exit \$code
SCRIPT
    number=$(sbatch --parsable preempted.sh)
    wait_for eval 'test -s preempted/metrics.jsonl'
    sbatch --wait --partition high --overcommit --output=high.out --wrap 'true' > /dev/null
    grep -q 'after step' preempted.out || { echo "FAILED: it was not preempted" >&2; cat preempted.out >&2; exit 1; }
    # Slurm lets whoever is requeued wait for two minutes, and looks at the queue every minute.
    queued=yes
    for _ in $(seq 500); do
        scontrol update "job=$number" starttime=now > /dev/null 2>&1 || true
        if state=$(squeue -h -o %T -j "$number" 2> /dev/null) && [[ -z $state ]]; then queued=; break; fi
        sleep 0.5
    done
    [[ -z $queued ]] || { echo "FAILED: the requeued job is still $state" >&2; cat preempted.out >&2; exit 1; }
    grep -q 'Slurm has requeued this job once: going on with preempted' preempted.out || { echo "FAILED: it was not requeued" >&2; cat preempted.out >&2; exit 1; }
    same preempted alone-long
}

undisturbed() {
    [[ -d alone-long ]] || "$ringstep" train $long --workers 4 --out alone-long > /dev/null
}

wait_for() {
    for _ in $(seq 200); do
        if "$@"; then return; fi
        sleep 0.1
    done
    echo "FAILED: $* never came true" >&2
    tail -n 5 slurm/*.out >&2 || true
    exit 1
}

# Hosts that have nothing but a network in common: namespaces with addresses of their own on one bridge.
namespaces() {
    need ip iproute2
    ip link show ringstep-bridge > /dev/null 2>&1 && return
    ip link add ringstep-bridge type bridge
    ip link set ringstep-bridge up
    for host in 0 1 2 3; do
        ip netns add "ringstep-host$host"
        ip link add "ringstep$host" type veth peer name eth0 netns "ringstep-host$host"
        ip link set "ringstep$host" master ringstep-bridge up
        ip -n "ringstep-host$host" address add "10.77.0.1$host/24" dev eth0
        ip -n "ringstep-host$host" link set eth0 up
        ip -n "ringstep-host$host" link set lo up
    done
}

on() { # HOST COMMAND...
    RINGSTEP_SECRET=$RINGSTEP_SECRET ip netns exec "ringstep-host$1" "${@:2}"
}

hosts() {
    namespaces
    # One rank on each of four hosts, in any order.
    others=()
    for rank in 3 1 2; do
        RANK=$rank WORLD_SIZE=4 MASTER_ADDR=10.77.0.10 MASTER_PORT=29500 on $rank "$ringstep" $job &
        others+=($!)
    done
    started+=("${others[@]}")
    RANK=0 WORLD_SIZE=4 MASTER_ADDR=10.77.0.10 MASTER_PORT=29500 on 0 "$ringstep" $job --out four-hosts > /dev/null
    wait "${others[@]}"
    same four-hosts
    # Two on each of two, which share memory there; the second names its interface.
    nodes="--nodes 2 --rendezvous 10.77.0.10:29501 --workers 2"
    on 1 "$ringstep" $job $nodes --node-rank 1 --interface eth0 &
    second=$!
    on 0 "$ringstep" $job $nodes --node-rank 0 --out two-hosts > /dev/null
    wait $second
    same two-hosts
    # A cable is pulled for two seconds in the middle of a job of four hosts.
    undisturbed
    export WORLD_SIZE=4 MASTER_ADDR=10.77.0.10 MASTER_PORT=29502
    for rank in 1 2 3; do
        RANK=$rank on $rank "$ringstep" train $long &
        started+=($!)
    done
    RANK=0 on 0 "$ringstep" train $long --out cable > /dev/null &
    first=$!
    wait_for eval 'test -s cable/metrics.jsonl'
    ip link set ringstep2 down
    before=$(wc -c < cable/metrics.jsonl)
    sleep 2
    ip link set ringstep2 up
    wait $first
    (($(wc -c < cable/metrics.jsonl) > before)) || { echo "FAILED: the cable was pulled too late" >&2; exit 1; }
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
    same cable alone-long
    # A host is lost, and started anew: the others wait for it, and all go on from the last checkpoint.
    nodes="$long --nodes 2 --rendezvous 10.77.0.10:29503 --workers 2 --max-restarts 1 --checkpoint-every 500"
    on 0 "$ringstep" train $nodes --node-rank 0 --out replaced > /dev/null 2> replaced.txt &
    first=$!
    on 1 "$ringstep" train $nodes --node-rank 1 &
    second=$!
    wait_for eval 'ls replaced/checkpoints/*/SHA256SUMS > /dev/null 2>&1'
    ip netns pids ringstep-host1 | xargs kill -KILL
    wait $second || true
    on 1 "$ringstep" train $nodes --node-rank 1 &
    second=$!
    wait $first $second
    grep -q 'restart 1 of 1' replaced.txt || { echo "FAILED: nobody was lost" >&2; exit 1; }
    same replaced alone-long
}

# What passes between two hosts, with and without --tls.
tls() {
    need tcpdump tcpdump
    namespaces
    for option in "" --tls; do
        name=watched${option#-}
        nodes="--nodes 2 --rendezvous 10.77.0.10:29502 --workers 2 $option"
        tcpdump -i ringstep-bridge -U -w "$name.pcap" tcp 2> "$name.tcpdump" &
        watcher=$!
        wait_for grep -q listening "$name.tcpdump"
        on 1 "$ringstep" $job $nodes --node-rank 1 &
        second=$!
        on 0 "$ringstep" $job $nodes --node-rank 0 --out "$name" > /dev/null
        wait $second
        sleep 0.5
        kill $watcher
        wait $watcher || true
        same "$name"
    done
    # The first words of a proof, and an order to a process, in words that stand in no other protocol.
    for words in ringstp5 model_file; do
        grep -q "$words" watched.pcap || { echo "FAILED: tls: $words is nowhere, so nothing was shown" >&2; exit 1; }
        ! grep -q "$words" watched-tls.pcap || { echo "FAILED: tls: $words passed in plain text" >&2; exit 1; }
    done
    echo "ok: nothing passed in plain text"
    # One that encrypts and one that does not refuse each other.
    nodes="train --timeout 3 --nodes 2 --rendezvous 10.77.0.10:29503 --workers 1"
    on 0 "$ringstep" $nodes --node-rank 0 --tls --out refused > /dev/null 2> refused.txt &
    first=$!
    ! on 1 "$ringstep" $nodes --node-rank 1 2> plain.txt || { echo "FAILED: tls: a plain process took part" >&2; exit 1; }
    ! wait $first || { echo "FAILED: tls: it went on alone" >&2; exit 1; }
    grep -q "encrypts, and this does not" plain.txt || { cat plain.txt >&2; exit 1; }
    echo "ok: a plain process was refused"
}

ssh() {
    need /usr/sbin/sshd openssh-server
    namespaces
    ssh-keygen -q -t ed25519 -N '' -f host-key
    ssh-keygen -q -t ed25519 -N '' -f user-key
    mkdir -p /run/sshd
    for host in 1 2; do
        ip netns exec "ringstep-host$host" /usr/sbin/sshd -D -h "$folder/host-key" -o "PidFile=none" -o UsePAM=no \
            -o "AuthorizedKeysFile=$folder/user-key.pub" -o StrictModes=no &
        started+=($!)
    done
    # What a user would have in ~/.ssh/config.
    printf '#!/bin/sh\nexec /usr/bin/ssh -F %s/config "$@"\n' "$folder" > bin/ssh
    chmod +x bin/ssh
    printf 'IdentityFile %s/user-key\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n' \
        "$folder" > config
    wait_for eval 'PATH=$folder/bin:$PATH ip netns exec ringstep-host0 ssh 10.77.0.12 true 2>/dev/null'
    PATH=$folder/bin:$PATH ip netns exec ringstep-host0 "$ringstep" $job --hosts 10.77.0.11,10.77.0.12 --workers 2 \
        --out by-ssh > /dev/null
    same by-ssh
}

"$ringstep" $job --workers 4 --out alone > /dev/null
[[ $# -gt 0 ]] || set -- openmpi mpich torchrun slurm hosts tls ssh
for launcher in "$@"; do "$launcher"; done
