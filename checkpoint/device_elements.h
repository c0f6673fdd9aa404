// DeviceElements: elements of a file on their way to a device, through a few
// pieces of pinned memory.
//
//   host     read and check piece 0 | piece 1 | await copy of 0, read | ...
//   stream                          copy 0    | copy 1           | ...

#ifndef WEFT_CHECKPOINT_DEVICE_ELEMENTS_H_
#define WEFT_CHECKPOINT_DEVICE_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/checkpoint/elements.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"

namespace weft::checkpoint {

// Copies are put on the stream that was current on the thread of Create, and
// the tensors are for work of that stream. After Finish, work of any stream
// finds them whole.
//
// Errors are those of device/runtime.h, and name the device. kDeadlineExceeded:
// a copy took longer than `timeout`.
//
// Thread-safety: one thread at a time.
class DeviceElements final : public Elements {
 public:
  struct Options {
    int pieces = 2;                     // at least 1
    int64_t piece_bytes = kPieceBytes;  // of each; at least 1
    absl::Duration timeout = absl::Minutes(5);
  };

  // Allocates the pinned memory, `pieces` times `piece_bytes`.
  // kResourceExhausted. REQUIRES: `device` is not the CPU.
  static absl::StatusOr<std::unique_ptr<DeviceElements>> Create(
      Device device, const Options& options);
  // Waits for copies that go on, at most 10 s; what they use then stays with
  // the Runtime.
  ~DeviceElements() override;

  absl::StatusOr<Tensor> Begin(const TensorEntry& entry) override;
  absl::StatusOr<absl::Span<char>> Next(int64_t bytes) override;
  absl::Status Take() override;
  absl::Status Finish() override;

 private:
  // The host may write to it once its last copy is done.
  struct Piece {
    char* memory = nullptr;
    device::Event copied;
  };

  DeviceElements(Device device, const Options& options)
      : context_(device.context()->shared_from_this()),
        device_(device),
        options_(options) {}
  absl::Status Prepare();
  // `status`, with what failed.
  absl::Status Annotate(const absl::Status& status);

  const std::shared_ptr<device::Context> context_;
  const Device device_;
  const Options options_;
  device::Stream stream_;
  std::vector<Piece> pieces_;
  size_t turn_ = 0;     // whose turn it is
  int64_t size_ = 0;    // of what Next gave of it
  Tensor tensor_;       // of the last Begin
  char* to_ = nullptr;  // where its next element goes; of the device
};

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_DEVICE_ELEMENTS_H_
