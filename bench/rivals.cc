#include "weft/bench/rivals.h"

#include <limits.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace weft::bench {
namespace {

std::string RealPath(const std::string& path) {
  char real[PATH_MAX];
  return realpath(path.c_str(), real) == nullptr ? "" : real;
}

std::string FolderOf(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

bool CanRun(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

// Where the sources are; empty if this program was taken elsewhere.
std::string Workspace() {
  const char* told = std::getenv("BUILD_WORKSPACE_DIRECTORY");  // by bazel run
  if (told != nullptr) return told;
  // What lies beside this program is links into the workspace.
  for (const char* script :
       {"torch_rpc.py", "torch_autograd.py", "torch_dist_autograd.py"}) {
    const std::string real = RealPath(ScriptPath(script));
    if (!real.empty()) return FolderOf(FolderOf(FolderOf(real)));
  }
  return "";
}

void SayAbsent(const std::string& rival, const std::string& why) {
  std::fprintf(stderr,
               "bench: the rival %s is absent, so that its rows have no peer: "
               "%s. To get it: tools/setup.sh --bench\n",
               rival.c_str(), why.c_str());
}

}  // namespace

std::string OwnPath() { return RealPath("/proc/self/exe"); }

std::string ProgramPath(const std::string& name) {
  return FolderOf(OwnPath()) + "/" + name;
}

std::string ScriptPath(const std::string& name) {
  return OwnPath() + ".runfiles/weft/bench/peers/" + name;
}

std::string BuildProgram(const std::string& name, const std::string& rival,
                         const std::string& header) {
  if (access(header.c_str(), R_OK) != 0) {
    SayAbsent(rival, "there is no " + header);
    return "";
  }
  const std::string workspace = Workspace();
  // What Bazel prints is not for who reads rows. Without the sources, what lies
  // beside this program will do.
  const bool is_built =
      workspace.empty() ||
      std::system(("cd '" + workspace +
                   "' && bazel build --noshow_progress //bench:" + name +
                   " >/dev/null 2>&1")
                      .c_str()) == 0;
  for (const std::string& path :
       {ProgramPath(name), workspace + "/bazel-bin/bench/" + name}) {
    if (is_built && CanRun(path)) return path;
  }
  SayAbsent(rival, "`bazel build //bench:" + name + "` fails");
  return "";
}

bool HasPythonModule(const std::string& module, const std::string& rival) {
  const std::string command =
      "/usr/bin/python3 -c 'import importlib.util, sys; "
      "sys.exit(importlib.util.find_spec(\"" +
      module + "\") is None)' >/dev/null 2>&1";
  if (std::system(command.c_str()) == 0) return true;
  SayAbsent(rival, "/usr/bin/python3 has no module " + module);
  return false;
}

}  // namespace weft::bench
