// Generation: what a group is between two changes of its members: one backend,
// and what goes on over it.

#ifndef WEFT_COLLECTIVES_GENERATION_H_
#define WEFT_COLLECTIVES_GENERATION_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "weft/base/future.h"
#include "weft/collectives/abort_source.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/call_options.h"
#include "weft/collectives/operation_queue.h"
#include "weft/collectives/preparation.h"
#include "weft/collectives/transfer_queue.h"
#include "weft/telemetry/flight_recorder.h"

namespace weft::collectives {

// A call's arguments, checked; or why they are refused, with verb and site.
struct Call {
  Preparation preparation;
  absl::Status refusal;
};

// Thread-safety: thread-safe.
class Generation {
 public:
  // `recorder`, which may be null, must outlive it. `abort_source` may be null.
  Generation(std::unique_ptr<Backend> backend, std::string name,
             absl::Duration timeout, telemetry::FlightRecorder* recorder,
             std::shared_ptr<AbortSource> abort_source)
      : name_(std::move(name)),
        timeout_(timeout),
        recorder_(recorder),
        abort_source_(std::move(abort_source)),
        backend_(std::move(backend)),
        transfers_(*backend_) {
    if (abort_source_ != nullptr) abort_source_->Add(*backend_);
  }
  // Aborts what goes on.
  ~Generation();

  Backend& backend() { return *backend_; }
  const std::string& name() const { return name_; }
  absl::Duration timeout() const { return timeout_; }

  absl::Status Run(Call call, const CallOptions& options);
  Future<void> RunAsync(Call call, const CallOptions& options);

  // Of the operation that `call` prepared: one block.
  Future<int> Move(Call call, int peer, uint64_t tag,
                   const CallOptions& options);

 private:
  Instant DeadlineOf(const CallOptions& options);
  absl::Status RunNow(Call& call, uint64_t number, Instant deadline);
  // OK; or, the first time, what has broken the group; or that it is broken.
  absl::Status CheckHealth();
  // `status`, with what was called where.
  absl::Status Annotate(const absl::Status& status,
                        const Operation& operation) const;

  const std::string name_;
  const absl::Duration timeout_;
  telemetry::FlightRecorder* const recorder_;
  const std::shared_ptr<AbortSource> abort_source_;
  const std::unique_ptr<Backend> backend_;
  std::atomic<bool> has_told_{false};  // of what has broken the group
  TransferQueue transfers_;
  OperationQueue operations_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_GENERATION_H_
