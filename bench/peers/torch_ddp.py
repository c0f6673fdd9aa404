#!/usr/bin/python3
"""PyTorch's side of ddp_bench: prints its version and the steps per second of this rank.

torch_ddp.py MODEL MODE RANK FILE SECONDS CORE

MODEL is mlp, cnn or lm; MODE is ddp (two ranks, gloo) or alone (one of two processes that run at once). FILE is new, and
the same for both ranks: where they meet.
"""
import os
import sys
import time

model_name, mode, rank, file, seconds, core = sys.argv[1:]
os.sched_setaffinity(0, {int(core)})
os.environ["OMP_NUM_THREADS"] = "1"
# OpenBLAS 0.3.21 does not know newer CPUs, and would take a kernel of a quarter of the speed.
os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
rank = int(rank)
VOCABULARY, WIDTH, LENGTH, LAYERS = 1024, 256, 128, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 8, batch_first=True)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))


class Lm(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text):
        x = self.words(text) + self.places(torch.arange(LENGTH))
        return self.output(self.blocks(x)).view(-1, VOCABULARY)


def mlp():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


if model_name == "lm":
    x, y = torch.randint(VOCABULARY, (8, LENGTH)), torch.randint(VOCABULARY, (8 * LENGTH,))
    model = Lm()
else:
    x = torch.randn(64, 784) if model_name == "mlp" else torch.randn(64, 1, 28, 28)
    y = torch.randint(10, (64,))
    model = mlp() if model_name == "mlp" else cnn()
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
