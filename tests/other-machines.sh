#!/usr/bin/env bash
# The engine's tests as machines would run them that are not at hand: an x86-64 without AVX2, and an aarch64. Emulated by
# qemu, which it installs with what it takes to build for aarch64. Some three minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
    sudo=$([[ $(id -u) == 0 ]] || echo sudo)
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi
rustup target add aarch64-unknown-linux-gnu

echo "x86-64 without AVX2:"
CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="qemu-x86_64 -cpu Nehalem" \
    cargo test --quiet -p ringstep-nn --lib --target x86_64-unknown-linux-gnu

echo "aarch64:"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
cargo test --quiet -p ringstep-nn --lib --target aarch64-unknown-linux-gnu
