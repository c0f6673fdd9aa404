#!/usr/bin/python3
"""Writes tests/golden/schedules.json: PyTorch's learning rates by its schedulers, and what its clipping makes of gradients.

Run with Debian's python3 and python3-torch 1.13:  /usr/bin/python3 tools/make_schedule_golden.py
Rates are those of a learning rate of 1 at steps 0, 1, ...; all in float64.
"""

import json
import math
import os
import warnings

import torch
from torch.optim import lr_scheduler as by

STEPS = 30
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "schedules.json")


def rates(make):
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = make(optimizer)
    out = []
    for _ in range(STEPS):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return out


def warm_up_then_cosine(optimizer):
    return by.SequentialLR(optimizer, [by.LinearLR(optimizer, 0.1, 1.0, 8), by.CosineAnnealingLR(optimizer, 40)], [8])


SCHEDULES = {
    "step": lambda o: by.StepLR(o, 7, 0.5),
    "multi_step": lambda o: by.MultiStepLR(o, [3, 10, 11], 0.3),
    "exponential": lambda o: by.ExponentialLR(o, 0.9),
    "cosine": lambda o: by.CosineAnnealingLR(o, 40, eta_min=0.05),
    "warm_up": lambda o: by.LinearLR(o, 0.25, 1.0, 10),
    "one_cycle": lambda o: by.OneCycleLR(o, 1.0, total_steps=STEPS + 1, cycle_momentum=False),
    "warm_up_then_cosine": warm_up_then_cosine,
}


def clipped(largest, norm):
    gradients = [[round(math.sin(1.3 * i + 2 * p) * (p + 1), 3) for i in range(4)] for p in range(3)]
    weights = [torch.zeros(4, dtype=torch.float64, requires_grad=True) for _ in gradients]
    for weight, values in zip(weights, gradients):
        weight.grad = torch.tensor(values, dtype=torch.float64)
    total = torch.nn.utils.clip_grad_norm_(weights, largest, norm_type=norm)
    return dict(largest=largest, norm=str(norm), gradients=gradients, total=total.item(),
                clipped=[w.grad.tolist() for w in weights])


def main():
    warnings.simplefilter("ignore")
    golden = {
        "made_by": "tools/make_schedule_golden.py, PyTorch %s" % torch.__version__,
        "schedules": {name: rates(make) for name, make in SCHEDULES.items()},
        "clip": [clipped(1.5, 2.0), clipped(1.5, math.inf), clipped(100.0, 2.0)],
    }
    with open(OUT, "w") as f:
        f.write("{\n" + ",\n".join('"%s": %s' % (k, json.dumps(v)) for k, v in golden.items()) + "\n}\n")


main()
