"""Finds the CUDA toolkit at $CUDA_HOME (default /usr/local/cuda) as the repository @local_cuda (tools/find_cuda.sh).

BUILD files ask `HAVE_CUDA` of @local_cuda//:defs.bzl and choose x_cuda.cc or no_cuda.cc by it, so that code has no #if.
Kernels are compiled by weft_cuda_library of tools/cuda_library.bzl, with the nvcc of `CUDA_HOME` there.
"""

def _cuda_repository_impl(ctx):
    answer = ctx.execute(["sh", ctx.path(ctx.attr.finder)])
    found = answer.return_code == 0
    home = answer.stdout.strip() if found else ""
    ctx.file("WORKSPACE", 'workspace(name = "%s")\n' % ctx.name)
    has_cudnn = found and ctx.path(home + "/include/cudnn.h").exists
    ctx.file("defs.bzl", "HAVE_CUDA = %s\nHAVE_CUDNN = %s\nCUDA_HOME = %s\n" % (found, has_cudnn, repr(home)))
    if not found:
        ctx.file("BUILD", 'package(default_visibility = ["//visibility:public"])\n\ncc_library(name = "cudart")\n')
        return
    ctx.symlink(home + "/include", "include")
    ctx.symlink(home + "/lib64/libcudart_static.a", "libcudart_static.a")
    ctx.file("BUILD", """package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cudart",
    srcs = ["libcudart_static.a"],
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**", "include/nv/**"]),
    includes = ["include"],
    linkopts = ["-ldl", "-lrt", "-lpthread"],
)
""")

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    attrs = {"finder": attr.label(default = Label("//tools:find_cuda.sh"))},
    environ = ["CUDA_HOME", "WEFT_CUDA"],
    local = True,
    doc = "The CUDA runtime, linked statically, or an empty library where there is no toolkit.",
)
