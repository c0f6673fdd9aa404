#!/usr/bin/env bash
# Runs the examples of examples/dist_autograd; each must reach what it claims.
set -euo pipefail
cd "$(dirname "$0")/../.."
bazel build --noshow_progress //launch:weft //examples/dist_autograd:all >/dev/null 2>&1
bin=bazel-bin/examples/dist_autograd

# check NAME CONDITION TRAINERS: runs NAME as ps0 and as TRAINERS trainers; the JSON line that it prints must fulfil
# CONDITION on `result`.
check() {
  local output
  output=$(bazel-bin/launch/weft run --no-prefix --role ps=1:$bin/"$1" --role trainer="$3":$bin/"$1" 2>&1) ||
    { echo "$1: $output"; exit 1; }
  echo "$output" | grep '^{' | tee /dev/stderr | /usr/bin/python3 -c '
import json
import sys

result = json.loads(sys.stdin.read())
assert eval(sys.argv[1]), (sys.argv[1], result)
' "$2"
}

check parameter_server 'result["accuracy"] > 0.78' 2
check actor_learner 'result["mean_return"] >= 195 and result["episodes"] <= 8000' 4
