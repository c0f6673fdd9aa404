"""Asks the worker of examples/cpp_client, at the address given, for what it can do."""

import sys

import grpc
import numpy as np

from weft_client import Client


def main(address):
    with Client(address) as client:
        for name, signature in client.functions().items():
            print(f"{name}: {signature}")

        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        y = client.call("example::Scale", x, 0.5)
        print("half of it:", y.tolist())
        assert y.dtype == x.dtype and (y == x / 2).all(), y

        counts = client.call("example::CountWords", ["to", "be", "or", "not", "to", "be"])
        print("words:", counts)
        assert counts == {"to": 2, "be": 2, "or": 1, "not": 1}, counts

        assert client.call("example::SquareRoot", 9) == 3.0
        for wrong, code in (
            (("example::SquareRoot", -1.0), grpc.StatusCode.INVALID_ARGUMENT),
            (("example::SquareRoot", "9"), grpc.StatusCode.INVALID_ARGUMENT),
            (("example::SquareRoot",), grpc.StatusCode.INVALID_ARGUMENT),
            (("example::CubeRoot", 8.0), grpc.StatusCode.UNIMPLEMENTED),
        ):
            try:
                client.call(*wrong)
                raise AssertionError(f"{wrong} was not refused")
            except grpc.RpcError as error:
                print("refused:", error.details())
                assert error.code() == code, error


if __name__ == "__main__":
    main(sys.argv[1])
