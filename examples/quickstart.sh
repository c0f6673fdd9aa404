#!/usr/bin/env bash
# quickstart.sh [--data=DIR] [--replicas=2] [trainer flags]: sets up, builds, and trains a small CNN with 2 parameter
# servers and 2 trainers. With --replicas=2 a server may be killed meanwhile.
#
# Each run has checkpoints of its own below bin/quickstart-checkpoints; --resume goes on with the last run.
# The last line is one JSON object {"test_accuracy", "samples_per_s", "checkpoint"}.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."

data=/usr/share/datasets/fashion-mnist
flags=()
run_flags=()
while [ $# -gt 0 ]; do
  case "$1" in
    --data=* | --data)
      if [ "$1" = --data ]; then shift; directory=${1:-}; else directory=${1#--data=}; fi
      [ -n "$directory" ] || { echo "quickstart.sh: --data: wanted a directory of IDX files, found nothing" >&2; exit 2; }
      data=$(cd "$caller" && realpath -m "$directory")
      ;;
    --replicas=*) run_flags+=("$1") ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) flags+=("$1") ;;
  esac
  [ $# -eq 0 ] || shift
done

tools/setup.sh
tools/build.sh

runs=$PWD/bin/quickstart-checkpoints
checkpoints=$runs/$(date +%Y%m%d-%H%M%S)-$$
if [[ " ${flags[*]} " == *" --resume "* ]]; then
  # The newest that has saved anything: one may have failed before that.
  checkpoints=$(find "$runs" -mindepth 1 -maxdepth 1 -name '2*' ! -empty 2>/dev/null | sort | tail -n 1)
  [ -n "$checkpoints" ] || { echo "quickstart.sh: --resume: there is no run with a checkpoint in $runs" >&2; exit 2; }
fi
mkdir -p "$checkpoints"
log=$(mktemp)
trap 'rm -f "$log"; rmdir "$checkpoints" 2>/dev/null || true' EXIT
bin/weft run "${run_flags[@]}" --role ps=2:"bin/parameter_server --checkpoint-dir=$checkpoints" \
  --role trainer=2:"bin/trainer --data=$data --checkpoint-dir=$checkpoints --json ${flags[*]}" | tee "$log"
sed -n 's/^\[trainer0\] \({"test_accuracy".*}\)$/\1/p' "$log" | tail -n 1
