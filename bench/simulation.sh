#!/usr/bin/env bash
# Steps of 1, 2, 4 and 8 workers as measured, over loopback and over links of 1 Gbit/s and 100 Mbit/s in network namespaces (tc),
# beside what `ringstep simulate` says. Needs root, iproute2 and a machine that does nothing else. Some 20 minutes on 2 cores.
#   bench/simulation.sh [--model resnet20] [--batch 16] [--steps N] [--rounds N] [--measured FILE.json] [--record FILE.md]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
source bench/common/pytorch.sh
need_packages iproute2
[[ $(id -u) == 0 ]] || { echo "error: network namespaces need root" >&2; exit 1; }
cargo build --release --quiet
repository=$PWD
cd "$here" # where --measured's and --record's paths are relative to
exec python3 "$repository/bench/simulation/compare.py" "$@"
