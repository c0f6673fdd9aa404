"""The system libraries that Weft links, as Bazel repositories under the labels their own projects give them.

Each is a Debian 12 package (tools/packages.txt): headers are on the compiler's path and
libraries on the linker's, so a target here is little more than its link options.
"""

def _library(name, linkopts = [], deps = []):
    return 'cc_library(name = "%s", linkopts = %s, deps = %s)\n' % (name, repr(linkopts), repr(deps))

def _package(*libraries):
    return 'package(default_visibility = ["//visibility:public"])\n\n' + "\n".join(libraries)

# Debian ships Abseil as many small shared libraries; users of any of them link these.
_ABSL = ["-labsl_" + name for name in [
    "statusor",
    "status",
    "cord",
    "cordz_info",
    "cord_internal",
    "cordz_functions",
    "cordz_handle",
    "hash",
    "city",
    "low_level_hash",
    "raw_hash_set",
    "hashtablez_sampler",
    "exponential_biased",
    "failure_signal_handler",
    "examine_stack",
    "strerror",
    "str_format_internal",
    "synchronization",
    "graphcycles_internal",
    "symbolize",
    "stacktrace",
    "debugging_internal",
    "demangle_internal",
    "malloc_internal",
    "time",
    "civil_time",
    "time_zone",
    "bad_optional_access",
    "bad_variant_access",
    "strings",
    "strings_internal",
    "int128",
    "throw_delegate",
    "base",
    "raw_logging_internal",
    "log_severity",
    "spinlock_wait",
]] + ["-lpthread"]

_ABSL_CORE = "//absl:core"

SYSTEM_REPOSITORIES = {
    "com_google_absl": {
        "absl/BUILD": _package(_library("core", _ABSL)),
        "absl/algorithm/BUILD": _package(_library("container")),
        "absl/base/BUILD": _package(
            _library("core_headers"),
            _library("base", deps = [_ABSL_CORE]),
            _library("config"),
        ),
        "absl/cleanup/BUILD": _package(_library("cleanup")),
        "absl/container/BUILD": _package(
            _library("btree", deps = [_ABSL_CORE]),
            _library("flat_hash_map", deps = [_ABSL_CORE]),
            _library("flat_hash_set", deps = [_ABSL_CORE]),
            _library("node_hash_map", deps = [_ABSL_CORE]),
            _library("inlined_vector", deps = [_ABSL_CORE]),
            _library("fixed_array", deps = [_ABSL_CORE]),
        ),
        "absl/debugging/BUILD": _package(
            _library("failure_signal_handler", deps = [_ABSL_CORE]),
            _library("symbolize", deps = [_ABSL_CORE]),
        ),
        "absl/functional/BUILD": _package(
            _library("any_invocable"),
            _library("function_ref"),
        ),
        "absl/hash/BUILD": _package(_library("hash", deps = [_ABSL_CORE])),
        "absl/memory/BUILD": _package(_library("memory")),
        "absl/meta/BUILD": _package(_library("type_traits")),
        "absl/numeric/BUILD": _package(
            _library("bits"),
            _library("int128", deps = [_ABSL_CORE]),
        ),
        "absl/status/BUILD": _package(
            _library("status", deps = [_ABSL_CORE]),
            _library("statusor", deps = [_ABSL_CORE]),
        ),
        "absl/strings/BUILD": _package(
            _library("strings", deps = [_ABSL_CORE]),
            _library("str_format", deps = [_ABSL_CORE]),
            _library("cord", deps = [_ABSL_CORE]),
        ),
        "absl/synchronization/BUILD": _package(_library("synchronization", deps = [_ABSL_CORE])),
        "absl/time/BUILD": _package(_library("time", deps = [_ABSL_CORE])),
        "absl/types/BUILD": _package(
            _library("optional", deps = [_ABSL_CORE]),
            _library("span"),
            _library("variant", deps = [_ABSL_CORE]),
        ),
        "absl/utility/BUILD": _package(_library("utility")),
    },
    "com_github_grpc_grpc": {
        "BUILD": _package(
            _library("grpc++", ["-lgrpc++", "-lgrpc", "-lgpr"], ["@com_google_protobuf//:protobuf", "@com_google_absl//absl:core"]),
            _library("grpc++_reflection", ["-Wl,--no-as-needed", "-lgrpc++_reflection", "-Wl,--as-needed"], [":grpc++"]),
        ),
    },
    "com_google_protobuf": {"BUILD": _package(_library("protobuf", ["-lprotobuf"]))},
    "com_google_googletest": {
        "BUILD": _package(
            _library("gtest", ["-lgmock", "-lgtest", "-lpthread"]),
            _library("gtest_main", ["-lgmock_main", "-lgmock", "-lgtest", "-lpthread"]),
        ),
    },
    "com_google_benchmark": {"BUILD": _package(_library("benchmark", ["-lbenchmark", "-lpthread"]))},
    "com_github_gabime_spdlog": {"BUILD": _package('cc_library(name = "spdlog", defines = ["SPDLOG_COMPILED_LIB", "SPDLOG_FMT_EXTERNAL"], linkopts = ["-lspdlog", "-lfmt"])\n')},
    "com_github_cliutils_cli11": {"BUILD": _package(_library("cli11"))},
    "com_github_nlohmann_json": {"BUILD": _package(_library("json"))},
    "com_github_jupp0r_prometheus_cpp": {
        "BUILD": _package(
            _library("core", ["-lprometheus-cpp-core"]),
        ),
    },
    "libmicrohttpd": {"BUILD": _package(_library("microhttpd", ["-lmicrohttpd", "-lgnutls"]))},
    "openssl": {"BUILD": _package(_library("crypto", ["-lcrypto"]), _library("ssl", ["-lssl", "-lcrypto"]))},
    "onednn": {"BUILD": _package(_library("dnnl", ["-ldnnl"]))},
    "openblas": {"BUILD": _package('cc_library(name = "cblas", linkopts = ["-lopenblas"])\n')},
    "zlib": {"BUILD": _package(_library("zlib", ["-lz"]))},
    "com_github_cyan4973_xxhash": {"BUILD": _package(_library("xxhash", ["-lxxhash"]))},
    "openmpi": {"BUILD": _package(_library("mpi", ["-lmpi"]))},
    "gloo": {"BUILD": _package(_library("gloo", ["-lgloo"]))},
    "libtorch": {"BUILD": _package(_library("torch", ["-ltorch", "-ltorch_cpu", "-lc10"]))},
}

def _system_repository_impl(ctx):
    ctx.file("WORKSPACE", 'workspace(name = "%s")\n' % ctx.name)
    for path, content in ctx.attr.files.items():
        ctx.file(path, content)

system_repository = repository_rule(
    implementation = _system_repository_impl,
    attrs = {"files": attr.string_dict(mandatory = True, doc = "BUILD files to write: path to content")},
    doc = "A repository of cc_library targets that stand for an installed package.",
)
