#!/usr/bin/env bash
# Reads the machine code of every AVX2 and AVX-512 kernel in the program: no multiply-adds of single numbers, no gathers or
# scatters, nothing that was not inlined, no vectors on the stack within inner loops, as many multiply-adds as a tile has, no
# loop that was not vectorised at all.
# On any machine: nothing of it is run. Seconds, once the program is built.
#   tests/disassembly.sh [PROGRAM]     by default the release build
set -euo pipefail
cd "$(dirname "$0")/.."
python3 tests/disassembly/test_check.py --quiet
if [[ $# == 0 ]]; then
    cargo build --release --quiet
fi
exec python3 tests/disassembly/check.py "$@"
