#!/usr/bin/env bash
# Faults on purpose: each must end in an error that names the right rank, or in a recovery with the weights of the undisturbed run;
# never in a hang, another result, an orphan or a leftover. Needs root (network namespaces, a small tmpfs); installs iproute2 and Open MPI
# where they are missing (Debian).
#   tests/faults.sh [--seed N] [--faults N] [--lanes N] [--record FILE]     # every way and transport; some ten minutes
#   tests/faults.sh --kills [N] [--record FILE]                             # kill -9 at N random steps of six jobs, resumed each time
#   tests/faults.sh --hostile [N] [--record FILE]                           # N hostile connections during a run
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
[[ $(id -u) == 0 ]] || { echo "error: network namespaces need root" >&2; exit 1; }
# MPI is not needed for kills and strangers.
[[ " $* " == *" --kills "* || " $* " == *" --hostile "* ]] && export RINGSTEP_MPI=none
packages="iproute2 openmpi-bin libopenmpi-dev"
dpkg -s $packages > /dev/null 2>&1 || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages; } > /dev/null
if [[ -z ${RINGSTEP:-} ]]; then
    cargo build --release --quiet
    export RINGSTEP=$PWD/target/release/ringstep
fi
if [[ -z ${RINGSTEP_MPI:-} ]]; then
    MPICC=mpicc.openmpi cargo build --release --quiet --features mpi --target-dir target/mpi/openmpi
    export RINGSTEP_MPI=$PWD/target/mpi/openmpi/release/ringstep
fi
repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/tests/faults/main.py" "$@"
