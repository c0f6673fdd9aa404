#!/usr/bin/python3
"""Makes tests/golden/*.json: what PyTorch computes for each case of Weft's operations and modules.

    /usr/bin/python3 tools/make_golden.py [--out tests/golden]

Needs Debian's python3-torch (1.13). The same inputs are made each time; the
values are f32, computed on one thread. A case is named Op/case as in the
registry (autograd/op.h); a module's run as in nn/golden_test.cc.
"""
import argparse
import json
import pathlib
import zlib

import torch
import torch.nn.functional as F

torch.set_num_threads(1)

# ---- inputs, made of few digits so that the files stay small


def real(*shape, low=-1.5, high=1.5):
    x = torch.rand(shape) * (high - low) + low
    return (x * 1000).round() / 1000


def index(*shape, high):
    return torch.randint(0, high, shape)


def mask(*shape):
    return torch.rand(shape) < 0.5


def rms_norm(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


# The classes are Weft's last dimension and PyTorch's second.
def cross_entropy(**options):
    return lambda x, t: F.cross_entropy(x.transpose(1, 2), t, **options)


# A query that sees nothing gives 0, as in PyTorch from 2.5 on.
def attention(q, k, v, visible=None, scale=None):
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if visible is None:
        return F.softmax(scores, -1) @ v
    weights = F.softmax(scores.masked_fill(~visible, -1e30), -1)
    return weights.masked_fill(~visible, 0) @ v


# x [n, T, 3 * heads * d] holds queries, keys and values.
def self_attention(x, heads, visible=None):
    n, t, width = x.shape
    q, k, v = x.view(n, t, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4)
    return attention(q, k, v, visible).transpose(1, 2).reshape(n, t, width // 3)


def einsum(equation):
    return lambda *operands: torch.einsum(equation, *operands)


# ---- operations: name -> (inputs, function); inputs are made after seeding


def ops():
    pos = dict(low=0.5, high=2.0)
    return {
        "Add/same": (lambda: [real(2, 3), real(2, 3)], lambda a, b: a + b),
        "Add/broadcast": (lambda: [real(2, 1, 3), real(4, 1)], lambda a, b: a + b),
        "AddScalar/": (lambda: [real(2, 3)], lambda a: a + 2.5),
        "Sub/same": (lambda: [real(2, 3), real(2, 3)], lambda a, b: a - b),
        "Sub/broadcast": (lambda: [real(3), real(2, 3)], lambda a, b: a - b),
        "Mul/same": (lambda: [real(2, 3), real(2, 3)], lambda a, b: a * b),
        "Mul/broadcast": (lambda: [real(2, 3), real(2, 1)], lambda a, b: a * b),
        "MulScalar/": (lambda: [real(2, 3)], lambda a: a * -1.5),
        "Div/same": (lambda: [real(2, 3), real(2, 3, **pos)], lambda a, b: a / b),
        "Div/broadcast": (lambda: [real(2, 3), real(3, **pos)], lambda a, b: a / b),
        "Neg/": (lambda: [real(3, 4)], lambda a: -a),
        "Maximum/same": (lambda: [real(2, 3), real(2, 3)], torch.maximum),
        "Maximum/broadcast": (lambda: [real(2, 3), real(1)], torch.maximum),
        "Where/same": (lambda: [mask(2, 3), real(2, 3), real(2, 3)], torch.where),
        "Where/broadcast": (lambda: [mask(2, 3), real(3), real(2, 1)], torch.where),
        "Cast/": (lambda: [real(3, 4)], lambda a: a.double().to(a.dtype)),
        "Exp/": (lambda: [real(3, 4)], torch.exp),
        "Log/": (lambda: [real(3, 4, **pos)], torch.log),
        "Sqrt/": (lambda: [real(3, 4, **pos)], torch.sqrt),
        "Relu/": (lambda: [real(3, 4)], torch.relu),
        "Sigmoid/": (lambda: [real(3, 4, low=-4, high=4)], torch.sigmoid),
        "Tanh/": (lambda: [real(3, 4)], torch.tanh),
        "Minimum/same": (lambda: [real(2, 3), real(2, 3)], torch.minimum),
        "Minimum/broadcast": (lambda: [real(2, 3), real(1)], torch.minimum),
        "MaskedFill/same": (lambda: [real(2, 3), mask(2, 3)], lambda x, m: x.masked_fill(m, -2.5)),
        "MaskedFill/broadcast": (lambda: [real(3), mask(2, 1)],
                                 lambda x, m: x.expand(2, 3).masked_fill(m, -2.5)),
        "Abs/": (lambda: [real(3, 4)], torch.abs),
        "Square/": (lambda: [real(3, 4)], torch.square),
        "Log1p/": (lambda: [real(3, 4, low=-0.5)], torch.log1p),
        "Softplus/": (lambda: [real(3, 4, low=-4, high=4)], F.softplus),
        "Sin/": (lambda: [real(3, 4)], torch.sin),
        "Cos/": (lambda: [real(3, 4)], torch.cos),
        "Silu/": (lambda: [real(3, 4, low=-4, high=4)], F.silu),
        "Gelu/exact": (lambda: [real(3, 4, low=-3, high=3)], F.gelu),
        "Gelu/tanh": (lambda: [real(3, 4, low=-3, high=3)], lambda x: F.gelu(x, approximate="tanh")),
        "Pow/cube": (lambda: [real(3, 4)], lambda x: x.pow(3)),
        "Pow/root": (lambda: [real(3, 4, **pos)], lambda x: x.pow(0.5)),
        "Pow/zero": (lambda: [real(3, 4)], lambda x: x.pow(0)),
        "Clamp/": (lambda: [real(3, 4)], lambda x: x.clamp(-0.5, 0.75)),
        "Min/dim": (lambda: [real(3, 4)], lambda a: a.min(1).values),
        "Min/keepdim": (lambda: [real(3, 4, 2)], lambda a: a.min(1, keepdim=True).values),
        "Var/all": (lambda: [real(2, 3)], lambda a: a.var()),
        "Var/population": (lambda: [real(2, 3, 4)], lambda a: a.var((0, 2), unbiased=False, keepdim=True)),
        "Std/all": (lambda: [real(2, 3)], lambda a: a.std()),
        "Std/dims": (lambda: [real(2, 3, 4)], lambda a: a.std((0, 2))),
        "Stack/": (lambda: [real(2, 3), real(2, 3)], lambda *a: torch.stack(a, 1)),
        "Index/": (lambda: [real(4, 5, 3)], lambda x: x[1:3, -2, 1:]),
        "Tril/": (lambda: [real(2, 3, 4)], lambda x: x.tril(1)),
        "Triu/": (lambda: [real(2, 4, 3)], lambda x: x.triu(-1)),
        "ScatterAdd/": (lambda: [real(3, 5), index(3, 4, high=5), real(3, 4)],
                        lambda x, i, s: x.scatter_add(1, i, s)),
        "IndexAdd/": (lambda: [real(5, 3), index(4, high=5), real(4, 3)],
                      lambda x, i, s: x.index_add(0, i, s)),
        "Sum/all": (lambda: [real(2, 3)], lambda a: a.sum()),
        "Sum/dims": (lambda: [real(2, 3, 4)], lambda a: a.sum((0, 2))),
        "Sum/keepdim": (lambda: [real(2, 3, 4)], lambda a: a.sum(1, keepdim=True)),
        "Mean/all": (lambda: [real(2, 3)], lambda a: a.mean()),
        "Mean/dims": (lambda: [real(2, 3, 4)], lambda a: a.mean((1, 2))),
        "Mean/keepdim": (lambda: [real(2, 3, 4)], lambda a: a.mean(0, keepdim=True)),
        "Max/dim": (lambda: [real(3, 4)], lambda a: a.max(1).values),
        "Max/keepdim": (lambda: [real(3, 4, 2)], lambda a: a.max(1, keepdim=True).values),
        "Reshape/": (lambda: [real(2, 6)], lambda a: a.reshape(3, 4)),
        "Transpose/": (lambda: [real(2, 3, 4)], lambda a: a.transpose(0, 2)),
        "Permute/": (lambda: [real(2, 3, 4)], lambda a: a.permute(2, 0, 1)),
        "Slice/": (lambda: [real(4, 5)], lambda a: a[:, 1:4]),
        "Select/": (lambda: [real(4, 5)], lambda a: a.select(0, 2)),
        "Expand/": (lambda: [real(3, 1)], lambda a: a.expand(2, 3, 4)),
        "Squeeze/": (lambda: [real(3, 1, 2)], lambda a: a.squeeze(1)),
        "Unsqueeze/": (lambda: [real(3, 2)], lambda a: a.unsqueeze(1)),
        "Concat/": (lambda: [real(2, 3), real(2, 1), real(2, 2)], lambda *a: torch.cat(a, 1)),
        "MatMul/2d": (lambda: [real(3, 4), real(4, 5)], torch.matmul),
        "MatMul/batched": (lambda: [real(2, 3, 4), real(2, 4, 5)], torch.matmul),
        "Linear/bias": (lambda: [real(3, 4), real(5, 4), real(5)], F.linear),
        "Linear/no_bias": (lambda: [real(3, 4), real(5, 4)], F.linear),
        "Conv2d/bias": (lambda: [real(2, 3, 6, 5), real(4, 3, 3, 3), real(4)], F.conv2d),
        "Conv2d/strided": (lambda: [real(2, 2, 7, 7), real(3, 2, 3, 3)],
                           lambda x, w: F.conv2d(x, w, stride=2, padding=1)),
        "MaxPool2d/": (lambda: [real(2, 2, 6, 6)], lambda x: F.max_pool2d(x, 2)),
        "MaxPool2d/padded": (lambda: [real(1, 2, 6, 6)], lambda x: F.max_pool2d(x, 3, 2, 1)),
        "AvgPool2d/": (lambda: [real(2, 2, 6, 6)], lambda x: F.avg_pool2d(x, 2)),
        "AvgPool2d/padded": (lambda: [real(1, 2, 6, 6)], lambda x: F.avg_pool2d(x, 3, 2, 1)),
        "LayerNorm/affine": (lambda: [real(2, 3, 5), real(5), real(5)],
                             lambda x, w, b: F.layer_norm(x, [5], w, b)),
        "LayerNorm/two_dims": (lambda: [real(3, 2, 4), real(2, 4), real(2, 4)],
                               lambda x, w, b: F.layer_norm(x, [2, 4], w, b, 1e-3)),
        "LayerNorm/plain": (lambda: [real(4, 3)], lambda x: F.layer_norm(x, [3])),
        # PyTorch 1.13 has no RMSNorm: by its definition.
        "RmsNorm/weight": (lambda: [real(2, 3, 5), real(5)], lambda x, w: rms_norm(x) * w),
        "RmsNorm/plain": (lambda: [real(4, 3)], lambda x: rms_norm(x)),
        "BatchNorm/training": (lambda: [real(4, 3, 2, 2), real(3), real(3)],
                               lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
        "BatchNorm/rows": (lambda: [real(5, 3), real(3), real(3)],
                           lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
        "BatchNorm/plain": (lambda: [real(5, 3)], lambda x: F.batch_norm(x, None, None, training=True)),
        "BatchNorm/evaluating": (lambda: [real(4, 3, 2), real(3), real(3), real(3), real(3, **pos)],
                                 lambda x, w, b, m, v: F.batch_norm(x, m.detach(), v.detach(), w, b)),
        "Softmax/": (lambda: [real(3, 4)], lambda x: F.softmax(x, 1)),
        "LogSoftmax/": (lambda: [real(3, 4)], lambda x: F.log_softmax(x, 1)),
        "IndexSelect/": (lambda: [real(5, 3), index(4, high=5)], lambda x, i: x.index_select(0, i)),
        "Gather/": (lambda: [real(3, 5), index(3, 2, high=5)], lambda x, i: x.gather(1, i)),
        "Embedding/dense": (lambda: [real(6, 3), index(2, 4, high=6)], lambda w, i: F.embedding(i, w)),
        "Embedding/sparse": (lambda: [real(6, 3), index(2, 4, high=6)],
                             lambda w, i: F.embedding(i, w, sparse=True)),
        "EmbeddingBag/sum": (lambda: [real(6, 3), index(7, high=6)],
                             lambda w, i: F.embedding_bag(i, w, torch.tensor([0, 2, 2, 5]), mode="sum")),
        "EmbeddingBag/mean": (lambda: [real(6, 3), index(7, high=6)],
                              lambda w, i: F.embedding_bag(i, w, torch.tensor([0, 2, 2, 5]), mode="mean")),
        "EmbeddingBag/sparse": (lambda: [real(6, 3), index(7, high=6)],
                                lambda w, i: F.embedding_bag(i, w, torch.tensor([0, 2, 2, 5]), mode="mean", sparse=True)),
        "NllLoss/mean": (lambda: [real(4, 3), index(4, high=3)], lambda x, t: F.nll_loss(x, t)),
        "NllLoss/sum": (lambda: [real(4, 3), index(4, high=3)], lambda x, t: F.nll_loss(x, t, reduction="sum")),
        "NllLoss/none": (lambda: [real(4, 3), index(4, high=3)], lambda x, t: F.nll_loss(x, t, reduction="none")),
        "CrossEntropy/mean": (lambda: [real(4, 3), index(4, high=3)], lambda x, t: F.cross_entropy(x, t)),
        "CrossEntropy/sum": (lambda: [real(4, 3), index(4, high=3)],
                             lambda x, t: F.cross_entropy(x, t, reduction="sum")),
        "CrossEntropy/none": (lambda: [real(4, 3), index(4, high=3)],
                              lambda x, t: F.cross_entropy(x, t, reduction="none")),
        **{"CrossEntropy/" + name: (lambda: [real(2, 3, 4), index(2, 3, high=4)], cross_entropy(**options))
           for name, options in {
               "sequences": {}, "ignore": dict(ignore_index=1),
               "ignore_none": dict(ignore_index=1, reduction="none"),
               "smoothed": dict(label_smoothing=0.1),
               "smoothed_ignore": dict(label_smoothing=0.3, ignore_index=2)}.items()},
        "KlDivLoss/mean": (lambda: [real(4, 3), real(4, 3, low=0, high=1)], lambda x, t: F.kl_div(x, t)),
        "KlDivLoss/sum": (lambda: [real(4, 3), real(4, 3, low=0, high=1)],
                          lambda x, t: F.kl_div(x, t, reduction="sum")),
        "KlDivLoss/none": (lambda: [real(4, 3), real(4, 3, low=0, high=1)],
                           lambda x, t: F.kl_div(x, t, reduction="none")),
        "HuberLoss/mean": (lambda: [real(4, 3), real(4, 3)], lambda x, t: F.huber_loss(x, t)),
        "HuberLoss/delta": (lambda: [real(4, 3), real(4, 3)],
                            lambda x, t: F.huber_loss(x, t, delta=0.4, reduction="sum")),
        "Cumsum/last": (lambda: [real(3, 4)], lambda x: x.cumsum(1)),
        "Cumsum/first": (lambda: [real(3, 4)], lambda x: x.cumsum(0)),
        "TopK/largest": (lambda: [real(3, 5)], lambda x: x.topk(2, 1).values),
        "TopK/smallest": (lambda: [real(5, 3)], lambda x: x.topk(3, 0, largest=False).values),
        "ScaledDotProductAttention/plain": (
            lambda: [real(2, 3, 4), real(2, 5, 4), real(2, 5, 3)], lambda q, k, v: attention(q, k, v)),
        "ScaledDotProductAttention/causal": (
            lambda: [real(2, 2, 4, 3), real(2, 2, 4, 3), real(2, 2, 4, 3)],
            lambda q, k, v: attention(q, k, v, torch.ones(4, 4).tril().bool())),
        "ScaledDotProductAttention/masked": (
            lambda: [real(2, 3, 4), real(2, 5, 4), real(2, 5, 4), mask(3, 5)],
            lambda q, k, v, m: attention(q, k, v, m, 0.75)),
        "SelfAttention/plain": (lambda: [real(2, 3, 18)], lambda x: self_attention(x, 2)),
        "SelfAttention/causal": (
            lambda: [real(2, 4, 12)], lambda x: self_attention(x, 2, torch.ones(4, 4).tril().bool())),
        "SelfAttention/masked": (
            lambda: [real(2, 3, 12), mask(2, 1, 3, 3)], lambda x, m: self_attention(x, 2, m)),
        "Einsum/matrices": (lambda: [real(3, 4), real(4, 2)], einsum("ij,jk->ik")),
        "Einsum/heads": (lambda: [real(2, 3, 2, 4), real(2, 5, 2, 4)], einsum("bthd,bshd->bhts")),
        "Einsum/outer": (lambda: [real(3), real(4)], einsum("i,j->ji")),
        "Einsum/inner": (lambda: [real(3, 4), real(3, 4)], einsum("ij,ij->")),
        "Einsum/summed": (lambda: [real(2, 3, 4), real(5, 3)], einsum("abi,jb->j")),
        "Einsum/one": (lambda: [real(2, 3, 4)], einsum("ijk->ki")),
        "MseLoss/mean": (lambda: [real(4, 3), real(4, 3)], lambda x, t: F.mse_loss(x, t)),
        "MseLoss/sum": (lambda: [real(4, 3), real(4, 3)], lambda x, t: F.mse_loss(x, t, reduction="sum")),
        "MseLoss/none": (lambda: [real(4, 3), real(4, 3)], lambda x, t: F.mse_loss(x, t, reduction="none")),
        "BceWithLogits/mean": (lambda: [real(4, 3), real(4, 3, low=0, high=1)],
                               lambda x, t: F.binary_cross_entropy_with_logits(x, t)),
        "BceWithLogits/sum": (lambda: [real(4, 3), real(4, 3, low=0, high=1)],
                              lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="sum")),
        "BceWithLogits/none": (lambda: [real(4, 3, low=-9, high=9), real(4, 3, low=0, high=1)],
                               lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none")),
    }


LOSSES = ("MseLoss", "BceWithLogits", "NllLoss", "CrossEntropy", "KlDivLoss", "HuberLoss")  # their targets have no gradient


def run_op(name, make, fn):
    torch.manual_seed(zlib.crc32(name.encode()))
    inputs = make()
    for x in inputs[:1] if name.split("/")[0] in LOSSES else inputs:
        x.requires_grad_(x.dtype == torch.float32)
    output = fn(*inputs)
    cotangent = real(*output.shape)
    output.backward(cotangent)
    return {
        "inputs": [tensor(x) for x in inputs],
        "output": tensor(output),
        "cotangent": tensor(cotangent),
        "gradients": [None if x.grad is None else tensor(x.grad.to_dense()) for x in inputs],
    }


# ---- modules: a forward, a backward, five steps of SGD


class Cnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 3, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(3, 4, 3)
        self.fc = torch.nn.Linear(4 * 3 * 3, 5)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.relu(self.conv2(x))
        return self.fc(x.flatten(1))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(8, 16)
        self.fc2 = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


class SparseLogistic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.EmbeddingBag(20, 1, mode="sum", sparse=True)
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return (self.weights(x) + self.bias).flatten()


class BatchNormCnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 3, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(3, momentum=0.2)
        self.fc = torch.nn.Linear(3 * 5 * 5, 5)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.fc(x.flatten(1))


class RmsNorm(torch.nn.Module):
    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class LanguageModel(torch.nn.Module):
    """One causal attention; the last layer's weight is the embedding's."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8, padding_idx=0)
        self.norm1 = torch.nn.LayerNorm(8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm2 = RmsNorm(8, 1e-5)
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        h = self.embedding(x)
        a = self.norm1(h)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        h = h + self.attention(a, a, a, attn_mask=hidden, need_weights=False)[0]
        return self.head(self.norm2(h)).flatten(0, 1)


def modules():
    return {
        "batch_norm_cnn": (BatchNormCnn, lambda: real(4, 1, 10, 10), lambda: index(4, high=5), F.cross_entropy),
        "language_model": (LanguageModel, lambda: index(3, 6, high=11), lambda: index(18, high=11), F.cross_entropy),
        "cnn": (Cnn, lambda: real(4, 1, 10, 10), lambda: index(4, high=5), F.cross_entropy),
        "mlp": (Mlp, lambda: real(6, 8), lambda: index(6, high=4), F.cross_entropy),
        "sparse_logistic": (SparseLogistic, lambda: index(6, 3, high=20), lambda: mask(6).float(),
                            F.binary_cross_entropy_with_logits),
    }


def run_module(name, make, make_input, make_target, loss_fn, lr=0.1):
    torch.manual_seed(zlib.crc32(name.encode()))
    module, x, target = make(), make_input(), make_target()
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    golden = {
        "input": tensor(x), "target": tensor(target), "lr": lr,
        "initial": state(module), "output": tensor(module(x)), "losses": [],
    }
    for step in range(5):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(module(x), target)
        loss.backward()
        golden["losses"].append(number_of(loss.item()))
        if step == 0:
            golden["gradients"] = {n: tensor(p.grad.to_dense()) for n, p in module.named_parameters()}
        optimizer.step()
    golden["final"] = state(module)
    return golden


def state(module):
    return {name: tensor(value) for name, value in module.state_dict().items()}


# ---- long sums: how much PyTorch's f32 errs, relative to the same in f64


def fractions(*shape):
    n = int(torch.tensor(shape).prod())
    i = torch.arange(1, n + 1, dtype=torch.float64)
    return torch.fmod(i * 0.6180339887498949, 1.0).float().reshape(shape)


def grad_of(fn, x, seed):
    x = x.detach().requires_grad_()
    fn(x).backward(seed)
    return x.grad


def bias_grad(x):
    bias = torch.zeros(4, dtype=x.dtype, requires_grad=True)
    F.linear(torch.ones(x.shape[0], 1, dtype=x.dtype), torch.zeros(4, 1, dtype=x.dtype), bias).backward(x)
    return bias.grad


def sums():
    n = 2 ** 20
    softmax, log_softmax = (lambda x: F.softmax(x, 0)), (lambda x: F.log_softmax(x, 0))
    return {
        "all": (lambda: fractions(n), lambda x: x.sum()),
        "equal terms": (lambda: torch.full((n, 3), 0.1), lambda x: x.sum(0)),
        "leading": (lambda: fractions(n, 4), lambda x: x.sum(0)),
        "leading wide": (lambda: fractions(2 ** 14, 300), lambda x: x.sum(0)),
        "last": (lambda: fractions(4, n), lambda x: x.sum(1)),
        "strided": (lambda: fractions(n, 3), lambda x: x[:, 1].sum()),
        "outer and inner": (lambda: fractions(4096, 4, 64), lambda x: x.sum((0, 2))),
        "outer and short inner": (lambda: fractions(2 ** 19, 3, 2), lambda x: x.sum((0, 2))),
        "mean": (lambda: fractions(n, 4), lambda x: x.mean(0)),
        "bias of Linear": (lambda: fractions(n, 4), bias_grad),
        "log_softmax 50257": (lambda: fractions(50257) * 4, log_softmax),
        "log_softmax": (lambda: fractions(n) * 4, log_softmax),
        "softmax": (lambda: fractions(n) * 4, softmax),
        "log_softmax backward": (lambda: fractions(n), lambda x: grad_of(log_softmax, x * 4, x)),
        "softmax backward": (lambda: fractions(n), lambda x: grad_of(softmax, x * 4, x)),
        "layer_norm": (lambda: fractions(2, n), lambda x: F.layer_norm(x, x.shape[1:])),
        "batch_norm": (lambda: fractions(n, 4), lambda x: F.batch_norm(x, None, None, training=True)),
        "batch_norm planes": (lambda: fractions(4096, 4, 64), lambda x: F.batch_norm(x, None, None, training=True)),
    }


def error_of(make, fn):
    x = make()
    wanted = fn(x.double())
    difference = (fn(x).double() - wanted).abs().max() / wanted.abs().max()
    return float("%.2g" % difference.item())


# ---- writing


def number_of(x):
    return float("%.9g" % x)


def tensor(x):
    dtype = {torch.float32: "f32", torch.int64: "i64", torch.bool: "bool"}[x.dtype]
    flat = x.detach().contiguous().flatten().tolist()
    values = [number_of(v) for v in flat] if dtype == "f32" else [int(v) for v in flat]
    return {"dtype": dtype, "shape": list(x.shape), "values": values}


def write(path, golden):
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in golden.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description="Makes the golden values from PyTorch.")
    parser.add_argument("--out", default="tests/golden", type=pathlib.Path)
    out = parser.parse_args().out
    write(out / "ops.json", {name: run_op(name, *case) for name, case in ops().items()})
    write(out / "sums.json", {name: error_of(*case) for name, case in sums().items()})
    write(out / "modules.json", {name: run_module(name, *case) for name, case in modules().items()})


if __name__ == "__main__":
    main()
