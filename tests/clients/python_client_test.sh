#!/usr/bin/env bash
# examples/python_client as its documentation says: code from protoc, Debian's grpcio and numpy, a real worker.
set -euo pipefail
work=$(mktemp -d)
worker_pid=
cleanup() {
  [ -z "$worker_pid" ] || kill -9 "$worker_pid" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

mkdir -p "$work/protos/weft" "$work/python"
ln -s "$PWD/proto" "$work/protos/weft/proto"
protoc -I "$work/protos" --python_out="$work/python" weft/proto/rpc.proto weft/proto/tensor.proto

chmod 700 "$work"
address="unix:$work/worker.sock"
examples/cpp_client/worker --listen="$address" --coordinator="$address" --trace="$work/{name}.json" >"$work/worker.log" 2>&1 &
worker_pid=$!
for _ in $(seq 600); do  # until it has said where it serves
  grep -q "serving at" "$work/worker.log" && break
  kill -0 "$worker_pid" || { cat "$work/worker.log"; exit 1; }
  sleep 0.1
done

PYTHONPATH="$work/python:examples/python_client" /usr/bin/python3 examples/python_client/main.py "$address" ||
  { cat "$work/worker.log"; exit 1; }

trace=0af7651916cd43dd8448eb211c80319c
span=b7ad6b7169203331
PYTHONPATH="$work/python:examples/python_client" /usr/bin/python3 - "$address" "00-$trace-$span-01" <<'END'
import sys, weft_client
weft_client.Client(sys.argv[1]).call("example::SquareRoot", 4.0, traceparent=sys.argv[2])
END

kill -TERM "$worker_pid"
wait "$worker_pid"  # it ends in peace: exit code 0
worker_pid=
# Its span is of the caller's.
grep "rpc_serve#example::SquareRoot" "$work/trainer0.json" | grep "\"trace\":\"$trace\"" | grep -q "\"parent\":\"$span\"" ||
  { cat "$work/trainer0.json"; exit 1; }
