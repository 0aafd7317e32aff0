#!/usr/bin/env bash
# What tests alone do not show of the unsafe parts and of threads that wait for each other: loom tries the interleavings
# of sleeping and waking, AddressSanitizer and valgrind's memcheck watch the memory of `cpu`, `comm` and `nn`. Installs
# valgrind. Some eight minutes on 2 cores.
#   tests/unsafe.sh [loom] [address] [memcheck]      all of them if none is named
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
runner=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$target")_RUNNER

loom() {
    echo "Sleeping and waking in every interleaving (loom):"
    RUSTFLAGS="--cfg loom" cargo test --quiet --release --target-dir target/unsafe/loom -p ringstep-cpu --lib models
}

address() {
    echo "AddressSanitizer:"
    # The option is one of the nightly compiler; this lets the stable one take it.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" cargo test --quiet --target "$target" \
        --target-dir target/unsafe/address -p ringstep-cpu -p ringstep-comm -p ringstep-nn --lib --tests
}

memcheck() {
    echo "Memcheck:"
    if ! dpkg -s valgrind >/dev/null 2>&1; then
        sudo=$([[ $(id -u) == 0 ]] || echo sudo)
        $sudo apt-get update -qq
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valgrind
    fi
    # It shows programs a processor of the instructions that it knows, AVX2 and no AVX-512.
    env "$runner=valgrind --quiet --error-exitcode=1 --fair-sched=yes" cargo test --quiet --target "$target" \
        --target-dir target/unsafe/memcheck -p ringstep-cpu -p ringstep-comm -p ringstep-nn --lib
}

for check in "${@:-loom address memcheck}"; do
    for name in $check; do
        case $name in
        loom | address | memcheck) "$name" ;;
        *) echo "unknown check '$name': known are loom, address, memcheck" >&2 && exit 2 ;;
        esac
    done
done
