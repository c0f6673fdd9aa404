#!/usr/bin/env bash
# Runs examples/ctr/run.sh in short: a recommender whose servers are killed while it is saved, exported and read ends with
# the state of one that nobody touched and with the known AUC, which run.sh itself checks. Here: servers were killed, the
# reader has seen evicted rows gone, and an AUC that is too low, or was never reached, fails run.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
rows=256000
output=$(examples/ctr/run.sh --rows=$rows --kill-every=2 --snapshot-every=2 2>&1) || { echo "$output"; exit 1; }
echo "$output" | tail -n 4
/usr/bin/python3 - "$output" <<'PY'
import json
import re
import sys

output = sys.argv[1]
auc = {float(x) for x in re.findall(r"AUC (\d\S+)", output)}
assert len(auc) == 1 and abs(min(auc) - 0.77658) < 4e-4, output
assert int(re.search(r"servers killed: (\d+)", output)[1]) >= 2, output
assert re.search(r"throughput through the kills: [01]\.\d\d", output), output
assert re.search(r"[1-9]\d* whole, [1-9]\d* of what had changed", output), output
read = json.loads(output[output.rindex("{"):])
assert read["newest"] == 250 and read["versions"] > 1 and read["gone_rows"] > 0, read
PY
if output=$(examples/ctr/run.sh --rows=90000 --kill-every=2 --snapshot-every=2 --least-auc=0.9 2>&1); then
  echo "an AUC below --least-auc was taken: $output"
  exit 1
fi
grep -q 'wanted an AUC of at least 0.9 after 90000 rows, found 0\.' <<<"$output" || { echo "$output"; exit 1; }
