#!/usr/bin/env python3
"""train_bench beside PyTorch: rows of a Markdown table, with the steps per second of both, and the ratio.

torch_train.py TRAIN_BENCH [DEVICE [SECONDS]]

TRAIN_BENCH is the program, DEVICE cuda (the default) or cpu. Both sides take turns, three rounds of SECONDS (2), and the best
of each counts. Products and convolutions are of f32 on both sides, without TF32. Where Python has no torch that uses
the device, Weft's figures stand alone. Ends with train_bench's exit code where that fails: 3 if there is no such device.
WEFT_LIBRARY_PATH is train_bench's LD_LIBRARY_PATH, if it is set.
"""
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True
program = sys.argv[1]
device = sys.argv[2] if len(sys.argv) > 2 else "cuda"
seconds = sys.argv[3] if len(sys.argv) > 3 else "2"
ROUNDS, MODELS = 3, ["mlp", "cnn", "lm"]


def find_torch():
    try:
        import torch
    except Exception as error:  # a torch that is broken is not only an ImportError
        return None, f"python3 has no torch ({error})"
    if device != "cpu" and not torch.cuda.is_available():
        return None, f"torch {torch.__version__} finds no CUDA"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    return torch, torch.__version__


def rate_of_weft(model):
    environment = dict(os.environ)
    if "WEFT_LIBRARY_PATH" in environment:
        environment["LD_LIBRARY_PATH"] = environment["WEFT_LIBRARY_PATH"]
    command = [program, "--device=" + device, "--model=" + model, "--rounds=1", "--seconds=" + seconds]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, env=environment, timeout=60)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return float(done.stdout.split("\t")[1])


def trainer_of(torch, name):
    """A function that trains some steps and returns the loss, which waits for the device."""
    import torch_models
    model, x, y = torch_models.make(name)
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        return loss.item()
    return train


def rate_of_torch(train):
    first = train(1)
    train(8)
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < float(seconds):
        last = train(8)
        steps += 8
    rate = steps / (time.perf_counter() - begin)
    if not last < first:
        sys.exit(f"torch_train.py: the loss was {first} at first, and is {last}")
    return rate


torch, found = find_torch()
print(f"| steps/s on {device} | Weft | PyTorch | Weft / PyTorch |\n|---|---:|---:|---:|")
for name in MODELS:
    ours, theirs = [], []
    train = torch and trainer_of(torch, name)
    for _ in range(ROUNDS):
        ours.append(rate_of_weft(name))
        if train:
            theirs.append(rate_of_torch(train))
    right = f"{max(theirs):.4g} | {max(ours) / max(theirs):.2f}" if theirs else "absent | "
    print(f"| {name} | {max(ours):.4g} | {right} |", flush=True)
print(f"PyTorch: {found}")
