#!/usr/bin/env bash
# Training steps of four workers beside PyTorch's with gloo, in one run: DistributedDataParallel, an all-reduce a
# parameter, gather and scatter over rank 0. Installs PyTorch as bench/common/pytorch.sh says. Some six minutes on 2
# cores; for numbers to keep, on a machine that does nothing else.
#   bench/ddp.sh [--rounds N] [--only vgg11] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
source bench/common/pytorch.sh
need_pytorch
cargo build --release --quiet
repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/ddp/compare.py" "$@"
