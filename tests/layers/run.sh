#!/usr/bin/env bash
# A folder that includes a higher one must not build: adds such an edge to a copy's BUILD file and wants Bazel to refuse it.
set -euo pipefail
cd "$(dirname "$0")/../.."
base=$(mktemp -d)
trap 'bazel --output_base="$base/out" shutdown >/dev/null 2>&1; chmod -R u+w "$base"; rm -rf "$base"' EXIT
mkdir "$base/copy"
git ls-files -z | xargs -0 cp --parents -t "$base/copy"
cd "$base/copy"
cat >>base/BUILD <<'BUILD'

weft_library(
    name = "wrong_edge",
    deps = ["//tensor"],
)
BUILD
if bazel --output_base="$base/out" build --nobuild --noshow_progress //base:wrong_edge >"$base/log" 2>&1; then
  echo "layers: base depends on tensor and Bazel did not mind" >&2
  exit 1
fi
grep -q "is not visible from target '//base:wrong_edge'" "$base/log" || { cat "$base/log" >&2; exit 1; }
echo "layers: refused, as it should be"
