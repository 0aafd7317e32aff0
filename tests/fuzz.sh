#!/usr/bin/env bash
# Fuzzes everything that is parsed from outside, each target for some seconds (20 unless told), by libFuzzer with
# AddressSanitizer, from the corpus in fuzz/corpus: a panic, a hang of 10 seconds, or more than 1 GB is an error. Installs cargo-fuzz
# and, as root, a C++ compiler (Debian), if they are missing. Inputs that fail are left in fuzz/artifacts.
#
#   tests/fuzz.sh [SECONDS [TARGET...]]
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-20}
shift || true

command -v c++ > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++; } > /dev/null
command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
# Sanitizers are not stable; the compiler is, and takes their flags when it is told so.
export RUSTC_BOOTSTRAP=1
# Where properties are tried on the same cases every time, so are targets.
seed=${PROPTEST_RNG_SEED:-0}
[ $# -gt 0 ] || set -- $(cargo fuzz list)
for target in "$@"; do
    # What is found goes to a folder of its own: the corpus that is committed stays small.
    found=$(mktemp -d)
    echo "== $target"
    cargo fuzz run "$target" "$found" "corpus/$target" -- \
        -seed="$seed" -max_total_time="$seconds" -timeout=10 -malloc_limit_mb=1024 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
        2>&1 | grep -E "^(stat::|SUMMARY|==|artifact|thread|error)|panicked" || [ "${PIPESTATUS[0]}" -eq 0 ]
    rm -rf "$found"
done
