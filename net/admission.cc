#include "weft/net/admission.h"

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::net {
namespace {

absl::Status Full(const std::string& whose, int64_t limit,
                  absl::string_view unit) {
  return absl::ResourceExhaustedError(
      absl::StrCat(whose, ": the limit of ", limit, " ", unit,
                   " at a time is reached; try again later"));
}

}  // namespace

absl::Status Admission::Ticket::AddBytes(int64_t bytes) {
  WEFT_RETURN_IF_ERROR(admission_->AddBytes(peer_, bytes));
  bytes_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Admission::Ticket>> Admission::Enter(
    const std::string& peer) {
  {
    MutexLock lock(mu_);
    if (all_.calls >= limits_.max_calls)
      return Full("endpoint", limits_.max_calls, "calls");
    Load& load = peers_[peer];
    if (!peer.empty() && load.calls >= limits_.max_calls_per_peer) {
      return Full(absl::StrCat("peer ", peer), limits_.max_calls_per_peer,
                  "calls");
    }
    ++all_.calls;
    ++load.calls;
  }
  return std::make_unique<Ticket>(shared_from_this(), peer);
}

absl::Status Admission::AddBytes(const std::string& peer, int64_t bytes) {
  MutexLock lock(mu_);
  if (all_.bytes + bytes > limits_.max_bytes)
    return Full("endpoint", limits_.max_bytes, "bytes");
  Load& load = peers_[peer];
  if (!peer.empty() && load.bytes + bytes > limits_.max_bytes_per_peer) {
    return Full(absl::StrCat("peer ", peer), limits_.max_bytes_per_peer,
                "bytes");
  }
  all_.bytes += bytes;
  load.bytes += bytes;
  return absl::OkStatus();
}

void Admission::Leave(const std::string& peer, int64_t bytes) {
  MutexLock lock(mu_);
  --all_.calls;
  all_.bytes -= bytes;
  auto found = peers_.find(peer);
  --found->second.calls;
  found->second.bytes -= bytes;
  if (found->second.calls == 0) peers_.erase(found);
}

}  // namespace weft::net
