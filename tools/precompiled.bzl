"""precompiled_header: the headers of the system that nearly every source includes, parsed once."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    header = ctx.actions.declare_file(ctx.file.hdr.basename)
    ctx.actions.symlink(output = header, target_file = ctx.file.hdr)
    made = ctx.actions.declare_file(ctx.file.hdr.basename + ".gch")

    # The options that sources are compiled with: where they differ, the compiler reads the header itself.
    options = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = cc_common.create_compile_variables(
            cc_toolchain = toolchain,
            feature_configuration = features,
            use_pic = True,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts,
        ),
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = options + ["-x", "c++-header", header.path, "-o", made.path],
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = cc_common.empty_variables(),
        ),
        inputs = depset([header], transitive = [toolchain.all_files]),
        outputs = [made],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % ctx.file.hdr.short_path,
    )
    return [
        DefaultInfo(files = depset([made])),
        CcInfo(compilation_context = cc_common.create_compilation_context(
            headers = depset([header, made]),
            quote_includes = depset([header.dirname]),
        )),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    doc = "For gcc: what depends on it is compiled with `-include` and the name of its header.",
    attrs = {
        "hdr": attr.label(allow_single_file = [".h"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
