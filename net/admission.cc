#include "weft/net/admission.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "weft/base/status_macros.h"

namespace weft::net {
namespace {

constexpr char kLimitUrl[] = "weft.net/limit";

// `limit` is the option that has the number `most`.
absl::Status Full(const std::string& whose, absl::string_view limit,
                  int64_t most, absl::string_view found) {
  absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
      whose, ": ", found, ", and ", limit, " is ", most,
      "; try again later, or raise it by --limits=", limit, "=VALUE"));
  status.SetPayload(kLimitUrl, absl::Cord(limit));
  return status;
}

absl::Status TooManyCalls(const std::string& whose, absl::string_view limit,
                          int64_t most) {
  return Full(whose, limit, most, absl::StrCat(most, " calls are open"));
}

absl::Status TooManyBytes(const std::string& whose, absl::string_view limit,
                          int64_t most, int64_t held, int64_t more) {
  return Full(
      whose, limit, most,
      absl::StrCat("requests hold ", held, " bytes, this one has ", more));
}

}  // namespace

std::string LimitOf(const absl::Status& refusal) {
  const absl::optional<absl::Cord> limit = refusal.GetPayload(kLimitUrl);
  return limit.has_value() ? std::string(*limit) : "";
}

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
      return TooManyCalls("endpoint", "max_calls", limits_.max_calls);
    Load& load = peers_[peer];
    if (!peer.empty() && load.calls >= limits_.max_calls_per_peer) {
      return TooManyCalls(absl::StrCat("peer ", peer), "max_calls_per_peer",
                          limits_.max_calls_per_peer);
    }
    ++all_.calls;
    ++load.calls;
  }
  return std::make_unique<Ticket>(shared_from_this(), peer);
}

absl::Status Admission::AddBytes(const std::string& peer, int64_t bytes) {
  MutexLock lock(mu_);
  if (all_.bytes + bytes > limits_.max_bytes) {
    return TooManyBytes("endpoint", "max_bytes", limits_.max_bytes, all_.bytes,
                        bytes);
  }
  Load& load = peers_[peer];
  if (!peer.empty() && load.bytes + bytes > limits_.max_bytes_per_peer) {
    return TooManyBytes(absl::StrCat("peer ", peer), "max_bytes_per_peer",
                        limits_.max_bytes_per_peer, load.bytes, bytes);
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
