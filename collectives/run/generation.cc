#include "weft/collectives/run/generation.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/device/current.h"

namespace weft::collectives {
namespace {

// How late the end of a group may be seen while a device is waited for, and
// how often one that does not let time pass is asked.
constexpr absl::Duration kLongestWait = absl::Milliseconds(50);
constexpr absl::Duration kPause = absl::Milliseconds(1);

// Whether an operation that the backend has begun, and that ended so, has
// broken the group.
bool BreaksGroup(const absl::Status& status) {
  return !status.ok() && !absl::IsAborted(status);
}

absl::Status RunEnqueued(Backend& backend, const Operation& operation) {
  auto [promise, ended] = MakePromise<void>(backend.driver());
  backend.Enqueue(
      operation,
      [p = std::move(promise)](absl::Status status) mutable { p.Set(status); });
  // Its blocks are in use until then.
  while (!ended.IsReady()) ended.Wait(absl::Seconds(1)).IgnoreError();
  return *ended.Peek();
}

}  // namespace

Enqueued::~Enqueued() {
  MutexLock lock(mu_);
  while (count_ > 0) changed_.Wait(mu_);
}

void Enqueued::Begin() {
  MutexLock lock(mu_);
  ++count_;
}

void Enqueued::End() {
  MutexLock lock(mu_);
  if (--count_ == 0) changed_.NotifyAll();
}

bool Enqueued::is_idle() const {
  MutexLock lock(mu_);
  return count_ == 0;
}

Generation::~Generation() {
  if (options_.abort_source != nullptr) {
    options_.abort_source->Remove(*backend_);
  }
  if (operations_.is_idle() && enqueued_.is_idle() && transfers_.is_idle()) {
    return;
  }
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

absl::Status Generation::Begin(Call& call, uint64_t number, Instant deadline,
                               bool is_late) {
  Operation& operation = call.operation();
  call.SetNumber(number);
  operation.deadline = deadline;
  if (options_.recorder != nullptr) {
    options_.recorder->RecordFor(
        "collective.start", options_.name, Name(WholeOf(operation).verb),
        static_cast<int64_t>(number),
        static_cast<int64_t>(Fingerprint(operation) >> 1));
  }
  WEFT_RETURN_IF_ERROR(CheckHealth());
  if (!call.failure.ok()) return Break(call, call.failure);
  if (!call.refusal.ok()) {
    backend_->Refuse(operation, call.refusal);
    return call.refusal;
  }
  if (!is_late) return absl::OkStatus();
  const absl::Status status = absl::DeadlineExceededError(
      "no time was left when it was to begin, so the other ranks were not "
      "asked");
  backend_->Abort(status);
  call.has_broken_group = true;
  return status;
}

absl::Status Generation::Break(Call& call, absl::Status why) {
  backend_->Abort(Annotate(why, call.operation()));
  call.has_broken_group = true;
  return why;
}

absl::Status Generation::AwaitInputs(Call& call, Instant deadline) {
  StagedCall* const staged = call.preparation.staged().get();
  if (staged == nullptr) return absl::OkStatus();
  Clock& clock = backend_->driver().clock();
  while (true) {
    const Instant asked = clock.Now();
    const absl::Duration wait = std::max(
        std::min(deadline - asked, kLongestWait), absl::ZeroDuration());
    absl::Status status = staged->AwaitInputs(wait);
    if (status.ok()) return status;
    if (!absl::IsDeadlineExceeded(status)) return Break(call, status);
    if (absl::Status health = backend_->health(); !health.ok()) {
      call.has_broken_group = true;
      return health;
    }
    if (clock.Now() >= deadline) {
      constexpr char kWhy[] =
          "the inputs have not come to the host in time, since what is to run "
          "before has not: ";
      return Break(call,
                   Reworded(status, absl::StrCat(kWhy, status.message())));
    }
    if (clock.Now() - asked >= wait) continue;
    // A simulated device that hangs says so at once.
    auto [promise, never] = MakePromise<void>(backend_->driver());
    never.Wait(kPause).IgnoreError();
  }
}

absl::Status Generation::End(Call& call, absl::Status status) {
  const Operation& operation = call.preparation.operation();
  if (status.ok()) {
    status = CatchToStatus([&] { return call.preparation.Finish(); });
    if (!status.ok() && call.stream().is_valid()) status = Break(call, status);
  }
  if (options_.recorder != nullptr) {
    options_.recorder->RecordFor("collective.end", options_.name,
                                 Name(WholeOf(operation).verb),
                                 static_cast<int64_t>(operation.sequence),
                                 static_cast<int64_t>(status.code()));
  }
  const absl::Status annotated = Annotate(status, operation);
  if (call.has_broken_group) Tell(annotated);
  return annotated;
}

absl::Status Generation::RunNow(Call& call, uint64_t number, Instant deadline,
                                bool is_late) {
  absl::Status status = Begin(call, number, deadline, is_late);
  if (status.ok()) status = AwaitInputs(call, deadline);
  if (!status.ok()) return End(call, status);
  const Operation& operation = call.preparation.operation();
  status = backend_->enqueues() ? RunEnqueued(*backend_, operation)
                                : backend_->Run(operation);
  call.has_broken_group = BreaksGroup(status);
  return End(call, std::move(status));
}

absl::Status Generation::RunNow(Call& call, After& after, uint64_t number,
                                Instant deadline, bool is_late) {
  WEFT_RETURN_IF_ERROR(RunNow(call, number, deadline, is_late));
  return after == nullptr ? absl::OkStatus() : RunAfter(call, after, number);
}

absl::Status Generation::RunAfter(const Call& call, After& after,
                                  uint64_t number) {
  const absl::Status status =
      CatchToStatus([&] { return std::move(after)(number); });
  if (status.ok()) return status;
  const absl::Status health = CheckHealth();
  return Annotate(health.ok() ? status : health, call.preparation.operation());
}

Generation::Shrink Generation::BeginShrink(const std::vector<int>& members) {
  MutexLock lock(mu_);
  Shrink shrink;
  shrink.number = static_cast<int>(shrinks_.size());
  Operation operation;  // never run: for its fingerprint
  operation.verb = Verb::kSubgroup;
  operation.detail = DescribeList(members);
  operation.label = static_cast<uint64_t>(shrink.number);
  shrink.key = Fingerprint(operation);
  shrinks_.push_back(shrink.key);
  return shrink;
}

void Generation::EndShrinks(const absl::Status& why) {
  std::vector<uint64_t> ended;
  {
    MutexLock lock(mu_);
    ended.assign(shrinks_.begin() + ended_shrinks_, shrinks_.end());
    ended_shrinks_ = shrinks_.size();
    if (!ended.empty()) why_shrinks_end_ = why;
  }
  for (const uint64_t key : ended) backend_->EndShrink(key, why);
}

absl::Status Generation::CheckShrink(uint64_t key) const {
  if (options_.abort_source != nullptr) {
    WEFT_RETURN_IF_ERROR(options_.abort_source->reason());
  }
  {
    MutexLock lock(mu_);
    const auto end = shrinks_.begin() + ended_shrinks_;
    if (std::find(shrinks_.begin(), end, key) != end) return why_shrinks_end_;
  }
  return backend_->CheckShrink(key);
}

absl::Status Generation::Run(Call call, const CallOptions& options,
                             After after) {
  if (InlineScope::IsActive()) {
    return Annotate(
        absl::FailedPreconditionError(
            "this thread must not block (it is the Loop's, or runs a callback "
            "of "
            "a group's Future): call the Async form of it, or give Then an "
            "executor"),
        call.preparation.operation());
  }
  call.SetLabel(options.label);
  const Instant deadline = DeadlineOf(options);
  // The clock is not read once more for what must not wait for its turn.
  const bool is_late =
      options.timeout.value_or(options_.timeout) <= absl::ZeroDuration();
  return operations_.RunHere([&](uint64_t number) {
    return RunNow(call, after, number, deadline, is_late);
  });
}

Future<void> Generation::RunAsync(Call call, const CallOptions& options,
                                  After after) {
  call.SetLabel(options.label);
  if (!call.refusal.ok() && backend_->health().ok()) {
    return RefuseAsync(std::move(call), DeadlineOf(options));
  }
  const bool is_staged = call.preparation.staged() != nullptr;
  if (backend_->enqueues() && after == nullptr && !is_staged) {
    return EnqueueAsync(std::move(call), DeadlineOf(options));
  }
  const device::Stream stream = call.stream();
  return operations_.Schedule(
      [this, call = std::move(call), after = std::move(after),
       deadline = DeadlineOf(options)](uint64_t number) mutable {
        const bool is_late = backend_->driver().clock().Now() >= deadline;
        return RunNow(call, after, number, deadline, is_late);
      },
      stream);
}

Future<void> Generation::RefuseAsync(Call call, Instant deadline) {
  Operation described = WholeOf(call.operation());
  const absl::Status refusal = call.refusal;
  const absl::StatusOr<uint64_t> number = operations_.ScheduleRefusal(
      [this, call = std::move(call), deadline](uint64_t n) mutable {
        return RunNow(call, n, deadline, /*is_late=*/false);
      });
  if (!number.ok()) return MakeReady<void>(number.status());
  described.sequence = *number;
  // The caller need not wait for what comes before it.
  return MakeReady<void>(Annotate(refusal, described));
}

Future<void> Generation::EnqueueAsync(Call call, Instant deadline) {
  // Lives until the operation has ended.
  struct Running {
    Call call;
    Promise<void> promise;
  };
  auto running = std::make_shared<Running>(
      Running{std::move(call), Promise<void>(backend_->driver())});
  Future<void> future = running->promise.future();
  // The thread is the queue's, or the backend's.
  const auto set = [](Running& ended, const absl::Status& status) {
    InlineScope callbacks;
    std::optional<device::StreamScope> current;
    if (ended.call.stream().is_valid()) current.emplace(ended.call.stream());
    ended.promise.Set(status);
  };
  const auto end = [this, running, set](const absl::Status& status) {
    set(*running, End(running->call, status));
  };
  const auto begin = [this, running, deadline, set, end](uint64_t number) {
    const bool is_late = backend_->driver().clock().Now() >= deadline;
    const absl::Status begun = Begin(running->call, number, deadline, is_late);
    if (!begun.ok()) {
      end(begun);
      return absl::OkStatus();
    }
    enqueued_.Begin();
    backend_->Enqueue(running->call.preparation.operation(),
                      [this, running, set](const absl::Status& status) {
                        running->call.has_broken_group = BreaksGroup(status);
                        const absl::Status ended = End(running->call, status);
                        // This must come before the caller knows of the end: it
                        // may end the group then, which would abort operations
                        // that are still under way.
                        enqueued_.End();
                        set(*running, ended);
                      });
    return absl::OkStatus();
  };
  if (operations_.TryRunHere(begin)) return future;
  operations_.Schedule(begin).OnReady([running](const absl::Status& status) {
    if (!status.ok()) running->promise.Set(status);
  });
  return future;
}

absl::StatusOr<TransferQueue::Addition> Generation::AdditionOf(
    const Movement& movement, Instant deadline) {
  const Operation& operation = movement.call.preparation.operation();
  absl::Status status = CheckHealth();
  if (status.ok() && !movement.call.failure.ok()) {
    backend_->Abort(Annotate(movement.call.failure, operation));
    status = movement.call.failure;
  }
  if (status.ok()) status = movement.call.refusal;
  if (!status.ok()) return Annotate(status, operation);
  TransferQueue::Addition addition;
  Transfer& transfer = addition.transfer;
  transfer.is_send = operation.verb == Verb::kSend;
  transfer.peer = movement.peer;
  transfer.tag = movement.tag;
  transfer.dtype = operation.dtype;
  transfer.block =
      transfer.is_send ? operation.inputs[0] : operation.outputs[0];
  transfer.ready = operation.ready;
  addition.staged = movement.call.preparation.staged();
  addition.caller = movement.call.preparation.caller();
  addition.deadline = deadline;
  addition.what = absl::StrCat(
      Describe(operation), transfer.is_send ? " to " : " from ",
      movement.peer < 0 ? "any rank" : absl::StrCat("rank ", movement.peer),
      ", tag ", movement.tag, ", rank ", backend_->rank(), " of group ",
      options_.name);
  return addition;
}

// Runs before the queue's end, and so before that of this.
absl::Status Generation::EndMovement(Preparation& preparation) {
  const absl::Status status =
      CatchToStatus([&] { return preparation.Finish(); });
  if (status.ok()) return status;
  const absl::Status annotated = Annotate(status, preparation.operation());
  if (preparation.caller().is_valid()) backend_->Abort(annotated);
  return annotated;
}

std::vector<Future<int>> Generation::Move(std::vector<Movement> movements,
                                          const CallOptions& options) {
  std::vector<TransferQueue::Addition> additions;
  std::vector<absl::Status> refusals;
  std::vector<std::shared_ptr<Preparation>> preparations;
  for (Movement& movement : movements) {
    absl::StatusOr<TransferQueue::Addition> addition =
        AdditionOf(movement, DeadlineOf(options));
    refusals.push_back(addition.status());
    preparations.push_back(
        std::make_shared<Preparation>(std::move(movement.call.preparation)));
    if (!addition.ok()) continue;
    addition->owner = preparations.back();
    additions.push_back(*std::move(addition));
  }
  std::vector<Future<int>> moved = transfers_.Add(std::move(additions));
  std::vector<Future<int>> all;
  size_t next = 0;
  for (size_t i = 0; i < movements.size(); ++i) {
    if (!refusals[i].ok()) {
      all.push_back(MakeReady<int>(std::move(refusals[i])));
      continue;
    }
    all.push_back(std::move(moved[next++])
                      .Then([this, preparation = std::move(preparations[i])](
                                int from) -> absl::StatusOr<int> {
                        WEFT_RETURN_IF_ERROR(EndMovement(*preparation));
                        return from;
                      }));
  }
  return all;
}

}  // namespace weft::collectives
