# Installs PyTorch and other peers of Python's into target/peers/venv, unless RINGSTEP_PEER_PYTHON names a Python that has
# them. Sourced by benchmarks, at the root of the repository.
mkdir -p target/peers

# Debian packages, as root or with sudo.
need_packages() {
    if ! dpkg -s "$@" >/dev/null 2>&1; then
        local sudo
        sudo=$([[ $(id -u) == 0 ]] || echo sudo)
        $sudo apt-get update -qq
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
    fi
}

# Packages of PyPI that are imported by their own names.
need_python() {
    if [[ -z ${RINGSTEP_PEER_PYTHON:-} ]]; then
        if [[ ! -x target/peers/venv/bin/python ]]; then
            need_packages python3-venv
            python3 -m venv target/peers/venv
        fi
        if ! target/peers/venv/bin/python -c "$(printf 'import %s\n' "$@")" 2>/dev/null; then
            target/peers/venv/bin/pip install --quiet "$@"
        fi
    fi
}

need_pytorch() {
    need_python torch numpy
}

# torch.compile writes C++, which it compiles with Python's headers.
need_torch_compile() {
    need_pytorch
    if [[ -z ${RINGSTEP_PEER_PYTHON:-} ]]; then
        need_packages g++ python3-dev
    fi
}

need_inference_runtimes() {
    need_python onnx onnxruntime openvino
}
