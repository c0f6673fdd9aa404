#!/usr/bin/env bash
# Runs examples/ctr/run.sh in short: a recommender whose servers are killed while it is saved, exported and read ends with
# the state of one that nobody touched, which run.sh itself checks. Here: somebody was killed, the reader has seen evicted
# rows gone, and the AUC at so many rows is the known one.
set -euo pipefail
cd "$(dirname "$0")/../.."
rows=256000
output=$(examples/ctr/run.sh --rows=$rows --kill-every=4 --snapshot-every=3 2>&1) || { echo "$output"; exit 1; }
echo "$output" | tail -n 4
/usr/bin/python3 - "$output" <<'PY'
import json
import re
import sys

output = sys.argv[1]
auc = {float(x) for x in re.findall(r"AUC (\S+)", output)}
assert len(auc) == 1, output
# The logistic regression of tests/examples/ctr.sh reaches 0.776154 with as many rows.
assert min(auc) > 0.776154 and abs(min(auc) - 0.77658) < 1e-3, output
assert re.search(r"servers killed: [1-9]", output), output
assert re.search(r"[1-9]\d* whole, [1-9]\d* of what had changed", output), output
read = json.loads(output[output.rindex("{"):])
assert read["newest"] == 250 and read["versions"] > 1 and read["gone_rows"] > 0, read
PY
