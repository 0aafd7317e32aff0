#!/usr/bin/env bash
# The engine beside PyTorch, in one run: training steps and inference on the same shapes, threads and precision.
# Installs PyTorch into target/peers/venv, unless RINGSTEP_PEER_PYTHON names a Python that has it. Some six minutes on 2
# cores; for numbers to keep, on a machine that does nothing else.
#   bench/engine.sh [--rounds N] [--seconds S] [--only vgg11,lenet5] [--record FILE]
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
peers=target/peers
mkdir -p "$peers"

if [[ -z ${RINGSTEP_PEER_PYTHON:-} ]] && ! "$peers/venv/bin/python" -c 'import torch, numpy' 2>/dev/null; then
    if ! dpkg -s python3-venv >/dev/null 2>&1; then
        sudo=$([[ $(id -u) == 0 ]] || echo sudo)
        $sudo apt-get update -qq
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv
    fi
    python3 -m venv "$peers/venv"
    "$peers/venv/bin/pip" install --quiet torch numpy
fi

cargo build --release --quiet

repository=$PWD
cd "$here" # where --record's path is relative to
exec python3 "$repository/bench/engine/compare.py" "$@"
