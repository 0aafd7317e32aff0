#!/usr/bin/env bash
# All-reduce of ringstep beside Open MPI, MPICH and gloo (PyTorch), in one run. Installs the peers (Debian packages, as
# root or with sudo; torch into target/peers/venv, unless RINGSTEP_PEER_PYTHON names a Python that has it). Some ten
# minutes on 2 cores; for numbers to keep, on a machine that does nothing else.
#   bench/collectives.sh [--rounds N] [--workers 2,4] [--max 64MiB] [--only openmpi,mpich,gloo,shm,tcp] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
peers=target/peers
source bench/common/pytorch.sh
need_packages openmpi-bin libopenmpi-dev mpich libmpich-dev
need_pytorch

cargo build --release --quiet
for mpi in openmpi mpich; do
    "mpicc.$mpi" -O2 bench/collectives/mpi_allreduce.c -o "$peers/allreduce-$mpi" -lm
done
cc -O2 -pthread bench/collectives/stream.c -o "$peers/stream"
cc -O2 -pthread bench/collectives/cores.c -o "$peers/cores"
[[ $(uname -m) != x86_64 ]] || cc -O2 bench/collectives/movsb.c -o "$peers/movsb"

repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/collectives/compare.py" "$@"
