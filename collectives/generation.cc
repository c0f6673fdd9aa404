#include "weft/collectives/generation.h"

#include "absl/strings/str_cat.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {

Generation::~Generation() {
  if (options_.abort_source != nullptr) {
    options_.abort_source->Remove(*backend_);
  }
  if (operations_.is_idle() && transfers_.is_idle()) return;
  backend_->Abort(absl::CancelledError(absl::StrCat(
      "group ", options_.name, " ended on rank ", backend_->rank())));
}

Instant Generation::DeadlineOf(const CallOptions& options) {
  return backend_->driver().clock().Now() +
         options.timeout.value_or(options_.timeout);
}

absl::Status Generation::Annotate(const absl::Status& status,
                                  const Operation& operation) const {
  if (status.ok()) return status;
  return Reworded(status, absl::StrCat(Describe(operation), ", rank ",
                                       backend_->rank(), " of group ",
                                       options_.name, ": ", status.message()));
}

absl::Status Generation::CheckHealth() {
  const absl::Status health = backend_->health();
  if (health.ok() || absl::IsCancelled(health)) return health;
  if (Tell(health)) return health;
  return Reworded(
      health, absl::StatusCode::kFailedPrecondition,
      absl::StrCat("the group is broken (", health.message(),
                   "); make a new one, or Shrink or Reconfigure this one"));
}

bool Generation::Tell(const absl::Status& why) {
  if (has_told_.exchange(true)) return false;
  const bool is_for_comparison =
      absl::IsDeadlineExceeded(why) || absl::IsFailedPrecondition(why);
  if (is_for_comparison && options_.on_broken) options_.on_broken(why);
  return true;
}

absl::Status Generation::RunNow(Call& call, uint64_t number, Instant deadline,
                                bool is_late) {
  Operation& operation = call.preparation.operation();
  operation.sequence = number;
  operation.deadline = deadline;
  if (options_.recorder != nullptr) {
    options_.recorder->RecordFor(
        "collective.start", options_.name, Name(operation.verb),
        static_cast<int64_t>(number),
        static_cast<int64_t>(Fingerprint(operation) >> 1));
  }
  absl::Status status = CheckHealth();
  if (status.ok() && !call.refusal.ok()) {
    backend_->Refuse(operation, call.refusal);
    status = call.refusal;
  }
  bool is_broken = false;
  if (status.ok() && is_late) {
    status = absl::DeadlineExceededError(
        "no time was left when it was to begin, so the other ranks were not "
        "asked");
    backend_->Abort(status);
    is_broken = true;
  } else if (status.ok()) {
    status = backend_->Run(operation);
    is_broken = !status.ok() && !absl::IsAborted(status);
  }
  if (status.ok()) call.preparation.Finish();
  if (options_.recorder != nullptr) {
    options_.recorder->RecordFor(
        "collective.end", options_.name, Name(operation.verb),
        static_cast<int64_t>(number), static_cast<int64_t>(status.code()));
  }
  const absl::Status annotated = Annotate(status, operation);
  if (is_broken) Tell(annotated);
  return annotated;
}

absl::Status Generation::Run(Call call, const CallOptions& options) {
  if (InlineScope::IsActive()) {
    return Annotate(
        absl::FailedPreconditionError(
            "this thread must not block (it is the Loop's, or runs a callback "
            "of "
            "a group's Future): call the Async form of it, or give Then an "
            "executor"),
        call.preparation.operation());
  }
  call.preparation.operation().label = options.label;
  const Instant deadline = DeadlineOf(options);
  // The clock is not read once more for what must not wait for its turn.
  const bool is_late =
      options.timeout.value_or(options_.timeout) <= absl::ZeroDuration();
  return operations_.RunHere(
      [&](uint64_t number) { return RunNow(call, number, deadline, is_late); });
}

Future<void> Generation::RunAsync(Call call, const CallOptions& options) {
  call.preparation.operation().label = options.label;
  return operations_.Schedule(
      [this, call = std::move(call),
       deadline = DeadlineOf(options)](uint64_t number) mutable {
        const bool is_late = backend_->driver().clock().Now() >= deadline;
        return RunNow(call, number, deadline, is_late);
      });
}

Future<int> Generation::Move(Call call, int peer, uint64_t tag,
                             const CallOptions& options) {
  const Operation& operation = call.preparation.operation();
  absl::Status status = CheckHealth();
  if (status.ok()) status = call.refusal;
  if (!status.ok()) return MakeReady<int>(Annotate(status, operation));
  Transfer transfer;
  transfer.is_send = operation.verb == Verb::kSend;
  transfer.peer = peer;
  transfer.tag = tag;
  transfer.dtype = operation.dtype;
  transfer.block =
      transfer.is_send ? operation.inputs[0] : operation.outputs[0];
  const std::string what = absl::StrCat(
      Describe(operation), transfer.is_send ? " to " : " from ",
      peer < 0 ? "any rank" : absl::StrCat("rank ", peer), ", tag ", tag,
      ", rank ", backend_->rank(), " of group ", options_.name);
  Future<int> moved = transfers_.Add(transfer, DeadlineOf(options), what);
  return std::move(moved).Then(
      [preparation = std::move(call.preparation)](int from) mutable {
        preparation.Finish();
        return from;
      });
}

}  // namespace weft::collectives
