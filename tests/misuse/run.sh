#!/usr/bin/env bash
# What is written wrongly against //rpc must not compile, and the first error must say what is wrong: the text after WANTED of each file here.
set -euo pipefail
cd "$(dirname "$0")"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
for source in *.cc; do
  wanted=$(sed -n 's|^// WANTED: ||p' "$source")
  if bazel build --noshow_progress "//tests/misuse:${source%.cc}" >"$log" 2>&1; then
    echo "misuse: $source compiles" >&2
    failed=1
  elif [ -z "$wanted" ] || ! grep -m 1 'error: ' "$log" | grep -qF "$wanted"; then
    echo "misuse: the first error of $source is not '$wanted':" >&2
    grep -m 1 'error: ' "$log" >&2 || cat "$log" >&2
    failed=1
  fi
done
[ $failed = 0 ] && echo "misuse: each is refused and told why"
