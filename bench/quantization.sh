#!/usr/bin/env bash
# A quantized model beside ONNX Runtime and OpenVINO on the same exported file, in one run: whether both accept it and give the
# same answers, and how fast each is at batch 1 and 64. Exits with 1 where an answer or a ratio is not what it must be. Installs
# the runtimes into target/quantization/venv. A few minutes; for numbers to keep, on a machine that does nothing else.
#   bench/quantization.sh RUN [--threads N] [--rounds N] [--images N] [--instructions LEVEL] [--models FOLDER]
# RUN is a folder that `ringstep train` left; with --models the exported models are kept, and a second call only takes times.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
venv=target/quantization/venv
if [[ ! -x $venv/bin/python ]]; then
    python3 -m venv "$venv"
fi
"$venv/bin/pip" install --quiet onnx onnxruntime openvino numpy safetensors
cargo build --release --quiet
repository=$PWD
cd "$here" # where RUN's path is relative to
exec "$repository/$venv/bin/python" "$repository/bench/quantization/compare.py" "$@"
