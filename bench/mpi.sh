#!/usr/bin/env bash
# MPI's all-reduce through ringstep beside the same call from C, in turns, under Open MPI and MPICH; and how much of its
# communication ddp hides over mpi, tcp and shm. Installs both MPIs (Debian packages). Two minutes without the builds.
#   bench/mpi.sh [--rounds N] [--workers N] [--only allreduce,ddp] [--mpi openmpi,mpich] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
source bench/common/pytorch.sh
need_packages openmpi-bin libopenmpi-dev mpich libmpich-dev
mkdir -p target/peers
for mpi in openmpi mpich; do
    "mpicc.$mpi" -O2 bench/mpi/allreduce.c -o "target/peers/mpi-allreduce-$mpi"
    "mpicc.$mpi" -O2 -shared -fPIC bench/mpi/inside.c -o "target/peers/mpi-inside-$mpi.so"
    [[ ${RINGSTEP_BUILT:-} ]] && continue # by an earlier run
    MPICC=mpicc.$mpi cargo build --release --quiet --features mpi
    cp target/release/ringstep "target/peers/ringstep-$mpi"
done
repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/mpi/compare.py" "$@"
