#!/usr/bin/env bash
# run.sh: sets up, builds and runs every test; the last line is "N passed, N failed, N skipped".
#
#   tests/run.sh           what every change must pass
#   tests/run.sh --long    also what is too long for that: sanitizers, libFuzzer, clang, long runs, more seeds
#
# N counts GoogleTest cases, and each other test as one. Exit status 0 only if nothing failed.
set -uo pipefail
cd "$(dirname "$0")/.."

long=0
for arg in "$@"; do
  case "$arg" in
    --long) long=1 ;;
    *) echo "run.sh: unknown argument '$arg'; known: --long" >&2; exit 2 ;;
  esac
done

if [ $long = 1 ]; then tools/setup.sh --fuzz || exit 1; else tools/setup.sh || exit 1; fi

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
: >"$results/other"

# step NAME COMMAND...: a test of its own; its output is shown only if it fails.
step() {
  local name=$1 log="$results/step.log" start=$SECONDS
  shift
  if "$@" >"$log" 2>&1; then
    echo "pass $name" >>"$results/other"
    echo "$name: passed in $((SECONDS - start)) s"
  else
    echo "fail $name" >>"$results/other"
    echo "$name: FAILED"
    tail -n 80 "$log"
  fi
}

# bazel_test CONFIGURATION FILTERS TARGETS...: runs tests and keeps their reports.
bazel_test() {
  local name=$1 filters=$2 start=$SECONDS
  shift 2
  local config=()
  [ "$name" = default ] || config=("--config=$name")
  # A time-out catches what hangs; it must not catch a machine that is slow, or a sanitizer. Tests wait more than they
  # compute, so that more of them run than there are cores.
  bazel test "${config[@]}" --test_tag_filters="$filters" --nocache_test_results --keep_going \
    --jobs=$(($(nproc) + 2)) --local_test_jobs=$(($(nproc) + 2)) \
    --test_timeout=300,300,900,3600 --noshow_progress --test_summary=short --build_tests_only "$@"
  local status=$?
  # 4: no test matched, 3: tests failed (counted from their reports); anything else did not build.
  case $status in
    0) ;;
    3) echo "failures $name" >>"$results/other" ;;
    *) echo "fail build-$name" >>"$results/other" ;;
  esac
  mkdir -p "$results/$name"
  cp -rL bazel-testlogs/. "$results/$name" 2>/dev/null
  rm -rf bazel-testlogs/* 2>/dev/null
  echo "$name: tests took $((SECONDS - start)) s"
}

rm -rf bazel-testlogs/* 2>/dev/null
step build bazel build --noshow_progress //...
bazel_test default -long,-manual //...
step consumer tests/consumer/run.sh
step layers tests/layers/run.sh
step misuse tests/misuse/run.sh
step banned tests/banned/run.sh
step features tests/features/run.sh
step quickstart tests/examples/quickstart.sh
step ctr tests/examples/ctr.sh
step ctr_recommender tests/examples/ctr_recommender.sh
step remote_layers tests/examples/remote_layers.sh
step dist_autograd tests/examples/dist_autograd.sh
step ddp tests/examples/ddp.sh
if [ $long = 1 ]; then
  bazel_test default long //...
  bazel_test asan_ubsan -long,-manual,-noasan //...
  bazel_test tsan -long,-manual,-notsan //...
  step consumer-whole tests/consumer/run.sh --whole
  step clang bazel build --config=clang --noshow_progress //...
  step without_cuda-analysis bazel build --nobuild --repo_env=WEFT_CUDA=0 //device/... //tensor/... //collectives/...
  step without_cuda bazel test --repo_env=WEFT_CUDA=0 --noshow_progress //device:open_test //device/cuda:runtime_test
  # Kernels for all GPUs, and the programs that a machine with one gets; here they skip what needs it.
  tools/find_cuda.sh >/dev/null && step gpu_bundle sh -c "tests/gpu/bundle.sh '$results/gpu' && '$results/gpu/run.sh'"
  step fuzz tests/fuzz/run.sh --seconds=60
  grep ' % of ' "$results/step.log"
fi

/usr/bin/python3 - "$results" <<'PY'
import pathlib
import sys
import xml.etree.ElementTree as ET

root = pathlib.Path(sys.argv[1])
passed = failed = skipped = 0
names = []
for report in sorted(root.glob("*/**/test.xml")):
    log = report.with_name("test.log")
    try:
        suites = ET.parse(report).getroot()
    except ET.ParseError:
        failed += 1
        names.append(f"{report.parent}: unreadable report")
        continue
    for case in suites.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            names.append(f"{case.get('classname')}.{case.get('name')}")
        elif case.find("skipped") is not None or case.get("result") == "skipped":
            skipped += 1
        elif case.get("status") != "notrun":
            passed += 1
for line in (root / "other").read_text().split("\n"):
    if line.startswith("pass "):
        passed += 1
    elif line.startswith("fail "):
        failed += 1
        names.append(line[5:])
    elif line.startswith("failures ") and failed == 0:
        failed += 1
        names.append(f"{line[9:]}: a test ended without a report")
for name in names:
    print("failed:", name)
if passed == 0:
    failed += 1
print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(1 if failed else 0)
PY
