// BucketPlan: which gradients are reduced together.
//
// A gradient that is reduced alone pays one latency; one large buffer for all
// cannot be reduced before the last of them is there. Buckets lie between.
//
// Source: the bucket assignment of PyTorch's reducer, in O(n).

#ifndef WEFT_DDP_BUCKET_PLAN_H_
#define WEFT_DDP_BUCKET_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "weft/tensor/device.h"
#include "weft/tensor/dtype.h"

namespace weft::ddp {

// One gradient.
struct BucketItem {
  int64_t bytes = 0;
  DType dtype = DType::kF32;
  Device device = Device::Cpu();
  // Sent as rows: gets a bucket of its own.
  bool is_sparse = false;
};

// Indices of items, each once.
using Bucket = std::vector<int>;

// The buckets of `items`, each of one dtype and one device.
//
// Items are taken in `order`, each index once; if it is empty, as they come.
// Each dtype and device has one open bucket, and its own place in
// `limits_bytes`: an item that brings the bucket to the limit or above closes
// it, and the next bucket has the next limit; the last one counts for all that
// follow. So a bucket exceeds its limit by less than one item.
//
// Buckets come in the order in which they were closed; those that are open at
// the end follow, the one that was opened first before the others. Without an
// order they are sorted by their smallest index instead.
//
// REQUIRES: limits_bytes is not empty; `order` is empty or a permutation.
//
// Thread-safety: a pure function.
std::vector<Bucket> PlanBuckets(absl::Span<const BucketItem> items,
                                absl::Span<const int64_t> limits_bytes,
                                absl::Span<const int> order = {});

}  // namespace weft::ddp

#endif  // WEFT_DDP_BUCKET_PLAN_H_
