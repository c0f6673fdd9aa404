#!/usr/bin/python3
"""PyTorch's side of autograd_bench: prints its version and one rate, operations per second.

A chain of 100 additions of one element, forward and backward, on one thread.
"""
import os
import time

os.environ["OMP_NUM_THREADS"] = "1"
import torch  # noqa: E402

torch.set_num_threads(1)
CHAIN = 100
SECONDS = 0.5

x = torch.ones(1, requires_grad=True)
c = torch.ones(1)


def step():
    x.grad = None
    y = x
    for _ in range(CHAIN):
        y = y + c
    y.backward()


for _ in range(10):
    step()
assert x.grad.item() == 1 and x.grad_fn is None
steps, begin = 0, time.perf_counter()
while time.perf_counter() - begin < SECONDS:
    step()
    steps += 1
print(torch.__version__, CHAIN * steps / (time.perf_counter() - begin))
