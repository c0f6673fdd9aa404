#!/usr/bin/env bash
# lint.sh [FILE.cc ...]: runs clang-tidy with the project's checks, all of them errors; by default on every source.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-tidy-14 >/dev/null || { echo "lint: clang-tidy-14 is missing; run tools/setup.sh --dev" >&2; exit 1; }
bazel build --noshow_progress //... >/dev/null 2>&1 || { echo "lint: the build fails; run bazel build //... first" >&2; exit 1; }

# Headers are included as weft/<folder>/<file>.h: a folder named weft that is the repository itself serves them.
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
ln -s "$PWD" "$root/weft"
mkdir -p "$root/gen"
ln -s "$PWD/bazel-bin" "$root/gen/weft"

files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files '*.cc' | grep -Ev '^(bench/peers|tests/misuse)/')
clang-tidy-14 --quiet "${files[@]}" -- -std=c++17 -I"$root" -isystem"$root/gen" -I/usr/local/cuda/include
