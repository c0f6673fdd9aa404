#!/usr/bin/python3
"""Writes tests/golden/optimizer_rules.json: PyTorch's weights after each step of each update rule.

Run with Debian's python3 and python3-torch 1.13:  /usr/bin/python3 tools/make_optimizer_golden.py
Gradients are rounded to 3 decimals, so that a reader in any language has the same bits. Weights are in float64.
A sparse case has gradients for some rows only, and uses the global step as torch.optim.SparseAdam does.
"""

import json
import math
import os

import torch

STEPS = 24
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "optimizer_rules.json")


def gradient(step, group, n):
    return [round(math.sin(1.7 * step + 0.9 * i + 2.3 * group) * (1 + 0.2 * i), 3) if (step + i) % 5 else 0.0 for i in range(n)]


def initial(group, n):
    return [round(0.5 * math.cos(i + group) + 0.1, 3) for i in range(n)]


def rows_of(step):
    return [step % 4, (step * 3 + 1) % 4] if step % 4 != (step * 3 + 1) % 4 else [step % 4]


def dense(rule, make, groups):
    sizes = [5, 3]
    weights = [torch.tensor(initial(g, n), dtype=torch.float64, requires_grad=True) for g, n in enumerate(sizes)]
    optimizer = make([dict(params=[w], **options) for w, options in zip(weights, groups)])
    out = [dict(options=options, initial=initial(g, sizes[g]), gradients=[], weights=[]) for g, options in enumerate(groups)]
    for step in range(1, STEPS + 1):
        for g, w in enumerate(weights):
            values = gradient(step, g, sizes[g])
            w.grad = torch.tensor(values, dtype=torch.float64)
            out[g]["gradients"].append(values)
        optimizer.step()
        for g, w in enumerate(weights):
            out[g]["weights"].append(w.tolist())
    return dict(rule=rule, groups=out)


def sparse(rule, make, options):
    rows, width = 4, 2
    w = torch.tensor(initial(0, rows * width), dtype=torch.float64).reshape(rows, width).requires_grad_()
    optimizer = make([dict(params=[w], **options)])
    out = dict(rule=rule, options=options, rows=rows, width=width, initial=initial(0, rows * width), steps=[])
    for step in range(1, STEPS + 1):
        touched = rows_of(step)
        values = gradient(step, 1, width * len(touched))
        w.grad = torch.sparse_coo_tensor([touched], torch.tensor(values, dtype=torch.float64).reshape(-1, width), (rows, width))
        optimizer.step()
        out["steps"].append(dict(rows=touched, gradient=values, weights=w.detach().reshape(-1).tolist()))
    return out


def renamed(cls, names):
    """The PyTorch class, taking our option names."""
    def make(groups):
        def rename(options):
            kept = {names.get(k, k): v for k, v in options.items() if k not in ("beta1", "beta2")}
            if "beta1" in options:
                kept["betas"] = (options["beta1"], options["beta2"])
            return kept
        # Adagrad makes its accumulators from the constructor's default alone, so that is set too.
        groups = [rename(g) for g in groups]
        extra = {}
        if cls is torch.optim.Adagrad:
            extra["initial_accumulator_value"] = groups[0].get("initial_accumulator_value", 0.0)
        if cls is not torch.optim.Adadelta:
            extra["lr"] = 0.5
        return cls(groups, **extra)
    return make


SGD = renamed(torch.optim.SGD, {})
ADAM = renamed(torch.optim.Adam, {"epsilon": "eps"})
ADAMW = renamed(torch.optim.AdamW, {"epsilon": "eps"})
ADAGRAD = renamed(torch.optim.Adagrad, {"epsilon": "eps", "initial_accumulator": "initial_accumulator_value"})
RMSPROP = renamed(torch.optim.RMSprop, {"epsilon": "eps"})
ADADELTA = renamed(torch.optim.Adadelta, {"epsilon": "eps"})
SPARSE_ADAM = renamed(torch.optim.SparseAdam, {"epsilon": "eps"})


def main():
    cases = [
        dense("sgd", SGD, [dict(lr=0.1), dict(lr=0.02, weight_decay=0.1)]),
        dense("sgd", SGD, [dict(lr=0.1, momentum=0.9), dict(lr=0.02, momentum=0.5, dampening=0.3, weight_decay=0.1)]),
        dense("sgd", SGD, [dict(lr=0.1, momentum=0.9, nesterov=True), dict(lr=0.02, momentum=0.5, nesterov=True, weight_decay=0.1)]),
        dense("adam", ADAM, [dict(lr=0.01, beta1=0.9, beta2=0.999, epsilon=1e-8),
                             dict(lr=0.05, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.1)]),
        dense("adamw", ADAMW, [dict(lr=0.01, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01),
                               dict(lr=0.05, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.2)]),
        dense("adagrad", ADAGRAD, [dict(lr=0.1), dict(lr=0.3, lr_decay=0.1, weight_decay=0.1, epsilon=1e-3)]),
        dense("adagrad", ADAGRAD, [dict(lr=0.05, initial_accumulator=0.1),
                                   dict(lr=0.3, initial_accumulator=0.1, lr_decay=0.1, weight_decay=0.1)]),
        dense("adam", ADAM, [dict(lr=0.01, amsgrad=True),
                             dict(lr=0.05, beta1=0.8, beta2=0.7, epsilon=1e-3, weight_decay=0.1, amsgrad=True)]),
        dense("adamw", ADAMW, [dict(lr=0.01, amsgrad=True),
                               dict(lr=0.05, beta1=0.8, beta2=0.7, epsilon=1e-3, weight_decay=0.2, amsgrad=True)]),
        dense("rmsprop", RMSPROP, [dict(lr=0.01), dict(lr=0.02, alpha=0.9, epsilon=1e-3, weight_decay=0.1)]),
        # Centered and without decay, the first step's variance is close to 0, and PyTorch's result to roundings too: epsilon is large.
        dense("rmsprop", RMSPROP, [dict(lr=0.01, momentum=0.9),
                                   dict(lr=0.02, alpha=0.9, epsilon=1e-2, weight_decay=0.1, centered=True)]),
        dense("rmsprop", RMSPROP, [dict(lr=0.01, alpha=0.9, momentum=0.9, centered=True, epsilon=1e-2),
                                   dict(lr=0.02, alpha=0.8, momentum=0.5, weight_decay=0.1)]),
        dense("adadelta", ADADELTA, [dict(), dict(lr=0.5, rho=0.8, epsilon=1e-3, weight_decay=0.1)]),
    ]
    rows = [
        sparse("sgd", SGD, dict(lr=0.1)),
        sparse("adagrad", ADAGRAD, dict(lr=0.1, lr_decay=0.05, initial_accumulator=0.1)),
        # SparseAdam adds epsilon before the bias correction, Adam after it: one too small to matter makes them equal.
        sparse("adam", SPARSE_ADAM, dict(lr=0.01, beta1=0.9, beta2=0.999, epsilon=1e-30)),
    ]
    with open(OUT, "w") as f:
        f.write("{\n")
        f.write('"made_by": "tools/make_optimizer_golden.py, PyTorch %s",\n' % torch.__version__)
        for name, items, end in (("dense", cases, ","), ("sparse", rows, "")):
            f.write('"%s": [\n%s\n]%s\n' % (name, ",\n".join(json.dumps(c) for c in items), end))
        f.write("}\n")


main()
