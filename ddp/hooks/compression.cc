#include "weft/ddp/hooks/compression.h"

#include <utility>

namespace weft::ddp {

Future<void> CompressionHook::Reduce(collectives::ProcessGroup& group,
                                     const GradientBucket& bucket) {
  if (ItemSize(bucket.buffer.dtype()) <= ItemSize(dtype_)) {
    return group.AllReduceAsync(bucket.buffer, bucket.reduction, bucket.call);
  }
  Tensor& compressed = compressed_[bucket.index];
  // Buckets are planned again after the first step.
  if (!compressed.defined() || compressed.shape() != bucket.buffer.shape()) {
    compressed = Tensor();
    auto shared = group.Allocate(bucket.buffer.shape(), dtype_);
    compressed = shared.ok() ? *std::move(shared)
                             : Tensor::Empty(bucket.buffer.shape(), dtype_);
  }
  compressed.CopyFrom(bucket.buffer);
  return group.AllReduceAsync(compressed, bucket.reduction, bucket.call)
      .Then([compressed, buffer = bucket.buffer] {
        buffer.CopyFrom(compressed);
      });
}

}  // namespace weft::ddp
