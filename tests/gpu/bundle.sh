#!/usr/bin/env bash
# bundle.sh DIRECTORY: a folder of below 60 MiB that runs the tests of devices on a machine with a GPU.
#
# Needs the CUDA toolkit here, and no GPU; the machine that runs it needs an NVIDIA driver, and neither Bazel nor gRPC
# nor CUDA: carry the folder there and start its run.sh. It takes less than three minutes, and ends with
# "N passed, N failed, N skipped". Products of matrices are skipped there without libcublasLt.so.13 (half a GiB, of the
# CUDA toolkit or the package nvidia-cublas), in LD_LIBRARY_PATH or /usr/local/cuda/lib64, and convolutions without
# libcudnn.so.9 (of cuDNN or the package nvidia-cudnn).
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 DIRECTORY" >&2; exit 2; }
to=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
tests="runtime_test caching_allocator_test cuda/runtime_test simulated/runtime_test simulated/broken_rules_test"
targets=(//bench:device_bench //tests/gpu:kernels_test //tests/gpu:same_device_test //tests/gpu:same_device_processes_test)
for test in $tests; do
  case $test in
    */*) targets+=("//device/${test%/*}:${test#*/}") ;;
    *) targets+=("//device:$test") ;;
  esac
done
bazel build --noshow_progress --dynamic_mode=off "${targets[@]}"
mkdir -p "$to/lib"
cp -L --no-preserve=mode bazel-bin/bench/device_bench bazel-bin/tests/gpu/{kernels_test,same_device_test,same_device_processes_test} "$to/"
for test in $tests; do cp -L --no-preserve=mode "bazel-bin/device/$test" "$to/${test//\//_}"; done
# Debian's libraries, but for glibc's own, which must be the driver's.
for program in "$to"/*_test "$to"/device_bench; do ldd "$program"; done | awk '/=> \//{print $3}' | sort -u |
  grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|libgcc_s|ld-linux-x86-64)\.so' |
  while read -r library; do cp -L "$library" "$to/lib/"; done
chmod +x "$to"/*_test "$to/device_bench"
strip "$to"/*_test "$to/device_bench" 2>/dev/null || true
cat >"$to/run.sh" <<'RUN'
#!/usr/bin/env bash
# Runs each test by itself, so that one that fails hides no other; then the figures.
cd "$(dirname "$0")"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || echo "no GPU that nvidia-smi knows"
export LD_LIBRARY_PATH=$PWD/lib:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64
passed=0 failed=0 skipped=0
for test in *_test; do
  timeout 60 "./$test" >"$test.log" 2>&1
  status=$?
  passed=$((passed + $(grep -c '^\[       OK' "$test.log")))
  skipped=$((skipped + $(grep -c '^\[  SKIPPED \].*ms)$' "$test.log")))
  failures=$(grep -c '^\[  FAILED  \].*ms)$' "$test.log")
  [ $status = 0 ] || [ "$failures" != 0 ] || failures=1  # it ended without a word
  failed=$((failed + failures))
  [ "$failures" = 0 ] || { echo "$test: status $status"; grep -B20 '^\[  FAILED' "$test.log" | tail -60; }
done
timeout 60 ./device_bench || true
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
RUN
chmod +x "$to/run.sh"
size=$(du -sm "$to" | cut -f1)
[ "$size" -le 60 ] || { echo "$to: $size MiB, which is more than 60" >&2; exit 1; }
echo "$to: $size MiB; run run.sh there"
