#include "weft/autograd/autocast.h"

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "weft/autograd/leaf.h"
#include "weft/base/error.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"
#include "weft/tensor/intrusive_ptr.h"
#include "weft/tensor/ops/wide.h"

namespace weft {
namespace internal {

// Casts of leaves, each with what tells whether it is still right.
class CastCache {
 public:
  Tensor Find(const IntrusivePtr<LeafValue>& value, DType dtype) {
    const device::Stream stream = StreamOf(value->tensor);
    Entry& entry = entries_[{value.get(), dtype}];
    const bool is_right = entry.cast.defined() && entry.stream == stream &&
                          value->IsSame(entry.moves, entry.version);
    if (!is_right) {
      entry.value = value;
      entry.moves = value->moves;
      entry.version = value->tensor.version();
      entry.stream = stream;
      entry.cast = value->tensor.To(dtype);
    }
    return entry.cast;
  }

 private:
  struct Entry {
    IntrusivePtr<LeafValue> value;  // keeps the address from being used again
    uint64_t moves = 0;
    uint64_t version = 0;
    device::Stream stream;
    Tensor cast;
  };

  // The stream on which a cast of `x` is made; none on the CPU.
  static device::Stream StreamOf(const Tensor& x) {
    const Device device = x.device();
    if (device.is_cpu()) return device::Stream();
    const absl::StatusOr<device::Stream> stream =
        device.context()->CurrentStream(device.index());
    ThrowIfError(stream.status());
    return *stream;
  }

  absl::flat_hash_map<std::pair<const LeafValue*, DType>, Entry> entries_;
};

}  // namespace internal

AutocastScope::AutocastScope(std::optional<DType> dtype)
    : dtype_(dtype),
      around_(current_),
      outermost_(current_ == nullptr ? *this : current_->outermost_) {
  if (dtype.has_value() && !internal::IsHalf(*dtype)) {
    ThrowInvalidArgument("AutocastScope: the dtype is ", Name(*dtype),
                         "; wanted f16 or bf16");
  }
  current_ = this;
}

AutocastScope::~AutocastScope() { current_ = around_; }

Tensor AutocastScope::Cast(const Variable& x, DType dtype) {
  if (x.leaf() == nullptr || current_ == nullptr) return x.value().To(dtype);
  std::unique_ptr<internal::CastCache>& cache = current_->outermost_.cache_;
  if (cache == nullptr) cache = std::make_unique<internal::CastCache>();
  return cache->Find(x.leaf()->shared_value(), dtype);
}

}  // namespace weft
