// Coordinator: answers for the job's membership, barriers and store. Served at
// an endpoint by grpc_coordinator.h, within the process by LocalLink().
//
// It is CoordinatorCore, which decides, behind a Journal, which remembers: a
// decision is there before it is published.

#ifndef WEFT_RENDEZVOUS_COORDINATOR_H_
#define WEFT_RENDEZVOUS_COORDINATOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/executor.h"
#include "weft/base/future.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/core/coordinator_core.h"
#include "weft/rendezvous/journal/journal.h"
#include "weft/telemetry/telemetry.h"

namespace weft::rendezvous {

struct CoordinatorOptions {
  CoordinatorCore::Options core;
  // The journal by which members survive a restart of the coordinator. Null:
  // all is kept in memory, and a restarted coordinator knows nobody.
  std::unique_ptr<Journal> journal;
  // The term where there is no journal to count terms. It must be above that of
  // any earlier coordinator of the job, so that no incarnation's key is used
  // again. See TermOfNow.
  uint32_t term = 1;
  telemetry::Telemetry* telemetry = nullptr;  // null: silent; must outlive it
};

// Grows with the system's clock, 64 times a second; begins anew every two
// years.
uint32_t TermOfNow();

// Thread-safety: thread-safe.
class Coordinator {
 public:
  // Raises the journal's term and starts. kFailedPrecondition: it is another
  // job's.
  // Decisions run on `executor`, whose threads may wait for the disk. It and
  // `timers` must outlive the Coordinator.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(
      TimerSource& timers, Executor& executor, CoordinatorOptions options);
  // Waits for what is on its way to the journal, 10 s at most. A disk that
  // hangs for longer is for `executor`'s end to wait for.
  ~Coordinator();

  // The caller, as far as the transport has proved it.
  struct Caller {
    std::string text;  // for messages to people
    // The only worker for which it may speak; empty: any.
    std::string name;
    // Whether the caller is in this process.
    bool is_host = false;
  };
  // Answers one call of `method` (Join); `respond` runs once, on any thread, or
  // is dropped with the Coordinator. Returns what CallerGone wants.
  using Respond = absl::AnyInvocable<void(absl::StatusOr<std::string>) &&>;
  uint64_t Handle(const Caller& caller, absl::string_view method,
                  absl::string_view request, Respond respond);
  // Its caller is there no more: nothing is decided for it any longer.
  void CallerGone(uint64_t call);

  // For members of this process. Once `this` is gone it answers kUnavailable.
  std::unique_ptr<CoordinatorLink> LocalLink();

  // Whether it decides nothing any more, and never will: its journal has
  // failed, or another has taken that over.
  bool has_stopped() const;

  // Answers held calls with kUnavailable and takes no more.
  void Shutdown();

  class State;

 private:
  explicit Coordinator(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
  Future<void> gone_;  // once nothing runs for the state any more
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_COORDINATOR_H_
