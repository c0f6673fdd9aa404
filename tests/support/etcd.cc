#include "weft/tests/support/etcd.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::testing {
namespace {

constexpr char kProgram[] = "/usr/bin/etcd";

}  // namespace

bool Etcd::IsInstalled() { return access(kProgram, X_OK) == 0; }

absl::StatusOr<std::unique_ptr<Etcd>> Etcd::Start(
    const std::string& directory) {
  // It makes sockets of these names where it runs, with a port in them, and
  // leaves them when it is killed.
  Command command;
  command.argv = {"/bin/sh", "-c",
                  absl::StrCat("cd ", directory,
                               " && rm -f etcd:0 peer:0 && exec ", kProgram,
                               " --data-dir=data --name=t --log-level=error"
                               " --listen-client-urls=unix://etcd:0"
                               " --advertise-client-urls=unix://etcd:0"
                               " --listen-peer-urls=unix://peer:0"
                               " --initial-advertise-peer-urls=unix://peer:0"
                               " --initial-cluster=t=unix://peer:0"
                               " --unsafe-no-fsync")};
  WEFT_ASSIGN_OR_RETURN(auto process, Process::Start(std::move(command)));
  return std::unique_ptr<Etcd>(new Etcd(
      absl::StrCat("unix:", directory, "/etcd:0"), std::move(process)));
}

}  // namespace weft::testing
