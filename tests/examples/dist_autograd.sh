#!/usr/bin/env bash
# Runs the examples of examples/dist_autograd; each must reach what it claims.
set -euo pipefail
cd "$(dirname "$0")/../.."
bazel build --noshow_progress //launch:weft //examples/dist_autograd:all >/dev/null 2>&1
bin=bazel-bin/examples/dist_autograd

# check NAME CONDITION SERVERS TRAINERS: runs NAME as that many of each; the JSON line that it prints must fulfil
# CONDITION on `result`.
check() {
  local output
  output=$(bazel-bin/launch/weft run --no-prefix --role ps="$3":$bin/"$1" --role trainer="$4":$bin/"$1" 2>&1) ||
    { echo "$1: $output"; exit 1; }
  echo "$output" | grep '^{' | tee /dev/stderr | /usr/bin/python3 -c '
import json
import sys

result = json.loads(sys.stdin.read())
assert eval(sys.argv[1]), (sys.argv[1], result)
' "$2"
}

check parameter_server 'result["accuracy"] > 0.78' 1 2
check actor_learner 'result["mean_return"] >= 195 and result["episodes"] <= 8000' 1 4
# Distributed training ends where an ordinary loop over the same model ends.
alone=$($bin/whole_transformer | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["last_loss"])')
check split_transformer \
  "result['last_loss'] < 0.6 < 5 < result['first_loss'] and abs(result['last_loss'] - $alone) < 0.01" 2 1
