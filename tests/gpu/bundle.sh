#!/usr/bin/env bash
# bundle.sh DIRECTORY: a folder of below 60 MiB that runs the tests of devices on a machine with a GPU.
#
# Needs the CUDA toolkit here, and no GPU; the machine that runs it needs an NVIDIA driver, and neither Bazel nor gRPC
# nor CUDA: carry the folder there and start its run.sh (tests/gpu/run.sh), which says what of CUDA's libraries it looks for. The
# programs are //tests/gpu:programs, with kernels for A100, H100, H200 and newer (--config=all_gpus).
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 DIRECTORY" >&2; exit 2; }
to=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
tools/find_cuda.sh >/dev/null || { echo "bundle.sh: needs the CUDA toolkit: $(tools/find_cuda.sh)" >&2; exit 1; }
bazel build --noshow_progress --config=all_gpus --dynamic_mode=off //tests/gpu:programs
built=$(bazel info --noshow_progress --config=all_gpus bazel-bin 2>/dev/null)
mkdir -p "$to/lib"
programs=()
for label in $(bazel query --noshow_progress 'labels(srcs, //tests/gpu:programs)' 2>/dev/null); do
  path=${label#//}
  name=${path//[\/:]/_}
  # device_runtime_test, but kernels_test and train_bench.
  name=${name#tests_gpu_} name=${name#bench_}
  cp -L --no-preserve=mode "$built/${path/://}" "$to/$name"
  programs+=("$to/$name")
done
cp bench/peers/torch_models.py bench/peers/torch_train.py tests/gpu/run.sh "$to/"
# Debian's libraries, but for glibc's own, which must be the driver's.
for program in "${programs[@]}"; do ldd "$program"; done | awk '/=> \//{print $3}' | sort -u |
  grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|libgcc_s|ld-linux-x86-64)\.so' |
  while read -r library; do cp -L "$library" "$to/lib/"; done
chmod +x "${programs[@]}"
strip "${programs[@]}"
tests/gpu/architectures.py --want=sm_80,sm_90,compute_90 "${programs[@]}"
# 100 MiB else, the half of which are Debian's libraries; run.sh unpacks them.
tar -C "$to" -czf "$to/programs.tar.gz" --remove-files lib "${programs[@]#"$to/"}"
size=$(du -sm "$to" | cut -f1)
[ "$size" -le 60 ] || { echo "$to: $size MiB, which is more than 60" >&2; exit 1; }
echo "$to: $size MiB; run run.sh there"
