#!/usr/bin/python3
"""PyTorch's side of ddp_bench: prints its version and the steps per second of this rank.

torch_ddp.py MODEL MODE RANK FILE SECONDS CORE

MODEL is mlp, cnn or lm; MODE is ddp (two ranks, gloo) or alone (one of two processes that run at once). FILE is new, and
the same for both ranks: where they meet.
"""
import os
import sys
import time

sys.dont_write_bytecode = True
model_name, mode, rank, file, seconds, core = sys.argv[1:]
os.sched_setaffinity(0, {int(core)})
os.environ["OMP_NUM_THREADS"] = "1"
# OpenBLAS 0.3.21 does not know newer CPUs, and would take a kernel of a quarter of the speed.
os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
import torch_models  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
rank = int(rank)
model, x, y = torch_models.make(model_name)
dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
if mode == "ddp":
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step():
    optimizer.zero_grad(set_to_none=mode != "ddp")
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


first = [step() for _ in range(5)][0]
dist.barrier()
steps, begin, stop = 0, time.perf_counter(), False
while not stop:
    for _ in range(4):
        last = step()
    steps += 4
    stop = time.perf_counter() - begin > float(seconds)
    if mode == "ddp":  # all end after the same step; outside of the time that counts for little: one in four
        flag = torch.tensor([int(stop)])
        dist.all_reduce(flag)
        stop = flag.item() > 0
rate = steps / (time.perf_counter() - begin)
assert last < first, (first, last)
dist.barrier()
print(torch.__version__, rate)
