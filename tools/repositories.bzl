"""weft_repositories(): all that a workspace needs to build Weft or to depend on it.

    local_repository(name = "weft", path = "...")
    load("@weft//tools:repositories.bzl", "weft_repositories")
    weft_repositories()
"""

load("//third_party:system.bzl", "SYSTEM_REPOSITORIES", "system_repository")
load("//tools:cuda.bzl", "cuda_repository")

def _beside_impl(ctx):
    folder = ctx.path(ctx.attr.marker).dirname.get_child("third_party").get_child(ctx.attr.folder)
    for entry in folder.readdir():
        ctx.symlink(entry, entry.basename)

# A repository that is a folder of Weft's third_party/, wherever Weft itself is.
_beside = repository_rule(
    implementation = _beside_impl,
    attrs = {
        "folder": attr.string(mandatory = True),
        "marker": attr.label(default = Label("//:WORKSPACE")),
    },
)

def weft_repositories():
    """Declares every repository that Weft's BUILD files name, unless the workspace has it already."""
    have = native.existing_rules()

    # What Bazel 4.2 would download for itself, replaced by what is needed of it.
    for name in ["rules_cc", "remote_coverage_tools"]:
        if name not in have:
            _beside(name = name, folder = name)

    # These two Debian packages it can use as they are: bazel-rules-java, bazel-rules-proto.
    for name, path in [("rules_java", "java"), ("rules_proto", "proto")]:
        if name not in have:
            native.local_repository(name = name, path = "/usr/share/bazel/rules/" + path)

    for name, files in SYSTEM_REPOSITORIES.items():
        if name not in have:
            system_repository(name = name, files = files)
    if "local_cuda" not in have:
        cuda_repository(name = "local_cuda")
