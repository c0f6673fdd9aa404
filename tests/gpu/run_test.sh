#!/usr/bin/env bash
# run.sh counts what passes, fails, is skipped, hangs and crashes; finds CUDA's libraries; and ends in time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bundle/lib" "$work/bin" "$work/python/nvidia/cudnn/lib"
cp -L "$here/run.sh" "$work/bundle/"
: >"$work/python/nvidia/cudnn/lib/libcudnn.so.9"
# The machine's own nvcc, Python and nvidia-smi are not to be found.
for tool in awk bash basename cat dirname env grep mktemp readlink rm sleep tail timeout; do
  ln -s "$(command -v $tool)" "$work/bin/"
done
# program NAME LINES...: a program of the bundle, whose commands are LINES.
program() {
  local name=$1
  shift
  { echo '#!/usr/bin/env bash'; printf '%s\n' "$@"; } >"$work/bundle/$name"
  chmod +x "$work/bundle/$name"
}
# want TEXT: a line of the output begins with it.
want() {
  grep -q "^$1" "$work/out" || { echo "run_test: wanted a line \"$1\", found:"; cat "$work/out"; exit 1; }
}
run() {
  status=0
  env -i PATH="$work/bin" TMPDIR="$work" "$@" bash "$work/bundle/run.sh" >"$work/out" 2>&1 || status=$?
}

program good_test 'echo "[       OK ] A.B (3 ms)"' 'echo "compared: 7 numbers"' \
  'echo "[  SKIPPED ] A.C (0 ms)"' 'echo "[  SKIPPED ] 1 test, listed below:"' 'echo "[  SKIPPED ] A.C"'
program device_bench 'exit 3'
program train_bench '[ "$1" = --device=cuda ]' 'echo "mlp 5"'
run
want '2 passed, 0 failed, 2 skipped'
want 'compared: 7 numbers'
want 'mlp 5'
[ $status = 0 ] || { echo "run_test: exit status $status where nothing failed"; exit 1; }

program failed_test 'echo "[       OK ] A.D (3 ms)"' 'echo "[  FAILED  ] A.E (3 ms)"' 'echo "[  FAILED  ] A.E"' 'exit 1'
program crashed_test 'kill -SEGV $$'
program hanging_test 'sleep 1000'
program path_test 'echo "[       OK ] A.F (3 ms)"' 'echo "compared: $LD_LIBRARY_PATH"'
mkdir -p "$work/cuda/lib64"
: >"$work/cuda/lib64/libcublasLt.so.13"
cat >"$work/bin/python3" <<PYTHON
#!/usr/bin/env bash
case "\$1 \$2" in
  "-c "*glob*) echo "$work/python/nvidia/cudnn/lib" ;;
  *torch_train*) echo "torch took part" ;;
esac
PYTHON
chmod +x "$work/bin/python3"
program device_bench 'exit 1'
program torch_train.py 'exit 1'
run WEFT_PROGRAM_SECONDS=2 CUDA_HOME="$work/cuda"
want '4 passed, 4 failed, 1 skipped'
want 'hanging_test: exit status 124'
want 'crashed_test: exit status 139'
want 'torch took part'
want "libcublasLt.so.13: $work/cuda/lib64"
want "compared: $work/bundle/lib:$work/cuda/lib64:.*$work/python/nvidia/cudnn/lib"
[ $status = 1 ] || { echo "run_test: exit status $status where four failed"; exit 1; }

# All together have a deadline, too.
run WEFT_ALL_SECONDS=2
want 'hanging_test: exit status 124'
echo "run_test: passed"
