#!/usr/bin/env bash
# Trains the CTR example with two servers and two trainers; its AUC at 256,000 rows must be the reference learner's, 0.776154, within 1e-5.
set -euo pipefail
cd "$(dirname "$0")/../.."
bazel build --noshow_progress //launch:weft //launch:parameter_server //examples/ctr:ctr_trainer >/dev/null 2>&1
output=$(bazel-bin/launch/weft run --role ps=2:bazel-bin/launch/parameter_server \
  --role trainer=2:bazel-bin/examples/ctr/ctr_trainer 2>&1) || { echo "$output"; exit 1; }
echo "$output" | sed -n 's/^\[trainer0\] \({"rows".*}\)$/\1/p' | tee /dev/stderr | /usr/bin/python3 -c '
import json
import sys

result = json.loads(sys.stdin.read())
assert result["rows"] == 256000, result
assert abs(result["auc"] - 0.776154) < 1e-5, result
'
