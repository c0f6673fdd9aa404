"""weft_fuzz_test: one fuzz target, run in two ways.

As NAME it is an ordinary test, with any compiler: a driver of ours mutates the target's seeds, a fixed number of inputs
from a fixed start, so that what fails can be run again. As NAME_libfuzzer it is libFuzzer's, guided by coverage:

    bazel build --config=fuzz //tests/fuzz:idx_fuzz_libfuzzer
    bazel-bin/tests/fuzz/idx_fuzz_libfuzzer -max_total_time=600
"""

load("//tools:weft.bzl", "weft_binary")

def weft_fuzz_test(name, srcs, deps, inputs = 200000):
    """Declares the test NAME and the program NAME_libfuzzer.

    Args:
      name: of the test.
      srcs: defines LLVMFuzzerTestOneInput and weft::testing::FuzzSeeds (tests/fuzz/fuzz_target.h).
      deps: what the target calls.
      inputs: how many the test runs.
    """
    native.cc_test(
        name = name,
        size = "small",
        srcs = srcs,
        args = ["--inputs=%d" % inputs],
        copts = ["-Wall", "-Wextra", "-Werror"],
        tags = ["fuzz"],
        deps = deps + [
            "//tests/fuzz:fuzz_target",
            "//tests/fuzz:mutating_driver",
        ],
    )
    weft_binary(
        name = name + "_libfuzzer",
        testonly = True,
        srcs = srcs,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = deps + ["//tests/fuzz:fuzz_target"],
    )
