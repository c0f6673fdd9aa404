#include "weft/collectives/backends/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {
namespace {

using nccl::Result;

constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);
constexpr absl::Duration kAbortTimeout = absl::Seconds(10);
// How often NCCL is asked whether a call has ended: at first, and at last.
constexpr absl::Duration kLeastPause = absl::Microseconds(10);
constexpr absl::Duration kMostPause = absl::Milliseconds(2);

// Calls `call` with `stream` as NCCL takes it, its device being current.
absl::Status CallOn(const device::Stream& stream, absl::string_view name,
                    absl::FunctionRef<absl::Status(nccl::NativeStream)> call) {
  if (stream.device().kind == device::Device::Kind::kSimulated) {
    return call(const_cast<device::Stream*>(&stream));
  }
  return stream.runtime().LaunchNative(stream, name, call);
}

constexpr char kInit[] = "ncclCommInitRankConfig";

absl::Status Ended() {
  return absl::CancelledError("the communicator of NCCL was aborted");
}

// In progress is no error: who called waits for the end.
absl::Status Begun(const NcclFunctions& functions, Result result,
                   absl::string_view name, nccl::Comm comm) {
  if (result == Result::kInProgress) return absl::OkStatus();
  return NcclStatus(functions, result, name, comm);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Begin(
    Options options) {
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(std::move(options)));
  const NcclFunctions& f = *made->options_.functions;
  absl::Status begun;
  {
    MutexLock lock(made->mu_);
    nccl::Comm comm = nullptr;
    nccl::Config config;
    config.blocking = 0;
    begun = made->OnDevice(kInit, [&](nccl::NativeStream) {
      return Begun(
          f,
          f.CommInitRankConfig(&comm, made->options_.size, made->options_.id,
                               made->options_.rank, &config),
          kInit, nullptr);
    });
    made->comm_ = comm;
  }
  WEFT_RETURN_IF_ERROR(begun);
  return made;
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    Options options, const DeviceWait& wait) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<NcclCommunicator> made,
                        Begin(std::move(options)));
  const absl::Status status = made->Await(kInit, wait);
  if (!status.ok()) made->Abort();
  WEFT_RETURN_IF_ERROR(status);
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  const NcclFunctions& f = *options_.functions;
  bool is_final = false;
  {
    MutexLock lock(mu_);
    const nccl::Comm comm = comm_;
    is_final =
        comm != nullptr &&
        OnDevice("ncclCommFinalize", [&](nccl::NativeStream) {
          return Begun(f, f.CommFinalize(comm), "ncclCommFinalize", comm);
        }).ok();
  }
  const Instant until = SteadyClock().Now() + kLeaveTimeout;
  const DeviceWait wait = {SteadyClock(), until, nullptr};
  is_final = is_final && Await("ncclCommFinalize", wait).ok();
  if (!is_final) {
    Abort();
    AwaitAbort();
    return;
  }
  MutexLock lock(mu_);
  const nccl::Comm comm = std::exchange(comm_, nullptr);
  OnDevice("ncclCommDestroy", [&](nccl::NativeStream) {
    return Begun(f, f.CommDestroy(comm), "ncclCommDestroy", nullptr);
  }).IgnoreError();
}

absl::Status NcclCommunicator::OnDevice(
    absl::string_view name,
    absl::FunctionRef<absl::Status(nccl::NativeStream)> call) const {
  return CallOn(options_.stream, name, call);
}

absl::StatusOr<Result> NcclCommunicator::Progress() {
  MutexLock lock(mu_);
  if (comm_ == nullptr) return Ended();
  Result progress = Result::kSuccess;
  const NcclFunctions& f = *options_.functions;
  WEFT_RETURN_IF_ERROR(NcclStatus(f, f.CommGetAsyncError(comm_, &progress),
                                  "ncclCommGetAsyncError", comm_));
  if (progress == Result::kInProgress) return progress;
  WEFT_RETURN_IF_ERROR(NcclStatus(f, progress, "NCCL", comm_));
  return progress;
}

