#!/bin/sh
# find_cuda.sh: prints the folder of the CUDA toolkit that a build takes: $CUDA_HOME, or else /usr/local/cuda.
#
# Exit status 1 where a build has none, and one line that says why; WEFT_CUDA=0 asks for such a build. tools/cuda.bzl and
# tools/setup.sh both ask this script, so that they have one rule.
home=${CUDA_HOME:-/usr/local/cuda}
if [ "${WEFT_CUDA:-1}" = 0 ]; then
  echo "WEFT_CUDA is 0"
  exit 1
fi
for file in include/cuda_runtime.h lib64/libcudart_static.a bin/nvcc; do
  if [ ! -e "$home/$file" ]; then
    echo "there is no $home/$file; CUDA_HOME names another folder"
    exit 1
  fi
done
echo "$home"
