#!/usr/bin/env bash
# build.sh: builds the programs and links them into bin/.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "build: the first takes some minutes"
progress=()
[ -t 2 ] || progress=(--noshow_progress)
bazel build "${progress[@]}" --ui_event_filters=-info //launch:weft //launch:parameter_server //launch:trainer
mkdir -p bin
for program in weft parameter_server trainer; do
  ln -sfn "$PWD/bazel-bin/launch/$program" "bin/$program"
done
echo "build: bin/weft, bin/parameter_server, bin/trainer"
