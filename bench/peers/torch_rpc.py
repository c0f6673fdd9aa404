#!/usr/bin/python3
"""torch_rpc.py SECONDS [CLIENT_CORE SERVER_CORE]: PyTorch RPC between two processes, on cores 0 and 1; -1: not pinned.

Prints name<TAB>value: version; add_p50_us, add_p99_us: a one-element add; add_16_per_s, add_128_per_s: the same,
16 and 128 outstanding; put_<KiB>_gb_per_s: tensors of that size sent to a function, 4 in flight.
"""
import collections
import itertools
import os
import socket
import sys
import time

seconds = float(sys.argv[1])
cores = [int(core) for core in sys.argv[2:4]] or [0, 1]
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]), OMP_NUM_THREADS="1",
                      TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
child = os.fork()
rank = 1 if child == 0 else 0
if cores[rank] >= 0:
    os.sched_setaffinity(0, {cores[rank]})

import torch
import torch.distributed.rpc as rpc

torch.set_num_threads(1)
rpc.init_rpc(f"w{rank}", rank=rank, world_size=2)


def is_whole(x):
    return bool((x == torch.arange(x.numel(), dtype=torch.float32)).all())


def put(x):
    return x.numel()


def repeat(call):
    for _ in range(20):
        call()
    took, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return sorted(took)


def rate(outstanding, function, x):
    """Calls a second, as many outstanding all the time."""
    under_way, calls, begin = collections.deque(), 0, time.perf_counter()
    turns = itertools.cycle(x if function is put else [x])
    while time.perf_counter() < begin + seconds:
        while len(under_way) < outstanding:
            y = next(turns)
            under_way.append(rpc.rpc_async("w1", function, (y,) if function is put else (y, y)))
        under_way.popleft().wait()
        calls += 1
    elapsed = time.perf_counter() - begin
    for future in under_way:
        future.wait()
    return calls / elapsed


if rank == 0:
    x = torch.ones(1)
    took = repeat(lambda: rpc.rpc_sync("w1", torch.add, (x, x)))
    print(f"version\t{torch.__version__}")
    print(f"add_p50_us\t{took[len(took) // 2] * 1e6:.5g}")
    print(f"add_p99_us\t{took[len(took) * 99 // 100] * 1e6:.5g}")
    for outstanding in 16, 128:
        print(f"add_{outstanding}_per_s\t{rate(outstanding, torch.add, x):.6g}")
    for kib in 64, 1 << 10, 16 << 10, 64 << 10:
        tensors = [torch.arange(kib << 8, dtype=torch.float32) for _ in range(5)]  # those in flight differ
        assert all(rpc.rpc_sync("w1", is_whole, (tensor,)) for tensor in tensors)
        rate(4, put, tensors)
        print(f"put_{kib}_gb_per_s\t{rate(4, put, tensors) * kib * 1024 / 1e9:.5g}", flush=True)
rpc.shutdown()
if rank == 0:
    os.waitpid(child, 0)
