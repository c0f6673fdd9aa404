"""Kernels: .cu files, compiled by the nvcc of the toolkit that tools/cuda.bzl has found."""

load("@local_cuda//:defs.bzl", "CUDA_HOME", "HAVE_CUDA")

# Machine code of the H100 and H200, and PTX that the driver compiles for what is older (from A100 on) or newer.
_ARCHITECTURES = [
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_80,code=compute_80",
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
    native.genrule(
        name = name + "_object",
        testonly = testonly,
        srcs = srcs + hdrs + reads,
        outs = [name + ".o"],
        # The folder that Bazel runs in is named as the workspace, weft, so that its parent has "weft/..."; of a
        # workspace that uses Weft, "external" has.
        cmd = " ".join(
            [CUDA_HOME + "/bin/nvcc", "-std=c++17", "-O2", "-Werror=all-warnings", "-Xcompiler=-Wall,-fPIC"] +
            _ARCHITECTURES + copts +
            ["-I$$PWD/..", "-Iexternal", "-c", "$(location %s)" % srcs[0], "-o", "$@"],
        ),
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
