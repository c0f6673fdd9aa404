#!/usr/bin/python3
"""torch_rpc.py SECONDS: PyTorch RPC between two processes, one on each core.

Prints name<TAB>value: version; add_p50_us, add_p99_us: a one-element add;
add_128_per_s: the same, 128 outstanding.
"""
import os
import socket
import sys
import time

seconds = float(sys.argv[1])
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]), OMP_NUM_THREADS="1",
                      TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
child = os.fork()
rank = 1 if child == 0 else 0
os.sched_setaffinity(0, {rank})

import torch
import torch.distributed.rpc as rpc

torch.set_num_threads(1)
rpc.init_rpc(f"w{rank}", rank=rank, world_size=2)


def repeat(call):
    for _ in range(20):
        call()
    took, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return sorted(took)


if rank == 0:
    x = torch.ones(1)
    took = repeat(lambda: rpc.rpc_sync("w1", torch.add, (x, x)))
    print(f"version\t{torch.__version__}")
    print(f"add_p50_us\t{took[len(took) // 2] * 1e6:.5g}")
    print(f"add_p99_us\t{took[len(took) * 99 // 100] * 1e6:.5g}")
    took = repeat(lambda: torch.futures.wait_all([rpc.rpc_async("w1", torch.add, (x, x)) for _ in range(128)]))
    print(f"add_128_per_s\t{128 * len(took) / sum(took):.6g}", flush=True)
rpc.shutdown()
if rank == 0:
    os.waitpid(child, 0)
