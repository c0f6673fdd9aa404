// BarrierClient: the barriers at which one worker is, as the coordinator is
// asked for them.

#ifndef WEFT_RENDEZVOUS_CLIENT_BARRIER_CLIENT_H_
#define WEFT_RENDEZVOUS_CLIENT_BARRIER_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/client/open_calls.h"
#include "weft/rendezvous/client/wait_reports.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/member.h"

namespace weft::rendezvous {

// Thread-safety: thread-safe.
class BarrierClient {
 public:
  // `calls` end when the worker is out of the job. `ask_status` is called where
  // the coordinator says so first: why the worker is out, or ok. `report` is
  // told of each wait that lasts long (wait_reports.h), with who is missing;
  // null: of none. `timers` must outlive the client.
  BarrierClient(TimerSource& timers, std::shared_ptr<CoordinatorLink> link,
                std::string job, std::shared_ptr<OpenCalls> calls,
                std::function<absl::Status()> ask_status,
                WaitReport report = nullptr);

  // Membership::AllGather, of `self` and `members`; `is_everyone`: they are all
  // of the world, which the coordinator knows and need not be told.
  absl::StatusOr<std::map<std::string, std::string>> Gather(
      const Member& self, absl::string_view tag, absl::string_view payload,
      std::vector<std::string> members, bool is_everyone,
      absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Numbers the arrival. kFailedPrecondition: this worker is there already.
  absl::Status Arrive(const Member& self, v1::BarrierRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Says which of its arrivals so far have not been answered.
  void SaySettled(v1::BarrierRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks until the barrier opens or the deadline has passed; then `missing` has
  // the members that are missing, for people.
  absl::StatusOr<v1::BarrierReply> Meet(v1::BarrierRequest& request,
                                        Instant deadline, std::string* missing);
  // The same, and tells `reports` of it.
  absl::StatusOr<v1::BarrierReply> MeetUntil(v1::BarrierRequest& request,
                                             Instant deadline,
                                             WaitReports& reports,
                                             std::string* missing);
  // What each of `members` brought.
  absl::StatusOr<std::map<std::string, std::string>> Gathered(
      absl::string_view tag, std::vector<std::string> members,
      v1::BarrierReply reply) const;
  Instant now() const { return timers_.driver().clock().Now(); }

  TimerSource& timers_;
  const std::shared_ptr<CoordinatorLink> link_;
  const std::string job_;
  const std::shared_ptr<OpenCalls> calls_;
  const std::function<absl::Status()> ask_status_;
  const WaitReport report_;

  Mutex mu_;
  uint64_t last_arrival_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, uint64_t> arrivals_ ABSL_GUARDED_BY(mu_);  // by tag
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CLIENT_BARRIER_CLIENT_H_
