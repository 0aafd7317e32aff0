#!/usr/bin/env bash
# What signs of life and authentication cost steps of LeNet-5: the processor time of the threads that give the signs; the median step
# beside that of the same program without them, in turns; and how long ranks take to meet. Five minutes with two builds.
#     bench/overhead.sh [--rounds N] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
cargo build --release --quiet
cargo build --release --quiet -p ringstep-comm --example meeting
# The same sources, with a sign of life an hour.
without=target/peers/without-signs
rm -rf "$without" && mkdir -p "$without"
git ls-files -z | tar --create --null --files-from - | tar --extract --directory "$without"
signs=$without/crates/cli/src/launch/pulse.rs
grep -q 'const PERIOD: Duration = Duration::from_secs(1);' "$signs" && grep -q 'PERIOD.min(timeout / 4)' "$signs" ||
    { echo "error: $signs: the period of signs of life is not where it was" >&2; exit 1; }
sed -i 's/const PERIOD: Duration = Duration::from_secs(1);/const PERIOD: Duration = Duration::from_secs(3600);/; s/PERIOD.min(timeout \/ 4)/PERIOD + 0 * timeout/' "$signs"
(cd "$without" && cargo build --release --quiet --target-dir ../without-signs-target)
repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/common/overhead.py" "$@"
