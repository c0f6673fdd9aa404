#include "weft/ps/pinned_servers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "weft/base/reworded.h"
#include "weft/rpc/session/failure.h"

namespace weft::ps {

PinnedServers::PinnedServers(const std::vector<rpc::Target>& targets) {
  for (const rpc::Target& target : targets) {
    targets_.push_back(target.Pinned());
  }
}

std::vector<rpc::Target> PinnedServers::WithTimeout(
    absl::Duration timeout) const {
  std::vector<rpc::Target> targets;
  for (const rpc::Target& target : targets_) {
    targets.push_back(target.WithTimeout(timeout));
  }
  return targets;
}

absl::Status PinnedServers::status() const {
  MutexLock lock(mu_);
  return lost_;
}

absl::Status PinnedServers::Note(const absl::Status& status) {
  if (rpc::ReasonOf(status) != rpc::Reason::kPeerGone) return status;
  const std::string name = rpc::FailuresOf(status).front().worker;
  for (const rpc::Target& target : targets_) {
    if (target.name() != name || !target.status().ok()) continue;
    const std::string message = absl::StrCat(
        name, ": the server's incarnation ",
        rpc::internal::WorkerOf(target).key.ToString(),
        " is gone, and with it all changes of its tables since the last "
        "checkpoint; restore one (Client::Restore) and open the tables again, "
        "or start the job again with --resume: ",
        status.message());
    MutexLock lock(mu_);
    // Later operations are not sent, so none of them has an unknown outcome:
    // `lost_` does not say so.
    if (lost_.ok()) {
      lost_ = rpc::WithCause(absl::UnavailableError(message), status);
    }
    return Reworded(status, message);
  }
  return status;
}

}  // namespace weft::ps
