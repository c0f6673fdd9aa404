#!/usr/bin/env bash
# A folder that includes a higher one, and a room that includes a later one or another folder's, must not build: adds such edges
# to a copy's BUILD files and wants Bazel to refuse them. And libraries above rpc take nothing of its insides.
set -euo pipefail
cd "$(dirname "$0")/../.."
# rpc's insides, also from within `namespace weft::rpc`, where Codecs stand.
if git grep -nE 'rpc::internal|[^:a-z_]internal::(NameOfType|Types|Describe|Register|kTypeKey)\b|rpc/agent_parts\.h' -- \
  rref dist_autograd tests/extension ':!*_test.cc'; then
  echo "layers: what libraries above rpc use of it is in rpc/extension/" >&2
  exit 1
fi
base=$(mktemp -d)
trap 'bazel --output_base="$base/out" shutdown >/dev/null 2>&1; chmod -R u+w "$base"; rm -rf "$base"' EXIT
mkdir "$base/copy"
git ls-files -z | xargs -0 cp --parents -t "$base/copy"
cd "$base/copy"
# refused PACKAGE DEPENDENCY MESSAGE: a library of PACKAGE that depends on DEPENDENCY must fail with MESSAGE.
refused() {
  local name=wrong_edge
  cp "$1/BUILD" "$base/BUILD"
  printf '\nweft_library(\n    name = "%s",\n    hdrs = [],\n    deps = ["%s"],\n)\n' "$name" "$2" >>"$1/BUILD"
  if bazel --output_base="$base/out" build --nobuild --noshow_progress "//$1:$name" >"$base/log" 2>&1; then
    echo "layers: $1 depends on $2 and Bazel did not mind" >&2
    exit 1
  fi
  grep -q "$3" "$base/log" || { cat "$base/log" >&2; exit 1; }
  cp "$base/BUILD" "$1/BUILD"
}

refused base //tensor "is not visible from target '//base:wrong_edge"
refused transport //rpc:agent "is not visible from target '//transport:wrong_edge"
refused worker //rpc/session "is not visible from target '//worker:wrong_edge"
refused rpc/session //rpc/agent "may not use //rpc/agent: its room comes later"
refused launch/failure //launch/run:launcher "may not use //launch/run:launcher: its room comes later"
refused ps/core //ps/core/replication:replica "may not use //ps/core/replication:replica: its room comes later"
refused ps/core //ps/wire:wire_values "may not use //ps/wire:wire_values: its room comes later"
refused worker/telemetry //worker:options "may not use //worker:options: its room comes later"
refused net/tls //net:endpoint "may not use //net:endpoint: its room comes later"
echo "layers: refused, as it should be"
