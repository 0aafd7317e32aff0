#!/usr/bin/env bash
# LeNet-5 on all of MNIST, four workers, 10 epochs: test accuracy must reach 98.5%. About a minute on 2 cores.
#   bench/lenet5-mnist.sh [DIR]      DIR has the four MNIST files; by default where `ringstep data get mnist` puts them
set -euo pipefail
data=${1:+--data $(realpath "$1")}
cd "$(dirname "$0")/.."
cargo build --release --quiet
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# shellcheck disable=SC2086
target/release/ringstep train experiments/lenet5-mnist.toml $data --out "$out"
accuracy=$(sed -n 's/.*"test_accuracy": *\([0-9.]*\).*/\1/p' "$out/summary.json")
awk -v a="$accuracy" 'BEGIN { ok = a >= 0.985; print "test accuracy " a (ok ? ": reached 0.985" : ": below 0.985"); exit !ok }'
