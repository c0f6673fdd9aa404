// RollCalls: a worker's part in agreeing on who of an elastic job makes the
// next group. core/roll_call_core.h says how, and what holds.
//
//   WEFT_ASSIGN_OR_RETURN(auto call, worker.roll_calls().Begin("world",
//   terms)); WEFT_ASSIGN_OR_RETURN(const Roll roll, call->Next(deadline));

#ifndef WEFT_RENDEZVOUS_ROLL_CALL_H_
#define WEFT_RENDEZVOUS_ROLL_CALL_H_

#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rendezvous/core/roll_call_core.h"
#include "weft/rendezvous/membership.h"

namespace weft::rendezvous {

class RollCall;

// The roll calls of one worker. Thread-safety: thread-safe.
class RollCalls {
 public:
  // `membership` must outlive it and what it begins.
  explicit RollCalls(Membership& membership) : membership_(membership) {}

  // Roll calls of one name and one selector are one; the store keeps one value
  // for each.
  //   kInvalidArgument     the terms (RollTerms::Validate), or their selector
  //                        does not find this worker
  //   kFailedPrecondition  another thread of this worker is at it
  absl::StatusOr<std::unique_ptr<RollCall>> Begin(std::string name,
                                                  RollTerms terms)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The names of those that have come to the open round and wait, by role and
  // rank.
  // Errors of the store; kInternal if its value is none of a roll call.
  absl::StatusOr<std::vector<std::string>> Waiting(const std::string& name,
                                                   const std::string& selector,
                                                   absl::Duration timeout);
  // The same once there are any: kDeadlineExceeded if none comes in that time.
  // One call of the store for each change of the round, not one for each look.
  absl::StatusOr<std::vector<std::string>> AwaitWaiting(
      const std::string& name, const std::string& selector,
      absl::Duration timeout);

 private:
  friend class RollCall;
  // Those who wait, of the value of a roll call.
  absl::StatusOr<std::vector<std::string>> WaitingIn(
      const std::string& name, const std::string& value) const;
  void End(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);

  Membership& membership_;
  Mutex mu_;
  std::set<std::string> begun_ ABSL_GUARDED_BY(mu_);  // keys
};

// Thread-safety: one thread at a time.
class RollCall {
 public:
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  // Waits until a round is closed with this worker. Called again, the last roll
  // has come to nothing, and the next round is waited for.
  //   kDeadlineExceeded    says who has come and for whom was waited; this
  //                        worker is struck from the round
  //   kFailedPrecondition  others have come with other terms, which are named
  //   kInternal            the value in the store is none of a roll call
  // and Membership::status(); and the reason of `cancel`, as at the deadline.
  absl::StatusOr<Roll> Next(Instant deadline, const CancelToken& cancel = {});

  // `progress` is called with who has come and for whom is waited, at most once
  // a second, when that has changed.
  void OnProgress(std::function<void(const std::string&)> progress) {
    progress_ = std::move(progress);
  }

 private:
  friend class RollCalls;
  RollCall(RollCalls& calls, std::string key, RollCallCore core);

  // Reads and does what the core says, until `deadline`.
  absl::StatusOr<Roll> Follow(Instant deadline, const CancelToken& cancel);
  // Removes this worker from the open round. Returns a roll with it that was
  // closed meanwhile.
  absl::StatusOr<Roll> GiveUp(const absl::Status& why);

  void Tell(const View& view, Instant now);
  // Waits for a random time, from half of `most` to all of it.
  void Pause(absl::Duration most, Instant deadline);

  RollCalls& calls_;
  Membership& membership_;
  const std::string key_;
  RollCallCore core_;
  bool is_first_ = true;
  std::minstd_rand random_;
  std::function<void(const std::string&)> progress_;
  Instant tell_at_;
  std::string told_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_ROLL_CALL_H_
