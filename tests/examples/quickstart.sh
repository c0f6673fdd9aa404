#!/usr/bin/env bash
# Runs examples/quickstart.sh as a new user would; its last line must be the result, with at least 88 % test accuracy.
set -euo pipefail
cd "$(dirname "$0")/../.."
output=$(mktemp)
trap 'rm -f "$output"' EXIT
start=$SECONDS
examples/quickstart.sh >"$output" 2>&1 || { cat "$output"; exit 1; }
tail -n 1 "$output"
tail -n 1 "$output" | /usr/bin/python3 -c '
import json
import os
import sys

result = json.loads(sys.stdin.read())
assert set(result) == {"test_accuracy", "samples_per_s", "checkpoint"}, result
assert result["test_accuracy"] >= 0.88, result
assert os.path.exists(os.path.join(result["checkpoint"], "manifest.json")), result
'
# Again in the same tree, and further from there.
first=$(tail -n 1 "$output")
examples/quickstart.sh --epochs=1 >"$output" 2>&1 || { cat "$output"; exit 1; }
[ "$(tail -n 1 "$output")" != "$first" ]
examples/quickstart.sh --epochs=2 --resume >"$output" 2>&1 || { cat "$output"; exit 1; }
tail -n 1 "$output" | grep -q '"test_accuracy"' || { cat "$output"; exit 1; }
echo "quickstart: $((SECONDS - start)) s"
