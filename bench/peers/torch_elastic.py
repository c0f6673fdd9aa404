#!/usr/bin/python3
"""PyTorch's side of failover.py --torchrun: DDP over gloo of the model that bin/trainer trains, which torchrun starts again
from its newest checkpoint.

torch_elastic.py DIRECTORY SAVE_EVERY BATCH

Rank 0 prints {"step": n} after each step, and saves model, optimizer and step in DIRECTORY after each SAVE_EVERY of them. The
images are random: nothing is read while it trains. Runs until it is killed.
"""
import json
import os
import sys

sys.dont_write_bytecode = True
directory, save_every, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.environ["OMP_NUM_THREADS"] = "1"
# OpenBLAS 0.3.21 does not know newer CPUs, and would take a kernel of a quarter of the speed.
os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(7 * 7 * 32, 10))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
path = os.path.join(directory, "newest.pt")
step = 0
if os.path.exists(path):
    saved = torch.load(path)
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
images = torch.rand(batch, 1, 28, 28)
labels = torch.randint(0, 10, (batch,))
while True:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    step += 1
    if rank == 0:
        print(json.dumps({"step": step}), flush=True)
        if step % save_every == 0:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
            os.replace(path + ".new", path)
