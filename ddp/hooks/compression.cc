#include "weft/ddp/hooks/compression.h"

#include <utility>

namespace weft::ddp {
namespace {

// A tensor of the shape of `buffer` on its device: on the CPU in the group's
// own memory, if that has room.
Tensor EmptyFor(collectives::ProcessGroup& group, const Tensor& buffer,
                DType dtype) {
  if (buffer.device().is_cpu()) {
    absl::StatusOr<Tensor> shared = group.Allocate(buffer.shape(), dtype);
    if (shared.ok()) return *std::move(shared);
  }
  return Tensor::Empty(buffer.shape(), dtype, buffer.device());
}

}  // namespace

Future<void> CompressionHook::Reduce(collectives::ProcessGroup& group,
                                     const GradientBucket& bucket) {
  if (ItemSize(bucket.buffer.dtype()) <= ItemSize(dtype_)) {
    return group.AllReduceAsync(bucket.buffer, bucket.reduction, bucket.call);
  }
  Tensor& compressed = compressed_[bucket.index];
  // Buckets are planned again after the first step.
  if (!compressed.defined() || compressed.shape() != bucket.buffer.shape() ||
      compressed.device() != bucket.buffer.device()) {
    compressed = Tensor();
    compressed = EmptyFor(group, bucket.buffer, dtype_);
  }
  compressed.CopyFrom(bucket.buffer);
  return group.AllReduceAsync(compressed, bucket.reduction, bucket.call)
      .Then([compressed, buffer = bucket.buffer] {
        buffer.CopyFrom(compressed);
      });
}

}  // namespace weft::ddp
