#!/usr/bin/env bash
# run.sh [--whole]: compiles programs in a workspace that knows of Weft only //:weft, //:testing and weft_repositories().
# Weft itself is compiled there only with --whole, and the programs run: without it they are linked and run as tests of
# Weft's own workspace, from the same BUILD file.
set -euo pipefail
cd "$(dirname "$0")"
case "${1:-}" in
  "") bazel build --noshow_progress --output_groups=compilation_outputs //... ;;
  --whole) bazel test --nocache_test_results --noshow_progress --test_output=errors //... ;;
  *) echo "run.sh: unknown argument '$1'; known: --whole" >&2; exit 2 ;;
esac
bazel shutdown
