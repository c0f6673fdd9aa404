#!/usr/bin/env bash
# Runs the examples of examples/ddp and examples/train on two ranks; each must learn.
set -euo pipefail
cd "$(dirname "$0")/../.."
bazel build --noshow_progress //launch:weft //examples/ddp:all //examples/train:all >/dev/null 2>&1
bin=bazel-bin/examples/ddp

# check NAME CONDITION ARGS...: runs `weft run ARGS`; the last JSON line that a rank prints must fulfil CONDITION on `result`.
check() {
  local name=$1 condition=$2 output
  shift 2
  output=$(bazel-bin/launch/weft run --no-prefix "$@" 2>&1) || { echo "$name: $output"; exit 1; }
  # In an elastic job a rank that comes once the others have ended finds the training done, and says so too.
  echo "$output" | grep '^{' | tail -n 1 | tee /dev/stderr | /usr/bin/python3 -c '
import json
import sys

result = json.loads(sys.stdin.read())
assert eval(sys.argv[1]), (sys.argv[1], result)
' "$condition"
}

check hand_written 'result["error"] < 0.001' --nproc-per-node=2 $bin/hand_written
check fashion_mnist 'result["accuracy"] > 0.75' --nproc-per-node=2 $bin/fashion_mnist
check char_transformer 'result["last_loss"] < 0.5 < 4 < result["first_loss"] and "jack built" in result["text"]' \
  --nproc-per-node=2 $bin/char_transformer
check remote_embeddings 'result["last_loss"] < result["first_loss"] / 4' \
  --role ps=1:$bin/remote_embeddings --role trainer=2:$bin/remote_embeddings
checkpoints=$(mktemp -d)
trap 'rm -rf "$checkpoints"' EXIT
circle=bazel-bin/examples/train/circle
check elastic_circle 'result["loss"] < 0.68' --elastic=1:4 --nproc-per-node=2 \
  bazel-bin/examples/train/elastic_circle --checkpoint-dir="$checkpoints/elastic" --epochs=3
check circle 'result["loss"] < 0.68' --nproc-per-node=2 $circle --checkpoint-dir="$checkpoints" --epochs=3
check circle 'result["loss"] < 0.2' \
  --nproc-per-node=3 $circle --checkpoint-dir="$checkpoints" --resume --epochs=60
