#!/usr/bin/env bash
# The scaling lab on this machine: ResNet-18 with 1 and 2 workers in turns, which are to reach 90% of ideal weak scaling; the tables of
# `ringstep bench scaling`; and recipes for large batches on LeNet-5 and ResNet-20. Needs `ringstep data get mnist` and
# `cifar10`, or the folders. Some 25 minutes on 2 cores, on a machine that does nothing else.
#   bench/scaling.sh [--mnist DIR] [--cifar10 DIR] [--rounds N] [--samples N] [--only weak|tables|batches] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
cargo build --release --quiet
repository=$PWD
cd "$here" # where paths are relative to
exec python3 "$repository/bench/scaling/measure.py" "$@"
