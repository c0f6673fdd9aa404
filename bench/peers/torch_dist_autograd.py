#!/usr/bin/python3
"""torch_dist_autograd.py SECONDS [CLIENT_CORE SERVER_CORE]: PyTorch's RRef, distributed autograd and distributed
optimizer between two processes, on cores 0 and 1; -1: not pinned.

Prints name<TAB>value: version; add_us, make_fetch_us, fetch_us: p50 of a one-element add, of remote() and to_here(), of
to_here() of a reference that exists; pass_per_s: forward and backward of sum(x w0 w1), 32x32 each, w1 at the other
process; step_per_s: the same and a step of DistributedOptimizer over w0 and w1.
"""
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
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch.distributed.optim import DistributedOptimizer

torch.set_num_threads(1)
rpc.init_rpc(f"w{rank}", rank=rank, world_size=2)


def weight(scale):
    return scale * torch.sin(1 + 3 * torch.arange(32 * 32, dtype=torch.float32)).reshape(32, 32)


w1 = weight(0.05).requires_grad_()  # of the server


def forward(h):
    return h @ w1


def served_weight():
    return rpc.RRef(w1)


def served_gradient(context):
    return dist_autograd.get_gradients(context)[w1]


def p50_us(call):
    for _ in range(20):
        call()
    took, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return sorted(took)[len(took) // 2] * 1e6


def per_second(step):
    for _ in range(20):
        step()
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + seconds:
        step()
        steps += 1
    return steps / (time.perf_counter() - begin)


def measure():
    one = torch.ones(1)
    x, w0 = weight(1), weight(0.1).requires_grad_()
    ref = rpc.remote("w1", torch.add, (one, one))
    assert ref.to_here().item() == 2

    def loss():
        return rpc.rpc_sync("w1", forward, (x @ w0,)).sum()

    with dist_autograd.context() as context:
        dist_autograd.backward(context, [loss()])
        h = (x @ w0).detach()
        expected = h.t() @ torch.ones(32, 32)
        assert torch.allclose(rpc.rpc_sync("w1", served_gradient, (context,)), expected, atol=1e-4)
    optimizer = DistributedOptimizer(torch.optim.SGD, [rpc.RRef(w0), rpc.rpc_sync("w1", served_weight)], lr=1e-9)

    def backward():
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [loss()])

    def step():
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [loss()])
            optimizer.step(context)

    print(f"version\t{torch.__version__}")
    print(f"add_us\t{p50_us(lambda: rpc.rpc_sync('w1', torch.add, (one, one))):.5g}")
    print(f"make_fetch_us\t{p50_us(lambda: rpc.remote('w1', torch.add, (one, one)).to_here()):.5g}")
    print(f"fetch_us\t{p50_us(ref.to_here):.5g}")
    print(f"pass_per_s\t{per_second(backward):.6g}")
    print(f"step_per_s\t{per_second(step):.6g}", flush=True)


if rank == 0:
    measure()
rpc.shutdown()
if rank == 0:
    os.waitpid(child, 0)
