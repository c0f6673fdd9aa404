#!/usr/bin/env bash
# build.sh: builds the programs and links them into bin/; says how far it is and how long it will take.
set -euo pipefail
cd "$(dirname "$0")/.."

# Turns bazel's "[123 / 456] ..." into percent and the time left: in place on a terminal, else a line every 10 s.
# bazel finds steps as it goes, so the last ones may be more than it knew. All other lines but its chatter pass.
show_progress() {
  local every=10 begin='' first=0 last=-10 line text left
  [ -t 2 ] && every=1
  while IFS= read -r line; do
    if [[ "$line" =~ ^\[([0-9,]+)\ /\ ([0-9,]+)\] ]]; then
      local done_steps=${BASH_REMATCH[1]//,/} all_steps=${BASH_REMATCH[2]//,/}
      if [ -z "$begin" ]; then begin=$SECONDS first=$done_steps; fi
      if ((SECONDS - last < every || all_steps == 0)); then continue; fi
      last=$SECONDS
      left='...'
      if ((done_steps - first > 20 && SECONDS - begin > 5)); then
        left=$(((SECONDS - begin) * (all_steps - done_steps) / (done_steps - first)))
        if ((left < 90)); then left="$left s left"; else left="$(((left + 30) / 60)) min left"; fi
      fi
      text="build: $((100 * done_steps / all_steps)) % ($done_steps of $all_steps steps), $left"
      if [ $every = 1 ]; then printf '\r%-70s' "$text"; else echo "$text"; fi
    elif ! [[ "$line" =~ ^(Loading:|Analyzing:|INFO:|Starting\ local|$) ]]; then
      [ $every = 1 ] && printf '\r%-70s\r' ''
      echo "$line"
    fi
  done >&2
  if [ $every = 1 ]; then printf '\r%-70s\r' '' >&2; fi
}

echo "build: the first takes some minutes"
{ bazel build --curses=no --show_progress_rate_limit=1 --ui_event_filters=-info \
  //launch:weft //launch:parameter_server //launch:trainer; } 2>&1 | show_progress
mkdir -p bin
for program in weft parameter_server trainer; do
  ln -sfn "$PWD/bazel-bin/launch/$program" "bin/$program"
done
echo "build: bin/weft, bin/parameter_server, bin/trainer"
