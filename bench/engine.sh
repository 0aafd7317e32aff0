#!/usr/bin/env bash
# The engine beside PyTorch, ONNX Runtime and OpenVINO, in one run: training steps and inference on the same shapes, threads
# and precision; and beside itself with narrower vectors. Exits with 1 where a ratio is less than it must be, or where wider
# vectors are slower. Installs the peers into target/peers/venv, unless RINGSTEP_PEER_PYTHON names a Python that has them.
# Some fifteen minutes on 2 cores; for numbers to keep, on a machine that does nothing else.
#   bench/engine.sh [--rounds N] [--seconds S] [--only vgg11,lenet5] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
source bench/common/pytorch.sh
need_torch_compile
need_inference_runtimes
cargo build --release --quiet

repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/engine/compare.py" "$@"
