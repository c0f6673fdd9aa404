#!/usr/bin/python3
"""PyTorch's side of scale_bench: as many workers of one host as are asked for, each of which calls all others once.

torch_first_calls.py WORKERS

Prints JSON: seconds from the barrier before the calls until the last worker has all its answers ("calls"), the same again
("again"), and from the first process to the end of the last ("whole"). PyTorch's RPC with its TensorPipe agent.
"""
import json
import multiprocessing
import os
import sys
import time

sys.dont_write_bytecode = True
WORKERS = int(sys.argv[1])
os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
import torch  # noqa: E402
import torch.distributed.rpc as rpc  # noqa: E402


def add(a, b):
    return a + b


def work(rank, port, barrier, times):
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=300)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=WORKERS, rpc_backend_options=options)
    one = torch.ones(1)
    for _ in range(2):
        barrier.wait()
        begin = time.monotonic()
        calls = [rpc.rpc_async(f"w{(rank + i) % WORKERS}", add, args=(one, one)) for i in range(1, WORKERS)]
        for call in calls:
            call.wait()
        times.put(time.monotonic() - begin)
        barrier.wait()
    rpc.shutdown()


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    barrier, times = context.Barrier(WORKERS), context.Queue()
    started = time.monotonic()
    ranks = [context.Process(target=work, args=(r, 29500 + WORKERS, barrier, times)) for r in range(WORKERS)]
    for process in ranks:
        process.start()
    first = max(times.get() for _ in range(WORKERS))
    again = max(times.get() for _ in range(WORKERS))
    for process in ranks:
        process.join()
    print(json.dumps({"workers": WORKERS, "calls": round(first, 3), "again": round(again, 3),
                      "whole": round(time.monotonic() - started, 2)}))
