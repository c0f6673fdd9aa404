#!/usr/bin/env bash
# Trains examples/remote_layers with its layers at two other processes; the loss must fall to a hundredth of what it was.
set -euo pipefail
cd "$(dirname "$0")/../.."
bazel build --noshow_progress //launch:weft //examples/remote_layers >/dev/null 2>&1
program=bazel-bin/examples/remote_layers/remote_layers
output=$(bazel-bin/launch/weft run --role ps=2:$program --role trainer=1:$program 2>&1) || { echo "$output"; exit 1; }
echo "$output" | sed -n 's/^\[trainer0\] \({"first_loss".*}\)$/\1/p' | tee /dev/stderr | /usr/bin/python3 -c '
import json
import sys

result = json.loads(sys.stdin.read())
assert result["last_loss"] < result["first_loss"] / 100, result
'
