#!/usr/bin/env bash
# Every feature row of calls must have a line in tests/features/rpc_features.md, and every test that it names must exist.
set -euo pipefail
exec /usr/bin/python3 "$(dirname "$0")/check.py" "$(dirname "$0")/../.."
