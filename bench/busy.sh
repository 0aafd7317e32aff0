#!/usr/bin/env bash
# What one busy process on the machine costs: training, collectives and the engine's threads, each on a quiet machine and
# beside it, and the same for PyTorch with gloo and for Open MPI. Installs these as bench/common/pytorch.sh says. Some
# six minutes on 2 cores, on a machine that does nothing else.
#   bench/busy.sh [--rounds N] [--only ringstep|peers] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
source bench/common/pytorch.sh
need_packages openmpi-bin libopenmpi-dev
need_pytorch
cargo build --release --quiet
mpicc.openmpi -O2 bench/collectives/mpi_allreduce.c -o target/peers/allreduce-openmpi -lm
repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/busy/compare.py" "$@"
