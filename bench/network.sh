#!/usr/bin/env bash
# The four-way experiment where the network matters: VGG-11 on four workers, each in a network namespace of its own whose
# link passes 1 Gbit/s in each direction (tc), and the same over plain loopback. Needs root, and iproute2, which it
# installs. Some five minutes on 2 cores.
#   bench/network.sh [--rate 1gbit] [--steps N] [--model vgg11] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
source bench/common/pytorch.sh
need_packages iproute2
[[ $(id -u) == 0 ]] || { echo "error: network namespaces need root" >&2; exit 1; }
cargo build --release --quiet
repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/ddp/network.py" "$@"
