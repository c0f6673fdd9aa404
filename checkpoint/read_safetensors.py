#!/usr/bin/python3
"""read_safetensors.py FILE: reads a safetensors file with numpy alone and prints what is in it, one line a tensor.

It shares nothing with Weft's reader: a file that both read is a safetensors file.
"""

import json
import struct
import sys

import numpy as np

# numpy has no bfloat16: its bits are read, and placed above 16 zeros they are a float32.
DTYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "u1", "BOOL": "?",
          "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I8": "i1"}


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    elements, tensors, at = data[8 + length:], {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        dtype = np.dtype(DTYPES[entry["dtype"]])
        assert begin == at, "hole or overlap at " + name
        assert begin % dtype.itemsize == 0, "not aligned: " + name
        tensors[name] = np.frombuffer(elements[begin:end], dtype).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            tensors[name] = (tensors[name].astype("<u4") << 16).view("<f4")
        at = end
    assert at == len(elements), "bytes left over"
    return tensors, metadata


def main(path):
    tensors, metadata = read(path)
    for key, value in sorted(metadata.items()):
        print("# %s=%s" % (key, value))
    for name, tensor in sorted(tensors.items()):
        print(name, tensor.dtype, list(tensor.shape), tensor.reshape(-1).tolist())


main(sys.argv[1])
