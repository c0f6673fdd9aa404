#!/usr/bin/env bash
# Every feature row of calls must have a line in tests/features/rpc_features.md, and every test that it names must exist.
# Drawings in docs/ must be what their scripts print.
set -euo pipefail
top=$(dirname "$0")/../..
/usr/bin/python3 "$top/tools/draw_pass.py" | cmp - "$top/docs/dist_autograd.svg" ||
  { echo "docs/dist_autograd.svg differs: run tools/draw_pass.py > docs/dist_autograd.svg" >&2; exit 1; }
exec /usr/bin/python3 "$(dirname "$0")/check.py" "$(dirname "$0")/../.."
