#!/usr/bin/env bash
# libfuzzer.sh [SECONDS]: every target under libFuzzer and AddressSanitizer, for SECONDS each (20), from its seeds.
# Prints a line for each; exit status 1, with the input kept, if one failed. Needs clang-14 (tools/setup.sh --dev).
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)

bazel build --noshow_progress //tests/fuzz:fuzz_test
bazel-bin/tests/fuzz/fuzz_test --write-corpus="$work/corpus"
bazel build --noshow_progress --config=fuzz //tests/fuzz:fuzz_libfuzzer
fuzz=$PWD/bazel-bin/tests/fuzz/fuzz_libfuzzer

failed=0
for seeds in "$work"/corpus/*; do
  target=$(basename "$seeds")
  mkdir -p "$work/$target/found"
  cd "$work/$target"
  if WEFT_FUZZ_TARGET=$target "$fuzz" -max_total_time="${1:-20}" -rss_limit_mb=1024 -timeout=5 -print_final_stats=1 \
      found "$seeds" >log 2>&1; then
    printf '%-12s %s inputs passed\n' "$target" "$(sed -n 's/.*number_of_executed_units: *//p' log)"
  else
    failed=1
    echo "$target: FAILED; the input and its report are in $work/$target"
    tail -n 40 log
  fi
done
[ $failed = 1 ] || rm -rf "$work"
exit $failed
