#!/usr/bin/env bash
# VGG-11 on CIFAR-10: the curve of experiments/vgg11-cifar10-accuracy.toml beside PyTorch's for the same recipe and epochs,
# one after the other on two threads. Three epochs take some 40 minutes on 2 cores, most of them PyTorch's.
#   bench/accuracy.sh DIR [EPOCHS]      DIR has CIFAR-10's binary files
set -euo pipefail
data=$(realpath "$1")
epochs=${2:-3}
cd "$(dirname "$0")/.."
source bench/common/pytorch.sh
need_pytorch
cargo build --release --quiet
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
target/release/ringstep train experiments/vgg11-cifar10-accuracy.toml --epochs "$epochs" --data "$data" --out "$out"
echo "ringstep, after each epoch: training loss and accuracy, test accuracy"
python3 - "$out" <<'PYTHON'
import json, sys
run = json.load(open(sys.argv[1] + "/summary.json"))["runs"][0]
keys = ["epoch_losses", "epoch_accuracies", "epoch_test_accuracies"]
for epoch, (loss, accuracy, test) in enumerate(zip(*(run[key] for key in keys))):
    print(f"{epoch}: {loss:.4f} {accuracy:.2%} {test:.2%}")
print(f"{run['seconds']:.0f} s, of which {run['data_seconds']:.1f} s waiting for batches")
PYTHON
echo "PyTorch:"
"${RINGSTEP_PEER_PYTHON:-target/peers/venv/bin/python}" bench/accuracy/pytorch.py "$data" "$epochs"
