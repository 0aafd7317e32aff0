#!/usr/bin/env bash
# Machines that are not at hand, emulated by qemu: an x86-64 without AVX2 and an aarch64 train for two steps, and find the bits
# that they should: those of this machine's portable instructions and, with NEON, those of its AVX2. In integers every level of
# every machine finds the same, and an aarch64 finds them by dot products of bytes. Installs qemu and what it takes to build for
# aarch64: the toolchain's target where rustup can fetch it, otherwise Debian's compiler. Five minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
sudo=$([[ $(id -u) == 0 ]] || echo sudo)
install() {
    if ! dpkg -s "$@" >/dev/null 2>&1; then
        $sudo apt-get update -qq
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
    fi
}
build() {
    cargo build --quiet --release -p ringstep-nn --example same_bits --example same_integers "$@"
}
install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross

build
here=$(target/release/examples/same_bits)
expect() { # the lines of a level here, under the name that it has there
    grep -w "$1" <<<"$here" | sed "s/\b$1\b */$2 /"
}
same() {
    if ! diff <(sed 's/  */ /g' <<<"$1") <(sed 's/  */ /g' <<<"$2"); then
        echo "$3 finds other bits" >&2
        exit 1
    fi
    echo "$3: the same bits"
}
integers=$(target/release/examples/same_integers)
same_integers() { # of another machine: its fingerprints, and its name
    if [[ $(cat <(echo "$integers") <(echo "$1") | awk '{ print $2 }' | sort -u | wc -l) != 1 ]]; then
        printf '%s finds other integers:\n%s\nhere:\n%s\n' "$2" "$1" "$integers" >&2
        exit 1
    fi
    echo "$2: the same integers ($(awk '{ print $1 }' <<<"$1" | xargs))"
}
same_integers "$integers" "this machine"
old=$(qemu-x86_64 -cpu Nehalem target/release/examples/same_bits)
same "$(expect portable portable)" "$old" "an x86-64 without AVX2"
same_integers "$(qemu-x86_64 -cpu Nehalem target/release/examples/same_integers)" "an x86-64 without AVX2"

target=aarch64-unknown-linux-gnu
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
if ! timeout 60 rustup target add $target 2>/dev/null; then
    $sudo dpkg --add-architecture arm64
    install rustc-web libstd-rust-web-dev:arm64
    export RUSTC=/usr/bin/rustc CARGO_TARGET_DIR=target/aarch64
fi
build --target $target
on_arm() {
    qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu "${CARGO_TARGET_DIR:-target}/$target/release/examples/$1"
}
arm_integers=$(on_arm same_integers)
same_integers "$arm_integers" "an aarch64"
grep -qw neon-dot <<<"$arm_integers"
aarch64-linux-gnu-objdump -d "${CARGO_TARGET_DIR:-target}/$target/release/examples/same_integers" | grep -cw sdot >/dev/null
arm=$(on_arm same_bits)
same "$(expect portable portable)" "$(grep -w portable <<<"$arm")" "an aarch64 without vectors"
if grep -qw avx2 <<<"$here"; then
    same "$(expect avx2 neon)" "$(grep -w neon <<<"$arm")" "an aarch64 with NEON"
fi
