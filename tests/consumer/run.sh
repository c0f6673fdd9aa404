#!/usr/bin/env bash
# Builds and runs programs in a workspace that knows of Weft only //:weft, //:testing and weft_repositories().
set -euo pipefail
cd "$(dirname "$0")"
bazel test --nocache_test_results --noshow_progress --test_output=errors //...
bazel shutdown
