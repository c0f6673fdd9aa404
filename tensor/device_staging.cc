#include "weft/tensor/device_staging.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/device/current.h"

namespace weft {
namespace {

using ::weft::device::Event;
using ::weft::device::Runtime;
using ::weft::device::Stream;

// With this alignment loops over elements begin at the beginning of a cache
// line.
constexpr int64_t kAlignment = 64;
constexpr absl::Duration kLongestEnd = absl::Seconds(10);

int64_t RoundUp(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Few sizes, none more than a quarter larger than what is asked for: so that
// calls of about one size use the same memory again.
int64_t SizeClass(int64_t bytes) {
  constexpr int64_t kLeast = 4096;
  int64_t unit = kLeast / 4;
  while (unit * 8 <= bytes) unit *= 2;
  return std::max(kLeast, RoundUp(bytes, unit));
}

void TellOfStream(const Tensor& tensor, Stream stream) {
  device::Block* const block = tensor.storage()->block();
  if (block != nullptr) block->UsedOn(stream);
}

}  // namespace

DeviceStaging::~DeviceStaging() {
  const absl::Time deadline = absl::Now() + kLongestEnd;
  for (const std::unique_ptr<Served>& served : served_) {
    Runtime& runtime = served->context->runtime();
    for (Pinned& pinned : served->free) {
      const auto is_done = [&](const Event& event) {
        // A device that failed runs nothing any more.
        return !absl::IsDeadlineExceeded(
            runtime.Synchronize(event, deadline - absl::Now()));
      };
      if (!is_done(pinned.read_in) || !is_done(pinned.written_out)) continue;
      runtime.FreePinned(pinned.memory).IgnoreError();
    }
  }
}

int64_t DeviceStaging::pinned_bytes() const {
  MutexLock lock(mu_);
  return pinned_bytes_;
}

absl::StatusOr<DeviceStaging::Served*> DeviceStaging::Serve(Device device) {
  MutexLock lock(mu_);
  for (const std::unique_ptr<Served>& served : served_) {
    if (served->context.get() == device.context() &&
        served->index == device.index()) {
      return served.get();
    }
  }
  auto made = std::make_unique<Served>();
  made->context = device.context()->shared_from_this();
  made->index = device.index();
  Runtime& runtime = made->context->runtime();
  WEFT_ASSIGN_OR_RETURN(made->in, runtime.CreateStream(device.id()));
  WEFT_ASSIGN_OR_RETURN(made->out, runtime.CreateStream(device.id()));
  served_.push_back(std::move(made));
  return served_.back().get();
}

absl::StatusOr<DeviceStaging::Pinned> DeviceStaging::Take(Served& served,
                                                          int64_t bytes) {
  Runtime& runtime = served.context->runtime();
  const device::Device device = served.context->device(served.index);
  const int64_t wanted = SizeClass(bytes);
  const auto is_done = [&](const Event& event) {
    return runtime.Query(event).value_or(false);
  };
  {
    MutexLock lock(mu_);
    for (auto it = served.free.begin(); it != served.free.end(); ++it) {
      if (it->bytes != wanted || !is_done(it->read_in) ||
          !is_done(it->written_out)) {
        continue;
      }
      Pinned found = std::move(*it);
      served.free.erase(it);
      return found;
    }
  }
  Pinned made;
  WEFT_ASSIGN_OR_RETURN(made.read_in, runtime.CreateEvent(device));
  WEFT_ASSIGN_OR_RETURN(made.written_out, runtime.CreateEvent(device));
  WEFT_ASSIGN_OR_RETURN(void* const memory, runtime.AllocatePinned(wanted));
  made.memory = static_cast<std::byte*>(memory);
  made.bytes = wanted;
  MutexLock lock(mu_);
  pinned_bytes_ += wanted;
  return made;
}

void DeviceStaging::GiveBack(Served& served, Pinned pinned) {
  MutexLock lock(mu_);
  served.free.push_back(std::move(pinned));
}

absl::StatusOr<std::unique_ptr<StagedCall>> StagedCall::Begin(
    std::shared_ptr<DeviceStaging> staging, std::vector<StagedTensor> tensors) {
  std::unique_ptr<StagedCall> call(
      new StagedCall(std::move(staging), std::move(tensors)));
  WEFT_RETURN_IF_ERROR(call->Annotate(call->CopyInputs()));
  return call;
}

StagedCall::~StagedCall() {
  if (pinned_.memory == nullptr) return;
  staging_->GiveBack(*served_, std::move(pinned_));
}

absl::Status StagedCall::Annotate(const absl::Status& status) const {
  if (status.ok()) return status;
  return Reworded(
      status, absl::StrCat("between ", Name(tensors_.front().tensor.device()),
                           " and the host: ", status.message()));
}

absl::Status StagedCall::CopyInputs() {
  const Device device = tensors_.front().tensor.device();
  int64_t bytes = 0;
  for (const StagedTensor& staged : tensors_) {
    offsets_.push_back(bytes);
    bytes += RoundUp(staged.tensor.bytes(), kAlignment);
  }
  WEFT_ASSIGN_OR_RETURN(served_, staging_->Serve(device));
  WEFT_ASSIGN_OR_RETURN(caller_,
                        served_->context->CurrentStream(served_->index));
  WEFT_ASSIGN_OR_RETURN(pinned_, staging_->Take(*served_, bytes));
  Runtime& runtime = served_->context->runtime();
  WEFT_ASSIGN_OR_RETURN(called_, runtime.CreateEvent(device.id()));
  WEFT_RETURN_IF_ERROR(runtime.RecordEvent(called_, caller_));
  has_inputs_ = true;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i].tensor;
    if (!tensors_[i].is_read || tensor.numel() == 0) continue;
    if (has_inputs_) {
      WEFT_RETURN_IF_ERROR(runtime.StreamWaitEvent(served_->in, called_));
      has_inputs_ = false;
    }
    TellOfStream(tensor, served_->in);
    WEFT_RETURN_IF_ERROR(runtime.CopyAsync(host(i), tensor.address(),
                                           tensor.bytes(), served_->in));
  }
  if (has_inputs_) return absl::OkStatus();
  return runtime.RecordEvent(pinned_.read_in, served_->in);
}

