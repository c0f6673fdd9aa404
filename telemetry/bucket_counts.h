// BucketCounts: a histogram that hot paths add to without a lock.

#ifndef WEFT_TELEMETRY_BUCKET_COUNTS_H_
#define WEFT_TELEMETRY_BUCKET_COUNTS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/telemetry/metrics.h"

namespace weft::telemetry {

// 1 us to 100 s in ns, three to a decade.
constexpr std::array<int64_t, 25> DurationBoundsInNs() {
  std::array<int64_t, 25> bounds = {};
  int64_t decade = 1000;
  for (size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = decade * (i % 3 == 0 ? 1 : i % 3 == 1 ? 2 : 5);
    if (i % 3 == 2) decade *= 10;
  }
  return bounds;
}
inline constexpr std::array<int64_t, 25> kDurationBoundsInNs =
    DurationBoundsInNs();

// 16 B to 1 GiB, by four.
constexpr std::array<int64_t, 14> SizeBounds() {
  std::array<int64_t, 14> bounds = {};
  int64_t bytes = 16;
  for (int64_t& bound : bounds) {
    bound = bytes;
    bytes *= 4;
  }
  return bounds;
}
inline constexpr std::array<int64_t, 14> kSizeBounds = SizeBounds();

// Values of one kind, as whole numbers of a small unit (ns, bytes), counted by
// the `kBounds` that they are not above.
//
// Thread-safety: thread-safe; ExportTo and TakeNew, one thread at a time.
template <size_t kBounds>
class BucketCounts {
 public:
  using Bounds = std::array<int64_t, kBounds>;  // increasing

  // `bounds` must outlive it.
  explicit BucketCounts(const Bounds& bounds) : bounds_(bounds) {
    for (int bits = 0; bits < 64; ++bits) {
      const int64_t least = bits == 0 ? 0 : int64_t{1} << (bits - 1);
      first_[bits] = static_cast<uint8_t>(
          std::lower_bound(bounds_.begin(), bounds_.end(), least) -
          bounds_.begin());
    }
  }

  // `value`: not negative.
  void Add(int64_t value) {
    size_t bucket = first_[Bits(value)];
    while (bucket < kBounds && value > bounds_[bucket]) ++bucket;
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  // Adds what is new since the last ExportTo to the histogram of that name, of
  // which a value is `unit` times one of these.
  void ExportTo(Metrics& metrics, const std::string& name,
                Metrics::Labels labels, double unit = 1) {
    const New found = TakeNew();
    if (found.empty) return;
    std::vector<double> bounds;
    for (const int64_t bound : bounds_) {
      bounds.push_back(static_cast<double>(bound) * unit);
    }
    metrics.HistogramFor(name, std::move(labels), std::move(bounds))
        .ObserveMany(found.counts, found.sum * unit);
  }

  // What was added since the last TakeNew: the counts of the buckets, of which
  // the last is above all bounds, and the sum of the values. A value that is
  // being added may be in one of the two only, and then is in the other next
  // time.
  struct New {
    std::vector<double> counts;
    double sum = 0;
    bool empty = true;
  };
  New TakeNew() {
    New found;
    for (size_t i = 0; i <= kBounds; ++i) {
      const int64_t now = counts_[i].load(std::memory_order_relaxed);
      found.empty = found.empty && now == taken_[i];
      found.counts.push_back(static_cast<double>(now - taken_[i]));
      taken_[i] = now;
    }
    const int64_t sum = sum_.load(std::memory_order_relaxed);
    found.sum = static_cast<double>(sum - taken_sum_);
    taken_sum_ = sum;
    return found;
  }

 private:
  static int Bits(int64_t value) {
    return value <= 0 ? 0 : 64 - __builtin_clzll(static_cast<uint64_t>(value));
  }

  static_assert(kBounds < 256);
  const Bounds& bounds_;
  std::array<uint8_t, 64> first_;  // bucket of the least value of so many bits
  std::array<std::atomic<int64_t>, kBounds + 1> counts_ = {};
  std::atomic<int64_t> sum_{0};
  std::array<int64_t, kBounds + 1> taken_ = {};
  int64_t taken_sum_ = 0;
};

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_BUCKET_COUNTS_H_
