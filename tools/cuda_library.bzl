"""Kernels: .cu files, compiled by the nvcc of the toolkit that tools/cuda.bzl has found."""

load("@local_cuda//:defs.bzl", "CUDA_HOME", "HAVE_CUDA")

# Machine code of the H100 and H200, and PTX that the driver of a newer GPU compiles.
_ONE_ARCHITECTURE = ["-arch=sm_90"]

# With --config=all_gpus: machine code of the A100, too.
_ALL_ARCHITECTURES = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_90,code=compute_90",
]

def weft_cuda_library(name, srcs, hdrs, reads = [], copts = [], testonly = False):
    """A library of kernels, whose headers are included as "weft/<package>/<file>.h" and are plain C++.

    Without a toolkit there is no such target: ask HAVE_CUDA of @local_cuda//:defs.bzl before depending on it.

    Args:
      name: as for weft_library. Private to the package.
      srcs: one .cu file.
      hdrs: its headers.
      reads: the other headers of Weft that it includes, of any package, none of which may include Abseil.
      copts: further options of nvcc.
      testonly: as for cc_library.
    """
    if not HAVE_CUDA:
        return

    # The folder that Bazel runs in is named as the workspace, weft, so that its parent has "weft/..."; of a workspace
    # that uses Weft, "external" has.
    options = ["-std=c++17", "-O2", "-Werror=all-warnings", "-Xcompiler=-Wall,-fPIC", "-I$$PWD/..", "-Iexternal"]
    compile = " ".join([CUDA_HOME + "/bin/nvcc"] + options + copts + ["-c", "$(location %s)" % srcs[0], "-o", "$@ "])
    native.genrule(
        name = name + "_object",
        testonly = testonly,
        srcs = srcs + hdrs + reads,
        outs = [name + ".o"],
        cmd = select({
            "//tools:all_gpus": compile + " ".join(_ALL_ARCHITECTURES),
            "//conditions:default": compile + " ".join(_ONE_ARCHITECTURE),
        }),
        message = "Compiling kernels of",
    )
    native.cc_library(
        name = name,
        testonly = testonly,
        srcs = [name + ".o"],
        hdrs = hdrs,
        include_prefix = "weft/" + native.package_name(),
        linkstatic = True,
        deps = ["@local_cuda//:cudart"],
    )
