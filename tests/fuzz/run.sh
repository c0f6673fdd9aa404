#!/usr/bin/env bash
# run.sh [--runs=N | --seconds=N] [TARGET...]: each fuzz target (all) under libFuzzer and AddressSanitizer, from its seeds:
# N inputs (50,000), or for N seconds. Prints a line for each and, if all ran, the share of each parser's lines that they
# reached. Exit status 1 if one failed, with its input kept, or if a parser is under 80 %.
set -euo pipefail
cd "$(dirname "$0")/../.."

how=-runs=50000
targets=()
for arg in "$@"; do
  case "$arg" in
    --runs=*) how=-runs=${arg#--runs=} ;;
    --seconds=*) how=-max_total_time=${arg#--seconds=} ;;
    -*) echo "run.sh: unknown argument '$arg'; known: --runs=, --seconds=" >&2; exit 2 ;;
    *) targets+=("$arg") ;;
  esac
done

bazel build --noshow_progress --config=fuzz //tests/fuzz:fuzz_libfuzzer
work=$(mktemp -d)
export fuzz=$PWD/bazel-bin/tests/fuzz/fuzz_libfuzzer work how
LLVM_PROFILE_FILE=/dev/null "$fuzz" --write-corpus="$work/corpus"
# libFuzzer cuts longer inputs, and a seed that is cut reaches little.
longest=8192
too_long=$(find "$work/corpus" -mindepth 2 -type f -size "+${longest}c")
[ -z "$too_long" ] || { echo "seeds of more than $longest bytes:" "$too_long" >&2; exit 1; }
export longest
whole=0
[ ${#targets[@]} -gt 0 ] || { whole=1; mapfile -t targets < <(cd "$work/corpus" && ls -d */ | tr -d /); }

run_target() {
  mkdir -p "$work/$1/found"
  cd "$work/$1"
  local words=()
  [ ! -s "$work/corpus/$1.dict" ] || words=(-dict="$work/corpus/$1.dict")
  # A time-out catches what hangs, not a slow machine; the same seed, so that CI tries the same inputs again.
  if WEFT_FUZZ_TARGET=$1 LLVM_PROFILE_FILE=$work/$1.profraw "$fuzz" "$how" -seed=1 -max_len="$longest" -rss_limit_mb=1024 \
      -timeout=60 -print_final_stats=1 "${words[@]}" found "$work/corpus/$1" >log 2>&1; then
    printf '%-16s %s inputs passed\n' "$1" "$(sed -n 's/.*number_of_executed_units: *//p' log)"
  else
    tail -n 40 log
    echo "$1: FAILED; the input and its report are in $work/$1"
    return 1
  fi
}
export -f run_target
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run_target {}' || exit 1

if [ $whole = 1 ]; then
  llvm-profdata-14 merge -o "$work/merged" "$work"/*.profraw
  llvm-cov-14 export "$fuzz" -instr-profile="$work/merged" >"$work/coverage.json"
  /usr/bin/python3 tests/fuzz/coverage.py "$work/coverage.json"
fi
rm -rf "$work"
