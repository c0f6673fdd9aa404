"""The only rules a BUILD file of Weft uses: a library is a concept, a test is its proof."""

load("//tools:layers.bzl", "check_rooms", "folder_of", "is_room", "users_of")

_COPTS = ["-Wall", "-Wextra", "-Werror"]

# The compiler needs a quarter less time for a test than with -O2, and what is tested has -O2.
_TEST_COPTS = ["-O1"]

# The headers of the system that most sources include, read from one file. Where a target has options of its own the
# file may not fit them, and its headers are read.
def _precompiled_copts(copts):
    return [] if copts else select({
        "//tools:precompiles": ["-include", "precompiled.h"],
        "//conditions:default": [],
    })

_PRECOMPILED_DEPS = select({
    "//tools:precompiles": ["//tools:precompiled"],
    "//conditions:default": [],
})

def _always():
    """What every target may use without naming it, as it may the standard library: Abseil and base."""
    below = native.package_name() == "base" or native.package_name().startswith("base/")
    return ["//third_party:absl"] + ([] if below else ["//base:basics"])

def weft_library(name, srcs = None, hdrs = None, private = False, deps = [], copts = [], **kwargs):
    """A cc_library whose headers are included as "weft/<package>/<file>.h".

    Args:
      name: the concept; by custom also the file, the class and the test.
      srcs: as for cc_library. With neither srcs nor hdrs: <name>.cc and <name>.h.
      hdrs: as for cc_library.
      private: keep it to this folder (and the fuzz targets, which reach every parser, and the tests from outside);
        else the layers above may depend on it. What is in a room (ROOMS of layers.bzl) is private in any case.
      deps: as for cc_library; none of a later room, and none that another one of the same package brings.
      copts: further compiler options, after the warnings.
      **kwargs: as for cc_library.
    """
    package = native.package_name()
    folder = folder_of(package)
    check_rooms(package, name, deps)
    if srcs == None and hdrs == None:
        srcs, hdrs = [name + ".cc"], [name + ".h"]
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        deps = deps + _always() + _PRECOMPILED_DEPS,
        copts = _COPTS + copts + _precompiled_copts(copts),
        include_prefix = "weft/" + package,
        visibility = ["//%s:__subpackages__" % folder, "//tests/fuzz:__pkg__", "//tests/outside:__subpackages__"] if private or is_room(package) else [users_of(folder)],
        **kwargs
    )

def weft_facades(targets, testonly = False):
    """Lets the layers above depend on targets of rooms, each under its own name in the folder's own package."""
    for target in targets:
        native.alias(
            name = target.split(":" if ":" in target else "/")[-1],
            actual = target,
            testonly = testonly,
            visibility = [users_of(folder_of(native.package_name()))],
        )

def weft_binary(name, srcs = None, deps = [], copts = [], **kwargs):
    """A cc_binary with Weft's warnings; without srcs, of <name>.cc."""
    native.cc_binary(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        deps = deps + _always() + _PRECOMPILED_DEPS,
        copts = _COPTS + copts + _precompiled_copts(copts),
        **kwargs
    )

def weft_test(name, srcs = None, size = "small", deps = [], copts = [], **kwargs):
    """A cc_test with GoogleTest's main and what all tests share (//tests/support:basics).

    Args:
      name: of x_test, if the library x stands above it in the BUILD file, that is one of its deps.
      srcs: by default <name>.cc.
      size: as for cc_test.
      deps: as for cc_test; none that others of them bring.
      copts: further compiler options, after the warnings.
      **kwargs: as for cc_test.
    """
    tested = name[:-len("_test")] if name.endswith("_test") else name
    above = native.existing_rule(tested) or {}
    if above.get("kind") == "cc_library" and ":" + tested not in deps:
        deps = [":" + tested] + deps
    native.cc_test(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        size = size,
        copts = _COPTS + _TEST_COPTS + copts + _precompiled_copts(copts),
        deps = deps + _always() + [
            "//tests/support:basics",
            "//tests/support:absl_races",
            "@com_google_googletest//:gtest_main",
        ] + _PRECOMPILED_DEPS,
        **kwargs
    )

def weft_tests(tests, size = "small"):
    """A weft_test for each name, of <name>.cc, with its deps.

    Args:
      tests: the deps by name; at the end of the BUILD file, where each finds the library that it is of.
      size: of each.
    """
    for name, deps in tests.items():
        weft_test(name = name, size = size, deps = deps)

def weft_proto(name, src, grpc = False, deps = []):
    """C++ of one .proto file, included as "weft/proto/<name>.pb.h" (and .grpc.pb.h).

    Args:
      name: the target; the file is <name>.proto by custom.
      src: the .proto file; it imports a sibling as "weft/proto/<file>.proto".
      grpc: also make the service classes.
      deps: the weft_proto targets of what it imports.
    """
    stem = src[:-len(".proto")]
    outs = [stem + ".pb.h", stem + ".pb.cc"]
    plugin = ""
    if grpc:
        outs += [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
        plugin = " --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$$out"

    # protoc sees the folder as weft/proto, so that an #include in generated code names what others include.
    native.genrule(
        name = name + "_gen",
        srcs = [src] + native.glob(["*.proto"], exclude = [src]),
        outs = outs,
        cmd = "; ".join([
            "set -e",
            "tmp=$$(mktemp -d)",
            "mkdir -p $$tmp/weft $$tmp/out",
            "ln -s $$(realpath $$(dirname $(location %s))) $$tmp/weft/proto" % src,
            "out=$$tmp/out",
            "/usr/bin/protoc -I $$tmp --cpp_out=$$out%s $$tmp/weft/proto/%s" % (plugin, src),
            "for f in $(OUTS); do cp $$out/weft/proto/$$(basename $$f) $$f; done",
            "rm -r $$tmp",
        ]),
    )
    weft_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        copts = ["-w"],
        deps = deps + ["@com_google_protobuf//:protobuf"] + (["@com_github_grpc_grpc//:grpc++"] if grpc else []),
    )
