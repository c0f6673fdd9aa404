#!/usr/bin/python3
"""PyTorch's side of operation_bench: prints its version, then the time of each operation that it is asked for.

torch_operations.py CORE

A line "SECONDS OPERATION PASS SIZE..." on standard input, as operation_bench writes it, is answered by one line: the
seconds of processor time of one run, the median over batches of runs that take about SECONDS together. PASS is forward,
or backward: the gradients of all inputs that have one, from a gradient of the result that is given.
"""
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True
os.sched_setaffinity(0, {int(sys.argv[1])})
os.environ["OMP_NUM_THREADS"] = "1"
# OpenBLAS 0.3.21 does not know newer CPUs, and would take a kernel of a quarter of the speed.
os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
import torch_models  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def parameters_of(module):
    return list(module.parameters())


def linear(n, inputs, outputs, wants_input):
    module, x = nn.Linear(inputs, outputs), torch.randn(n, inputs, requires_grad=bool(wants_input))
    return lambda: module(x), parameters_of(module) + [x] * wants_input


def conv(n, channels, size, filters, wants_input):
    module = nn.Conv2d(channels, filters, 3)
    x = torch.randn(n, channels, size, size, requires_grad=bool(wants_input))
    return lambda: module(x), parameters_of(module) + [x] * wants_input


def of_one(function):
    def operation(*shape):
        x = leaf(*shape)
        return lambda: function(x), [x]
    return operation


def add(*shape):
    # Of activations in the middle of a model: what a gradient costs there is nothing, or another such addition.
    x, y = torch.randn(*shape), torch.randn(*shape)
    return lambda: x + y, []


def add_places(n, length, width):
    x, y = leaf(n, length, width), leaf(length, width)
    return lambda: x + y, [x, y]


def embedding(rows, width, n, length):
    module = nn.Embedding(rows, width)
    text = (torch.arange(n * length) * 7919 % rows).view(n, length)
    return lambda: module(text), parameters_of(module)


def layer_norm(n, length, width):
    module, x = nn.LayerNorm(width), leaf(n, length, width)
    return lambda: module(x), parameters_of(module) + [x]


def batch_norm(n, channels, size):
    module, x = nn.BatchNorm2d(channels), leaf(n, channels, size, size)
    return lambda: module(x), parameters_of(module) + [x]


def mask_of(length):
    return torch.full((length, length), float("-inf")).triu(1)


def attention(n, heads, length, width):
    q, k, v = leaf(n * heads, length, width), leaf(n * heads, length, width), leaf(n * heads, length, width)
    mask = mask_of(length)
    # What nn.MultiheadAttention of this version does between its projections.
    return lambda: torch.bmm(torch.softmax(torch.baddbmm(mask, q / width**0.5, k.transpose(-2, -1)), -1), v), [q, k, v]


def multihead_attention(n, length, width, heads):
    module, x, mask = nn.MultiheadAttention(width, heads, batch_first=True), leaf(n, length, width), mask_of(length)
    return lambda: module(x, x, x, attn_mask=mask, need_weights=False)[0], parameters_of(module) + [x]


def cross_entropy(n, classes):
    x, y = leaf(n, classes), torch.arange(n) * 7919 % classes
    return lambda: functional.cross_entropy(x, y), [x]


OPERATIONS = {
    "linear": linear, "conv": conv, "add": add, "add_places": add_places, "embedding": embedding,
    "layer_norm": layer_norm, "batch_norm": batch_norm, "attention": attention,
    "multihead_attention": multihead_attention, "cross_entropy": cross_entropy,
    "relu": of_one(torch.relu), "gelu": of_one(functional.gelu), "softmax": of_one(lambda x: torch.softmax(x, -1)),
    "max_pool": of_one(lambda x: functional.max_pool2d(x, 2)),
}


def prepared(operation, way, sizes):
    if operation in ("sgd", "step"):
        return trained(operation, way)
    forward, leaves = OPERATIONS[operation](*map(int, sizes))
    if way == "forward":
        return forward
    y = forward()
    seed = torch.ones_like(y)

    def backward():
        for variable in leaves:
            variable.grad = None
        y.backward(seed, retain_graph=True)
    return backward


def trained(operation, name):
    model, x, y = torch_models.make(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss():
        return functional.cross_entropy(model(x), y)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()
    if operation == "step":
        return step
    loss().backward()
    return optimizer.step


def seconds_of(run, seconds):
    """As SecondsOf of operation_bench."""
    begin = time.process_time()
    run()
    first = max(time.process_time() - begin, 1e-7)
    batch = max(1, int(0.002 / first))
    for _ in range(batch):
        run()
    times, total = [], 0
    while total < seconds or len(times) < 3:
        begin = time.process_time()
        for _ in range(batch):
            run()
        taken = time.process_time() - begin
        total += taken
        times.append(taken / batch)
    return statistics.median(times)


made = {}
print(torch.__version__, flush=True)
for line in sys.stdin:
    key = tuple(line.split()[1:])
    if key not in made:
        made = {key: prepared(key[0], key[1], key[2:])}  # the last is dropped, for its memory
    print(seconds_of(made[key], float(line.split()[0])), flush=True)
