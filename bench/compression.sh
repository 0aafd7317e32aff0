#!/usr/bin/env bash
# What sending less is worth: VGG-11 on four workers, each in a network namespace of its own whose link passes 100 Mbit/s in each
# direction (tc), with and without compression; and beside PyTorch's DDP with its own hooks (gloo), there and over plain loopback.
# Needs root, and iproute2 and PyTorch, which it installs as bench/common/pytorch.sh says. Some twenty minutes on 2 cores.
#   bench/compression.sh [--rate 100mbit] [--steps N] [--rounds N] [--model vgg11] [--only dense|pytorch] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
source bench/common/pytorch.sh
need_packages iproute2
need_pytorch
[[ $(id -u) == 0 ]] || { echo "error: network namespaces need root" >&2; exit 1; }
cargo build --release --quiet
repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/compression/compare.py" "$@"
