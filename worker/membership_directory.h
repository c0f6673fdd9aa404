// MembershipDirectory: the membership, as an agent asks it.

#ifndef WEFT_WORKER_MEMBERSHIP_DIRECTORY_H_
#define WEFT_WORKER_MEMBERSHIP_DIRECTORY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/rendezvous/membership.h"
#include "weft/rpc/session/directory.h"

namespace weft::worker {

// Thread-safety: thread-safe. `membership` must outlive it.
class MembershipDirectory final : public rpc::Directory {
 public:
  explicit MembershipDirectory(rendezvous::Membership& membership)
      : membership_(membership) {}

  absl::StatusOr<rpc::Worker> Find(absl::string_view name) const override;
  absl::StatusOr<rpc::Worker> Find(rpc::WorkerKey key) const override;
  bool Refresh(absl::Duration timeout) const override;
  uint64_t version() const override;
  absl::StatusOr<std::vector<rpc::Worker>> Select(
      absl::string_view selector) const override;

 private:
  rendezvous::Membership& membership_;
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_MEMBERSHIP_DIRECTORY_H_
