#!/bin/sh
# What signs of life and authentication cost steps of LeNet-5: the processor time of the threads that give the signs, beside the
# time of the run; and the median step with and without the signs, in turns, if a binary without them is given.
#     bench/overhead.sh [BINARY-WITHOUT] [ROUNDS]
set -eu
cd "$(dirname "$0")/.."
cargo build --release --quiet
exec python3 bench/common/overhead.py target/release/ringstep "${1:-}" "${2:-3}"
