#!/usr/bin/env bash
# run.sh: runs what bundle.sh has put beside it. Ends within 8 minutes, with "N passed, N failed, N skipped"; exit status 0 if
# nothing failed.
#
# Needs an NVIDIA driver for more than the simulated device. CUDA's libraries (libcublasLt.so.13 for products,
# libcudnn.so.9 for convolutions, libnccl.so.2) are looked for beside nvcc, in the loader's path, and in Python's packages; what
# needs one that is not there is skipped. Each test program runs by itself, under a deadline, and leaves NAME.log.
set -u
cd "$(dirname "$0")"
readonly per_program=${WEFT_PROGRAM_SECONDS:-60} in_all=${WEFT_ALL_SECONDS:-440}
passed=0 failed=0 skipped=0
[ ! -e programs.tar.gz ] || tar -xzf programs.tar.gz || exit 1

# limit MOST: seconds for the next program, below what is left of all.
limit() {
  local left=$((in_all - SECONDS))
  [ $left -ge 1 ] || left=1
  [ $left -lt "$1" ] && echo $left || echo "$1"
}

# Where CUDA's libraries may be, in the order of the search.
folders() {
  local nvcc
  nvcc=$(command -v nvcc) && echo "$(dirname "$(dirname "$(readlink -f "$nvcc")")")/lib64"
  [ -z "${CUDA_HOME:-}" ] || echo "$CUDA_HOME/lib64"
  echo /usr/local/cuda/lib64
  # nvidia/cublas/lib, nvidia/cudnn/lib, nvidia/nccl/lib, nvidia/cu13/lib.
  timeout 20 python3 -c 'import glob, sys
for folder in sys.path:
    print("\n".join(sorted(glob.glob(folder + "/nvidia/*/lib"))))' 2>/dev/null
}
before=${LD_LIBRARY_PATH:-}
found=$PWD/lib${before:+:$before}
while read -r folder; do
  [ -d "$folder" ] && found=$found:$folder
done < <(folders)
# place_of LIBRARY: where the programs will find it.
place_of() {
  local folder
  while IFS= read -r -d : folder; do
    [ -e "$folder/$1" ] && { echo "$folder"; return; }
  done <<<"$found:"
  PATH=$PATH:/sbin ldconfig -p 2>/dev/null | awk -v name="$1" '$1 == name { print $NF; found = 1; exit } END { exit !found }' || echo "not found"
}
for library in libcublasLt.so.13 libcudnn.so.9 libnccl.so.2; do
  echo "$library: $(place_of $library)"
done
timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no GPU that nvidia-smi knows"

for test in *_test; do
  LD_LIBRARY_PATH=$found timeout -k 5 "$(limit "$per_program")" "./$test" >"$test.log" 2>&1
  status=$?
  passed=$((passed + $(grep -c '^\[       OK' "$test.log")))
  skipped=$((skipped + $(grep -c '^\[  SKIPPED \].*ms)$' "$test.log")))
  failures=$(grep -c '^\[  FAILED  \].*ms)$' "$test.log")
  # A program that ends without a word, at its deadline for one, has failed, too.
  [ $status = 0 ] || [ "$failures" != 0 ] || failures=1
  failed=$((failed + failures))
  [ "$failures" = 0 ] || { echo "$test: exit status $status"; tail -n 60 "$test.log"; }
  grep '^compared: ' "$test.log"
done

# figures NAME MOST COMMAND...: a program that prints figures, and ends with 3 where there is no GPU.
figures() {
  local name=$1 most=$2 status
  shift 2
  timeout -k 5 "$(limit "$most")" "$@"
  status=$?
  case $status in
    0) passed=$((passed + 1)) ;;
    3) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)); echo "$name: exit status $status" ;;
  esac
}
export WEFT_LIBRARY_PATH=$found
[ ! -e device_bench ] || figures device_bench 60 env LD_LIBRARY_PATH="$found" ./device_bench
# Python, and so torch, has the machine's own libraries, and not Debian's.
if [ ! -e train_bench ]; then :
elif python3 -c '' 2>/dev/null; then figures train_bench 150 python3 ./torch_train.py ./train_bench cuda
else figures train_bench 60 env LD_LIBRARY_PATH="$found" ./train_bench --device=cuda
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
