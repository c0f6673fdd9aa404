// Context: the devices of one Runtime as tensors use them: their memory, kept
// by a CachingAllocator each, and the streams on which operations run.
//
//   WEFT_ASSIGN_OR_RETURN(std::shared_ptr<device::Context> devices,
//                         device::Context::Create(std::move(runtime), {}));
//   const Device gpu(*devices, 0);                   // weft/tensor/device.h
//   const Tensor x = Tensor::Zeros({2, 3}, DType::kF32, gpu);
//
// One for each process that trains, or for each rank of a test: two contexts
// share nothing, and a tensor of one is no argument beside a tensor of another.
//
// Lifetime: memory that was allocated keeps its Context; so a Context ends with
// the last tensor on it, and work that has not run by then is dropped or waited
// for as its Runtime says.

#ifndef WEFT_DEVICE_CONTEXT_H_
#define WEFT_DEVICE_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/device/caching_allocator.h"
#include "weft/device/device.h"
#include "weft/device/runtime.h"

namespace weft::device {

// Thread-safety: thread-safe.
class Context : public std::enable_shared_from_this<Context> {
 public:
  struct Options {
    CachingAllocator::Options memory;  // of each device
  };

  // kUnavailable if `runtime` has no device.
  static absl::StatusOr<std::shared_ptr<Context>> Create(
      std::unique_ptr<Runtime> runtime, Options options);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Runtime& runtime() { return *runtime_; }
  int device_count() const { return static_cast<int>(allocators_.size()); }
  // Device `index` of the runtime. REQUIRES: 0 <= index < device_count().
  Device device(int index) const { return Device{kind_, index}; }
  // REQUIRES: as device().
  CachingAllocator& allocator(int index) { return *allocators_[index]; }
  // Where operations of this thread run: that of its innermost StreamScope for
  // the device, or the default stream. The Runtime's errors.
  absl::StatusOr<Stream> CurrentStream(int index);

 private:
  Context(std::unique_ptr<Runtime> runtime, const Options& options);

  const std::unique_ptr<Runtime> runtime_;
  const Device::Kind kind_;
  std::vector<std::unique_ptr<CachingAllocator>> allocators_;  // by index
};

// Memory of a device, given back when this ends, though work that uses it may
// not have run.
//
// Thread-safety: thread-safe.
class Block {
 public:
  // At least `bytes` (>= 0), not initialised, for work on the current stream of
  // this thread. The errors of CachingAllocator::Allocate.
  // REQUIRES: as Context::device().
  static absl::StatusOr<std::shared_ptr<Block>> Allocate(Context& context,
                                                         int index,
                                                         int64_t bytes);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // An address of the device: the host must not touch it.
  void* address() const { return address_; }
  // Work on `stream` uses it too: it is not handed out before that has run.
  // This orders nothing else; two streams are ordered by events.
  void UsedOn(Stream stream);

 private:
  Block(std::shared_ptr<Context> context, int index, void* address,
        Stream stream);

  const std::shared_ptr<Context> context_;
  const int index_;
  void* const address_;
  const Stream stream_;  // that it was allocated for
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_CONTEXT_H_
