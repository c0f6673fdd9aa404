#include "weft/ddp/bucket_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/base/check.h"

namespace weft::ddp {
namespace {

// The open bucket of one dtype and device: there are few, so a list is
// searched.
struct OpenBucket {
  DType dtype;
  Device device;
  size_t limit = 0;  // an index of limits
  int64_t bytes = 0;
  Bucket items;
};

OpenBucket& OpenBucketOf(const BucketItem& item,
                         std::vector<OpenBucket>& open) {
  for (OpenBucket& bucket : open) {
    if (bucket.dtype == item.dtype && bucket.device == item.device) {
      return bucket;
    }
  }
  open.push_back({item.dtype, item.device, 0, 0, {}});
  return open.back();
}

}  // namespace

std::vector<Bucket> PlanBuckets(absl::Span<const BucketItem> items,
                                absl::Span<const int64_t> limits_bytes,
                                absl::Span<const int> order) {
  WEFT_CHECK(!limits_bytes.empty());
  WEFT_CHECK(order.empty() || order.size() == items.size());
  Bucket walk(order.begin(), order.end());
  if (order.empty()) {
    walk.resize(items.size());
    std::iota(walk.begin(), walk.end(), 0);
  }
  std::vector<Bucket> buckets;
  std::vector<OpenBucket> open;
  for (const int i : walk) {
    if (items[i].is_sparse) {
      buckets.push_back({i});
      continue;
    }
    OpenBucket& bucket = OpenBucketOf(items[i], open);
    bucket.items.push_back(i);
    bucket.bytes += items[i].bytes;
    if (bucket.bytes < limits_bytes[bucket.limit]) continue;
    buckets.push_back(std::exchange(bucket.items, {}));
    bucket.bytes = 0;
    bucket.limit = std::min(bucket.limit + 1, limits_bytes.size() - 1);
  }
  for (OpenBucket& bucket : open) {
    if (!bucket.items.empty()) buckets.push_back(std::move(bucket.items));
  }
  if (order.empty()) {
    // Items were taken in order, so the first of a bucket is its smallest.
    std::sort(
        buckets.begin(), buckets.end(),
        [](const Bucket& a, const Bucket& b) { return a.front() < b.front(); });
  }
  return buckets;
}

}  // namespace weft::ddp