absl::Status StagedCall::HoldCaller() {
  if (has_inputs_) return absl::OkStatus();  // there was nothing to copy
  return Annotate(
      served_->context->runtime().StreamWaitEvent(caller_, pinned_.read_in));
}

absl::StatusOr<bool> StagedCall::HasInputs() {
  if (has_inputs_) return true;
  const absl::StatusOr<bool> found =
      served_->context->runtime().Query(pinned_.read_in);
  if (!found.ok()) return Annotate(found.status());
  has_inputs_ = *found;
  return has_inputs_;
}

absl::Status StagedCall::AwaitInputs(absl::Duration timeout) {
  if (has_inputs_) return absl::OkStatus();
  const absl::Status waited =
      served_->context->runtime().Synchronize(pinned_.read_in, timeout);
  has_inputs_ = waited.ok();
  return Annotate(waited);
}

absl::Status StagedCall::End(absl::FunctionRef<void()> after) {
  Runtime& runtime = served_->context->runtime();
  const Stream out = served_->out;
  const auto copy = [&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(runtime.StreamWaitEvent(out, called_));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i].tensor;
      if (!tensors_[i].is_written || tensor.numel() == 0) continue;
      TellOfStream(tensor, out);
      WEFT_RETURN_IF_ERROR(
          runtime.CopyAsync(tensor.address(), host(i), tensor.bytes(), out));
    }
    WEFT_RETURN_IF_ERROR(runtime.RecordEvent(pinned_.written_out, out));
    {
      const device::StreamScope scope(out);
      after();
    }
    WEFT_ASSIGN_OR_RETURN(Event done, runtime.CreateEvent(out.device()));
    WEFT_RETURN_IF_ERROR(runtime.RecordEvent(done, out));
    return runtime.StreamWaitEvent(caller_, done);
  };
  return Annotate(copy());
}

}  // namespace weft
