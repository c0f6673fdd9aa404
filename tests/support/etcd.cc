#include "weft/tests/support/etcd.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::testing {
namespace {

constexpr char kProgram[] = "/usr/bin/etcd";
constexpr absl::Duration kStartTime = absl::Minutes(1);
// Another may take a port between its choice and etcd's bind.
constexpr int kPortsTried = 5;

// Returns once it serves. One that is killed before may leave a log without its
// own membership, from which etcd 3.4 starts, listens, and never elects itself.
absl::StatusOr<std::unique_ptr<Process>> Run(const std::string& directory,
                                             const std::string& url,
                                             const std::string& flags) {
  // It makes sockets of these names where it runs, with a port in them, and
  // leaves them when it is killed.
  Command command;
  command.argv = {
      "/bin/sh", "-c",
      absl::StrCat("cd ", directory, " && rm -f etcd:0 peer:0 && exec ",
                   kProgram, " --data-dir=data --name=t --log-level=info",
                   " --listen-client-urls=", url,
                   " --advertise-client-urls=", url,
                   " --listen-peer-urls=unix://peer:0"
                   " --initial-advertise-peer-urls=unix://peer:0"
                   " --initial-cluster=t=unix://peer:0"
                   " --unsafe-no-fsync",
                   flags)};
  WEFT_ASSIGN_OR_RETURN(auto process, Process::Start(std::move(command)));
  WEFT_RETURN_IF_ERROR(
      process->WaitForOutput("ready to serve client requests", kStartTime));
  return process;
}

// Free a moment ago.
absl::StatusOr<int> FreePort() {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool ok = fd >= 0 && bind(fd, generic, size) == 0 &&
                  getsockname(fd, generic, &size) == 0;
  const absl::Status status =
      ok ? absl::OkStatus() : absl::ErrnoToStatus(errno, "no free port");
  if (fd >= 0) close(fd);
  if (!status.ok()) return status;
  return ntohs(address.sin_port);
}

}  // namespace

bool Etcd::IsInstalled() { return access(kProgram, X_OK) == 0; }

absl::StatusOr<std::unique_ptr<Etcd>> Etcd::Start(
    const std::string& directory) {
  WEFT_ASSIGN_OR_RETURN(auto process, Run(directory, "unix://etcd:0", ""));
  return std::unique_ptr<Etcd>(new Etcd(
      absl::StrCat("unix:", directory, "/etcd:0"), std::move(process)));
}

absl::StatusOr<std::unique_ptr<Etcd>> Etcd::StartWithTls(
    const std::string& directory, const std::string& certificates) {
  const std::string flags =
      absl::StrCat(" --client-cert-auth --cert-file=", certificates,
                   "/cert.pem --key-file=", certificates,
                   "/key.pem --trusted-ca-file=", certificates, "/ca.pem");
  absl::Status taken;
  for (int i = 0; i < kPortsTried; ++i) {
    WEFT_ASSIGN_OR_RETURN(const int port, FreePort());
    const std::string address = absl::StrCat("127.0.0.1:", port);
    auto process = Run(directory, "https://" + address, flags);
    if (process.ok()) {
      return std::unique_ptr<Etcd>(new Etcd(address, *std::move(process)));
    }
    taken = process.status();
    if (!absl::StrContains(taken.message(), "address already in use")) break;
  }
  return taken;
}

}  // namespace weft::testing
