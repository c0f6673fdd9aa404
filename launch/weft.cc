// weft: the one program of the command line: run, coordinator, certs init,
// call, ckpt, dump, health, servers, status, version.

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/version.h"
#include "weft/launch/address_space.h"
#include "weft/launch/commands/commands.h"
#include "weft/launch/standard_streams.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"

namespace {

using weft::launch::CallCommand;
using weft::launch::CertsCommand;
using weft::launch::CkptCommand;
using weft::launch::CoordinatorCommand;
using weft::launch::DumpCommand;
using weft::launch::HealthCommand;
using weft::launch::RunCommand;
using weft::launch::ServersCommand;
using weft::launch::StatusCommand;

constexpr char kUsage[] =
    "Usage: weft COMMAND [flags]\n"
    "\n"
    "  run          start the ranks of a job on this host and watch them\n"
    "  coordinator  host where a job meets, in a process of its own\n"
    "  certs        make the certificates of a job: weft certs init\n"
    "  call         run a function of a worker, or list them\n"
    "  ckpt         list, verify, compare, merge, export and serve saved "
    "tables\n"
    "  dump         say from flight recorders, of files or of a running job, "
    "which\n"
    "               worker is behind\n"
    "  health       ask whether an endpoint serves\n"
    "  servers      show what parameter servers have, and move it\n"
    "  status       show who is in a job and how far its trainers are\n"
    "  version      say which Weft this is\n"
    "\n"
    "weft COMMAND --help lists its flags; docs/cli.md has them all.\n";

absl::StatusOr<int> Version(int argc, char** argv) {
  if (argc > 1) {
    return weft::worker::WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(
            "weft version takes no arguments, found \"", argv[1], "\"")),
        weft::worker::ExitCode::kUsage);
  }
  std::printf("weft %s\n", std::string(weft::kVersion).c_str());
  return 0;
}

struct Command {
  const char* name;
  absl::StatusOr<int> (*run)(int argc, char** argv);
};
constexpr Command kCommands[] = {
    {"run", RunCommand},       {"coordinator", CoordinatorCommand},
    {"certs", CertsCommand},   {"call", CallCommand},
    {"ckpt", CkptCommand},     {"dump", DumpCommand},
    {"health", HealthCommand}, {"servers", ServersCommand},
    {"status", StatusCommand}, {"version", Version},
    {"--version", Version}};

absl::StatusOr<int> Main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  std::vector<std::string> known;
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(argc - 1, argv + 1);
    known.push_back(command.name);
  }
  if (name.empty()) {
    std::fputs(kUsage, stderr);
    return static_cast<int>(weft::worker::ExitCode::kUsage);
  }
  const std::string nearest = weft::worker::NearestName(name, known);
  return weft::worker::WithExitCode(
      absl::InvalidArgumentError(absl::StrCat(
          "weft: there is no command \"", name, "\"",
          nearest.empty() ? "; see weft --help"
                          : absl::StrCat("; did you mean ", nearest, "?"))),
      weft::worker::ExitCode::kUsage);
}

}  // namespace

int main(int argc, char** argv) {
  weft::launch::OpenStandardStreams();
  weft::ExitIfError(
      weft::launch::CheckAddressSpace(weft::launch::kToolAddressSpace));
  const absl::StatusOr<int> code =
      weft::CatchToStatus([&] { return Main(argc, argv); });
  weft::ExitIfError(code);
  if (*code == 0) weft::ExitIfError(weft::launch::FlushOutput());
  return *code;
}
