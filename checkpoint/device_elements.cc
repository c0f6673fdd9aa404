#include "weft/checkpoint/device_elements.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/device/current.h"

namespace weft::checkpoint {
namespace {

constexpr absl::Duration kLongestEnd = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceElements>> DeviceElements::Create(
    Device device, const Options& options) {
  WEFT_CHECK(!device.is_cpu());
  WEFT_CHECK_GE(options.pieces, 1);
  WEFT_CHECK_GE(options.piece_bytes, 1);
  std::unique_ptr<DeviceElements> elements(new DeviceElements(device, options));
  WEFT_RETURN_IF_ERROR(elements->Annotate(elements->Prepare()));
  return elements;
}

absl::Status DeviceElements::Prepare() {
  device::Runtime& runtime = context_->runtime();
  WEFT_ASSIGN_OR_RETURN(stream_, context_->CurrentStream(device_.index()));
  for (int i = 0; i < options_.pieces; ++i) {
    Piece piece;
    WEFT_ASSIGN_OR_RETURN(piece.copied, runtime.CreateEvent(device_.id()));
    WEFT_ASSIGN_OR_RETURN(void* const memory,
                          runtime.AllocatePinned(options_.piece_bytes));
    piece.memory = static_cast<char*>(memory);
    pieces_.push_back(std::move(piece));
  }
  return absl::OkStatus();
}

DeviceElements::~DeviceElements() {
  device::Runtime& runtime = context_->runtime();
  const absl::Time deadline = absl::Now() + kLongestEnd;
  for (const Piece& piece : pieces_) {
    // A device that failed runs nothing any more.
    if (!absl::IsDeadlineExceeded(
            runtime.Synchronize(piece.copied, deadline - absl::Now()))) {
      runtime.FreePinned(piece.memory).IgnoreError();
    }
  }
}

absl::Status DeviceElements::Annotate(const absl::Status& status) {
  if (status.ok()) return status;
  return Fail(Reworded(status, absl::StrCat("from a file to ", Name(device_),
                                            ": ", status.message())));
}

absl::StatusOr<Tensor> DeviceElements::Begin(const TensorEntry& entry) {
  // The memory is this stream's, whatever is current now.
  const device::StreamScope scope(stream_);
  absl::StatusOr<Tensor> tensor = CatchToStatus(
      [&] { return Tensor::Empty(entry.shape, entry.dtype, device_); });
  if (!tensor.ok()) return Annotate(tensor.status());
  tensor_ = *tensor;
  to_ = static_cast<char*>(tensor_.address());
  return tensor;
}

absl::StatusOr<absl::Span<char>> DeviceElements::Next(int64_t bytes) {
  const Piece& piece = pieces_[turn_];
  WEFT_RETURN_IF_ERROR(Annotate(
      context_->runtime().Synchronize(piece.copied, options_.timeout)));
  size_ = std::min(bytes, options_.piece_bytes);
  return absl::MakeSpan(piece.memory, static_cast<size_t>(size_));
}

absl::Status DeviceElements::Take() {
  device::Runtime& runtime = context_->runtime();
  Piece& piece = pieces_[turn_];
  turn_ = (turn_ + 1) % pieces_.size();
  WEFT_RETURN_IF_ERROR(Annotate(runtime.CopyAsync(
      std::exchange(to_, to_ + size_), piece.memory, size_, stream_)));
  return Annotate(runtime.RecordEvent(piece.copied, stream_));
}

absl::Status DeviceElements::Finish() {
  tensor_ = Tensor();
  for (const Piece& piece : pieces_) {
    WEFT_RETURN_IF_ERROR(Annotate(
        context_->runtime().Synchronize(piece.copied, options_.timeout)));
  }
  return absl::OkStatus();
}

}  // namespace weft::checkpoint
