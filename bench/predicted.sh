#!/usr/bin/env bash
# The steps of the default `ringstep compare` beside what it predicts of them, which is to be within 25%. A minute on a machine that
# does nothing else.
#   bench/predicted.sh [--rounds N] [--record FILE.md]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
cargo build --release --quiet
repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/simulation/predicted.py" "$@"
