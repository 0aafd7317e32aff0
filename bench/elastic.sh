#!/usr/bin/env bash
# One of four workers is killed with --elastic: how soon the others train again, and how many steps they do again. Two minutes.
#     bench/elastic.sh [--rounds N] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
cargo build --release --quiet
repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/common/elastic.py" "$@"
