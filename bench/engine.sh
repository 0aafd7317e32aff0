#!/usr/bin/env bash
# The engine beside PyTorch, in one run: training steps and inference on the same shapes, threads and precision.
# Installs PyTorch into target/peers/venv, unless RINGSTEP_PEER_PYTHON names a Python that has it. Some six minutes on 2
# cores; for numbers to keep, on a machine that does nothing else.
#   bench/engine.sh [--rounds N] [--seconds S] [--only vgg11,lenet5] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
source bench/common/pytorch.sh
need_pytorch
cargo build --release --quiet

repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/engine/compare.py" "$@"
