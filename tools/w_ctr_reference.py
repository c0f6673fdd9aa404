#!/usr/bin/python3
"""Prints what the reference learner of W-CTR-v1 reaches: an implementation in numpy that shares no code with Weft's.

    /usr/bin/python3 tools/w_ctr_reference.py 32768      AUC, log loss and distinct keys after that many rows

The numbers of input/w_ctr_test.cc come from here. Rows are those of the truth by logistic regression.
"""

import sys

import numpy as np

SEED = 20251120
FIELDS = [1460, 583, 10**6, 10**6, 305, 24, 12517, 633, 3, 93145, 5683, 10**6, 3194, 27, 14992, 10**6, 10, 5652, 2173, 4,
          10**6, 18, 15, 286181, 105, 142572]
DENSE, BATCH, TEST_ROWS = 13, 1024, 50000
U = np.uint64


def mix(x):
    with np.errstate(over="ignore"):
        x = x + U(0x9E3779B97F4A7C15)
        x = (x ^ (x >> U(30))) * U(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> U(27))) * U(0x94D049BB133111EB)
        return x ^ (x >> U(31))


def h3(a, b, c):
    a, b, c = (np.asarray(v, dtype=np.uint64) for v in (a, b, c))
    return mix(mix(mix(a) ^ b) ^ c)


def u01(h):
    return ((h >> U(11)).astype(np.float64) + 0.5) / 2.0**53


def ih4(h):
    lanes = sum(((h >> U(s)) & U(0xFFFF)).astype(np.float64) for s in (0, 16, 32, 48))
    return (lanes / 65536 + 2 / 65536 - 2) * np.sqrt(3.0)


def rows(first, n):
    i = np.arange(first, first + n, dtype=np.uint64)
    keys = np.empty((n, len(FIELDS)), dtype=np.int64)
    logit = np.full(n, -1.6)
    for f, v in enumerate(FIELDS):
        u = u01(h3(SEED ^ 1, i, f))
        k = np.floor((1 + u * ((v + 1.0) ** (1 - 1.1) - 1)) ** (1 / (1 - 1.1)))
        k = np.clip(k, 1, v).astype(np.int64)
        keys[:, f] = (f << 32) | k
        logit += 0.28 * ih4(h3(SEED ^ 2, f, k))
    x = np.empty((n, DENSE))
    for j in range(DENSE):
        x[:, j] = ih4(h3(SEED ^ 3, i, j))
        logit += 0.15 * ih4(h3(SEED ^ 4, j, 0)) * x[:, j]
    y = u01(h3(SEED ^ 6, i, 0)) < 1 / (1 + np.exp(-logit))
    return keys, x.astype(np.float32), y


def scores(logits, y):
    _, inverse, counts = np.unique(logits, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    rank = (last - (counts - 1) / 2)[inverse]  # mean rank of equal scores
    p, n = y.sum(), (~y).sum()
    auc = (rank[y].sum() - p * (p + 1) / 2) / (p * n)
    signed = np.where(y, logits, -logits)
    return auc, np.mean(np.logaddexp(0, -signed))


def main(total):
    table, w, acc = {}, np.zeros(0, np.float32), np.zeros(0, np.float32)
    dense, dense_acc = np.zeros(DENSE + 1, np.float32), np.full(DENSE + 1, 0.1, np.float32)

    def slots(keys):
        return np.array([table.setdefault(int(k), len(table)) for k in keys])

    for first in range(0, total, BATCH):
        keys, x, y = rows(first, BATCH)
        unique, where = np.unique(keys, return_inverse=True)
        s = slots(unique)
        grow = len(table) - len(w)
        w, acc = np.append(w, np.zeros(grow, np.float32)), np.append(acc, np.full(grow, 0.1, np.float32))
        ones = np.concatenate([x, np.ones((BATCH, 1), np.float32)], axis=1)
        logit = w[s][where.reshape(keys.shape)].sum(axis=1) + ones @ dense
        error = (1 / (1 + np.exp(-logit)) - y).astype(np.float32)
        g = np.zeros(len(unique), np.float32)
        np.add.at(g, where.reshape(-1), np.repeat(error, len(FIELDS)))
        acc[s] += g * g
        w[s] -= np.float32(0.05) * g / np.sqrt(acc[s])
        g = error @ ones
        dense_acc += g * g
        dense -= np.float32(0.05) * g / np.sqrt(dense_acc)

    keys, x, y = rows(2**40, TEST_ROWS)
    known = np.append(w, np.float32(0))
    unique, where = np.unique(keys, return_inverse=True)
    s = np.array([table.get(int(k), len(w)) for k in unique])
    logit = known[s][where.reshape(keys.shape)].sum(axis=1) + x @ dense[:DENSE] + dense[DENSE]
    print("rows %d: AUC %.6f, log loss %.6f, %d distinct keys" % (total, *scores(logit.astype(np.float64), y), len(table)))


main(int(sys.argv[1]))
