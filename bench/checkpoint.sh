#!/bin/sh
# What a checkpoint every 10 s costs VGG-11: the same steps with and without, in turns; the shortest median counts.
#     bench/checkpoint.sh [STEPS] [ROUNDS]
set -eu
cd "$(dirname "$0")/.."
cargo build --release --quiet
steps=${1:-500} rounds=${2:-3}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
run() {
    target/release/ringstep train --model vgg11 --dataset synthetic --samples 512 --sync ddp --workers 2 --batch 32 \
        --momentum 0.9 --steps "$steps" --trace 0 --json "$@"
}
for round in $(seq "$rounds"); do
    run --out "$out/plain-$round" > "$out/plain-$round.json"
    run --out "$out/saved-$round" --checkpoint-every 10s > "$out/saved-$round.json"
    ls "$out/saved-$round/checkpoints" | grep -c '^[0-9]' | sed 's/^/checkpoints that stayed: /'
    rm -rf "$out/plain-$round" "$out/saved-$round"
done
python3 - "$out" <<'PYTHON'
import glob, json, sys

def least(kind):
    return min(json.load(open(path))["runs"][0]["seconds"] for path in glob.glob(f"{sys.argv[1]}/{kind}-*.json"))

plain, saved = least("plain"), least("saved")
print(f"without {plain:.2f} s, with a checkpoint every 10 s {saved:.2f} s: {100 * (saved / plain - 1):+.2f}%")
PYTHON
