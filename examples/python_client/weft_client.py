"""Calls the functions of a Weft worker with numpy arrays, by plain gRPC.

    client = Client("unix:/tmp/example/worker.sock")
    y = client.call("example::Scale", np.array([1, 2, 3], np.float32), 0.5)

Needs Debian's python3-grpcio, python3-protobuf and python3-numpy, and the modules that protoc makes of Weft's two files:

    protoc -I. --python_out=OUT weft/proto/rpc.proto weft/proto/tensor.proto    (proto/ seen as weft/proto)
"""

import grpc
import numpy as np

from weft.proto import rpc_pb2, tensor_pb2

_DTYPES = {
    tensor_pb2.DTYPE_F32: np.dtype("<f4"),
    tensor_pb2.DTYPE_F64: np.dtype("<f8"),
    tensor_pb2.DTYPE_I64: np.dtype("<i8"),
    tensor_pb2.DTYPE_U8: np.dtype("u1"),
    tensor_pb2.DTYPE_BOOL: np.dtype("?"),
}


def to_tensor(array):
    """The weft.tensor.v1.Tensor of a numpy array."""
    array = np.asarray(array)
    for code, dtype in _DTYPES.items():
        if array.dtype == dtype:
            elements = np.ascontiguousarray(array).tobytes()
            header = tensor_pb2.TensorHeader(dtype=code, shape=array.shape, bytes=len(elements))
            return tensor_pb2.Tensor(header=header, elements=elements)
    raise TypeError(f"no tensor has elements of {array.dtype}")


def from_tensor(tensor):
    """The numpy array of a weft.tensor.v1.Tensor."""
    flat = np.frombuffer(tensor.elements, _DTYPES[tensor.header.dtype])
    return flat.reshape(tuple(tensor.header.shape)).copy()


def to_value(value):
    """The weft.rpc.v1.Value of None, a bool, number, str, bytes, array, list, tuple or dict."""
    if value is None:
        return rpc_pb2.Value()
    if isinstance(value, (bool, np.bool_)):
        return rpc_pb2.Value(boolean=bool(value))
    if isinstance(value, (int, np.integer)):
        value = int(value)
        return rpc_pb2.Value(natural=value) if value >= 2**63 else rpc_pb2.Value(integer=value)
    if isinstance(value, (float, np.floating)):
        return rpc_pb2.Value(real=float(value))
    if isinstance(value, str):
        return rpc_pb2.Value(text=value)
    if isinstance(value, bytes):
        return rpc_pb2.Value(bytes=value)
    if isinstance(value, np.ndarray):
        return rpc_pb2.Value(tensor=to_tensor(value))
    if isinstance(value, (list, tuple)):
        return rpc_pb2.Value(list=rpc_pb2.List(values=[to_value(v) for v in value]))
    if isinstance(value, dict):
        entries = [rpc_pb2.Entry(key=to_value(k), value=to_value(v)) for k, v in value.items()]
        return rpc_pb2.Value(map=rpc_pb2.Map(entries=entries))
    if hasattr(value, "SerializeToString"):
        return rpc_pb2.Value(message=value.SerializeToString())
    raise TypeError(f"no value of a call is a {type(value).__name__}")


def from_value(value):
    """What to_value takes, of a Value. A message comes as its bytes, a choice as (index, value)."""
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    held = getattr(value, kind)
    if kind == "tensor":
        return from_tensor(held)
    if kind in ("integers", "naturals", "reals"):
        return list(held.values)
    if kind == "list":
        return [from_value(v) for v in held.values]
    if kind == "map":
        return {from_value(e.key): from_value(e.value) for e in held.entries}
    if kind == "choice":
        return held.index, from_value(held.value)
    return held


class Client:
    """One worker. Errors are grpc.RpcError, with the worker's status and message."""

    def __init__(self, address, credentials=None, worker=None):
        """credentials: of grpc.ssl_channel_credentials; worker: the name that its certificate must have (ps0.JOB.weft)."""
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            if worker is not None:
                options.append(("grpc.ssl_target_name_override", worker))
            self._channel = grpc.secure_channel(address, credentials, options)
        self._call = self._channel.unary_unary(
            "/weft.rpc.v1.Worker/Call",
            request_serializer=rpc_pb2.CallRequest.SerializeToString,
            response_deserializer=rpc_pb2.CallReply.FromString,
        )
        self._describe = self._channel.unary_unary(
            "/weft.rpc.v1.Worker/Describe",
            request_serializer=rpc_pb2.DescribeRequest.SerializeToString,
            response_deserializer=rpc_pb2.DescribeReply.FromString,
        )

    def call(self, function, *arguments, timeout=60, traceparent=None):
        """Runs the function, at most once, and returns its result. traceparent: the caller's span (W3C)."""
        request = rpc_pb2.CallRequest(function=function, arguments=[to_value(a) for a in arguments])
        metadata = [("traceparent", traceparent)] if traceparent else None
        return from_value(self._call(request, timeout=timeout, metadata=metadata).result)

    def functions(self, timeout=60):
        """The signature of each function by its name."""
        reply = self._describe(rpc_pb2.DescribeRequest(), timeout=timeout)
        return {f.name: f.signature for f in reply.functions}

    def close(self):
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
