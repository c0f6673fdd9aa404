#!/usr/bin/python3
"""torch_collectives.py RANKS SECONDS BYTES...: PyTorch's gloo between processes of this host, over the loopback.

Prints name<TAB>value: version; all_reduce_<bytes>_us: the least and the median time of an all-reduce of f32 on rank 0;
broadcast_<bytes>_us, all_gather_<bytes>_us (of which each rank gives so many bytes); barrier_us.
"""
import os
import socket
import sys
import time

ranks, seconds, sizes = int(sys.argv[1]), float(sys.argv[2]), [int(size) for size in sys.argv[3:]]
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]), OMP_NUM_THREADS="1",
                      GLOO_SOCKET_IFNAME="lo")
rank = 0
for r in range(1, ranks):
    if os.fork() == 0:
        rank = r
        break

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=ranks)


def measure(name, call):
    for _ in range(3):
        call()
    dist.barrier()
    begin = time.perf_counter()
    call()
    # All ranks call as often as rank 0 says.
    rounds = torch.tensor([max(5, min(2000, int(seconds / max(time.perf_counter() - begin, 1e-6))))])
    dist.broadcast(rounds, 0)
    times = []
    for _ in range(int(rounds)):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    times.sort()
    if rank == 0:
        print(f"{name}_us\t{times[len(times) // 2] * 1e6}", flush=True)


if rank == 0:
    print(f"version\t{torch.__version__}")
for size in sizes:
    x = torch.ones(size // 4)
    dist.all_reduce(x)
    assert bool((x == ranks).all())
    x.zero_()
    measure(f"all_reduce_{size}", lambda: dist.all_reduce(x))
    measure(f"broadcast_{size}", lambda: dist.broadcast(x, 0))
    parts = [torch.zeros(size // 4) for _ in range(ranks)]
    measure(f"all_gather_{size}", lambda: dist.all_gather(parts, x))
measure("barrier", dist.barrier)