absl::Status NcclCommunicator::Await(absl::string_view name,
                                     const DeviceWait& wait) {
  for (absl::Duration pause = kLeastPause;;
       pause = std::min(pause * 2, kMostPause)) {
    WEFT_ASSIGN_OR_RETURN(const Result progress, Progress());
    if (progress != Result::kInProgress) return absl::OkStatus();
    if (wait.check != nullptr) WEFT_RETURN_IF_ERROR(wait.check());
    if (wait.clock.Now() >= wait.deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          name, " of rank ", options_.rank, " of ", options_.size,
          " has not ended in time: other ranks have not called it, or cannot "
          "be reached (NCCL_DEBUG=INFO says which interfaces it takes)"));
    }
    absl::SleepFor(pause);
  }
}

absl::Status NcclCommunicator::Launch(const Operation& operation,
                                      bool with_factors,
                                      DeviceScratch& scratch) {
  MutexLock lock(mu_);
  if (comm_ == nullptr) return Ended();
  const NcclPlace place = {*options_.functions, comm_,
                           options_.rank,       options_.size,
                           *options_.context,   options_.stream};
  return OnDevice("NCCL", [&](nccl::NativeStream native) -> absl::Status {
    return LaunchOnNccl(place, operation, with_factors, native, scratch);
  });
}

absl::StatusOr<bool> NcclCommunicator::IsReady() {
  WEFT_ASSIGN_OR_RETURN(const Result progress, Progress());
  return progress != Result::kInProgress;
}

absl::Status NcclCommunicator::Enqueue(const Operation& operation,
                                       bool with_factors,
                                       DeviceScratch& scratch,
                                       const DeviceWait& wait) {
  WEFT_RETURN_IF_ERROR(Launch(operation, with_factors, scratch));
  WEFT_RETURN_IF_ERROR(Await(Name(operation.verb), wait));
  device::Runtime& runtime = options_.stream.runtime();
  for (const DeviceScratch::Copy& copy : scratch.copies) {
    WEFT_RETURN_IF_ERROR(
        runtime.CopyAsync(copy.to, copy.from, copy.bytes, options_.stream));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::AsyncError() {
  const absl::StatusOr<Result> progress = Progress();
  return progress.status();
}

void NcclCommunicator::Abort() {
  nccl::Comm comm = nullptr;
  {
    MutexLock lock(mu_);
    comm = std::exchange(comm_, nullptr);
  }
  if (comm == nullptr) return;
  // Holds all that it uses: it may outlive this.
  const auto abort = [options = options_, aborting = aborting_, comm] {
    CallOn(options.stream, "ncclCommAbort", [&](nccl::NativeStream) {
      const NcclFunctions& f = *options.functions;
      return NcclStatus(f, f.CommAbort(comm), "ncclCommAbort", nullptr);
    }).IgnoreError();
    MutexLock lock(aborting->mu);
    aborting->is_over = true;
    aborting->changed.NotifyAll();
  };
  absl::StatusOr<std::thread> thread = StartThread("abort of NCCL", abort);
  if (!thread.ok()) return abort();
  MutexLock lock(mu_);
  aborter_ = *std::move(thread);
}

void NcclCommunicator::AwaitAbort() {
  std::thread aborter;
  {
    MutexLock lock(mu_);
    aborter.swap(aborter_);
  }
  if (!aborter.joinable()) return;
  {
    const auto deadline = std::chrono::steady_clock::now() +
                          absl::ToChronoNanoseconds(kAbortTimeout);
    MutexLock lock(aborting_->mu);
    while (!aborting_->is_over &&
           aborting_->changed.WaitUntil(aborting_->mu, deadline)) {
    }
    if (!aborting_->is_over) return aborter.detach();
  }
  aborter.join();
}

}  // namespace weft::collectives
