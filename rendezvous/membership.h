// Membership: one worker's place in the job: it joins, shows that it lives,
// follows the view, and leaves.

#ifndef WEFT_RENDEZVOUS_MEMBERSHIP_H_
#define WEFT_RENDEZVOUS_MEMBERSHIP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/base/executor.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/member.h"
#include "weft/rendezvous/store.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/world.h"
#include "weft/telemetry/telemetry.h"

namespace weft::rendezvous {

struct JoinOptions {
  std::string job;
  std::string role;
  int rank = 0;
  std::string name;     // empty: <role><rank>
  std::string address;  // where others reach this worker
  std::map<std::string, std::string> labels;
  World world;
  // CoordinatorCore::Options::start of the coordinator that it belongs to.
  uint32_t start = 0;
  // The name of the process that hosts the coordinator, for messages. Empty:
  // ps0, or trainer0 where there are no servers.
  std::string host_of_coordinator;
  // How long a member may be silent before it is suspect, and gone, if this is
  // the first of the job and the coordinator takes it from there
  // (CoordinatorCore::Options::takes_silence_limits). Zero: as the coordinator
  // has it.
  absl::Duration suspect_after = absl::ZeroDuration();
  absl::Duration dead_after = absl::ZeroDuration();
  // How long to wait until the coordinator has answered and the world is
  // complete.
  absl::Duration timeout = absl::Minutes(5);
  // Return as soon as this worker is in, whoever else is.
  bool wait_for_world = true;
  // This worker comes to a job that has begun: Join and AwaitWorld wait for
  // nobody who has been in the job and is gone.
  bool rejoins = false;
  // Ends Join and AwaitWorld, with its reason, within a second.
  CancelToken cancel;
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  // Told "3/4 joined, missing trainer1" while waiting, when it changes and at
  // least every 10 s. Null: the log.
  std::function<void(const std::string&)> progress;
  // Runs OnChange callbacks. Must outlive the Membership. Null: they run on the
  // thread that received the change, and must not block.
  Executor* executor = nullptr;
  telemetry::Telemetry* telemetry = nullptr;  // null: silent; must outlive it
};

// Thread-safety: thread-safe.
class Membership {
 public:
  // Joins, in any order of start: waits for a coordinator that is not there
  // yet.
  //   kAborted             it was declared gone meanwhile: start it again
  //   kAlreadyExists       the name is held by a worker that lives
  //   kFailedPrecondition  another job or another world is at that address
  //   kInvalidArgument     the name, role or rank cannot be in this world, or
  //                        the labels, address and so on have more than 16 KiB
  //   kDeadlineExceeded    says whether the coordinator answered, and who is
  //                        missing
  //   kInternal            the answer is none that a coordinator gives
  // `timers` must outlive the Membership.
  static absl::StatusOr<std::unique_ptr<Membership>> Join(
      TimerSource& timers, std::unique_ptr<CoordinatorLink> link,
      JoinOptions options);

  // Stops at once and tells nobody: to the others this worker falls silent.
  ~Membership();

  const Member& self() const;

  // The newest view that this worker has received. Never null. While the
  // coordinator's process is known to have ended and it is waited for (it has a
  // log), members whose processes this worker has seen end, on its host, have
  // departed in it, under an unchanged version.
  std::shared_ptr<const View> view() const;

  // Asks the coordinator for the view of this moment: after it has answered,
  // view() holds every change of which any worker had heard when Refresh was
  // called. kDeadlineExceeded or kUnavailable: the coordinator did not answer;
  // while it has not answered for a second, later calls fail at once. Else
  // status(). Threads that call at the same time share requests.
  absl::Status Refresh(absl::Duration timeout);

  // Ok while this worker is in the job; else why it is not, for ever. Every
  // wait of this worker for the job (WaitFor, Refresh, Barrier, AllGather,
  // Announce, and each operation of store()) ends with it within a second, and
  // later ones at once.
  //   kAborted             it was declared gone: start it again
  //   kUnavailable         the coordinator is lost
  //   kInternal            it has said what no coordinator says
  //   kFailedPrecondition  it has left
  absl::Status status() const;

  // kUnavailable while the process that hosted the coordinator is known to have
  // ended, and none has taken its place; else ok: requests that have their time
  // wait for one all the same.
  absl::Status coordinator_status() const;

  // Waits for a view of which `is_fit` holds, which runs on this thread; of
  // what it throws the Status. kDeadlineExceeded says who is in.
  absl::StatusOr<std::shared_ptr<const View>> WaitFor(
      std::function<bool(const View&)> is_fit, absl::Duration timeout);

  // Waits until the world is complete, or has been since this worker joined;
  // with JoinOptions::rejoins, until each of it has been in the job. Tells
  // JoinOptions::progress meanwhile. kDeadlineExceeded says who is missing.
  absl::Status AwaitWorld(absl::Duration timeout);

  // Runs `fn` for each view(), in order and one at a time, beginning with
  // the present one, until the Subscription ends. Afterwards it does not run.
  // `on_lost` runs once, and last, when this worker is out of the job without
  // having left: `why` is status(). What they throw is logged.
  class Subscription {
   public:
    Subscription() = default;
    explicit Subscription(std::function<void()> cancel);
    Subscription(Subscription&& other) noexcept;
    Subscription& operator=(Subscription&& other) noexcept;
    ~Subscription();

   private:
    std::function<void()> cancel_;
  };
  [[nodiscard]] Subscription OnChange(
      std::function<void(std::shared_ptr<const View>)> fn,
      std::function<void(const absl::Status& why)> on_lost = nullptr);

  // Waits until all of `members` (names, this worker's among them; empty: all
  // members of a fixed world) are at the barrier `tag`. Barriers of different
  // tags are independent. kDeadlineExceeded says who is missing, kUnavailable
  // who is gone. kFailedPrecondition: this worker is at that barrier already.
  // kInvalidArgument: the tag has more than 1 KiB, or there are more members
  // than a job may have. kResourceExhausted: it is at 1024 barriers already,
  // or those that it is at hold 64 MiB.
  absl::Status Barrier(absl::string_view tag, std::vector<std::string> members,
                       absl::Duration timeout);

  // A barrier to which each brings `payload`, of up to 64 KiB, all together of
  // up to 1 MiB (kResourceExhausted beyond): what each of `members` brought, by
  // name. Else as Barrier.
  absl::StatusOr<std::map<std::string, std::string>> AllGather(
      absl::string_view tag, absl::string_view payload,
      std::vector<std::string> members, absl::Duration timeout);

  // Tells all how far this worker has come with ending: they see it in their
  // views. Does not go back.
  absl::Status Announce(Phase phase, absl::Duration timeout);

  // The store that all members of the job share. Errors besides those of
  // store.h: status(), once that is one.
  Store& store();

  // Says good-bye. The others see a departure, not a death. Idempotent.
  absl::Status Leave(absl::Duration timeout);

  class State;

 private:
  explicit Membership(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
  std::unique_ptr<Store> store_;
};

// For the host of a coordinator that found its address in use: finds out who
// listens there. kAlreadyExists: `name` of this job; kFailedPrecondition:
// another job, or a job of another world; kInternal: a program that is no
// coordinator. Ok if nobody answers so within `timeout`.
absl::Status CheckNobodyIsThere(TimerSource& timers, CoordinatorLink& link,
                                const std::string& job, absl::string_view name,
                                const World& world, absl::Duration timeout);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_MEMBERSHIP_H_
