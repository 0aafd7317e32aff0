# Installs PyTorch into target/peers/venv, unless RINGSTEP_PEER_PYTHON names a Python that has it. Sourced by benchmarks,
# at the root of the repository.
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

need_pytorch() {
    if [[ -z ${RINGSTEP_PEER_PYTHON:-} ]] && ! target/peers/venv/bin/python -c 'import torch, numpy' 2>/dev/null; then
        need_packages python3-venv
        python3 -m venv target/peers/venv
        target/peers/venv/bin/pip install --quiet torch numpy
    fi
}
