// Elements: where the elements of a safetensors file go while it is read piece
// by piece: to tensors of the CPU, to tensors of a device
// (device_elements.h), or nowhere.
//
//   WEFT_ASSIGN_OR_RETURN(Safetensors content, ReadSafetensors(path, device));

#ifndef WEFT_CHECKPOINT_ELEMENTS_H_
#define WEFT_CHECKPOINT_ELEMENTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/checkpoint/file_system.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/tensor/tensor.h"

namespace weft::checkpoint {

// The most that is read at once.
inline constexpr int64_t kPieceBytes = int64_t{4} << 20;

// It may be used for one file after the other, also after one that failed.
//
// Thread-safety: one thread at a time.
class Elements {
 public:
  // To tensors of `device`: HostElements or DeviceElements, whose errors it
  // has.
  static absl::StatusOr<std::unique_ptr<Elements>> To(Device device);

  Elements() = default;
  virtual ~Elements() = default;
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;

  // The tensor that gets the pieces that follow; undefined if they go nowhere.
  virtual absl::StatusOr<Tensor> Begin(const TensorEntry& entry) = 0;
  // Where the host is to write the next piece: at most `bytes` (> 0), at least
  // one byte.
  virtual absl::StatusOr<absl::Span<char>> Next(int64_t bytes) = 0;
  // All of that piece is written. The host does not touch it any more.
  virtual absl::Status Take() = 0;
  // Returns once all that was taken is in its tensors.
  virtual absl::Status Finish() = 0;

  // The first error of the above: for want of memory, or of a device. OK if
  // what failed was the file.
  const absl::Status& failure() const { return failure_; }

 protected:
  // Keeps `status` as failure(), unless there is one, and returns it.
  absl::Status Fail(const absl::Status& status);

 private:
  absl::Status failure_;
};

// To new tensors of the CPU, without a copy. kResourceExhausted.
class HostElements final : public Elements {
 public:
  absl::StatusOr<Tensor> Begin(const TensorEntry& entry) override;
  absl::StatusOr<absl::Span<char>> Next(int64_t bytes) override;
  absl::Status Take() override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  char* next_ = nullptr;
};

// Nowhere: for who looks whether a file is whole.
class NoElements final : public Elements {
 public:
  absl::StatusOr<Tensor> Begin(const TensorEntry& entry) override;
  absl::StatusOr<absl::Span<char>> Next(int64_t bytes) override;
  absl::Status Take() override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  std::string piece_;
};

// Reads the file at `path`, of `bytes`, from its front on. On the host there
// are the header, one piece and what `elements` takes. `see` is given all bytes
// in their order.
//
// The errors of ParseSafetensors, of `files` and of `elements`. kDataLoss if
// the file ends before byte `bytes`.
absl::StatusOr<Safetensors> ReadSafetensors(
    FileSystem& files, const std::string& path, int64_t bytes,
    Elements& elements, absl::FunctionRef<void(absl::string_view bytes)> see);
// The same of a file of the system, to tensors of `device`.
absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path,
                                            Device device = Device::Cpu());

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_ELEMENTS_H_
