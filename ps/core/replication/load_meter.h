// LoadMeter: how much work each partition of one table makes on one server.
//
// Whoever serves a request adds to relaxed atomic counters: no lock. The caller
// of Advance() says what time it is; from there on what was counted loses half
// of its weight in each half-life. A rate is what was counted by the time in
// which it was, both with that weight, so it is right from the first moment
// on, and the rates of two servers that have served a partition one after the
// other add up to that of the partition.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_CORE_LOAD_METER_H_
#define WEFT_PS_CORE_LOAD_METER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"

namespace weft::ps {

// The work of one second, pushes and pulls together.
struct Load {
  double requests = 0;  // parts of requests: one for each partition named
  double rows = 0;
  double bytes = 0;   // keys and values
  double busy = 0;    // seconds in which a thread was at work on them
  double backup = 0;  // the same, on what a primary sent to this backup

  Load& operator+=(const Load& more) {
    requests += more.requests;
    rows += more.rows;
    bytes += more.bytes;
    busy += more.busy;
    backup += more.backup;
    return *this;
  }
};

class LoadMeter {
 public:
  static constexpr absl::Duration kHalfLife = absl::Seconds(10);

  // Counts for the partitions first, first + stride, ... below `partitions`;
  // counts for others are dropped.
  explicit LoadMeter(int partitions, int first = 0, int stride = 1,
                     absl::Duration half_life = kHalfLife);

  // A request names `rows` rows of a partition.
  void Count(int partition, int64_t rows, int64_t bytes);
  // A thread was at work on one for so long; as its primary, as its backup.
  void Busy(int partition, absl::Duration time);
  void BackupBusy(int partition, absl::Duration time);

  // The same, of a request for several partitions whose times were not
  // measured one by one: each has a share by its rows.
  struct Share {
    int partition = 0;
    int64_t rows = 0;
  };
  void Busy(absl::Span<const Share> shares, absl::Duration time);
  void BackupBusy(absl::Span<const Share> shares, absl::Duration time);

  // What has been counted since the last call was counted by `now`. About each
  // second. The first call begins the time. Calls of less than half a second
  // after the last do nothing, nor do those of earlier moments.
  void Advance(Instant now) ABSL_LOCKS_EXCLUDED(mu_);

  // As of the last Advance().
  struct OfPartition {
    int partition = 0;
    Load load;
  };
  std::vector<OfPartition> Loads() const ABSL_LOCKS_EXCLUDED(mu_);
  Load Total() const ABSL_LOCKS_EXCLUDED(mu_);

  // All that was counted before the last Advance(): requests, rows, bytes, and
  // seconds of work.
  Load Sum() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum Kind { kRequests, kRows, kBytes, kBusy, kBackup, kKinds };
  // On a cache line of its own: threads are at work on several partitions.
  struct alignas(64) Counters {
    std::array<std::atomic<int64_t>, kKinds> counts{};
  };
  using Sums = std::array<float, kKinds>;  // with their weights

  Counters* Find(int partition) const;
  void Add(int partition, Kind kind, int64_t more);
  void AddShares(absl::Span<const Share> shares, Kind kind,
                 absl::Duration time);
  Load RateOf(const Sums& sums) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int first_;
  const int stride_;
  const int size_;
  const absl::Duration half_life_;
  const std::unique_ptr<Counters[]> counters_;

  mutable Mutex mu_;
  bool has_begun_ ABSL_GUARDED_BY(mu_) = false;
  Instant advanced_ ABSL_GUARDED_BY(mu_);
  double seconds_ ABSL_GUARDED_BY(mu_) = 0;      // with their weights
  std::vector<Sums> sums_ ABSL_GUARDED_BY(mu_);  // as counters_
  std::array<double, kKinds> total_ ABSL_GUARDED_BY(mu_) = {};
};

// Seconds of work in a second on a group of partitions, at all servers: as
// their primary, and as their backup.
struct EntryLoad {
  double primary = 0;
  double backup = 0;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_LOAD_METER_H_
