#!/usr/bin/env bash
# coverage.sh [INPUTS]: how many lines of each parser the fuzz targets reach, by INPUTS mutations each (50,000).
# Prints a table; exit status 1 if a parser is under 80 %. Needs clang-14 (tools/setup.sh --dev).
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bazel build --noshow_progress --config=coverage //tests/fuzz:fuzz_test
LLVM_PROFILE_FILE="$work/profile" bazel-bin/tests/fuzz/fuzz_test --inputs="${1:-50000}"
llvm-profdata-14 merge -o "$work/merged" "$work/profile"
llvm-cov-14 export bazel-bin/tests/fuzz/fuzz_test -instr-profile="$work/merged" >"$work/coverage.json"
/usr/bin/python3 tests/fuzz/coverage.py "$work/coverage.json"
