#!/usr/bin/env bash
# Every way to stay in step and every compression on one job, LeNet-5 on all of MNIST with four workers: how far the test accuracy
# is from ddp's over three seeds, and how many images a second each way trains on when one worker is four times as slow. Needs
# `ringstep data get mnist`, or --data. Some half an hour on 2 cores.
#   bench/ways.sh [--data DIR] [--seeds N] [--epochs N] [--samples N] [--only accuracy|straggler] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
cargo build --release --quiet
repository=$PWD
cd "$here" # where paths are relative to
exec python3 "$repository/bench/ways/compare.py" "$@"
