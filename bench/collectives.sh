#!/usr/bin/env bash
# All-reduce of ringstep beside Open MPI, MPICH and gloo (PyTorch), in one run. Installs the peers (Debian packages, as
# root or with sudo; torch into target/peers/venv, unless RINGSTEP_PEER_PYTHON names a Python that has it). Some six
# minutes on 2 cores; for numbers to keep, on a machine that does nothing else.
#   bench/collectives.sh [--rounds N] [--workers 2,4] [--max 64MiB] [--only openmpi,mpich,gloo,shm,tcp] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
peers=target/peers
mkdir -p "$peers"

packages=(openmpi-bin libopenmpi-dev mpich libmpich-dev)
[[ -n ${RINGSTEP_PEER_PYTHON:-} ]] || packages+=(python3-venv)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
    sudo=$([[ $(id -u) == 0 ]] || echo sudo)
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi
if [[ -z ${RINGSTEP_PEER_PYTHON:-} ]] && ! "$peers/venv/bin/python" -c 'import torch, numpy' 2>/dev/null; then
    python3 -m venv "$peers/venv"
    "$peers/venv/bin/pip" install --quiet torch numpy
fi

cargo build --release --quiet
for mpi in openmpi mpich; do
    "mpicc.$mpi" -O2 bench/collectives/mpi_allreduce.c -o "$peers/allreduce-$mpi" -lm
done
cc -O2 -pthread bench/collectives/stream.c -o "$peers/stream"
cc -O2 bench/collectives/loopback.c -o "$peers/loopback"

repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/collectives/compare.py" "$@"
